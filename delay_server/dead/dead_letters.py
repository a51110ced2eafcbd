"""Dead letters, once they are recorded: listed, requeued, dropped.

A dead letter is a row of a dead segment (storage/batch/dead_rows.py). What it is chosen by is in
memory, in the index of the schedule_log; its item and its whole reason are read from the file.
Requeueing appends a MOVE record with the same item, which is due at once as its time has passed,
or with the item as it is with another due time;
dropping appends a CANCEL record. A row is named by one record only: from the step before that is
appended until the record is applied it is among those of the index that are leaving.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import trio

from delay_protocol.basics.subjects import real_subject
from delay_protocol.messages.items import item_due_at
from delay_server.accepting.commits import Committer
from delay_server.accepting.settling import cancel_of, move_of
from delay_server.filing.schedule_access import ScheduleAccess
from delay_transport.seams.runtime import Executor
from storage.batch.batches import Damage
from storage.batch.columns import RecordKind
from storage.disk.spans import dead_key
from storage.logs.message_log import Draft
from storage.node.store import Store
from storage.readers.dead_reader import DeadItem, read_dead_item
from storage.schedule.dead_index import DeadRow

DEAD_WORKER = "dead_letters"
PENDING_MAX: Final = 10_000
"""Dead letters at a time. At the limit messages that brokers refuse for good are retried at long
intervals, until an operator has requeued or dropped some dead letters."""
_CHANGED_AT_ONCE: Final = 1000
"""Rows of one append."""
_BYTES_AT_ONCE: Final = 1024 * 1024
"""Bytes of their items, unless a single one has more."""
_READ_WITHIN_S: Final = 3.0
"""How long a request waits for the index: a start reads it beside everything else."""
_READ_AFTER_S: Final = 1.0
"""Time from the begin of a mastership until the index is read: what is due is loaded first."""

_Made = TypeVar("_Made")


@dataclass(slots=True)
class Change:
    """What a change came to.

    done: how many were requeued or dropped; damaged: sequences of those that cannot be requeued
    since their bytes are damaged, or cannot be read; lacks_space, is_stopped: why it ended early.
    """

    done: int = 0
    damaged: list[int] = field(default_factory=list)
    lacks_space: bool = False
    is_stopped: bool = False


class DeadLetters:
    """What people do about dead letters."""

    def __init__(
        self,
        *,
        store: Store,
        committer: Committer,
        access: ScheduleAccess,
        executor: Executor,
        on_damage: Callable[[Damage], None],
        on_appended: Callable[[], None],
    ) -> None:
        """`on_appended`: something was appended, or found no space."""
        self._disk = store.disk
        self._schedule = store.schedule
        self._committer = committer
        self._access = access
        self._executor = executor
        self._on_damage = on_damage
        self._on_appended = on_appended
        self._changing = trio.Lock()
        self._was_read = trio.Event()
        self.is_closed = False
        """Whether nothing may be changed any more."""

    @property
    def pending(self) -> int:
        """Dead letters that were neither requeued nor dropped."""
        index = self._schedule.dead
        return max(self._schedule.dead_pending, len(index.rows)) - len(index.leaving)

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest of those in the index was given up, wall ms."""
        return min((row.dead_ms for row in self._there()), default=None)

    async def until_read(self) -> bool:
        """Wait for the index to be read, a while; say whether it was. Before, nothing is found."""
        with trio.move_on_after(_READ_WITHIN_S):
            await self._was_read.wait()
        return self._was_read.is_set()

    async def run(self) -> None:
        """Read the index."""
        await trio.sleep(_READ_AFTER_S)
        await self._access.run(self._schedule.read_dead)
        self._was_read.set()

    async def stop(self) -> None:
        """Change nothing more, and wait until what is being appended is."""
        self.is_closed = True
        async with self._changing:
            pass

    # -- looking -----------------------------------------------------------------------------

    def listed(self, *, subject: str | None = None, group: str | None = None) -> list[DeadRow]:
        """Return the dead letters by sequence: all, or those of a subject, or of a group.

        Retries, and copies for one of several names, are of the subject of their message. A group's
        are those that it refused last. There are none before the index is read.
        """
        wanted = None
        if subject is not None:
            wanted = real_subject(subject.encode(errors="surrogateescape"))
        found = [
            row
            for row in self._there()
            if wanted in {None, real_subject(row.subject)} and group in {None, row.group}
        ]
        return sorted(found, key=lambda row: row.sequence)

    def named(self, sequences: Iterable[int]) -> list[DeadRow]:
        """Return those of the dead letters that there are, by sequence, once `until_read`."""
        index = self._schedule.dead
        there = index.rows.keys() & set(sequences) - index.leaving
        return [index.rows[sequence] for sequence in sorted(there)]

    def _there(self) -> list[DeadRow]:
        """Return all, in no order; none before the index is read."""
        if not self._was_read.is_set():
            return []
        index = self._schedule.dead
        return [row for row in list(index.rows.values()) if row.sequence not in index.leaving]

    async def read(
        self, rows: Sequence[DeadRow], make: Callable[[DeadRow, DeadItem], _Made]
    ) -> list[_Made]:
        """Return what `make` makes, in a worker, of each row and of what its file has of it."""
        return await self._executor.run(
            DEAD_WORKER, lambda: [make(row, self._item(row)) for row in rows]
        )

    def _item(self, row: DeadRow) -> DeadItem:
        path = dead_key(row.minute).path
        try:
            found = read_dead_item(self._disk, row)
        except OSError as error:
            found = DeadItem(None, None, f"cannot be read: {error}")
        if found.fault:
            self._on_damage(Damage(path, row.position, row.row_size, found.fault))
        return found

    # -- changing ----------------------------------------------------------------------------

    async def requeue(self, rows: Sequence[DeadRow]) -> Change:
        """Send dead letters once more, under the same ids; those that are none any more are not.

        Each is due when its row says: when it was, which is at once, or what was put in its place.
        """
        return await self._change(RecordKind.MOVE, rows)

    async def drop(self, rows: Sequence[DeadRow]) -> Change:
        """Settle dead letters without a delivery."""
        return await self._change(RecordKind.CANCEL, rows)

    async def _change(self, kind: RecordKind, rows: Sequence[DeadRow]) -> Change:
        change = Change()
        async with self._changing:
            index = self._schedule.dead
            there = index.rows.keys() - index.leaving
            for part in _parts([row for row in rows if row.sequence in there]):
                await self._settle(kind, part, change)
                if change.lacks_space or change.is_stopped:
                    break
        return change

    async def _settle(self, kind: RecordKind, rows: Sequence[DeadRow], change: Change) -> None:
        """Record what becomes of these."""
        items: list[bytes] = []
        if kind is RecordKind.MOVE:
            there = [self._schedule.dead.rows[row.sequence] for row in rows]
            read = await self.read(there, lambda old, found: (old, found.item))
            found = [(row, *one) for row, one in zip(rows, read, strict=True)]
            change.damaged += [row.sequence for row, _, item in found if item is None]
            rows = [row for row, _, item in found if item is not None]
            items = [
                item if row.due_ms == old.due_ms else item_due_at(item, row.due_ms)
                for row, old, item in found
                if item is not None
            ]
        if self.is_closed:
            change.is_stopped = True
        elif rows:
            is_move = kind is RecordKind.MOVE
            dues = [row.due_ms for row in rows]
            draft = move_of(rows, items, dues) if is_move else cancel_of(rows)
            change.lacks_space = not await self._append(draft)
            change.done += 0 if change.lacks_space else len(rows)

    async def _append(self, draft: Draft) -> bool:
        """Append the records; False if there was no space."""
        leaving = self._schedule.dead.leaving
        sequences = draft.arrays["old_sequence"].tolist()
        # Whatever ends this task meanwhile, nobody names them once more: the record may be kept.
        leaving.update(sequences)
        kept = await self._committer.commit_records(draft)
        self._on_appended()
        if not kept:
            leaving.difference_update(sequences)
        return kept


def _parts(rows: Sequence[DeadRow]) -> Iterator[Sequence[DeadRow]]:
    """Yield rows in parts of at most _BYTES_AT_ONCE, or of one that has more by itself."""
    begin = size = 0
    for place, row in enumerate(rows):
        size += row.size
        if place > begin and (size > _BYTES_AT_ONCE or place - begin >= _CHANGED_AT_ONCE):
            yield rows[begin:place]
            begin, size = place, row.size
    if rows:
        yield rows[begin:]
