"""One round: a group, the failovers that it goes through, and the reckoning with its disks."""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.crash.ledger import Ledger
from tests.crash.stall_watch import StallWatch
from tests.failover_campaign.books import Books, longest_gap_ms
from tests.failover_campaign.faults import Blow
from tests.failover_campaign.network import Loopback
from tests.failover_campaign.plan import Failover
from tests.failover_campaign.site import NODES, PRODUCERS, Site, StuckError
from tests.kit.dumped import messages_in
from tests.processes.real_processes import ROOT

NEW_MASTER_S: Final = 20.0
"""For another master, before the fault is healed without one."""
BACK_S: Final = 60.0
"""For all to be in sync, once it is healed."""
DELIVERED_S: Final = 60.0
"""For everything to be delivered, at the end of a round."""
_LOOK_S: Final = 1.0
"""Seconds between two looks at a group that nothing strikes."""
_AFTER_S: Final = 1.0
"""In which what was in flight comes."""
NOT_THE_MASTER: Final = 51
_INCOMPLETE: Final = 2
"""Exit code of a reconciliation without findings, of input that is not complete."""
TWICE_MAX: Final = 50_000
"""Deliveries of a failover of what had come before."""


@dataclass(slots=True)
class Outcome:
    """What came of one failover."""

    number: int
    kind: str
    draw: float
    at: float
    """When it was struck, wall clock."""
    old: str
    new: str = ""
    epochs: int = 0
    """By how many the epoch grew."""
    no_answers_ms: int = 0
    no_deliveries_ms: int = 0
    no_receptions_ms: int = 0
    meta_away_ms: int = 0
    named_ms: int | None = None
    """Until the meta server named another master, as far as it is asked each 50 ms."""
    in_sync_s: float | None = None
    """From healing until all were in sync."""
    failed: int = 0
    refused_51: int = 0
    """Requests that were answered so."""
    twice: int = 0
    """Deliveries of what had come before."""
    stall_ms: int = 0
    """The longest that this machine made a process wait for its turn and an fsync."""
    note: str = ""
    stuck: str = ""

    @property
    def line(self) -> str:
        """Return it as a line of JSON."""
        return json.dumps(asdict(self))


@dataclass(slots=True)
class Reckoning:
    """What a round came to."""

    failovers: list[Outcome] = field(default_factory=list)
    acknowledged: int = 0
    delivered: int = 0
    twice: int = 0
    oldest_twice_ms: float = 0.0
    failed: int = 0
    stored_twice: int = 0
    maybe_kept: Counter[str] = field(default_factory=Counter)
    """Of failed sends: what was said, and whether it was so."""
    attempts: Counter[int] = field(default_factory=Counter)
    """Of acknowledged messages, how often each was put on the wire."""
    violations: list[str] = field(default_factory=list)

    def add(self, other: "Reckoning") -> None:
        """Add another round."""
        self.failovers += other.failovers
        self.acknowledged += other.acknowledged
        self.delivered += other.delivered
        self.twice += other.twice
        self.oldest_twice_ms = max(self.oldest_twice_ms, other.oldest_twice_ms)
        self.failed += other.failed
        self.stored_twice += other.stored_twice
        self.maybe_kept += other.maybe_kept
        self.attempts += other.attempts
        self.violations += other.violations


def now_us() -> int:
    """Return the wall clock of this machine."""
    return time.time_ns() // 1000


