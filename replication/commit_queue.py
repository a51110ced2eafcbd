"""What is durable and not handed on yet, in the order of the log: it goes on when it is committed.

    durable here --> in memory, up to a bound --> committed --> handed on, to be filed
                     beyond: read from the log                  whoever waits is told, while that
                     again when it is committed                 may be acknowledged

Masters and slaves have it alike. On a sole node all of it is one step.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from delay_transport.seams.outbox import Wakeup
from delay_transport.seams.runtime import Executor
from replication.core.commit_point import CommitPoint
from storage.batch.batches import Damage, LogBatch
from storage.batch.columns import RecordKind
from storage.logs.message_log import MessageLog

HELD_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of batches that are in memory though they are not committed; a commit that finds more is
read from the log again."""
READ_BYTES: Final = 8 * 1024 * 1024
"""Bytes of batches that are read from the log in one go, and that may wait to be filed before."""
READ_WORKER: Final = "message_log_reader"

Told = Callable[[], None]


@dataclass(slots=True)
class _Entry:
    """Records of one commit, or of many that are not in memory."""

    end: int
    """The sequence behind the last."""
    batches: Sequence[LogBatch] | None
    """None: they are read from the log."""
    items_bytes: int
    """Bytes of the batches, those of facts aside."""
    held_bytes: int
    """Bytes of the batches that are in memory."""
    told: list[Told]


@dataclass(frozen=True, slots=True)
class _Read:
    """What was read from the log; next: the record behind."""

    batches: list[LogBatch]
    damages: list[Damage]
    next: int


class CommitQueue:
    """Hands on what is committed, in the order of the log.

    Invariant: what is handed on is below the commit point, without gaps and without repetitions.
    """

    def __init__(
        self,
        log: MessageLog,
        point: CommitPoint,
        *,
        first: int,
        executor: Executor,
        submit: Callable[[Sequence[LogBatch]], None],
        has_room: Callable[[], bool],
        on_damage: Callable[[Damage], None],
    ) -> None:
        """Begin with the record `first`; what the log has from there on is read from it.

        submit: takes over what is committed; has_room: whether it may have more of what has to be
        read.
        """
        self._log = log
        self._point = point
        self._executor = executor
        self._submit = submit
        self._has_room = has_room
        self._on_damage = on_damage
        self.next = first
        """The first record that was not handed on."""
        self._entries: deque[_Entry] = deque()
        if log.next_sequence > first:
            self._entries.append(_Entry(log.next_sequence, None, 0, 0, []))
        self.items_bytes = 0
        """Bytes that are durable and not committed, those of facts aside."""
        self._held_bytes = 0
        self._committed: deque[Told] = deque()
        """Those that are told of a commit next."""
        self._more = Wakeup()
        self._went_on = trio.lowlevel.ParkingLot()

    def add(self, batches: Sequence[LogBatch], told: Sequence[Told] = ()) -> int:
        """Take what has become durable, and who is told of its commit; return its bytes of items.

        It is handed on by `hand_on`.
        """
        items = sum(
            batch.header.size for batch in batches if batch.header.kind is not RecordKind.FACTS
        )
        size = sum(batch.header.size for batch in batches)
        last = self._entries[-1] if self._entries else None
        end = batches[-1].header.next_sequence if batches else self._end
        if last is not None and last.batches is None and not told and not last.told:
            last.end = end
            last.items_bytes += items
        elif self._held_bytes + size > HELD_BYTES_MAX and self._held_bytes:
            self._entries.append(_Entry(end, None, items, 0, list(told)))
        else:
            self._entries.append(_Entry(end, batches, items, size, list(told)))
            self._held_bytes += size
        self.items_bytes += items
        return items

    @property
    def _end(self) -> int:
        return self._entries[-1].end if self._entries else self.next

    def hand_on(self) -> None:
        """Hand on what is committed and in memory, and tell those who wait for it."""
        committed = self._point.committed
        self._went_on.unpark_all()
        while self._entries:
            entry = self._entries[0]
            if entry.batches is None:
                if committed > self.next:
                    self._more.wake()
                break
            if entry.end > committed:
                break
            if entry.batches and not entry.told and not self._has_room():
                # Nobody waits for it: it is read from the log when there is room.
                entry.batches = None
                self._held_bytes -= entry.held_bytes
                entry.held_bytes = 0
                break
            if entry.batches:
                self._submit(entry.batches)
            self.next = entry.end
            self._end_first()
        while self._committed:
            self._committed.popleft()()

    def _end_first(self) -> None:
        entry = self._entries.popleft()
        self.items_bytes -= entry.items_bytes
        self._held_bytes -= entry.held_bytes
        self._committed.extend(entry.told)

    async def drain(self) -> None:
        """Wait until all that is committed was handed on; `run` has to run."""
        while self.next < self._point.committed:
            await self._went_on.park()

    def look_again(self) -> None:
        """Go on reading if there was no room."""
        self._more.wake()

    async def run(self) -> None:
        """Read what is committed and not in memory, until cancelled."""
        while True:
            until = self._readable_until()
            if until <= self.next or not self._has_room():
                await self._more.sleep()
                continue
            read = await self._executor.run(READ_WORKER, self._read, self.next, until)
            for damage in read.damages:
                self._on_damage(damage)
            if read.batches:
                self._submit(read.batches)
            self.next = read.next
            while self._entries and self._entries[0].end <= read.next:
                self._end_first()
            self.hand_on()

    def _readable_until(self) -> int:
        """Return the record up to which what comes next is committed, and not in memory."""
        until = 0
        for entry in self._entries:
            if entry.batches is not None:
                break
            until = entry.end
        return min(until, self._point.committed)

    def _read(self, first: int, until: int) -> _Read:
        """Return batches of records `first` up to `until`, not too many."""
        batches: list[LogBatch] = []
        damages: list[Damage] = []
        size = 0
        for found in self._log.read(first):
            if isinstance(found, Damage):
                damages.append(found)
                continue
            header = found.header
            if header.base_sequence >= until or size >= READ_BYTES:
                return _Read(batches, damages, min(header.base_sequence, until))
            batches.append(found)
            size += header.size
        return _Read(batches, damages, until)
