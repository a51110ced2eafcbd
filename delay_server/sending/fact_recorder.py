"""Takes outcomes from the sender and makes them facts: records of the message_log.

    outcome --> waits --> is written --> durable: counts --> committed, applied: filed
                                         for not sending     with its segment
                                         again

An outcome goes into the next commit, whatever else that has, and has one of its own where none
comes for a while. It waits neither for room in filing nor for the floor of free disk.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import structlog
import trio

from delay_server.distribution import Distribution
from delay_transport.seams.outbox import Wakeup
from storage.batch.columns import RecordKind
from storage.batch.entries import Entries, among
from storage.batch.facts import FactBlock, Outcome, join_facts
from storage.logs.message_log import Draft
from storage.schedule.handout import HeldRows, held_rows

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

FACT_AGE_BUCKETS_S: Final = (
    0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60,
)  # fmt: skip

OUTCOME_AGE_MAX_S: Final = 0.2
"""Age of the oldest outcome that is not durable at which sending pauses. A crash sends again what
has no durable outcome: at most this much of traffic, beside what is in flight, also while the disk
stalls."""

OUTCOMES_MAX: Final = 50_000
"""Outcomes that are not durable at which sending pauses."""

UNAPPLIED_BYTES_MAX: Final = 160 * 1024 * 1024
"""Memory of outcomes that are durable and not applied at which sending pauses: as long as no
replica has them, or while filing stands still. 5,000,000, or fewer in many small commits."""

_UNAPPLIED_BYTES: Final = 32
"""What one of them takes."""

_COMMIT_BYTES: Final = 2048
"""What their commit takes beside them."""

_GATE_RECHECK_S: Final = 0.01
_FULL_RETRY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Facts:
    """What one commit takes over."""

    blocks: Sequence[FactBlock]
    blob_bytes: int = 0

    def drafts(self) -> list[Draft]:
        """Return the records of the message_log that state these facts, in their order."""
        return [
            Draft(
                kind=RecordKind.FACTS,
                count=len(part),
                names=list(part.targets),
                arrays=part.arrays,
            )
            for part in join_facts(self.blocks).parts()
        ]


class Submit(Protocol):
    """Has something committed (delay_server/accepting/commits.py::Committer.submit)."""

    def __call__(
        self,
        take: Callable[[], Facts],
        on_end: Callable[[bool], None],
        *,
        has_items: bool,
        on_durable: Callable[[int], None],
        linger_s: float,
    ) -> None:
        """See there."""


class FactRecorder:
    """Gathers outcomes, has them committed, and knows which of them are not applied yet."""

    def __init__(
        self,
        *,
        submit: Submit,
        sync_ms_max: int,
        settle: Callable[[HeldRows], None],
        on_behind: Callable[[], None] = lambda: None,
    ) -> None:
        """Take over the parts.

        settle: hears of rows of which the schedule_log has the facts; until then they are held
        here. on_behind: hears when `behind` has changed.

        A commit begins at most half of `sync_ms_max` after the first outcome; the other half is for
        the commit.
        """
        self._submit = submit
        self._linger_s = sync_ms_max / 2000
        self._waiting: list[FactBlock] = []
        self._writing: list[FactBlock] = []
        self._rows_waiting: list[HeldRows] = []
        self._rows_writing: list[HeldRows] = []
        """The rows of the messages that these are about, in the same order."""
        self._unapplied: deque[tuple[HeldRows, int]] = deque()
        """Of each commit that the schedule_log lacks, the rows with a durable outcome, and the last
        record that states one."""
        self._is_submitted = False
        """Whether a commit will take what waits."""
        self._are_durable = trio.lowlevel.ParkingLot()
        self._since: list[tuple[float, int]] = []
        """When outcomes came that wait, and how many then."""
        self._since_of_writing: list[tuple[float, int]] = []
        """The same of those that are being written."""
        self._told: list[Callable[[], None]] = []
        """Those that are told when what waits is committed."""
        self._told_of_taken: deque[list[Callable[[], None]]] = deque()
        """The same of each commit that was taken and is not committed."""
        self._not_durable = 0
        self._unapplied_bytes = 0
        self._settle = settle
        self._on_behind = on_behind
        self.behind = ""
        """Why nothing more should be sent until more is durable, or applied; empty if it may be."""
        self._first = Wakeup()
        self.ages = Distribution(FACT_AGE_BUCKETS_S)
        """How old outcomes are when they are durable, in seconds."""
        self.outcomes: Counter[Outcome] = Counter()

    def cross_off(self, entries: Entries, at_ms: int, target: str, outcome: Outcome) -> None:
        """Take the outcome of some messages."""
        count = len(entries)
        self.outcomes[outcome] += count
        self._waiting.append(
            FactBlock(
                sequence=entries["sequence"].copy(),
                minute=entries["minute"].copy(),
                at_ms=np.full(count, at_ms, np.int64),
                target=np.zeros(count, np.uint16),
                outcome=np.full(count, outcome, np.uint8),
                record=np.zeros(count, np.int64),
                targets=[target.encode()],
            )
        )
        self._rows_waiting.append(held_rows(entries))
        self._since.append((trio.current_time(), count))
        self._not_durable += count
        self._offer(self._linger_s)
        self._first.wake()
        self._look_at_gate()

    def when_committed(self, told: Callable[[], None]) -> None:
        """Tell somebody once all outcomes that have been given are committed."""
        if self._waiting:
            self._told.append(told)
        elif self._told_of_taken:
            self._told_of_taken[-1].append(told)
        else:
            told()

    @property
    def waiting(self) -> int:
        """Outcomes that no commit has taken yet."""
        return sum(map(len, self._waiting))

    @property
    def not_durable(self) -> int:
        """Outcomes that are not durable yet."""
        return self._not_durable

    def unapplied_count(self, *, beyond: int) -> int:
        """Return how many outcomes the schedule_log lacks that has applied all up to a record."""
        durable = sum(len(rows) for rows, last in self._unapplied if last > beyond)
        return durable + sum(map(len, (*self._writing, *self._waiting)))

    def having(self, wanted: frozenset[int]) -> frozenset[int]:
        """Return those of these sequences whose outcome came and is not applied yet."""
        rows = (*self._rows_waiting, *self._rows_writing, *(rows for rows, _ in self._unapplied))
        return among(wanted, rows)

    @property
    def unapplied(self) -> int:
        """Outcomes that are durable and not applied, about."""
        return self._unapplied_bytes // _UNAPPLIED_BYTES

    # -- commits -----------------------------------------------------------------------------

    def _offer(self, linger_s: float) -> None:
        if not self._is_submitted:
            self._is_submitted = True
            self._submit(
                self._take,
                self._ended,
                has_items=False,
                on_durable=self._durable_to,
                linger_s=linger_s,
            )

    def _take(self) -> Facts:
        """Hand over what waits; what comes now is for the next commit."""
        self._is_submitted = False
        self._writing, self._waiting = self._waiting, []
        self._rows_writing, self._rows_waiting = self._rows_waiting, []
        self._since_of_writing, self._since = self._since, []
        self._told_of_taken.append(self._told)
        self._told = []
        return Facts(self._writing)

    def _durable_to(self, last: int) -> None:
        """Note that what was taken last is durable, up to this record."""
        now = trio.current_time()
        for at, count in self._since_of_writing:
            self.ages.observe(now - at, count)
            self._not_durable -= count
        rows = np.concatenate(self._rows_writing)
        self._unapplied.append((rows, last))
        self._unapplied_bytes += _bytes_of(rows)
        self._writing, self._rows_writing, self._since_of_writing = [], [], []
        self._look_at_gate()
        if not self._not_durable:
            self._are_durable.unpark_all()

    def _ended(self, was_kept: bool) -> None:  # noqa: FBT001
        if was_kept:
            for told in self._told_of_taken.popleft():
                told()
            return
        # The disk's floor leaves room for facts; somebody else has used it up.
        _log.error("no disk space for facts; a crash now would deliver twice")
        self._waiting = self._writing + self._waiting
        self._rows_waiting = self._rows_writing + self._rows_waiting
        self._since = self._since_of_writing + self._since
        self._told = self._told_of_taken.pop() + self._told
        self._writing, self._rows_writing, self._since_of_writing = [], [], []
        self._offer(_FULL_RETRY_S)

    def applied_to(self, sequence: int) -> None:
        """Hear that the schedule_log has all facts up to this record."""
        while self._unapplied and self._unapplied[0][1] <= sequence:
            rows, _ = self._unapplied.popleft()
            self._unapplied_bytes -= _bytes_of(rows)
            self._settle(rows)
        self._look_at_gate()

    def count(self, facts: FactBlock) -> None:
        """Count outcomes that records of DEAD, MOVE and CANCEL state."""
        for outcome, count in Counter(facts.outcome.tolist()).items():
            self.outcomes[Outcome(outcome)] += count

    # -- the gate ----------------------------------------------------------------------------

    @property
    def _oldest(self) -> float | None:
        """When the first came of the outcomes that are not durable; None if all are."""
        since = self._since_of_writing or self._since
        return since[0][0] if since else None

    def _look_at_gate(self) -> None:
        """Have sending pause while too much is not durable, or for too long, or not applied."""
        oldest = self._oldest
        is_old = oldest is not None and trio.current_time() - oldest >= OUTCOME_AGE_MAX_S
        behind = ""
        if is_old or self._not_durable >= OUTCOMES_MAX:
            behind = (
                "outcomes of deliveries are not durable in time: the disk stalls, or it is full"
            )
        elif self._unapplied_bytes >= UNAPPLIED_BYTES_MAX:
            behind = (
                "too many outcomes of deliveries are not committed or not filed: add a replica, or "
                "let the group go on with fewer (min_isr)"
            )
        if behind != self.behind:
            self.behind = behind
            self._on_behind()

    async def run_gate(self) -> None:
        """Notice outcomes that take too long to become durable; ends only by cancellation."""
        while True:
            oldest = self._oldest
            if oldest is None:
                await self._first.sleep()
                continue
            again = trio.current_time() + _GATE_RECHECK_S
            await trio.sleep_until(max(oldest + OUTCOME_AGE_MAX_S, again))
            self._look_at_gate()

    # -- the end -----------------------------------------------------------------------------

    async def stop(self) -> None:
        """Wait until every outcome given so far is durable, whether it is committed or not."""
        while self._not_durable:
            await self._are_durable.park()

    def left(self) -> list[Draft]:
        """Return the records of what is not durable, once nobody commits any more."""
        blocks = [*self._writing, *self._waiting]
        return Facts(blocks).drafts() if blocks else []


def _bytes_of(rows: HeldRows) -> int:
    """Return the memory of one commit of outcomes."""
    return _COMMIT_BYTES + _UNAPPLIED_BYTES * len(rows)
