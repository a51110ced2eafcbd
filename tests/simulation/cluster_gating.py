"""An operator who pauses, limits, weighs and resumes at the meta server of a cluster's world.

What the store held at each moment is known (meta_store.py), and so is by which document the delay
server says that it goes. So of each moment it is known which documents it may go by: the one that
it said last, or one that was stored since and may count for it, as docs/decisions/0021 has it.
Those are the epochs of gating.py, whose judge looks at what brokers got. Beside it:

    told        the server goes by what the store had, and never by less than it has gone by; also
                after a restart, whether the meta server is there or not; nothing that it holds back
                is let go by another store's rules, or by other ones of the same version; when all
                is well it goes by what is stored within a second, and delivers nothing after a
                start before that; weights are those of the document
"""

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

import msgspec
import trio

from delay_protocol.nodes.controls import Controls
from delay_server.server import DelayServer
from sender.groups.group_status import GroupState
from storage.disk.errors import FatalDiskError, StorageFullError
from tests.simulation.cluster_judge import CONVERGED_S, Wellness
from tests.simulation.cluster_meta import SimMeta
from tests.simulation.gating import GateJudge, Standing
from tests.simulation.meta_operator import (
    RuleChange,
    draw_rule_change,
    no_group_rule,
    no_subject_rule,
    subject_change,
)
from tests.simulation.meta_witness import CONTROLS_WITHIN_S
from tests.simulation.network import SimNetwork

_PATH = "controls"
_SIZE_AT, _DOCUMENT_AT = 64, 72
"""Of the file: see docs/formats/controls.md."""
_LOOK_S = 1.0
"""How often the server is asked by which rules it goes."""
_CONNECTED_S = 30.0
"""In which a server that was started has found its meta server."""
_OPENED_S = 1800.0
"""In which everything is open at the end."""
_NAMES = ("orders", "orders.paid", "flights", "grüße", "hot", "%RETRY%x", "another")
"""Subjects of which it is seen whether they are let go."""


