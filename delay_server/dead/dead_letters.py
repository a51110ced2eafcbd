"""Dead letters, once they are recorded: chosen, requeued, dropped.

A dead letter is a row of a dead segment (storage/batch/dead_rows.py). What it is chosen by is in
memory, in the index of the schedule_log; its item and its whole reason are read from the file.
Requeueing appends a MOVE record with the same item, which is due at once as its time has passed;
dropping appends a CANCEL record. A row is named by one record only: in the index it counts as named
from the step before that is appended until the record is applied, which takes it out of there.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
import structlog
import trio

from delay_protocol.messages.items import item_message_id
from delay_server.accepting.commits import Committer
from delay_server.dead.wanted import Meant, Wanted, bytes_of, mask_of
from delay_server.filing.schedule_access import ScheduleAccess
from delay_transport.seams.constants import constant
from delay_transport.seams.runtime import Executor
from delay_transport.settings.sections import require_at_least
from storage.batch.batches import Damage
from storage.batch.columns import RecordKind
from storage.batch.facts import FactBlock
from storage.batch.rows import Int64s
from storage.disk.spans import dead_key
from storage.logs.message_log import Draft
from storage.node.store import Store
from storage.readers.dead_reader import DeadItem, DeadReader
from storage.schedule.dead_index import DeadRow

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

DEAD_WORKER = "dead_letters"
_CHANGED_AT_ONCE: Final = 1000
"""Rows of one append."""
_BYTES_AT_ONCE: Final = 1024 * 1024
"""Bytes of their items, unless a single one has more."""
_APPLIED_WAIT_S: Final = 10.0
"""How long a change waits until its records are applied: they are durable, and will be."""
_READ_WITHIN_S: Final = 3.0
"""How long a request waits for the index: a start reads it beside everything else."""
_READ_AFTER_S: Final = 1.0
"""Time from the begin of a mastership until the index is read: what is due is loaded first."""
_READ_AGAIN_S: Final = 10.0
"""Least time between two readings of the index."""
_INDEXED_MIN: Final = 1000
"""Dead letters that can be listed whatever `pending_max` says: it may have been lowered."""

_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadConfig:
    """Messages that brokers refuse for good, and what may be done about them."""

    pending_max: int = 100_000
    """Dead letters at a time, 80 bytes of memory each. At the limit messages that brokers refuse
    for good are retried at long intervals, until an operator has requeued or dropped some dead
    letters."""

    page_rows_max: int = constant(1000)
    """Dead letters of one answer."""

    change_rows_max: int = constant(10_000)
    """Dead letters that one request requeues or drops; a command sends as many as it takes."""

    def __post_init__(self) -> None:
        """Refuse what could not work."""
        require_at_least(self, 0, "pending_max")
        require_at_least(self, 1, "page_rows_max", "change_rows_max")


@dataclass(slots=True)
class Change:
    """What a change came to.

    matched: dead letters that were meant; done: those that were requeued or dropped; damaged:
    sequences of those that cannot be requeued since their bytes are damaged; after: the sequence
    behind which to go on, None if that was all; lacks_space: it ended early, since there is no free
    disk; sequences: which were meant.
    """

    matched: int = 0
    done: int = 0
    damaged: list[int] = field(default_factory=list)
    after: int | None = None
    lacks_space: bool = False
    sequences: list[int] = field(default_factory=list)


class DeadLetters:
    """What people do about dead letters."""

    def __init__(
        self,
        *,
        store: Store,
        committer: Committer,
        access: ScheduleAccess,
        executor: Executor,
        config: DeadConfig,
        on_damage: Callable[[Damage], None],
        on_appended: Callable[[], None],
    ) -> None:
        """`on_appended`: something was appended, or found no space."""
        self.config = config
        self._disk = store.disk
        self._schedule = store.schedule
        self._committer = committer
        self._access = access
        self._executor = executor
        self._on_damage = on_damage
        self._on_appended = on_appended
        self._changing = trio.Lock()
        self._noted = trio.Event()
        self._was_read = trio.Event()
        self._has_room = trio.Event()
        self.is_closed = False
        """Whether nothing may be changed any more."""
        self.requeued = 0
        """Since the start; so is the next."""
        self.dropped = 0

    @property
    def pending(self) -> int:
        """Dead letters that were neither requeued nor dropped."""
        index = self._schedule.dead
        return max(self._schedule.dead_pending, len(index)) - index.named

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest of those in the index was given up, wall ms."""
        return self._schedule.dead.oldest_ms

    async def until_read(self) -> bool:
        """Wait for the index to be read, a while; say whether it was. Before, nothing is found."""
        with trio.move_on_after(_READ_WITHIN_S):
            await self._was_read.wait()
        return self._was_read.is_set()

    def noted(self, facts: FactBlock) -> None:
        """Hear of facts that the schedule_log knows."""
        if facts.of_dead.any():
            self._noted.set()
            self._noted = trio.Event()
            index = self._schedule.dead
            if len(index) < self._schedule.dead_pending and 2 * len(index) <= index.rows_max:
                self._has_room.set()

    async def run(self) -> None:
        """Read the index, and again when there is room in it for dead letters that it has not."""
        rows_max = max(self.config.pending_max, _INDEXED_MIN)
        await trio.sleep(_READ_AFTER_S)
        while True:
            await self._access.run(self._schedule.read_dead, rows_max)
            self._was_read.set()
            await trio.sleep(_READ_AGAIN_S)
            await self._has_room.wait()
            self._has_room = trio.Event()

    async def stop(self) -> None:
        """Change nothing more, and wait until what is being appended is."""
        self.is_closed = True
        async with self._changing:
            pass

    # -- looking -----------------------------------------------------------------------------

    async def find(self, meant: Meant, *, after: int = 0, rows_max: int) -> list[DeadRow]:
        """Return the first `rows_max` dead letters behind sequence `after` that are meant."""
        await self.until_read()
        rows = await self._access.run(self._chosen, meant, after, rows_max)
        if isinstance(meant, Wanted) and meant.message_id is not None:
            message_id = bytes_of(meant.message_id)
            has_id = await self.read(rows, lambda _, found: _has_id(found, message_id))
            rows = [row for row, has in zip(rows, has_id, strict=True) if has]
        return rows

    async def find_message(self, sequence: int) -> list[DeadRow]:
        """Return the dead letter that has a sequence now, or had it before it was given up."""
        await self.until_read()
        return await self._access.run(self._of_message, sequence)

    async def count(self, meant: Meant) -> Int64s:
        """Return the sequences of all that are meant, message ids told by their hash."""
        await self.until_read()
        return await self._access.run(self._sequences, meant)

    async def read(
        self, rows: Sequence[DeadRow], make: Callable[[DeadRow, DeadItem], _Made]
    ) -> list[_Made]:
        """Return what `make` makes, in a worker, of each row and of what its file has of it."""
        return await self._executor.run(DEAD_WORKER, self._read, rows, make)

    def _chosen(self, meant: Meant, after: int, rows_max: int) -> list[DeadRow]:
        index = self._schedule.dead
        return index.chosen(mask_of(meant, index, after=after), rows_max)

    def _of_message(self, sequence: int) -> list[DeadRow]:
        rows = self._schedule.dead.rows
        mask = (rows["sequence"] == sequence) | (rows["old_sequence"] == sequence)
        return self._schedule.dead.chosen(mask, len(rows))

    def _sequences(self, meant: Meant) -> Int64s:
        index = self._schedule.dead
        found: Int64s = index.rows["sequence"][mask_of(meant, index)]
        return found

    def _read(
        self, rows: Sequence[DeadRow], make: Callable[[DeadRow, DeadItem], _Made]
    ) -> list[_Made]:
        reader = DeadReader(self._disk)
        try:
            return [make(row, self._item(reader, row)) for row in rows]
        finally:
            reader.close()

    def _item(self, reader: DeadReader, row: DeadRow) -> DeadItem:
        found = reader.read(row)
        if found.fault:
            path = dead_key(row.minute).path
            self._on_damage(Damage(path, row.position, row.row_size, found.fault))
        return found

    # -- changing ----------------------------------------------------------------------------

    async def requeue(self, meant: Meant, *, after: int = 0, rows_max: int) -> Change:
        """Send up to `rows_max` dead letters once more, under the same ids."""
        return await self._change(RecordKind.MOVE, meant, after, rows_max)

    async def drop(self, meant: Meant, *, after: int = 0, rows_max: int) -> Change:
        """Have up to `rows_max` dead letters never sent."""
        return await self._change(RecordKind.CANCEL, meant, after, rows_max)

    async def _change(self, kind: RecordKind, meant: Meant, after: int, rows_max: int) -> Change:
        change = Change()
        async with self._changing:
            rows = await self.find(meant, after=after, rows_max=rows_max + 1)
            if len(rows) > rows_max:
                change.after = rows[rows_max - 1].sequence
            for part in _parts(rows[:rows_max]):
                if self.is_closed or not await self._settle(kind, part, change):
                    change.after = part[0].sequence - 1
                    break
        return change

    async def _settle(self, kind: RecordKind, rows: Sequence[DeadRow], change: Change) -> bool:
        """Record what becomes of these; False without space."""
        items: list[bytes] = []
        meant = [row.sequence for row in rows]
        if kind is RecordKind.MOVE:
            found = await self.read(rows, lambda row, item: (row, item))
            if self.is_closed:
                return False
            change.damaged += [row.sequence for row, item in found if item.item is None]
            rows = [row for row, item in found if item.item is not None]
            items = [item.item for _, item in found if item.item is not None]
        change.matched += len(meant)
        change.sequences += meant
        if rows and not await self._append(kind, rows, items):
            change.lacks_space = True
            return False
        change.done += len(rows)
        return True

    async def _append(self, kind: RecordKind, rows: Sequence[DeadRow], items: list[bytes]) -> bool:
        """Append the records, and wait for them to be applied; False if there was no space."""
        draft = _move(rows, items) if kind is RecordKind.MOVE else _cancel(rows)
        sequences = draft.arrays["old_sequence"]
        before = self._schedule.dead.named
        # Whatever ends this task meanwhile, nobody names them once more: the record may be kept.
        await self._access.run(self._name, sequences, True)  # noqa: FBT003
        kept = await self._committer.commit_records(draft)
        self._on_appended()
        if not kept:
            await self._access.run(self._name, sequences, False)  # noqa: FBT003
            return False
        if kind is RecordKind.MOVE:
            self.requeued += len(rows)
        else:
            self.dropped += len(rows)
        with trio.move_on_after(_APPLIED_WAIT_S):
            while self._schedule.dead.named > before:
                await self._noted.wait()
        return True

    def _name(self, sequences: Int64s, named: bool) -> None:  # noqa: FBT001
        self._schedule.dead.name(sequences, named=named)


