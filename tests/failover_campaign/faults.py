"""What the campaign does to a group: each kind strikes, lasts for a while, and is healed.

A fault knows the processes and links, and nothing of how the group is to get over it.
"""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from meta_server.groups.elections import BLOCKED_AGAIN_S
from tests.failover_campaign.network import Namespaces
from tests.failover_campaign.site import GROUP, NODES, Node, Site, StuckError

SUPERVISOR_S: Final = 0.1
"""What was killed is started again after this."""
STOPPED_S: Final = 12.0
"""For which a process is stopped by SIGSTOP."""
HANG_S: Final = 15.0
"""For which fsyncs hang; the rule is that a master hands over after 10 s."""
FULL_S: Final = 15.0
"""For which a disk is full, if nobody hands over before; the rule is 5 s."""
META_CUT_S: Final = 8.0
"""For which the master and the meta server do not hear each other."""
EXIT_S: Final = 20.0


@dataclass(slots=True)
class Blow:
    """One fault of a plan, about to be struck."""

    site: Site
    master: Node
    draw: float
    """From 0 to 1: what the kind leaves to chance."""
    meta_away_s: float = 0.0
    """From the blow to the return of the meta server, if it was away."""
    note: str = ""
    """What is worth telling."""

    @property
    def slaves(self) -> list[str]:
        """Return the names of the others."""
        return [name for name in NODES if name != self.master.name]

    @property
    def network(self) -> Namespaces:
        """Return the network, of which links can be cut."""
        assert isinstance(self.site.network, Namespaces)
        return self.site.network


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault."""

    name: str
    strike: Callable[[Blow], None]
    heal: Callable[[Blow], None]
    lasts_s: float = 0.0
    """It is healed after this, and once there is another master; not before both."""
    needs: str = ""
    """What it needs: "links", "fsync", "disk" or "power"; nothing else than processes if empty."""
    elects: bool = True
    """False if the group is to go on with its master."""
    is_quick: bool = False
    """True if it is over within seconds."""
    calm_s: float = 0.0
    """All is well for so long before it, at the least."""


def _nothing(_: Blow) -> None:
    """Leave it as it is."""


def _kill(blow: Blow) -> None:
    blow.master.kill()


def _start(blow: Blow) -> None:
    if blow.master.pid is None:
        blow.master.start()


def _kill_and_restart(blow: Blow) -> None:
    blow.master.kill()
    time.sleep(SUPERVISOR_S)
    blow.master.start()


def _stop(blow: Blow) -> None:
    blow.master.signal(signal.SIGSTOP)


def _continue(blow: Blow) -> None:
    blow.master.signal(signal.SIGCONT)


def _terminate(blow: Blow) -> None:
    blow.master.signal(signal.SIGTERM)
    code = blow.master.wait(EXIT_S)
    if code != 0:
        raise StuckError(f"exit code {code} after SIGTERM of {blow.master.name}")
    time.sleep(SUPERVISOR_S)
    blow.master.start()


def _hand_over(blow: Blow) -> None:
    done = blow.site.admin("handover", GROUP)
    blow.note = " ".join(f"exit code {done.returncode}: {done.stdout} {done.stderr}".split())[:200]


def _kill_with_meta(blow: Blow) -> None:
    """Kill the master, and the meta server somewhere in the election that follows."""
    began = time.monotonic()
    blow.master.kill()
    time.sleep(4 * blow.draw)
    blow.site.kill_meta()
    time.sleep(0.1 + (blow.draw * 7 % 1))
    blow.site.start_meta()
    blow.meta_away_s = time.monotonic() - began


def _link_down(blow: Blow) -> None:
    blow.network.set_link(blow.master.name, up=False)


def _link_up(blow: Blow) -> None:
    blow.network.set_link(blow.master.name, up=True)


_Cut = tuple[str, str]


def _one_way(blow: Blow) -> list[_Cut]:
    """Everybody hears the master and it hears nobody, or the other way round."""
    others = [*blow.slaves, "meta", "producers", "receivers", "brokers"]
    if blow.draw < 0.5:
        return [(blow.master.name, other) for other in others]
    return [(other, blow.master.name) for other in others]


def _both_ways(blow: Blow, *others: str) -> list[_Cut]:
    name = blow.master.name
    return [cut for other in others for cut in ((name, other), (other, name))]


def _cutting(
    cuts_of: Callable[[Blow], list[_Cut]],
) -> tuple[Callable[[Blow], None], Callable[[Blow], None]]:
    def cut(blow: Blow) -> None:
        for one in cuts_of(blow):
            blow.network.cut(*one)

    def mend(blow: Blow) -> None:
        for one in cuts_of(blow):
            blow.network.mend(*one)

    return cut, mend


def _fail_fsync(blow: Blow) -> None:
    """Fail each fsync from now on; the process ends, and a supervisor starts it again."""
    failing = blow.master.switch.with_suffix(".eio")
    failing.touch()
    try:
        code = blow.master.wait(EXIT_S)
    finally:
        failing.unlink()
    blow.note = f"exit code {code}" if code is not None else "it goes on"
    time.sleep(SUPERVISOR_S)
    _start(blow)


def _hang_fsync(blow: Blow) -> None:
    blow.master.switch.with_suffix(".hang").touch()


def _end_hang(blow: Blow) -> None:
    blow.master.switch.with_suffix(".hang").unlink()
    blow.note = "it lives on" if blow.master.pid is not None else "it ended"
    _start(blow)


def _fill(blow: Blow) -> None:
    blow.master.fill_disk()


def _make_room(blow: Blow) -> None:
    blow.master.free_disk()
    blow.note = "it lives on" if blow.master.pid is not None else "it ended"
    _start(blow)


def _cut_power(blow: Blow) -> None:
    blow.master.cut_power(int(blow.draw * 2**32))
    blow.master.start()


KINDS: Final = (
    Kind("kill, restarted", _kill_and_restart, _nothing, is_quick=True),
    Kind("kill, gone", _kill, _start, is_quick=True),
    Kind("SIGSTOP for 12 s", _stop, _continue, lasts_s=STOPPED_S),
    Kind("SIGTERM, restarted", _terminate, _nothing, is_quick=True),
    Kind("handover", _hand_over, _nothing, is_quick=True),
    Kind("kill, meta server killed in the election", _kill_with_meta, _start),
    Kind("link down", _link_down, _link_up, needs="links", is_quick=True),
    Kind("one-way partition", *_cutting(_one_way), needs="links", is_quick=True),
    Kind(
        "cut off from slaves",
        *_cutting(lambda blow: _both_ways(blow, *blow.slaves)),
        needs="links",
        calm_s=BLOCKED_AGAIN_S,
    ),
    Kind(
        "cut off from the meta server",
        *_cutting(lambda blow: _both_ways(blow, "meta")),
        lasts_s=META_CUT_S,
        needs="links",
        elects=False,
    ),
    Kind("fsync fails", _fail_fsync, _nothing, needs="fsync", is_quick=True),
    Kind("fsync hangs", _hang_fsync, _end_hang, lasts_s=HANG_S, needs="fsync"),
    Kind("disk full", _fill, _make_room, lasts_s=FULL_S, needs="disk"),
    Kind("power cut", _cut_power, _nothing, needs="power"),
)
