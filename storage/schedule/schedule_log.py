"""The schedule_log: committed messages filed by the time they are due.

Batches of the message_log come in by `apply`, in order of sequence. Rows of minutes that are being
or have been loaded are written at once, and handed out as entries for the wheel; the others wait in
the *pile* and are written together, each segment once per flush, because a commit's rows may belong
to hundreds of segments. All methods are called one at a time, in order (one worker of the
executor).

    schedule_log    files, and knows what waits in memory
    crossing_off    facts, and how much is pending
    splitting       coarse segments into finer ones
    handout         which rows are held for delivery; only of a mastership
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np

from storage.batch.batches import Damage, LogBatch
from storage.batch.columns import RecordKind
from storage.batch.dead_rows import dead_rows_of
from storage.batch.entries import Entries, SubjectTable, no_entries
from storage.batch.facts import KINDS_OF_LOG, FactBlock, facts_stated
from storage.batch.number_set import Mask
from storage.batch.rows import Int64s, RowBlock, filed_minutes, join_blocks, origin_of
from storage.disk.disk import Disk
from storage.disk.errors import DataDirectoryError, StorageFullError, UnsupportedFormatError
from storage.disk.spans import MINUTE_MS, SegmentKey, Span, key_of_code
from storage.limits import StorageLimits
from storage.schedule.crossing_off import CrossingOff
from storage.schedule.dead_index import DeadIndex
from storage.schedule.handout import Handout
from storage.schedule.keys import BEFORE_ALL, Key
from storage.schedule.owed import PENDING_BYTES
from storage.schedule.segment import Appended, Segment
from storage.schedule.segment_files import SegmentFiles
from storage.schedule.splitting import COARSE, Splitter
from storage.schedule.waiting_rows import WaitingRows
from storage.state.checkpoint import EpochStart, SegmentState


@dataclass(frozen=True, slots=True)
class Applied:
    """What applying a batch of the message_log led to, beside what is on disk."""

    entries: Entries
    """Rows that go straight into the wheel."""
    facts: FactBlock | None
    """The facts that it states, crossed off by now; None of a kind that states none."""


class ScheduleLog:
    """Files what is applied; knows no clock and no task."""

    def __init__(
        self,
        disk: Disk,
        log_uuid: UUID,
        *,
        limits: StorageLimits,
        on_damage: Callable[[Damage], None],
    ) -> None:
        self.disk = disk
        self.subjects = SubjectTable(bytes_max=limits.subjects_bytes_max)
        self.log_uuid = log_uuid
        self._limits = limits
        self.waiting = WaitingRows()
        self.segments: dict[int, Segment] = {}
        """Unsealed segments by the code of their key."""
        self.on_damage = on_damage
        self.files = SegmentFiles(
            disk, open_files_max=limits.open_files_max, segments=self.segments.values
        )
        self.facts = CrossingOff(
            disk,
            segments=self.segments,
            files=self.files,
            on_damage=on_damage,
            waits=self.waiting.has_any_of,
        )
        self.splits = Splitter(
            self,
            disk,
            segments=self.segments,
            files=self.files,
            facts=self.facts,
            minute_horizon_minutes=limits.minute_horizon_minutes,
            hour_horizon_minutes=limits.hour_horizon_minutes,
        )
        self.handout: Handout | None = None
        """What the mastership that there is holds; without one nothing is handed out."""
        self.dead = DeadIndex()
        self.epoch = 1
        self.epochs: list[EpochStart] = []
        """Every epoch of the records filed so far, oldest first."""
        self.last_filed = 0
        """The last sequence handed to `apply`; pile and held rows count as filed."""
        self.floor_minute = 0
        self.keeps_free = False
        """Whether rows leave free what facts and checkpoints need. While a data directory is opened
        nothing is left: what is written then had its place before."""
        self._pile_lacks_space = False
        self._facts_wait = False
        self.retired: list[str] = []
        """Files that nothing needs any more, for the next checkpoint to list."""
        self.quarantined: list[str] = []
        """Files with damaged batches that were not carried over; kept for salvage."""

    # -- a mastership ------------------------------------------------------------------------

    def hand_out(self) -> Handout:
        """Begin to hand out rows, none of which is held yet, for a mastership that begins."""
        self.handout = Handout(self)
        return self.handout

    @property
    def _cursor(self) -> Key:
        """How far rows have been loaded; what is filed before that is written at once."""
        return BEFORE_ALL if self.handout is None else self.handout.lanes.loading

    # -- filing ------------------------------------------------------------------------------

    def apply(self, batch: LogBatch, *, now_ms: int, above: int = 0) -> Applied:
        """Take over the next committed batch of the message_log; nothing else adds to segments.

        Rows and facts that are filed already (replay after a crash) are skipped: those not above
        sequence `above`, and those not above the last one of their segment. `now_ms`: of what is
        written. Facts are filed by the next checkpoint, and count at once.

        Raises UnsupportedFormatError for a batch that does not belong in a message_log.
        """
        header = batch.header
        if header.kind not in KINDS_OF_LOG:
            raise UnsupportedFormatError(
                path="message_log",
                position=header.base_sequence,
                reason=f"record kind {header.kind.name} does not belong in this log",
            )
        self._raise_floor(header.floor_minute, now_ms)
        self._note_epoch(header.epoch, header.base_sequence)
        self._collect_alone()
        if self.handout is not None:
            self.handout.heed()
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
            self.dead.forget(facts.sequence[facts.of_dead])
            self.facts.cross_off(facts)
        self.facts.applied_to(self.last_filed)
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
            origin=np.full(header.count, origin_of(header), np.uint8),
            # The batch's own floor: in replay the checkpoint's is that of later batches, and a row
            # must come to the minute in which it may lie already.
            minute=filed_minutes(arrays["due_ms"], header.floor_minute),
            blob=bytes(batch.blob),
        ).above(above)
        if not len(block):
            return no_entries()
        self.facts.pending += len(block)
        # What waits for space would be taken for filed once a later row of its minute was written.
        near = block.minute * MINUTE_MS < self._cursor[0]
        near |= self.waiting.are_behind(block.minute)
        if near.all():
            self.waiting.near.append(block)
        elif near.any():
            self.waiting.near.append(block.take(np.flatnonzero(near)))
            self._put_aside(block.take(np.flatnonzero(~near)))
        else:
            self._put_aside(block)
        return self.flush_near(now_ms)

    def _file_dead(self, batch: LogBatch, now_ms: int, above: int) -> Entries:
        """File the rows that DEAD records make, written at once as those of loaded minutes are."""
        block = dead_rows_of(batch, self.subjects).above(above)
        if len(block):
            self.facts.dead_pending += len(block)
            self.waiting.near.append(block)
        return self.flush_near(now_ms)

    def read_dead(self) -> None:
        """Read the index of dead letters anew, of the oldest days first."""
        index = DeadIndex()
        for segment in sorted(self.segments.values(), key=lambda segment: segment.key.start):
            if segment.key.span is not Span.DEAD:
                continue
            settled = self.crossed_off(segment)
            if settled is None:
                continue
            try:
                index.read(self.disk, segment, settled, self.on_damage)
            except (DataDirectoryError, UnsupportedFormatError) as error:
                # Somebody has put the first sector of another file there since it was opened.
                path, length = segment.file.path, segment.file.length
                self.on_damage(Damage(path, 0, length, str(error)))
        self.dead = index

    def restore(self, segment: Segment) -> None:
        """Take over a segment as a checkpoint has it."""
        if segment.key.span in COARSE:
            segment.estimate_raw_bytes()
        self.segments[segment.key.code] = segment
        self.facts.count_pending(segment.key.span, segment.pending)

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
        if self.floor_minute >= self.splits.hour_mark:
            # Only in replay: the marks moved on after the checkpoint and the crash forgot it. A
            # row that the floor moved must never lie in a coarse segment, which could not tell.
            while (job := self.splits.begin(self.floor_minute * MINUTE_MS)) is not None:
                while not job.step(now_ms):
                    self._collect_alone()
            if self.floor_minute >= self.splits.hour_mark:
                raise StorageFullError("no space to split the segments that the log has passed")

    def _put_aside(self, block: RowBlock) -> None:
        self.waiting.put_aside(block)
        if self.handout is not None:
            self.handout.aside(block)

    @property
    def pile_bytes(self) -> int:
        """Bytes of rows that wait in memory for a flush, those held by a split included."""
        return self.waiting.pile_bytes

    @property
    def pile_earliest_ms(self) -> int | None:
        """When the first row of the pile has to be in the wheel."""
        return self.waiting.pile_earliest_ms

    @property
    def pile_is_full(self) -> bool:
        """Whether it is time for `flush`."""
        return self.waiting.pile_bytes >= self._limits.gather_bytes_max

    def flush_near(self, now_ms: int) -> Entries:
        """Write rows of loaded minutes; return the entries of those that are handed out.

        Rows of dead segments too; nobody loads these. What finds no space waits for the next call.
        """
        found = []
        for segment, block, appended in self._write_all(self.waiting.near, now_ms):
            if segment.key.span is Span.DEAD:
                self.dead.add_written(block, appended.positions, self.subjects.names)
            elif self.handout is not None:
                found.append(self.handout.arrived(segment, block, appended))
        return np.concatenate(found) if found else no_entries()

    def flush(self, now_ms: int) -> bool:
        """Write the pile; return False if some of it found no space and waits on."""
        if self.splits.active is not None:
            self.waiting.hold(self.splits.active.key)
        for _written in self._write_all(self.waiting.pile, now_ms):
            pass
        self.waiting.pile_written()
        self._pile_lacks_space = bool(self.waiting.pile)
        return not self._pile_lacks_space

    def _write_all(
        self, blocks: list[RowBlock], now_ms: int
    ) -> Iterator[tuple[Segment, RowBlock, Appended]]:
        """Write blocks segment by segment; empty the list of what was written."""
        if not blocks:
            return
        left: list[RowBlock] = []
        merged = join_blocks(blocks)
        groups = merged.split_by_segment(
            hour_mark=self.splits.hour_mark, day_mark=self.splits.day_mark
        )
        for code, group in groups:
            segment = self._segment(key_of_code(code))
            block = group.above(segment.last_sequence)
            self.facts.count_pending(segment.key.span, len(block) - len(group))
            if not len(block):
                continue
            try:
                appended = self._append(segment, block, now_ms)
            except StorageFullError:
                left.append(block)
                continue
            yield segment, block, appended
        blocks[:] = left

    def _segment(self, key: SegmentKey) -> Segment:
        segment = self.segments.get(key.code)
        if segment is None:
            segment = self.segments[key.code] = Segment.new(self.disk, self.log_uuid, key)
            # After a restart facts may be known before the rows that they tell of are written.
            segment.facts_seen = len(self.facts.unfiled_of(key))
        return segment

    def _append(self, segment: Segment, block: RowBlock, now_ms: int) -> Appended:
        self.require_free(block.weight)
        if not segment.file.is_open:
            self.files.make_room()
        self.files.names_changed |= not segment.file.length
        appended = segment.append(block, self.subjects, epoch=self.epoch, append_ms=now_ms)
        self.files.written(segment.file)
        if segment.key.span in COARSE:
            self.splits.largest_bytes = max(self.splits.largest_bytes, segment.raw_bytes)
        return appended

    def require_free(self, size: int) -> None:
        """Raise StorageFullError where so many bytes would take what others need to be free."""
        if not self.keeps_free:
            return
        free, _ = self.disk.free_bytes()
        keep = PENDING_BYTES * (self.pending + self.dead_pending)
        if free - size < keep:
            raise StorageFullError(
                f"{free} bytes are free, of which {keep} are kept for facts and checkpoints"
            )

    @property
    def full(self) -> bool:
        """Whether something found no space and waits in memory; `apply` goes on accepting."""
        return bool(self.waiting.near) or self._pile_lacks_space or self._facts_wait

    # -- looks -------------------------------------------------------------------------------

    @property
    def hour_mark(self) -> int:
        """Minute before which rows lie in minute segments."""
        return self.splits.hour_mark

    @property
    def pending(self) -> int:
        """Messages without a fact, those included that wait to be written."""
        return self.facts.pending

    @property
    def dead_pending(self) -> int:
        """Dead letters likewise."""
        return self.facts.dead_pending

    def pending_before(self, now_ms: int) -> int:
        """Return how many rows without a fact lie in segments of which all were due by then."""
        return sum(
            segment.pending for segment in self.of_time() if segment.key.end * MINUTE_MS <= now_ms
        )

    def unwritten(self) -> list[RowBlock]:
        """Return the rows that wait in memory to be written, to whichever segment."""
        return list(self.waiting)

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

    def crossed_off(self, segment: Segment) -> Int64s | None:
        """Return the sequences of a segment that have a fact, or an outcome that is durable.

        Returns None of one that is withheld.
        """
        return self.facts.of_segment(segment)

    @property
    def gather_bytes_max(self) -> int:
        """How many bytes of rows may wait in memory."""
        return self._limits.gather_bytes_max

    def new_segment(self, key: SegmentKey) -> Segment:
        """Return an empty segment that does not count yet."""
        return Segment.new(self.disk, self.log_uuid, key)

    def waits(self, key: SegmentKey) -> bool:
        """Say whether rows of a segment wait in memory."""
        return self.waiting.has_any_of(*key.filed_minutes)

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

    def condemn_subjects(self) -> Mask:
        """Begin to free the numbers of subjects that nothing here holds; return those that it does.

        `subjects.spare` is to be told which of the others anybody else holds, `subjects.sweep` does
        the rest.
        """
        count = len(self.subjects.names)
        held = np.zeros(count, np.bool_)
        if self.handout is not None:
            held = self.handout.holds_subjects(count)
        active = self.splits.active
        splitting = [] if active is None else active.gathered
        for block in (*self.waiting, *splitting):
            held[block.subject] = True
        self.subjects.condemn(held)
        return held.copy()

    def _collect_alone(self) -> None:
        """Free what nothing holds while there is nobody else: a replay may be long."""
        if self.handout is None and self.subjects.wants_collection:
            self.condemn_subjects()
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

    def file_facts(self, now_ms: int) -> None:
        """Write the facts crossed off so far beside their segments; some may wait on."""
        self._facts_wait = not self.facts.file(epoch=self.epoch, now_ms=now_ms)

    def replayed_sequence(self) -> int:
        """Return the sequence below the oldest row, and the oldest fact, that is in no file."""
        oldest = [self.waiting.oldest(), self.facts.oldest_unfiled()]
        waiting = [sequence for sequence in oldest if sequence is not None]
        return min(waiting) - 1 if waiting else self.last_filed

    def drop_sealed(self, keys: Sequence[SegmentKey]) -> None:
        """Forget segments whose seal is durable."""
        for key in keys:
            segment = self.segments.pop(key.code, None)
            if segment is not None:
                self.facts.count_pending(key.span, -segment.unsettled)
                segment.close()

    def close(self) -> None:
        """Give all descriptors back."""
        self.files.close()