def _parts(rows: Sequence[DeadRow]) -> Iterator[Sequence[DeadRow]]:
    """Yield rows in parts of at most _BYTES_AT_ONCE, or of one that has more by itself."""
    sizes = np.cumsum([row.size for row in rows], dtype=np.int64)
    begin = 0
    while begin < len(rows):
        before = int(sizes[begin - 1]) if begin else 0
        end = int(np.searchsorted(sizes, before + _BYTES_AT_ONCE, side="right"))
        end = min(max(end, begin + 1), begin + _CHANGED_AT_ONCE)
        yield rows[begin:end]
        begin = end


def _has_id(found: DeadItem, message_id: bytes) -> bool:
    return found.item is not None and bytes(item_message_id(found.item)) == message_id


def _cancel(rows: Sequence[DeadRow]) -> Draft:
    """Return the records that drop dead letters."""
    return Draft(
        kind=RecordKind.CANCEL,
        count=len(rows),
        names=(),
        arrays={
            "old_sequence": np.array([row.sequence for row in rows], np.int64),
            "old_minute": np.array([row.minute for row in rows], np.uint32),
        },
    )


def _move(rows: Sequence[DeadRow], items: list[bytes]) -> Draft:
    """Return the records that requeue dead letters: the same items, due when they were."""
    subjects = list(dict.fromkeys(row.subject for row in rows))
    numbers = {subject: number for number, subject in enumerate(subjects)}
    return Draft(
        kind=RecordKind.MOVE,
        count=len(rows),
        names=subjects,
        arrays={
            "old_sequence": np.array([row.sequence for row in rows], np.int64),
            "due_ms": np.array([row.due_ms for row in rows], np.int64),
            "id_hash": np.array([row.id_hash for row in rows], np.uint64),
            "size": np.array(list(map(len, items)), np.uint32),
            "old_minute": np.array([row.minute for row in rows], np.uint32),
            "subject": np.array([numbers[row.subject] for row in rows], np.uint16),
        },
        blob=items,
    )
