"""The schedule_log: committed messages filed by the time they are due, and loaded from there.

Batches of the message_log come in by `apply`, in order of sequence. Rows of minutes that are being
or have been loaded are written at once and returned as entries for the wheel; the others wait in
the *pile* and are written together, each segment once per flush, because a commit's rows may belong
to hundreds of segments. All methods are called one at a time, in order (one worker of the
executor), which is what makes loading exactly once: a job of loading.py starts by moving a cursor
and noting how long the files are in one step, so every row is either on disk for the job or written
later, and then it goes straight in if the cursor has passed it.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import numpy as np
import numpy.typing as npt

from storage.batch.batches import Damage, LogBatch
from storage.batch.columns import RecordKind
from storage.batch.dead_rows import dead_rows_of
from storage.batch.entries import (
    SUBJECTS_BYTES_MAX,
    Entries,
    SubjectTable,
    make_entries,
    no_entries,
)
from storage.batch.facts import STATING_KINDS, FactBlock, facts_stated, join_facts
from storage.batch.rows import Int64s, RowBlock, effective_due_ms, filed_minutes, join_blocks
from storage.disk.disk import Disk, File
from storage.disk.errors import (
    DamagedError,
    DataDirectoryError,
    ReadFailedError,
    StorageFullError,
    UnsupportedFormatError,
)
from storage.disk.spans import (
    DEAD_MINUTES_FROM,
    MINUTE_MS,
    SegmentKey,
    Span,
    codes_of_span,
    dead_key,
    key_of_code,
    key_of_minute,
)
from storage.schedule.dead_index import DeadIndex
from storage.schedule.loading import (
    CloseJob,
    DrainJob,
    GivenOut,
    Job,
    Key,
    Lane,
    LoadJob,
    Numbers,
    OpenLanes,
    contained,
    not_after,
)
from storage.schedule.provision import Owed, Provision
from storage.schedule.segment import Segment, SegmentBatch
from storage.state.checkpoint import EpochStart, SegmentState


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleLimits:
    """How the schedule_log gathers and cuts time; each node may choose for itself."""

    minute_horizon_minutes: int = 120
    """What is due within this many minutes lies in minute segments."""

    hour_horizon_minutes: int = 48 * 60
    """What is due within this many minutes lies in hour segments, beyond it in day segments."""

    gather_bytes_max: int = 64 * 1024 * 1024
    """Rows for later are written when this many bytes of them wait in memory."""

    subjects_bytes_max: int = SUBJECTS_BYTES_MAX
    """Bytes of names of subjects in memory, and 256 for each name, beyond which names that nothing
    needs any more are taken away before more come."""

    open_files_max: int = 2048
    """Segment files open for appending at a time. Before there are more, those written since the
    last checkpoint are made durable and closed."""

    def __post_init__(self) -> None:
        """Refuse settings that could not work."""
        if self.minute_horizon_minutes < 2:
            raise ValueError("minute_horizon_minutes must be at least 2")
        if self.hour_horizon_minutes < self.minute_horizon_minutes + 60:
            raise ValueError("hour_horizon_minutes must exceed minute_horizon_minutes by an hour")
        if self.subjects_bytes_max < 1024:
            raise ValueError("subjects_bytes_max must be at least 1024")


@dataclass(slots=True)
class Unread:
    """A file that the operating system could not read when it was tried last."""

    path: str
    errno: int | None
    reason: str
    failures: int
    """Tries that failed, one after another."""

    given_up: bool = False
    """Whether what cannot be read of it is taken for damage from now on."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What applying a batch of the message_log led to, beside what is on disk."""

    entries: Entries
    """Rows that go straight into the wheel."""
    facts: FactBlock | None
    """The facts that it states, crossed off by now; None of a kind that states none."""