@dataclass(slots=True)
class MetaGating(GateJudge):
    """The operator, and the judge of what the delay server makes of what it is told."""

    _meta: SimMeta | None = None
    _well: Wellness = field(default_factory=Wellness)
    _network: SimNetwork | None = None
    _counts: Counter[str] = field(default_factory=Counter)
    _cluster: str = ""
    _possible: list[Controls] = field(default_factory=lambda: [Controls()])
    """Documents of which the server goes by one."""
    _stored: list[Controls] = field(default_factory=list)
    """All that were ever in the store, in their order."""
    _seen: int = 0
    """Commits of the store that were looked at."""
    _serving: DelayServer | None = None
    _goes_by: Controls = field(default_factory=Controls)
    """What the server was last seen to go by, and has told its meta server."""
    _taken: int = 0
    """How many documents it had taken by then, in its life."""
    _may_be_full: Callable[[], bool] = lambda: False
    _forced: bool = False
    """Whether it is being told to go by what it hears, whatever that opens."""
    _started_s: float = math.inf
    _slow_s: float = 0.0
    """For which something may keep it from new rules in this life."""

    def attach(
        self,
        meta: SimMeta,
        *,
        well: Wellness,
        network: SimNetwork,
        counts: Counter[str],
        cluster: str,
        may_be_full: Callable[[], bool] = lambda: False,
    ) -> None:
        """Work at this meta server, for the nodes of a cluster.

        counts: what was judged; may_be_full: whether the node's disk may have no space for rules.
        """
        self._meta, self._well, self._network, self._counts = meta, well, network, counts
        self._may_be_full = may_be_full
        self._cluster = cluster
        self._begin_epoch(*self._possible, from_s=0.0)

    @property
    def meta(self) -> SimMeta:
        """The meta server at which the operator works."""
        assert self._meta is not None
        return self._meta

    # -- lives of the delay server -----------------------------------------------------------

    def life_begins(self, *, slow_s: float) -> None:
        """Note that the server is started; `slow_s`: for which its disk may hold up new rules."""
        self._started_s, self._slow_s = trio.current_time(), slow_s

    async def run(self, server: DelayServer) -> None:
        """See by what the server goes in one of its lives, until cancelled."""
        await server.ready.wait()
        self._serving, self._taken = None, -2
        self._look(server, is_settled=True)
        self._serving = server
        self._check_start(server)
        while True:
            await trio.sleep(_LOOK_S)
            self._look(server)

    def end_life(self) -> None:
        """Note that the server is gone; what it was told stays."""
        self._serving = None
        self._started_s = math.inf

    def check_kept(self, durable: Mapping[str, bytes]) -> None:
        """Complain of rules that are not on the disk when a life has ended."""
        self._catch_up()
        data = durable.get(_PATH)
        kept = Controls() if data is None else _document_in(data)
        if kept not in self._possible:
            self.witness.complain(
                f"told: {kept} is on the disk, the server has gone by {self._goes_by}"
            )
        self._counts["lives that ended with rules of the meta server on the disk"] += (
            kept.version > 0
        )

    def standing(self, server: DelayServer) -> Standing | None:
        """Return what holds now in this life of the server; None while that is not known."""
        self._catch_up()
        is_known = server is self._serving and len(self._possible) == 1
        return Standing(self._possible[0]) if is_known else None

    def is_gated(self, subject: str, from_s: float, until_s: float) -> bool:
        """Say whether a rule may have held a subject up in this time."""
        self._catch_up()
        return GateJudge.is_gated(self, subject, from_s, until_s)

    def _catch_up(self) -> None:
        """Count with what was stored since: the server may have been told it."""
        medium, cluster = self.meta.medium, self._cluster
        for number in medium.controls_in(cluster, self._seen, len(medium.commits)):
            document = medium.controls_at(cluster, number)
            self._stored.append(document)
            may_hold = any(self._may_follow(one, document) for one in self._possible)
            if may_hold and document not in self._possible:
                self._set_possible(
                    [*self._possible, document], from_s=medium.commits[number - 1].at_s
                )
        self._seen = len(medium.commits)

    def _set_possible(self, documents: list[Controls], *, from_s: float) -> None:
        self._end_epoch(from_s)
        self._possible = documents
        self._begin_epoch(*documents, from_s=from_s)

    def _look(self, server: DelayServer, *, is_settled: bool = False) -> None:
        """See by what the server goes, as it says itself, and what it may go by from now on."""
        self._catch_up()
        following = server.node.controls_sync
        assert following is not None
        now = server.master.outlet.applied
        if not is_settled and now not in (following.told, self._goes_by):
            # It is about to take it.
            return
        before, self._goes_by = self._goes_by, now
        taken, self._taken = self._taken, following.taken
        if now not in self._possible:
            self.witness.complain(
                f"told: the server goes by {now}, after {before}; it may by {self._possible}"
            )
        elif now != before and taken + 1 == following.taken and not self._forced:
            self._check_newer(before, now)
        if self._forced:
            # What it is told to go by may be long on its way to the disk.
            return
        left = [now, *(one for one in self._possible if one != now and self._may_follow(now, one))]
        lately_s = trio.current_time() - CONVERGED_S
        if self._was_well(lately_s):
            # What a store that was set back has lost is not under way any more.
            told = self._documents(self.meta.medium.known_at(lately_s))
            left = [one for one in left if one == now or one in told]
        if left != self._possible:
            self._set_possible(left, from_s=trio.current_time())
        self._check_weights(server, now)

    def _may_follow(self, present: Controls, later: Controls) -> bool:
        """Say whether a server that goes by one document may come to go by another one."""
        if not isinstance(present.store, UUID):
            return True
        if later.store == present.store:
            return later.version >= present.version
        # Of a store that is no more nothing is told.
        stores = [one.store for one in self._stored]
        return later.store in stores and stores.index(later.store) > stores.index(present.store)

    def _check_newer(self, before: Controls, now: Controls) -> None:
        """Rules give way to newer ones of the same store alone."""
        is_newer = before.store == now.store and now.version > before.version
        if not is_newer and (before.groups or before.subjects):
            self.witness.complain(f"told: {now} was taken after {before}")

    def _check_weights(self, server: DelayServer, controls: Controls) -> None:
        """Groups have the weights of the document; there are none in the settings."""
        wrong = {
            group.name: group.weight
            for group in server.master.sender.status()
            if group.state is not GroupState.RETIRING
            and group.weight != _weight_of(controls, group.name)
        }
        if wrong:
            self.witness.complain(f"told: groups weigh {wrong} by {controls}")

    def _check_start(self, server: DelayServer) -> None:
        """A server that is started hears first, then delivers; if it can ask."""
        assert server.node.controls_sync is not None
        if self._slow_s or not self._was_well(self._started_s):
            return
        self._counts["starts that had to hear of controls first"] += 1
        known = self.meta.medium.known_at(self._started_s)
        if not self._is_present(known) and not server.node.controls_sync.keeps:
            self.witness.complain(
                f"told: a server starts with {self._goes_by} at {trio.current_time():.3f} s, the "
                f"store has {self._present()}"
            )

    # -- what the server has to know -----------------------------------------------------------

    def _present(self) -> Controls:
        medium = self.meta.medium
        return medium.controls_at(self._cluster, len(medium.commits))

    def _documents(self, first: int) -> list[Controls]:
        """Return what the store says, and what it said since that commit."""
        medium = self.meta.medium
        moments = [first, *medium.controls_in(self._cluster, first, len(medium.commits))]
        return [medium.controls_at(self._cluster, number) for number in moments]

    def _is_present(self, first: int) -> bool:
        """Say whether the server goes by what the store says, or said since that commit.

        A store in which nobody has said anything changes nothing: without rules it is the same.
        """
        documents = self._documents(first)
        has_rules = bool(self._goes_by.groups or self._goes_by.subjects)
        nothing_said = not has_rules and not all(one.version for one in documents)
        return self._goes_by in documents or nothing_said

    def _was_well(self, since_s: float) -> bool:
        """Say whether nothing has kept the server from asking since then."""
        assert self._network is not None
        resets = self._network.resets_s
        return self._well.lasted(since_s, trio.current_time()) and not (
            resets and resets[-1] >= since_s
        )

    async def _see_told(self) -> None:
        """See that the server goes by what is stored now, if it can."""
        stored_s, stored = trio.current_time(), len(self.meta.medium.commits)
        await trio.sleep(CONTROLS_WITHIN_S + self._slow_s)
        server = self._serving
        if server is None or not self._was_well(stored_s - CONVERGED_S):
            return
        now_s = trio.current_time()
        if not self.witness.lived_through(stored_s - _CONNECTED_S, now_s):
            return
        self._look(server)
        assert server.node.controls_sync is not None
        if server.node.controls_sync.trouble and self._may_be_full():
            return
        self._counts["controls that had to be known soon"] += 1
        if not self._is_present(stored) and not server.node.controls_sync.keeps:
            self.witness.complain(
                f"told: the server goes by {self._goes_by} at {now_s:.3f} s, since {stored_s:.3f} "
                f"s the store has {self._present()}: {server.node.controls_sync.trouble}"
            )

    # -- the operator ------------------------------------------------------------------------

    async def operate(self, nursery: trio.Nursery) -> None:
        """Change rules until everything is to be open, then open it."""
        while not self.is_over:
            until_s = trio.current_time() + self.chance.uniform(5, self.length_s / 12)
            while trio.current_time() < until_s and not self.is_over:
                await trio.sleep(3.1)
                if self._serving is None and self.chance.random() < _AT_ABSENCE:
                    await self._change(self._drawn(), nursery)
                if self._is_backlog() and self.chance.random() < _AT_BACKLOG:
                    await self._pause_all(nursery)
            if not self.is_over:
                await self._change(self._drawn(), nursery)
        await self._open_all(nursery)

    async def operate_in_calm(self) -> None:
        """Change some rules while all is well, and open everything again."""
        async with trio.open_nursery() as nursery:
            for _ in range(self.chance.randint(2, 4)):
                await self._change(self._drawn(), nursery)
                await trio.sleep(self.chance.uniform(0, 15))
            await self._open_all(nursery)

    def _drawn(self) -> RuleChange:
        return draw_rule_change(
            self.chance, self._cluster, patterns=self.patterns, groups=self.groups
        )

    def _is_backlog(self) -> bool:
        server = self._serving
        if server is None or not server.is_master:
            return False
        return bool(server.master.sender.unsent().queued)

    async def _pause_all(self, nursery: trio.Nursery) -> None:
        """Pause everything for a while, now that something waits for a broker."""
        await self._change(subject_change(self._cluster, "*", paused=True), nursery)
        await trio.sleep(self.chance.choice((0.0, 5.0, 60.0)))
        await self._change(no_subject_rule(self._cluster, "*"), nursery)

    async def _change(self, change: RuleChange, nursery: trio.Nursery) -> None:
        """Have something changed; where a node has newer rules of the store, have it follow."""
        asked_s = trio.current_time()
        if await self.meta.operator.change(change.plan, cluster=self._cluster):
            self.faults[f"operator: controls, {change.what}"] += 1
            self.meta.witness.controls_changed(
                self._cluster, change.what, change.fits, since_s=asked_s
            )
            nursery.start_soon(self._see_told)
        elif self._is_kept() and self.chance.random() < _FOLLOWS:
            await self._follow()

    def _is_kept(self) -> bool:
        """Say whether the server keeps other rules than it is told."""
        server = self._serving
        return (
            server is not None
            and server.node.controls_sync is not None
            and bool(server.node.controls_sync.keeps)
        )

    async def _follow(self) -> None:
        """Have the server go by what it is told, whatever that opens."""
        server = self._serving
        if (
            server is None
            or server.node.controls_sync is None
            or server.node.controls_sync.told is None
        ):
            return
        self._look(server)
        told = server.node.controls_sync.told
        if told not in self._stored and told.version:
            self.witness.complain(f"told: the server was told {told}, which was never stored")
        if told not in self._possible:
            self._set_possible([*self._possible, told], from_s=trio.current_time())
        self._forced = True
        self.faults["operator: follow"] += 1
        with contextlib.suppress(StorageFullError, FatalDiskError):
            await server.node.controls_sync.follow()
        if server is self._serving:
            self._look(server)
        self._forced = False

    async def _open_all(self, nursery: trio.Nursery) -> None:
        """Take every rule away, and see that the server goes by that."""
        give_up_s = trio.current_time() + _OPENED_S
        while trio.current_time() < give_up_s:
            present = self._present()
            for change in self._removals(present):
                await self._change(change, nursery)
            await trio.sleep(5)
            server = self._serving
            if server is None:
                continue
            self._look(server)
            if self._is_kept():
                await self._follow()
            # Two that say nothing may differ by the store they are of.
            if all(_is_open(one) for one in (self._goes_by, *self._possible)):
                self.all_open.set()
                return
        raise AssertionError(
            f"told: the server goes by {self._goes_by} and may by {self._possible}, "
            f"the store has {self._present()}"
        )

    def _removals(self, controls: Controls) -> Iterable[RuleChange]:
        yield from map(partial(no_subject_rule, self._cluster), controls.subjects)
        yield from map(partial(no_group_rule, self._cluster), controls.groups)


_AT_BACKLOG = 0.25
"""Chance that he pauses everything when he sees that something waits for a broker."""
_AT_ABSENCE = 0.3
"""Chance that he changes something when he sees that the server is away."""
_FOLLOWS = 0.6
"""Chance that he has a node follow that has newer rules than the store."""


def _is_open(controls: Controls) -> bool:
    return not controls.subjects and not controls.groups


def _document_in(data: bytes) -> Controls:
    size = int.from_bytes(data[_SIZE_AT : _SIZE_AT + 4], "little")
    return msgspec.json.decode(data[_DOCUMENT_AT : _DOCUMENT_AT + size], type=Controls)


def _weight_of(controls: Controls, name: str) -> float:
    rule = controls.groups.get(name)
    return 1.0 if rule is None or rule.weight is None else rule.weight
