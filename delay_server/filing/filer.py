"""Behind the commit: what is durable in the message_log is filed by due time.

Every node files, whatever its role. What comes of it that is nearly due goes to a `Taker`, which is
the loader of a mastership. Nothing wakes up unless there is something to do.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog
import trio

from delay_server.clock.pace import Pacer
from delay_server.filing.checkpoints import FULL_RETRY_S, Checkpoints
from delay_server.filing.schedule_access import ScheduleAccess
from delay_transport.seams.outbox import Wakeup
from storage.batch.batches import LogBatch
from storage.batch.columns import KINDS_WITH_ITEMS, RecordKind
from storage.batch.entries import Entries
from storage.batch.facts import FactBlock
from storage.node.store import Store

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Filed:
    """What became of some batches."""

    batches: int
    """How many of them were filed, the first ones."""
    entries: list[Entries]
    facts: list[FactBlock]
    """What DEAD, MOVE and CANCEL records among them state about older messages."""
    crossed_off: int
    """Facts of all kinds."""
    last: int
    """The last record that the schedule_log has applied."""
    next_load_ms: int | None
    full: bool


def nobody_waits() -> None:
    """Hear of room where nobody waits for it."""


class Taker(Protocol):
    """Whoever holds for delivery what is filed so late that it is loaded already."""

    @property
    def gather_bytes_max(self) -> float:
        """Bytes of rows that may wait to be written together, if the node allows as many."""

    async def take_filed(self, filed: Filed, /) -> None:
        """Take what is due soon, and the facts."""

    async def filed(self, filed: Filed, /) -> None:
        """Hear that batches were filed, after that; may wait until there is room for more."""


def _rows_of(batch: LogBatch) -> int:
    """Return how many rows a batch makes."""
    return batch.header.count if batch.header.kind in KINDS_WITH_ITEMS else 0


class Filer:
    """Files what is committed, in order; bounded by the bytes that wait for it."""

    def __init__(
        self,
        *,
        store: Store,
        checkpoints: Checkpoints,
        access: ScheduleAccess,
        pacer: Pacer,
    ) -> None:
        self._store = store
        self._limits = store.settings.limits
        self._checkpoints = checkpoints
        self._access = access
        self._pacer = pacer
        self._backlog: deque[LogBatch] = deque()
        self.backlog_bytes = 0
        """Bytes that are committed and not filed yet."""
        self.backlog_rows = 0
        """Rows likewise."""
        self._batches_filed = 0
        self._more = Wakeup()
        self._filed_some = trio.lowlevel.ParkingLot()
        """Where those are who wait until something more is filed."""
        self.on_room: Callable[[], None] = nobody_waits
        """Set by a mastership: hears that some of the backlog has been filed."""

    def submit(self, batches: Sequence[LogBatch]) -> None:
        """Take over what has been committed, in order."""
        self._backlog.extend(batches)
        for batch in batches:
            self.backlog_bytes += batch.header.size
            self.backlog_rows += _rows_of(batch)
        self._more.wake()

    @property
    def has_room(self) -> bool:
        """Whether the backlog of filing is within its bound."""
        return self.backlog_bytes <= self._limits.filing_bytes_max

    async def run(self, taker: Taker) -> None:
        """File what is committed until cancelled; `taker` gets what is due before it is loaded."""
        while True:
            schedule = self._store.schedule
            if not self._backlog and not schedule.full:
                await self._more.sleep()
                continue
            batches = list(self._backlog)
            found = await self._access.run(self._file, batches, taker.gather_bytes_max)
            for _ in range(found.batches):
                self._forget(self._backlog.popleft())
            self._filed_some.unpark_all()
            self.on_room()
            await taker.take_filed(found)
            self._checkpoints.wake()
            await taker.filed(found)
            if found.full:
                _log.error("no space to file messages; they wait in memory and in the message_log")
                await trio.sleep(FULL_RETRY_S)

    def _forget(self, batch: LogBatch) -> None:
        """Count a batch as filed."""
        self._batches_filed += 1
        self.backlog_bytes -= batch.header.size
        self.backlog_rows -= _rows_of(batch)
        self._checkpoints.filed(batch.header.size)

    def _file(self, batches: Sequence[LogBatch], gather_bytes_max: float) -> Filed:
        """File batches until about a step's worth of entries has to go into the wheel."""
        schedule, now_ms = self._store.schedule, self._pacer.now_ms()
        subjects = schedule.subjects
        found: list[Entries] = []
        facts: list[FactBlock] = []
        count = filed = crossed_off = 0
        for batch in batches:
            if count >= self._limits.load_step_rows or (filed and subjects.is_full):
                break
            filed += 1
            applied = schedule.apply(batch, now_ms=now_ms)
            schedule.waiting.join_pile()
            found.append(applied.entries)
            count += len(applied.entries)
            if applied.facts is not None:
                crossed_off += len(applied.facts)
                if batch.header.kind is not RecordKind.FACTS:
                    facts.append(applied.facts)
        if schedule.full:
            # Rows of loaded minutes found no space before; they are tried again.
            found.append(schedule.flush_near(now_ms))
        # Before the flush, which forgets it: rows that are written have to be loaded all the same.
        earliest_ms = schedule.pile_earliest_ms
        is_much = schedule.pile_is_full or schedule.pile_bytes >= gather_bytes_max
        if is_much or schedule.full:
            schedule.flush(now_ms)
        last, is_full = schedule.last_filed, schedule.full
        return Filed(filed, found, facts, crossed_off, last, earliest_ms, is_full)

    async def drain(self) -> None:
        """Wait until everything submitted is filed."""
        while self._backlog:
            await self._filed_some.park()

    async def drain_present(self) -> None:
        """Wait until everything that has been submitted by now is filed."""
        until = self._batches_filed + len(self._backlog)
        while self._batches_filed < until:
            await self._filed_some.park()