class ScheduleLog:
    """Files, loads, splits and crosses off; knows no clock and no task."""

    def __init__(  # noqa: PLR0915 (the state of the log, told field by field)
        self,
        disk: Disk,
        log_uuid: UUID,
        *,
        limits: ScheduleLimits,
        on_damage: Callable[[Damage], None],
        provision: Provision | None = None,
    ) -> None:
        self.disk = disk
        self.subjects = SubjectTable(bytes_max=limits.subjects_bytes_max)
        self._log_uuid = log_uuid
        self._limits = limits
        self.owed = Owed(provision or Provision())
        self._on_damage = on_damage
        self.segments: dict[int, Segment] = {}
        """Unsealed segments by the code of their key."""
        self.dead = DeadIndex()
        self.epoch = 1
        self.epochs: list[EpochStart] = []
        """Every epoch of the records filed so far, oldest first."""
        self.last_filed = 0
        """The last sequence handed to `apply`; pile and held rows count as filed."""
        self.floor_minute = 0
        self.hour_mark = 0
        self.day_mark = 0
        self.cursor: Key = (0, 0)
        """The common cursor: rows not after it were given out, unless their subject has a lane."""
        self.lanes = OpenLanes()
        self.given = GivenOut()
        self.jobs: list[Job] = []
        """Jobs that have begun and not ended."""
        self._near: list[RowBlock] = []
        self._pile: list[RowBlock] = []
        self._held: list[RowBlock] = []
        self._pile_earliest_ms: int | None = None
        self._flushed_sequence = 0
        """The last sequence filed when a load was begun."""
        self._split: SplitJob | None = None
        self._replaced: list[Segment] = []
        """Segments that were split; their files stay open until no checkpoint needs them."""
        self._unfiled: list[FactBlock] = []
        self._dirty: dict[str, File] = {}
        self._syncing: set[str] = set()
        """Files that a checkpoint under way makes durable; they stay open until it ends."""
        self.names_changed = False
        """A file was made since the last checkpoint, so the directories need an fsync."""
        self.full = False
        """The last write found no space; rows wait in memory and `apply` goes on accepting."""
        self.pending = 0
        """Messages without a fact, pile included."""
        self.dead_pending = 0
        """Dead letters likewise."""
        self.retired: list[str] = []
        """Files that nothing needs any more, for the next checkpoint to list."""
        self.quarantined: list[str] = []
        """Files with damaged batches that were not carried over; kept for salvage."""
        self._reported: set[tuple[str, int]] = set()
        self.is_patient = False
        """Whether an error of the operating system at reading is passed on, to be tried again later
        (ReadFailedError), rather than taken for damage. A recovery has nobody to try again."""
        self.unread: dict[str, Unread] = {}
        """By path: what could not be read, until it is. Others may look at it, not change it."""
        self._gave_out = False
        """Whether a row was ever given out; until then nobody else holds numbers of subjects."""

    # -- filing ------------------------------------------------------------------------------

    def apply(self, batch: LogBatch, *, now_ms: int, above: int = 0) -> Applied:
        """Take over the next committed batch of the message_log; nothing else adds to segments.

        Rows and facts that are filed already (replay after a crash) are skipped: those not above
        sequence `above`, and those not above the last one of their segment. `now_ms`: of what is
        written. Facts are filed by the next checkpoint, and count at once.

        Raises UnsupportedFormatError for a batch that does not belong in a message_log.
        """
        header = batch.header
        if header.kind not in _KINDS_OF_LOG:
            raise UnsupportedFormatError(
                path="message_log",
                position=header.base_sequence,
                reason=f"record kind {header.kind.name} does not belong in this log",
            )
        self._raise_floor(header.floor_minute, now_ms)
        self._note_epoch(header.epoch, header.base_sequence)
        self._collect_alone()
        self.last_filed = header.next_sequence - 1
        entries = no_entries()
        if header.kind in {RecordKind.MESSAGE, RecordKind.MOVE}:
            entries = self._file(batch, now_ms, above)
        elif header.kind is RecordKind.DEAD:
            entries = self._file_dead(batch, now_ms, above)
        facts = facts_stated(header, batch.columns)
        if facts is not None:
            if above >= header.base_sequence:
                facts = facts.above(above)
            self._cross_off(facts)
        return Applied(entries, facts)

    def _file(self, batch: LogBatch, now_ms: int, above: int) -> Entries:
        """File the items of a batch; return the entries that go straight into the wheel."""
        header, arrays = batch.header, batch.columns.arrays
        block = RowBlock(
            sequence=np.arange(header.base_sequence, header.next_sequence, dtype=np.int64),
            due_ms=arrays["due_ms"],
            id_hash=arrays["id_hash"],
            size=arrays["size"],
            subject=self.subjects.numbers(batch.columns.names)[arrays["subject"]],
            # The batch's own floor: in replay the checkpoint's is that of later batches, and a row
            # must come to the minute in which it may lie already.
            minute=filed_minutes(arrays["due_ms"], header.floor_minute),
            blob=bytes(batch.blob),
        ).above(above)
        if not len(block):
            return no_entries()
        self.pending += len(block)
        near = block.minute * MINUTE_MS < self.cursor[0]
        if near.all():
            self._near.append(block)
        elif near.any():
            self._near.append(block.take(np.flatnonzero(near)))
            self._put_aside(block.take(np.flatnonzero(~near)))
        else:
            self._put_aside(block)
        return self.flush_near(now_ms)

    def _file_dead(self, batch: LogBatch, now_ms: int, above: int) -> Entries:
        """File the rows that DEAD records make, written at once as those of loaded minutes are."""
        block = dead_rows_of(batch, self.subjects).above(above)
        if len(block):
            self.dead_pending += len(block)
            self._near.append(block)
        return self.flush_near(now_ms)

    def read_dead(self, rows_max: int) -> None:
        """Read the index of dead letters anew, of the oldest days first; it is kept from now on.

        Raises ReadFailedError with the index as it was.
        """
        index = DeadIndex(rows_max, is_read=True)
        for segment in sorted(self.segments.values(), key=lambda segment: segment.key.start):
            if segment.key.span is not Span.DEAD or index.is_full:
                continue
            try:
                index.read(self.disk, segment, self.crossed_off(segment), self.report)
            except (DataDirectoryError, UnsupportedFormatError) as error:
                # Somebody has put the first sector of another file there since it was opened.
                path, length = segment.file.path, segment.file.length
                self.report(Damage(path, 0, length, str(error)))
        named = self.dead.rows["sequence"][self.dead.rows["named"]]
        index.name(named, named=True)
        self.dead = index

    def restore(self, segment: Segment) -> None:
        """Take over a segment as a checkpoint has it."""
        if segment.key.span in _COARSE:
            segment.estimate_raw_bytes()
        self.segments[segment.key.code] = segment
        self._count_pending(segment.key.span, segment.pending)

    def _count_pending(self, span: Span, change: int) -> None:
        """Count rows of a segment as pending, or not any more."""
        if span is Span.DEAD:
            self.dead_pending += change
        else:
            self.pending += change

    def of_time(self) -> Iterator[Segment]:
        """Yield the segments of messages that are to be sent: all but the dead ones.

        As they are when it is called, so that others may look at them.
        """
        return (one for one in list(self.segments.values()) if one.key.span is not Span.DEAD)

    def _note_epoch(self, epoch: int, sequence: int) -> None:
        if not self.epochs or epoch > self.epochs[-1].epoch:
            self.epochs.append(EpochStart(epoch, sequence))
        self.epoch = epoch

    def _raise_floor(self, floor_minute: int, now_ms: int) -> None:
        self.floor_minute = max(self.floor_minute, floor_minute)
        if self.floor_minute >= self.hour_mark:
            # Only in replay: the marks moved on after the checkpoint and the crash forgot it. A
            # row that the floor moved must never lie in a coarse segment, which could not tell.
            while (job := self.begin_split(self.floor_minute * MINUTE_MS)) is not None:
                while not job.step(now_ms):
                    self._collect_alone()
            if self.floor_minute >= self.hour_mark:
                raise StorageFullError("no space to split the segments that the log has passed")

    def _put_aside(self, block: RowBlock) -> None:
        self._pile.append(block)
        self.owed.pile_bytes += block.weight
        self.owed.pile_rows += len(block)
        earliest = int(effective_due_ms(block.due_ms, block.minute).min())
        known = self._pile_earliest_ms
        self._pile_earliest_ms = earliest if known is None else min(known, earliest)

    def join_pile(self) -> None:
        """Make one block of the pile if it has many: in a replay it is searched for each fact."""
        if len(self._pile) > _PILE_BLOCKS_MAX:
            self._pile = [join_blocks(self._pile)]

    @property
    def pile_bytes(self) -> int:
        """Bytes of rows that wait in memory for a flush, those held by a split included."""
        return self.owed.pile_bytes

    @property
    def pile_earliest_ms(self) -> int | None:
        """When the first row of the pile has to be in the wheel."""
        return self._pile_earliest_ms

    @property
    def pile_is_full(self) -> bool:
        """Whether it is time for `flush`."""
        return self.owed.pile_bytes >= self._limits.gather_bytes_max

    def flush_near(self, now_ms: int) -> Entries:
        """Write rows of loaded minutes; return the entries of those below the loading cursor.

        Rows of dead segments too; nobody loads these. What finds no space waits for the next call.
        """
        found = []
        for segment, block, positions in self._write_all(self._near, now_ms):
            if segment.key.span is Span.DEAD:
                self.dead.add_written(block, positions, self.subjects.names)
            else:
                found.append(self._entries(segment, block, positions))
        self.owed.near_rows = sum(map(len, self._near))
        self.owed.near_bytes = sum(block.weight for block in self._near)
        return np.concatenate(found) if found else no_entries()

    def _entries(self, segment: Segment, block: RowBlock, positions: Int64s) -> Entries:
        entries = make_entries(
            sequence=block.sequence,
            due_ms=block.due_ms,
            position=positions,
            size=block.size,
            minute=segment.key.start,
            subject=block.subject,
        )
        wanted: npt.NDArray[np.bool_] | None = None
        if (segment.key.start + 1) * MINUTE_MS > self.cursor[0]:
            effective_ms = effective_due_ms(block.due_ms, block.minute)
            wanted = not_after(effective_ms, block.sequence, self.cursor)
        if self.lanes:
            waits = self._leave_to_lanes(block)
            wanted = ~waits if wanted is None else wanted & ~waits
        if len(self.given):
            # Its outcome may be durable already, and the record of the row was not committed.
            known = contained(block.sequence, self.given.sequences)
            wanted = ~known if wanted is None else wanted & ~known
        return entries if wanted is None else entries[wanted]

    def _leave_to_lanes(self, block: RowBlock) -> npt.NDArray[np.bool_]:
        """Say which rows' subjects have a lane, and see to it that their lanes come by them."""
        waits = self.lanes.subjects.contains(block.subject.astype(np.intp))
        if waits.any():
            subjects = block.subject[waits].astype(np.intp)
            effective_ms = effective_due_ms(block.due_ms[waits], block.minute[waits])
            for lane in self.lanes.values():
                of_lane = lane.subjects.contains(subjects)
                if of_lane.any():
                    lane.lower((int(effective_ms[of_lane].min()), 0))
        return waits

    def flush(self, now_ms: int) -> bool:
        """Write the pile; return False if some of it found no space and waits on."""
        if self._split is not None:
            self._hold_rows(self._split)
        for _written in self._write_all(self._pile, now_ms):
            pass
        waiting, self._pile = self._pile, []
        self.owed.pile_bytes = sum(block.weight for block in self._held)
        self.owed.pile_rows = sum(map(len, self._held))
        self._pile_earliest_ms = None
        for block in waiting:
            self._put_aside(block)
        return not waiting

    def _hold_rows(self, job: "SplitJob") -> None:
        kept = []
        for block in self._pile:
            held = (block.minute >= job.key.start) & (block.minute < job.key.end)
            if held.any():
                self._held.append(block.take_or_empty(np.flatnonzero(held)))
                block = block.take_or_empty(np.flatnonzero(~held))  # noqa: PLW2901
            if len(block):
                kept.append(block)
        self._pile = kept

    def _write_all(
        self, blocks: list[RowBlock], now_ms: int
    ) -> Iterator[tuple[Segment, RowBlock, Int64s]]:
        """Write blocks segment by segment; empty the list of what was written."""
        if not blocks:
            return
        left: list[RowBlock] = []
        self.full = False
        merged = join_blocks(blocks)
        groups = merged.split_by_segment(hour_mark=self.hour_mark, day_mark=self.day_mark)
        for code, group in groups:
            segment = self._segment(key_of_code(code))
            block = group.above(segment.last_sequence)
            self._count_pending(segment.key.span, len(block) - len(group))
            if not len(block):
                continue
            try:
                positions = self._append(segment, block, now_ms)
            except StorageFullError:
                self.full = True
                left.append(block)
                continue
            yield segment, block, positions
        blocks[:] = left

    def _segment(self, key: SegmentKey) -> Segment:
        segment = self.segments.get(key.code)
        if segment is None:
            segment = self.segments[key.code] = Segment.new(self.disk, self._log_uuid, key)
            # After a restart facts may be known before the rows that they tell of are written.
            segment.facts_seen = len(self._unfiled_of(key))
        return segment

    def _unfiled_of(self, key: SegmentKey) -> Int64s:
        """Return the sequences of the facts of a segment that are not filed yet."""
        begin, end = key.filed_minutes
        found = [
            block.sequence[(block.minute >= begin) & (block.minute < end)]
            for block in self._unfiled
        ]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _append(self, segment: Segment, block: RowBlock, now_ms: int) -> Int64s:
        self.require_free(block.weight)
        if not segment.file.is_open:
            self._make_room_for_file()
        self.names_changed |= not segment.file.length
        positions = segment.append(block, self.subjects, epoch=self.epoch, append_ms=now_ms)
        self._dirty[segment.file.path] = segment.file.file()
        if segment.key.span in _COARSE:
            self.owed.split_bytes = max(self.owed.split_bytes, self._split_cost(segment))
        return positions

    def require_free(self, size: int) -> None:
        """Raise StorageFullError where so many bytes would take what others need to be free."""
        if self.owed.keep_free is None:
            return
        free, _ = self.disk.free_bytes()
        keep = self.owed.keep_free()
        if free - size < keep:
            raise StorageFullError(
                f"{free} bytes are free, of which {keep} are kept for facts and checkpoints"
            )

    def _split_cost(self, segment: Segment) -> int:
        minutes = segment.key.end - segment.key.start
        return self.owed.provision.splitting(segment.rows, segment.raw_bytes, minutes)

    def count_splits(self) -> None:
        """Find out what the largest split takes that is still to be done."""
        costs = [
            self._split_cost(segment)
            - (self._split.written if self._split and segment is self._split.source else 0)
            for segment in self.segments.values()
            if segment.key.span in _COARSE
        ]
        self.owed.split_bytes = max(costs, default=0)

    def _make_room_for_file(self) -> None:
        """Keep the number of open files within its bound; a file that is synced may be closed."""
        if len(self._dirty) >= self._limits.open_files_max:
            self.disk.sync_files(list(self._dirty.values()))
            self._dirty = {}
            self._close_clean_files()

    # -- loading -----------------------------------------------------------------------------

    def next_load_ms(self) -> int | None:
        """Return the due time of the first row that is not in the wheel, None if there is none.

        Rows of coarse segments count: they have to be split before.
        """
        cursor_ms = self.cursor[0]
        times = [
            max(segment.earliest_effective_ms, cursor_ms)
            for segment in self.of_time()
            if segment.key.end * MINUTE_MS > cursor_ms and segment.rows
        ]
        if self._pile_earliest_ms is not None:
            times.append(self._pile_earliest_ms)
        return min(times, default=None)

    def pending_before(self, now_ms: int) -> int:
        """Return how many rows without a fact lie in segments of which all were due by then."""
        return sum(
            segment.pending for segment in self.of_time() if segment.key.end * MINUTE_MS <= now_ms
        )

    def begin_load(self, until_ms: int, *, rows_max: int, now_ms: int) -> LoadJob | None:
        """Begin to move the common cursor towards `until_ms`, over at most about `rows_max` rows.

        Returns None if nothing can be loaded now: the cursor is there already, rows that come next
        found no space, a split has to come first, or `rows_max` leaves no room.
        """
        until: Key = (min(until_ms, self.hour_mark * MINUTE_MS), 0)
        if until <= self.cursor or rows_max <= 0:
            return None
        self.flush(now_ms)
        self._flushed_sequence = self.last_filed
        job = LoadJob(self, begin=self.cursor, until=until, rows_max=rows_max, now_ms=now_ms)
        return job if job.plan() else None

    def start_load(self, job: LoadJob, now_ms: int) -> bool:
        """Move the common cursor; return False if that would not be right or not be a move."""
        if self.last_filed != self._flushed_sequence:
            self.flush(now_ms)
        if self._pile_earliest_ms is not None:
            # What is on the disk is loaded, up to the minute of the first row that is not.
            job.cap((self._pile_earliest_ms // MINUTE_MS * MINUTE_MS, 0))
        if job.until <= self.cursor:
            return False  # As when it was lowered while the job was planned: `cap` saw to that.
        self._gave_out = True
        self.cursor = job.until
        return True

    def lower_cursor(self, key: Key, given: Int64s) -> None:
        """Set the common cursor back: what is after `key` was thrown out of the wheel.

        `given` are the rows after it that stay given out: those that the sender holds, or whose
        facts are on their way. There may be others among them.
        """
        self.cursor = min(self.cursor, key)
        # Rows that are filed meanwhile go to disk unseen; what lanes took is known by `given`.
        for lane in self.lanes.values():
            lane.lower(key)
        self.given.add(given)
        for job in self.jobs:
            job.cap(key)

    def unwritten(self) -> list[RowBlock]:
        """Return the rows that wait in memory to be written, to whichever segment."""
        return [*self._near, *self._pile, *self._held]

    def take_back(self, sequences: Int64s) -> None:
        """Give rows out again that came back undelivered: to a lane that is opened from now on.

        No lane may be open that has a subject of theirs, unless it is left before another is opened
        for it.
        """
        self.given.take_back(sequences)

    def open_lane(self, lane: int, subjects: Numbers, given: Int64s) -> None:
        """Let what is due of these subjects, of which none is in a lane, wait on disk from now on.

        A lane that is open already, and of which no job is under way, takes them in addition, and
        begins anew. `given` are their rows that stay given out: those that the sender holds, or
        whose facts are on their way. Those in the wheel are not given out any more: the lane comes
        by them.
        """
        assert not self.lanes.subjects.contains(subjects).any()
        opened = self.lanes.setdefault(lane, Lane())
        opened.subjects.add(subjects)
        opened.lower((0, 0))
        self.lanes.subjects.add(subjects)
        self.given.add(given)
        for job in self.jobs:
            job.left_out.add(subjects)

    def retry_lane(self, lane: int) -> None:
        """Let a lane come by what could not be read of it before; it may be no more."""
        opened = self.lanes.get(lane)
        if opened is not None and opened.unread is not None:
            opened.lower(opened.unread)
            opened.unread = None

    def leave_lane(self, lane: int, subjects: Numbers) -> None:
        """Take subjects out of a lane of which no job is under way; one without any is no more.

        Rows that it has not taken are given out by nobody until another lane is opened for them.
        """
        left = self.lanes[lane]
        left.subjects.remove(subjects)
        self.lanes.subjects.remove(subjects)
        if not len(left.subjects):
            del self.lanes[lane]

    def begin_drain(
        self, lane: int, until_ms: int, *, rows_max: int, now_ms: int
    ) -> DrainJob | None:
        """Begin to take the first rows of a lane, at most `rows_max`, due by `until_ms`.

        Nothing after the common cursor is taken: a lane never overtakes the others. Returns None if
        there is nothing between the two cursors.
        """
        begin, until = self.lanes[lane].cursor, min((until_ms + 1, 0), self.cursor)
        if until <= begin or rows_max <= 0:
            return None
        job = DrainJob(self, lane=lane, begin=begin, until=until, rows_max=rows_max, now_ms=now_ms)
        return job if job.plan() else None

    def start_drain(self, job: DrainJob) -> bool:
        """Move a lane's cursor, unless it was set back for a row that came meanwhile."""
        lane = self.lanes[job.lane]
        if lane.cursor == job.begin:
            lane.cursor = job.until
        return True

    def begin_close(self, lane: int, *, rows_max: int, now_ms: int) -> CloseJob | None:
        """Begin to end a lane: all that it has not taken yet up to the common cursor is given out.

        That must be at most about `rows_max` rows, or the job comes to nothing and the lane stays.
        There must be no rows of its subjects in the wheel. Returns None if it came to nothing now,
        as it does while something of the lane could not be read.
        """
        if self.lanes[lane].unread is not None:
            return None
        job = CloseJob(
            self,
            lane=lane,
            begin=self.lanes[lane].cursor,
            until=self.cursor,
            rows_max=rows_max,
            now_ms=now_ms,
        )
        return job if job.plan() else None

    def start_close(self, job: CloseJob) -> bool:
        """End a lane: from now on its rows go straight in again."""
        lane = self.lanes.pop(job.lane)
        self.lanes.subjects.remove(lane.subjects.numbers())
        job.begin = min(job.begin, lane.cursor)
        job.until = self.cursor
        return True

    def segments_between(self, begin: Key, until: Key) -> list[Segment]:
        """Return the minute segments that may have rows after `begin` and not after `until`."""
        return sorted(
            (
                segment
                for segment in self.segments.values()
                if segment.key.span is Span.MINUTE
                and (segment.key.start * MINUTE_MS, 0) < until
                and segment.key.end * MINUTE_MS > begin[0]
            ),
            key=lambda segment: segment.key.start,
        )

    def crossed_off(self, segment: Segment) -> Int64s:
        """Return the sequences of a segment that have a fact, repeated ones included.

        Raises ReadFailedError: without its facts nobody can say what of it was delivered.
        """
        found = []
        path = segment.facts_file.path
        with self.trying(path):
            for block in segment.read_facts(self.disk, patient=self.is_patient_with(path)):
                if isinstance(block, Damage):
                    self.report(block)
                else:
                    found.append(block.sequence)
        return np.concatenate([*found, self._unfiled_of(segment.key)])

    @property
    def gather_bytes_max(self) -> int:
        """How many bytes of rows may wait in memory."""
        return self._limits.gather_bytes_max

    def new_segment(self, key: SegmentKey) -> Segment:
        """Return an empty segment that does not count yet."""
        return Segment.new(self.disk, self._log_uuid, key)

    def report(self, damage: Damage) -> None:
        """Pass damage on to whoever listens; once, however often it is met."""
        place = (damage.path, damage.position)
        if place not in self._reported:
            self._reported.add(place)
            self._on_damage(damage)

    # -- what cannot be read -----------------------------------------------------------------

    def is_patient_with(self, path: str) -> bool:
        """Say whether a file that cannot be read is tried again, rather than taken for damage."""
        known = self.unread.get(path)
        return self.is_patient and not (known is not None and known.given_up)

    @contextlib.contextmanager
    def trying(self, path: str) -> Iterator[None]:
        """Note what becomes of an attempt to read all of a file; it may raise ReadFailedError."""
        with self.noting(path):
            yield
        self.unread.pop(path, None)

    @contextlib.contextmanager
    def noting(self, path: str) -> Iterator[None]:
        """Note whether an attempt to read something of a file raises ReadFailedError."""
        try:
            yield
        except ReadFailedError as error:
            known = self.unread.get(path)
            failures = known.failures if known is not None else 0
            given_up = known is not None and known.given_up
            self.unread[path] = Unread(path, error.errno, error.reason, failures + 1, given_up)
            raise

    def give_up_on(self, path: str) -> None:
        """Take what cannot be read of a file for damage, as long as it cannot be."""
        known = self.unread.get(path)
        if known is not None:
            known.given_up = True

    # -- splitting ---------------------------------------------------------------------------

    def next_split_ms(self) -> int | None:
        """Return the time at which a coarse segment has to be split, None if there is none."""
        times = []
        for segment in self.segments.values():
            if segment.key.span is Span.HOUR:
                times.append(segment.key.start - self._limits.minute_horizon_minutes)
            elif segment.key.span is Span.DAY:
                times.append(segment.key.start - self._limits.hour_horizon_minutes)
        return min(times) * MINUTE_MS if times else None

    def split_deadline_ms(self, key: SegmentKey) -> int:
        """Return until when the split of a coarse segment delays nothing.

        What is loaded next must be split by then, and of a day its first hour as well.
        """
        return (key.start - self._limits.minute_horizon_minutes // 2) * MINUTE_MS

    def begin_split(
        self, now_ms: int, *, postponed: Collection[SegmentKey] = ()
    ) -> "SplitJob | None":
        """Return the next split that is due, having moved the marks over empty time before it.

        Those of `postponed` segments are not begun. What is due before them is split meanwhile, and
        the marks stay where they begin.
        """
        if self._split is not None:
            return self._split
        now = now_ms // MINUTE_MS
        day_target = _after(now + self._limits.hour_horizon_minutes, Span.DAY)
        hour_target = _after(now + self._limits.minute_horizon_minutes, Span.HOUR)
        segment = self._first_coarse(Span.DAY, day_target)
        if segment is None:
            self.day_mark = max(self.day_mark, day_target)
            segment = self._first_coarse(Span.HOUR, hour_target)
        else:
            self.day_mark = max(self.day_mark, segment.key.start)
            if segment.key in postponed:
                hour_target = min(hour_target, segment.key.start)
                segment = self._first_coarse(Span.HOUR, hour_target)
        if segment is None:
            self.hour_mark = max(self.hour_mark, hour_target)
            return None
        if segment.key.span is Span.HOUR:
            self.hour_mark = max(self.hour_mark, segment.key.start)
            if segment.key in postponed:
                return None
        # Rows that wait for this segment go in first, while it is still where they belong.
        if not self.flush(now_ms):
            return None
        self._split = SplitJob(schedule=self, source=segment)
        return self._split

    def _first_coarse(self, span: Span, before: int) -> Segment | None:
        starts = [
            segment.key.start
            for segment in self.segments.values()
            if segment.key.span is span and segment.key.start < before
        ]
        return self.segments[SegmentKey(min(starts), span).code] if starts else None

    def finish_split(self, job: "SplitJob") -> None:
        """Put the finer segments in the place of the coarse one."""
        source = job.source
        del self.segments[source.key.code]
        self.pending += source.facts_seen - source.surplus_facts
        if not job.damaged:
            # Of a damaged one the files stay, for good: what is in them is to survive as well.
            self._dirty.pop(source.file.path, None)
            self._dirty.pop(source.facts_file.path, None)
        # A checkpoint that names it may be on its way and still has to sync its files.
        self._replaced.append(source)
        for segment in job.finer.values():
            segment.facts_seen = segment.facts + len(self._unfiled_of(segment.key))
            self.pending -= segment.facts_seen
            self.segments[segment.key.code] = segment
            for file in (segment.file, segment.facts_file):
                if file.length:
                    self._dirty[file.path] = file.file()
        if source.key.span is Span.DAY:
            self.day_mark = max(self.day_mark, source.key.end)
        else:
            self.hour_mark = max(self.hour_mark, source.key.end)
        self.names_changed = True
        self._end_split()
        files = [file.path for file in (source.file, source.facts_file) if file.length]
        (self.quarantined if job.damaged else self.retired).extend(files)

    def abandon_split(self, job: "SplitJob") -> None:
        """Let the coarse segment have its rows again, until the split is begun anew.

        Nothing names the finer segments yet; the next try writes over their files.
        """
        for segment in job.finer.values():
            segment.close()
        self._end_split()

    def _end_split(self) -> None:
        self._split = None
        waiting, self._pile, self._held = self._held + self._pile, [], []
        self.owed.pile_bytes = self.owed.pile_rows = 0
        for block in waiting:
            self._put_aside(block)
        self.count_splits()

    # -- crossing off ------------------------------------------------------------------------

    def _cross_off(self, facts: FactBlock) -> None:
        """Count facts; they are filed at the next checkpoint.

        Those that are filed already are passed over, and those about rows that are sealed, or were
        lost: nothing has to know of them.
        """
        self.given.forget(facts.sequence)
        self.dead.forget(facts.sequence[facts.of_dead])
        minutes, counts = np.unique(facts.minute, return_counts=True)
        kept = np.ones(len(facts), np.bool_)
        for minute, count in zip(minutes.tolist(), counts.tolist(), strict=True):
            segment = self._covering(minute)
            if segment is None:
                if not self._waits_for(minute, minute + 1):
                    kept &= facts.minute != minute
                    continue
            else:
                if segment.last_fact >= facts.record[0]:
                    here = facts.minute == minute
                    kept &= ~here | (facts.record > segment.last_fact)
                    count = int(np.count_nonzero(kept & here))  # noqa: PLW2901
                segment.facts_seen += count
            span = Span.DEAD if minute >= DEAD_MINUTES_FROM else Span.MINUTE
            self._count_pending(span, -count)
        if not kept.all():
            facts = facts.take(np.flatnonzero(kept))
        if len(facts):
            self._unfiled.append(facts)
            self.owed.unfiled_facts += len(facts)

    def know(self, facts: FactBlock) -> None:
        """Have the rows of these facts, durable and not committed, never given out.

        They are crossed off when their records are applied.
        """
        self.given.add(facts.sequence)

    def note_surplus(self, segment: Segment, surplus: int) -> None:
        """Take from the count of a segment's facts those that do not tell of one more of its rows.

        Else damage would leave messages that nobody counts, and a node be given up that has some.
        """
        self._count_pending(segment.key.span, surplus - segment.surplus_facts)
        segment.surplus_facts = surplus

    def _covering(self, minute: int) -> Segment | None:
        if minute >= DEAD_MINUTES_FROM:
            return self.segments.get(dead_key(minute).code)
        for span in (Span.MINUTE, Span.HOUR, Span.DAY):
            segment = self.segments.get(key_of_minute(minute, span).code)
            if segment is not None:
                return segment
        return None

    def file_facts(self, now_ms: int) -> None:
        """Write the facts crossed off so far beside their segments.

        Those wait on that find no space, or whose segment has no row on disk yet.
        """
        if not self._unfiled:
            return
        self.full = bool(self._near)
        facts, waiting = join_facts(self._unfiled), []
        minutes = np.unique(facts.minute)
        codes = np.array([self._filed_in(minute) for minute in minutes.tolist()], np.int64)
        for code, part in facts.split_by(codes[np.searchsorted(minutes, facts.minute)]):
            if code == _SEALED:
                continue
            # All of a segment's or none, so that the last record says which.
            if code == _WAITS or not self._append_facts(self.segments[code], part, now_ms):
                self.full = True
                waiting.append(part)
        self._unfiled = waiting
        self.owed.unfiled_facts = sum(map(len, waiting))

    def _filed_in(self, minute: int) -> int:
        """Return the code of the segment beside which facts of a minute are filed now."""
        segment = self._covering(minute)
        if segment is not None and segment.rows:
            return segment.key.code
        # Its first rows wait, and no checkpoint names it before; or it was sealed meanwhile.
        return _WAITS if self._waits_for(minute, minute + 1) else _SEALED

    def _append_facts(self, segment: Segment, facts: FactBlock, now_ms: int) -> bool:
        self.names_changed |= not segment.facts_file.length
        try:
            segment.append_facts(facts, epoch=self.epoch, append_ms=now_ms)
        except StorageFullError:
            return False
        self._dirty[segment.facts_file.path] = segment.facts_file.file()
        return True

    def waits(self, key: SegmentKey) -> bool:
        """Say whether rows of a segment wait in memory."""
        return self._waits_for(*key.filed_minutes)

    def _waits_for(self, begin: int, end: int) -> bool:
        """Say whether rows of the filed minutes from `begin` up to `end` wait in memory."""
        blocks = self._near + self._pile + self._held
        return any(bool(((x.minute >= begin) & (x.minute < end)).any()) for x in blocks)

    def wants_floor(self) -> int | None:
        """Return the floor minute that would close a covered segment, None if none waits."""
        ends = [
            segment.key.end
            for segment in self.segments.values()
            if segment.key.end > self.floor_minute
            and segment.rows
            and segment.facts_seen >= segment.rows
            and segment.key.span in {Span.MINUTE, Span.DEAD}
        ]
        return min(ends, default=None)

    # -- subjects ----------------------------------------------------------------------------

    def condemn_subjects(self, held: npt.NDArray[np.bool_]) -> None:
        """Begin to free the numbers of subjects that are held neither here nor by anybody else.

        `held` says for each number below its length whether somebody else holds it. No entry may be
        on its way from here to others. `subjects.sweep` does the rest.
        """
        everywhere = np.zeros(len(self.subjects.names), np.bool_)
        everywhere[: len(held)] = held
        splitting = [] if self._split is None else self._split.gathered
        for block in (*self._near, *self._pile, *self._held, *splitting):
            everywhere[block.subject] = True
        everywhere[self.lanes.subjects.numbers()] = True
        for job in self.jobs:
            everywhere[job.subjects()] = True
        self.subjects.condemn(everywhere)

    def _collect_alone(self) -> None:
        """Free what nothing holds while there is nobody else yet: a replay may be long."""
        if not self._gave_out and self.subjects.wants_collection:
            self.condemn_subjects(np.zeros(0, np.bool_))
            self.subjects.sweep(len(self.subjects.names))

    # -- for the checkpoint ------------------------------------------------------------------

    def states(self) -> list[SegmentState]:
        """Return what a checkpoint says of the segments that have rows."""
        return [segment.state() for segment in self.segments.values() if segment.rows]

    def covered_segments(self) -> list[Segment]:
        """Return closed segments whose facts may cover their rows by now."""
        return [
            segment
            for segment in self.segments.values()
            if segment.key.end <= self.floor_minute
            and segment.facts >= segment.rows
            and segment.facts != segment.facts_at_last_look
        ]

    def replayed_sequence(self) -> int:
        """Return the sequence below the oldest row, and the oldest fact, that is in no file."""
        waiting = [int(block.sequence.min()) for block in self._near + self._pile + self._held]
        waiting += [int(block.record.min()) for block in self._unfiled]
        return min(waiting) - 1 if waiting else self.last_filed

    def take_dirty(self) -> list[File]:
        """Return the files written since the last call."""
        dirty = list(self._dirty.values())
        self._syncing = set(self._dirty)
        self._dirty = {}
        return dirty

    def put_back_dirty(self, files: Sequence[File]) -> None:
        """Count files as not synced again."""
        self._syncing = set()
        self._dirty = {file.path: file for file in files} | self._dirty

    def drop_sealed(self, keys: Sequence[SegmentKey]) -> None:
        """Forget segments whose seal is durable."""
        for key in keys:
            segment = self.segments.pop(key.code, None)
            if segment is not None:
                self._count_pending(key.span, -segment.unsettled)
                segment.close()

    def close_clean_files(self) -> None:
        """Give back descriptors that nothing waits for: of what was split, and where many are open.

        To be called when no checkpoint is being written.
        """
        self._syncing = set()
        self._close_clean_files()
        replaced, self._replaced = self._replaced, []
        for segment in replaced:
            if self._dirty.keys().isdisjoint((segment.file.path, segment.facts_file.path)):
                segment.close()
            else:
                self._replaced.append(segment)

    def _close_clean_files(self) -> None:
        held = [
            file
            for segment in self.segments.values()
            for file in (segment.file, segment.facts_file)
            if file.is_open and file.path not in self._dirty and file.path not in self._syncing
        ]
        if len(held) + len(self._dirty) >= self._limits.open_files_max:
            for file in held:
                file.close()

    def close(self) -> None:
        """Give all descriptors back."""
        for segment in [*self.segments.values(), *self._replaced]:
            segment.close()


_KINDS_OF_LOG = STATING_KINDS | {
    RecordKind.MESSAGE,
    RecordKind.EPOCH_START,
    RecordKind.FLOOR,
}


_PILE_BLOCKS_MAX = 256

_WAITS, _SEALED = -1, -2
"""In the place of a segment's code: facts that wait for its first rows, or that nobody needs."""

_COARSE = frozenset({Span.HOUR, Span.DAY})
"""Segments that are split before they are loaded."""


def _after(minute: int, span: Span) -> int:
    """Return the first minute after the span that covers `minute`."""
    return minute - minute % span.minutes + span.minutes


@dataclass(slots=True)
class SplitJob:
    """One coarse segment on its way into finer ones.

    Until `ScheduleLog.finish_split` the coarse segment is the one that counts: checkpoints name it,
    and rows that arrive for it are held in memory.
    """

    schedule: ScheduleLog
    source: Segment
    finer: dict[int, Segment] = field(default_factory=dict)
    _batches: Iterator[SegmentBatch | Damage] | None = None
    gathered: list[RowBlock] = field(default_factory=list)
    """Rows that were read and not written yet."""
    damaged: bool = False
    """A batch could not be carried over."""
    written: int = 0
    """Bytes of rows in the finer segments."""

    @property
    def key(self) -> SegmentKey:
        """The segment being split."""
        return self.source.key

    def step(self, now_ms: int) -> bool:
        """Do a bounded part of the work; return True when the finer segments have taken over.

        Raises StorageFullError where a finer segment finds no space; the step can be repeated. And
        ReadFailedError where the coarse one cannot be read: then this split is over, the segment
        stays as it is, and another may be begun.
        """
        try:
            return self._step(now_ms)
        except ReadFailedError:
            self.schedule.abandon_split(self)
            raise

    def _step(self, now_ms: int) -> bool:
        if self._batches is None:
            self._open()
        assert self._batches is not None
        # What found no space is written before anything more is read, or it would pile up.
        if sum(block.weight for block in self.gathered) >= self.schedule.gather_bytes_max:
            self._write(now_ms)
            return False
        path = self.source.file.path
        with self.schedule.noting(path):
            batch = next(self._batches, None)
        if batch is None:
            self.schedule.unread.pop(path, None)
            self._write(now_ms)
            self._write_facts(now_ms)
            self.schedule.finish_split(self)
            return True
        if isinstance(batch, Damage):
            self.damaged = True
            self.schedule.report(batch)
            return False
        try:
            with self.schedule.noting(path):
                rows = batch.rows(self.schedule.subjects)
        except DamagedError as error:
            self.damaged = True
            self.schedule.report(
                Damage(
                    path=error.path,
                    position=error.position,
                    size=batch.header.size,
                    reason=error.reason,
                )
            )
            return False
        self.gathered.append(rows)
        return False

    def _write_facts(self, now_ms: int) -> None:
        """Copy the facts filed for the coarse segment; nothing else will know of them after it."""
        for segment in self.finer.values():
            segment.forget_facts()  # Of a try that found no space.
            segment.last_fact = self.source.last_fact
        facts = []
        path = self.source.facts_file.path
        patient = self.schedule.is_patient_with(path)
        with self.schedule.trying(path):
            for found in self.source.read_facts(self.schedule.disk, patient=patient):
                if isinstance(found, FactBlock):
                    facts.append(found)
                else:
                    self.damaged = True
                    self.schedule.report(found)
        if not facts:
            return
        span = Span.HOUR if self.source.key.span is Span.DAY else Span.MINUTE
        joined = join_facts(facts)
        for code, part in joined.split_by(codes_of_span(joined.minute.astype(np.int64), span)):
            finer = self.finer.get(code)
            if finer is not None:
                finer.append_facts(part, epoch=self.schedule.epoch, append_ms=now_ms)

    def _open(self) -> None:
        self._batches = self.source.read_rows(
            self.schedule.disk,
            self.source.file.length,
            patient=self.schedule.is_patient_with(self.source.file.path),
        )

    def _write(self, now_ms: int) -> None:
        if not self.gathered:
            return
        # Marks that send every row of this segment to the next finer span, whatever the clock says.
        day = self.source.key.span is Span.DAY
        marks = {
            "hour_mark": self.source.key.start if day else self.source.key.end,
            "day_mark": self.source.key.end,
        }
        for code, group in join_blocks(self.gathered).split_by_segment(**marks):
            segment = self.finer.get(code)
            if segment is None:
                segment = self.schedule.new_segment(key_of_code(code))
                self.finer[code] = segment
            block = group.above(segment.last_sequence)
            if len(block):
                self.schedule.require_free(block.weight)
                segment.append(
                    block, self.schedule.subjects, epoch=self.schedule.epoch, append_ms=now_ms
                )
                self.written += len(block.blob)
        self.gathered = []
        self.schedule.count_splits()
