"""A StoreRig whose messages are also given up, requeued and dropped."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from storage.batch.batches import LogBatch
from storage.batch.columns import Array, Columns, RecordKind
from storage.batch.entries import ENTRY
from storage.disk.errors import StorageFullError
from storage.disk.spans import MINUTE_MS, SegmentKey, Span, dead_key, dead_segment_of
from storage.logs.message_log import Draft
from storage.readers.dead_reader import DeadItem, read_dead_item
from storage.schedule.dead_index import DeadRow
from tests.storage.store_rig import Message, StoreRig

REASON = b'{"code":%d,"group":"g1"}'


@dataclass(frozen=True, slots=True)
class Dead:
    """A row of a dead segment, as it must be found."""

    old: int
    message: Message
    key: SegmentKey
    reason: str


@dataclass(slots=True)
class DeadMemory:
    """What holds over all lives."""

    rows: dict[int, Dead] = field(default_factory=dict)
    settled: dict[int, int] = field(default_factory=dict)
    """Rows that a record names, and that record."""


class DeadRig(StoreRig):
    """Does what the server does with dead letters, too."""

    dead: DeadMemory

    def open(self) -> None:
        """Begin a life."""
        self.dead = getattr(self, "dead", DeadMemory())
        self._settled: dict[int, int] = {}
        super().open()
        known, first = self.dead.settled, self.store.message_log.first_sequence
        kept = {row: at for row, at in known.items() if at < first}
        assert known.items() <= (self._settled | kept).items(), "a record is gone"
        self.dead.settled |= self._settled
        self.memory.given_up = {row.old for row in self.dead.rows.values()}
        self.store.schedule.read_dead()

    def learn_record(self, batch: LogBatch) -> None:
        """Take note of records that name rows."""
        header, arrays = batch.header, batch.columns.arrays
        if header.kind not in {RecordKind.DEAD, RecordKind.MOVE, RecordKind.CANCEL}:
            return
        begin = 0
        for place, old in enumerate(arrays["old_sequence"].tolist()):
            if header.kind is not RecordKind.DEAD:
                assert old not in self._settled, "named twice"
                self._settled[old] = header.base_sequence + place
                continue
            size = int(arrays["size"][place])
            found = Dead(
                old=old,
                message=Message(
                    due_ms=int(arrays["due_ms"][place]),
                    minute=int(arrays["old_minute"][place]),
                    subject=batch.columns.names[arrays["subject"][place]],
                    item=bytes(batch.blob[begin : begin + size]),
                ),
                key=dead_segment_of(header.append_ms, header.floor_minute),
                reason=batch.columns.names[arrays["reason"][place]].decode(),
            )
            begin += size
            assert self.dead.rows.setdefault(header.base_sequence + place, found) == found
            self.memory.appended_ms[header.base_sequence + place] = header.append_ms

    # -- steps -------------------------------------------------------------------------------

    def bury(self, count: int = 10**9) -> None:
        """Give up what is due, as if brokers had refused it for good."""
        due = [entry for entry in self.wheel.values() if entry[1] <= self.now_ms][:count]
        if not due:
            return
        entries = np.array(due, ENTRY)
        messages = [self.memory.accepted[sequence] for sequence in entries["sequence"].tolist()]
        reasons = [REASON % self.chance.randrange(3) for _ in due]
        names = sorted({*reasons, *(message.subject for message in messages)})
        columns = Columns(
            names=names,
            arrays={
                "old_sequence": entries["sequence"].copy(),
                "due_ms": entries["due_ms"].copy(),
                "id_hash": np.arange(len(due), dtype=np.uint64),
                "size": entries["size"].copy(),
                "old_minute": entries["minute"].copy(),
                "subject": np.array([names.index(one.subject) for one in messages], np.uint16),
                "reason": np.array([names.index(reason) for reason in reasons], np.uint16),
            },
        )
        items = [message.item for message in messages]
        base = self._append(RecordKind.DEAD, columns, items)
        if base is None:
            return
        for place, (sequence, message) in enumerate(
            zip(entries["sequence"].tolist(), messages, strict=True)
        ):
            del self.wheel[sequence]
            key = dead_segment_of(self.now_ms, self._floor)
            self.dead.rows[base + place] = Dead(sequence, message, key, reasons[place].decode())
            self.memory.given_up.add(sequence)

    def settle(self, count: int, *, requeue: bool) -> None:
        """Requeue or drop some rows that are still there."""
        rows = [row for row in self.listed() if row.sequence not in self.dead.settled]
        self.chance.shuffle(rows)
        if not (rows := rows[:count]):
            return
        names = sorted({row.subject for row in rows})
        arrays: dict[str, Array] = {
            "old_sequence": np.array([row.sequence for row in rows], np.int64),
            "old_minute": np.array([row.minute for row in rows], np.uint32),
        }
        if not requeue:
            base = self._append(RecordKind.CANCEL, Columns(names=[], arrays=arrays), [])
        else:
            items = [item.item for item in self.read(rows) if item.item is not None]
            assert len(items) == len(rows)
            arrays |= {
                "due_ms": np.array([row.due_ms for row in rows], np.int64),
                "id_hash": np.array([row.id_hash for row in rows], np.uint64),
                "size": np.array([row.size for row in rows], np.uint32),
                "subject": np.array([names.index(row.subject) for row in rows], np.uint16),
            }
            base = self._append(RecordKind.MOVE, Columns(names=names, arrays=arrays), items)
        if base is None:
            return
        for place, row in enumerate(rows):
            self.dead.settled[row.sequence] = base + place
            if requeue:
                before = self.dead.rows[row.sequence].message
                self.memory.accepted[base + place] = Message(
                    due_ms=before.due_ms,
                    minute=max(before.due_ms // MINUTE_MS, self._floor),
                    subject=before.subject,
                    item=before.item,
                )

    def _append(self, kind: RecordKind, columns: Columns, items: list[bytes]) -> int | None:
        """Append records and have them filed later; return the first sequence, None if full."""
        log, schedule = self.store.message_log, self.store.schedule
        floor = max(self._floor, min(self.now_ms // MINUTE_MS, schedule.hour_mark - 1))
        draft = Draft(
            kind=kind,
            count=len(columns.arrays["old_sequence"]),
            names=columns.names,
            arrays=columns.arrays,
            blob=items,
        )
        self.memory.attempted_facts.update(columns.arrays["old_sequence"].tolist())
        try:
            [batch] = log.append([draft], floor_minute=floor, append_ms=self.now_ms)
        except StorageFullError:
            return None
        self._floor, header = floor, batch.header
        for sequence in range(header.base_sequence, header.next_sequence):
            self.memory.appended_ms[sequence] = self.now_ms
        self.apply_later(batch)
        return header.base_sequence

    def random_step(self) -> None:
        """Do something that the server might do now."""
        match self.chance.randrange(12):
            case 0 | 1:
                self.bury(self.chance.choice([1, 5, 100]))
            case 2:
                self.settle(self.chance.choice([1, 3]), requeue=True)
            case 3:
                self.settle(self.chance.choice([1, 3]), requeue=False)
            case _:
                super().random_step()

    # -- what must be true -------------------------------------------------------------------

    def listed(self) -> list[DeadRow]:
        """Return the dead letters of the index."""
        return sorted(self.store.schedule.dead.rows.values(), key=lambda row: row.sequence)

    def read(self, rows: Iterable[DeadRow]) -> list[DeadItem]:
        """Return what the files have of these."""
        return [read_dead_item(self.disk, row) for row in rows]

    def sealed_dead(self) -> set[int]:
        """Return the rows of dead segments that are sealed."""
        sealed = {seal.key for seal in self.memory.sealed.values()}
        return {sequence for sequence, row in self.dead.rows.items() if row.key in sealed}

    def check_dead(self) -> None:
        """Every record has its row, its bytes, and is pending exactly until it was settled."""
        self.file(10**9)
        self.store.schedule.flush_near(self.now_ms)
        self.cross_off()
        assert self.sealed_dead() <= self.dead.settled.keys(), "neither requeued nor dropped"
        schedule = self.store.schedule
        pending = self.dead.rows.keys() - self.dead.settled.keys()
        rows = self.listed()
        assert [row.sequence for row in rows] == sorted(pending)
        assert schedule.dead_pending == len(pending)
        for row, found in zip(rows, self.read(rows), strict=True):
            expected = self.dead.rows[row.sequence]
            message = expected.message
            assert (row.old_sequence, dead_key(row.minute)) == (expected.old, expected.key)
            assert (row.due_ms, row.subject, row.group) == (message.due_ms, message.subject, "g1")
            assert row.dead_ms == self.memory.appended_ms[row.sequence]
            assert row.size == len(message.item)
            assert found == DeadItem(message.item, expected.reason)
        # What was kept up to date is what is read anew.
        schedule.read_dead()
        assert self.listed() == rows

    def see_all_settled(self) -> None:
        """Settle what is left, and let the days pass."""
        self.check_dead()
        self.settle(10**9, requeue=False)
        self.check_dead()
        assert not self.listed()
        ends = [row.key.end for row in self.dead.rows.values()]
        self.now_ms = max([self.now_ms, *(end * MINUTE_MS for end in ends)])
        self.split(10**6)
        self.commit_floor()
        self.file(10**9)
        self.checkpoint()
        spans = {segment.key.span for segment in self.store.schedule.segments.values()}
        assert Span.DEAD not in spans, "a settled day is not sealed"