class Round:
    """Runs failovers on one group."""

    def __init__(
        self,
        folder: Path,
        network: Loopback,
        *,
        rate: float,
        library: Path | None,
        cuts_power: bool = False,
        tell: Callable[[str], None],
    ) -> None:
        folder.mkdir()
        self._site = Site(folder, network, rate=rate, library=library, cuts_power=cuts_power)
        self._tell = tell
        self._books = Books(Ledger(record=folder / "nothing"))
        self._found = Reckoning()
        self._stalls = StallWatch(folder / "stall")
        self._has_been_full = False
        """True once a disk was filled."""

    def run(self, failovers: Sequence[Failover], *, soak_s: float = 0.0) -> Reckoning:
        """Go through failovers; whatever happens, all processes are gone afterwards.

        soak_s: before that the load goes on for so long, and the group is to stay as it is.
        """
        site, found = self._site, self._found
        with site, self._stalls:
            try:
                site.begin()
                self._await_answers()
                self._soak(soak_s)
                for failover in failovers:
                    if not self._fail_over(failover):
                        break
                self._wind_up()
            except StuckError as error:
                found.violations.append(f"stuck: {error}")
            has_begun = len(site.nodes) == len(NODES)
            for node in site.nodes.values():
                node.kill()
        if has_begun:
            self._reckon()
        return found

    def _await_answers(self) -> None:
        """Wait until each producer is answered and everybody gets messages."""
        producers = {how for how, _ in PRODUCERS}

        def are_answered() -> bool:
            self._read()
            names = {name.split("-")[0] for name in self._books.ledger.acknowledged}
            return names == producers and all(self._books.delivered_us.values())

        if not self._site.until(are_answered, BACK_S):
            raise StuckError("not all producers are answered, and not everybody gets messages")

    def _soak(self, seconds: float) -> None:
        """Look at the group while nothing strikes it: each election is one nobody asked for."""
        site, found = self._site, self._found
        until = time.monotonic() + seconds
        last: dict[str, Any] = {}
        while time.monotonic() < until:
            time.sleep(_LOOK_S)
            self._read()
            now = site.record()
            if not now["epoch"]:
                # The meta server did not answer in time.
                continue
            if last and now["epoch"] != last["epoch"]:
                found.violations.append(f"an election nobody asked for: {last} became {now}")
            elif last and now["in_sync"] != last["in_sync"]:
                self._tell(json.dumps({"at": time.time(), "in_sync": now["in_sync"]}))
            last = now

    def _fail_over(self, failover: Failover) -> bool:
        """Run one; return whether the group is well again."""
        site, kind = self._site, failover.kind
        time.sleep(failover.calm_s)
        before = site.record()
        master = site.nodes[before["master"]]
        one = Outcome(failover.number, kind.name, round(failover.draw, 4), time.time(), master.name)
        blow = Blow(site, master, failover.draw)
        self._has_been_full |= kind.needs == "disk"
        began_us = now_us()
        began = time.monotonic()
        if kind.elects:
            self._books.strike(began_us)
        self._stalls.take_worst_s()
        try:
            kind.strike(blow)
            self._await_another(kind.elects, before["epoch"], one, began)
            time.sleep(max(began + kind.lasts_s - time.monotonic(), 0))
            if kind.elects:
                self._books.strike(now_us())
            kind.heal(blow)
            healed = time.monotonic()
            site.until_in_sync(*NODES, seconds=BACK_S)
            one.in_sync_s = round(time.monotonic() - healed, 2)
        except StuckError as error:
            one.stuck = str(error)
            self._found.violations.append(f"stuck: {one.number}, {kind.name}: {error}")
        time.sleep(_AFTER_S)
        self._enter(one, blow, before["epoch"], began_us)
        return not one.stuck

    def _await_another(self, elects: bool, epoch: int, one: Outcome, began: float) -> None:
        site = self._site

        def is_there() -> bool:
            record = site.record()
            return record["epoch"] > epoch and record["master"] is not None

        if elects and site.until(is_there, NEW_MASTER_S):
            one.named_ms = round((time.monotonic() - began) * 1000)

    def _enter(self, one: Outcome, blow: Blow, epoch: int, began_us: int) -> None:
        """Work out what a failover was like for those who send and receive."""
        self._read()
        books, record, ended_us = self._books, self._site.record(), now_us()
        one.new = record["master"] or ""
        one.epochs = record["epoch"] - epoch
        one.note = blow.note
        one.stall_ms = round(self._stalls.take_worst_s() * 1000)
        one.meta_away_ms = round(blow.meta_away_s * 1000)
        delivered = books.delivered_us
        gap = longest_gap_ms
        one.no_answers_ms = gap(books.answered_us, began_us, ended_us)
        one.no_deliveries_ms = gap(delivered["brokers"], began_us, ended_us)
        one.no_receptions_ms = gap(delivered["receivers"], began_us, ended_us)
        one.twice = sum(at_us >= began_us for at_us in books.repeated_us)
        one.refused_51 = sum(
            code == NOT_THE_MASTER and at_us >= began_us for at_us, code in books.refused
        )
        if one.twice > TWICE_MAX:
            self._found.violations.append(f"twice: {one.twice} messages after {one.number}")
        one.failed = len(books.failed) - sum(past.failed for past in self._found.failovers)
        self._found.failovers.append(one)
        self._tell(one.line)

    def _read(self) -> None:
        site = self._site
        self._books.read(*(site.records(name) for name in ("sent", "delivered", "received")))

    def _wind_up(self) -> None:
        """Send no more, and wait until everything is delivered and on all disks."""
        site, books = self._site, self._books
        site.stop_producers()
        self._read()

        def is_all_there() -> bool:
            self._read()
            return not books.ledger.undelivered()

        site.until(is_all_there, DELIVERED_S)
        site.until_in_sync(*NODES, seconds=BACK_S)
        # What comes twice would come now; and the last outcomes get to all disks.
        time.sleep(2.0)
        site.stop_receivers()

    def _reckon(self) -> None:
        """Judge the round by what was written down and what is on the disks."""
        self._read()
        books, found = self._books, self._found
        books.finish()
        ledger = books.ledger
        logs = {name: messages_in(self._site.nodes[name].data) for name in NODES}
        copies = Counter(logs[NODES[0]])
        twice = {name for name, count in copies.items() if count > 1}
        found.acknowledged = len(ledger.acknowledged)
        found.delivered = len(ledger.first)
        found.twice = ledger.twice
        found.oldest_twice_ms = round(ledger.oldest_twice_s * 1000)
        found.failed = len(books.failed)
        found.stored_twice = len(twice)
        found.attempts = books.attempts
        for name, (says_kept, text) in books.failed.items():
            is_kept = name in copies
            found.maybe_kept[f"said {says_kept}, kept {is_kept}"] += 1
            if is_kept and not says_kept:
                found.violations.append(f"maybe_kept: {name} is kept, and the call said {text}")
        found.violations += [fault for fault in books.faults if not _is_stored_twice(fault, twice)]
        lost = sorted(ledger.undelivered())
        found.violations += [f"lost: {name} was acknowledged and never came" for name in lost[:5]]
        if lost:
            found.violations.append(f"lost: {len(lost)} acknowledged messages in all")
        for name in NODES:
            missing = ledger.acknowledged - set(logs[name])
            if missing:
                some = ", ".join(sorted(missing)[:5])
                found.violations.append(f"log: {name} lacks {len(missing)} acknowledged: {some}")
            if logs[name] != logs[NODES[0]]:
                found.violations.append(f"log: those of {name} and {NODES[0]} are not equal")
        roots = [self._site.nodes[name].data for name in NODES]
        found.violations += _reconcile(roots, may_lack_files=self._has_been_full)


def _is_stored_twice(fault: str, twice: set[str]) -> bool:
    """Return whether a delivery came twice since its message was stored twice."""
    return fault.startswith("twice: ") and fault.split(" ")[1] in twice


def _reconcile(roots: list[Path], *, may_lack_files: bool) -> list[str]:
    """Return what `delaywheel spark reconcile` finds on the directories, if anything is wrong.

    A node deletes what it needs no more when its disk is full: then the input is not complete.
    """
    words = [word for root in roots for word in ("--root", str(root))]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "delaywheel", "spark", "reconcile", "--engine", "local"),
            *("--final", "--grace-ms", "0", *words),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode == 0 or (may_lack_files and done.returncode == _INCOMPLETE):
        return []
    return [f"reconcile: exit code {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"]
