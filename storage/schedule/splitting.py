"""Coarse segments are split in good time: a day into hours, an hour into minutes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from storage.batch.batches import Damage
from storage.batch.entries import SubjectTable
from storage.batch.facts import FactBlock, join_facts
from storage.batch.rows import RowBlock, join_blocks
from storage.disk.disk import Disk
from storage.disk.errors import DamagedError
from storage.disk.spans import MINUTE_MS, SegmentKey, Span, codes_of_span, key_of_code
from storage.schedule.crossing_off import CrossingOff
from storage.schedule.segment import Segment, SegmentBatch
from storage.schedule.segment_files import SegmentFiles
from storage.schedule.waiting_rows import WaitingRows

COARSE: Final = frozenset({Span.HOUR, Span.DAY})
"""Segments that are split before they are loaded."""


class Filing(Protocol):
    """What splits ask of the schedule_log."""

    subjects: SubjectTable
    on_damage: Callable[[Damage], None]
    epoch: int
    waiting: WaitingRows
    retired: list[str]
    quarantined: list[str]

    @property
    def gather_bytes_max(self) -> int:
        """How many bytes of rows may wait in memory."""

    def flush(self, now_ms: int, /) -> bool:
        """Write the rows that wait; False if some of them found no space."""

    def require_free(self, size: int, /) -> None:
        """Raise StorageFullError where so many bytes would take what others need to be free."""

    def new_segment(self, key: SegmentKey, /) -> Segment:
        """Return an empty segment that does not count yet."""


class Splitter:
    """The split under way, and how far the splits have come.

    What lies before `hour_mark` is in minute segments, what lies before `day_mark` in hour
    segments or finer ones; both in minutes.
    """

    def __init__(
        self,
        filing: Filing,
        disk: Disk,
        *,
        segments: dict[int, Segment],
        files: SegmentFiles,
        facts: CrossingOff,
        minute_horizon_minutes: int,
        hour_horizon_minutes: int,
    ) -> None:
        self.filing = filing
        self.disk = disk
        self._segments = segments
        self._files = files
        self._facts = facts
        self._minute_horizon = minute_horizon_minutes
        self._hour_horizon = hour_horizon_minutes
        self.hour_mark = 0
        self.day_mark = 0
        self.active: SplitJob | None = None
        self.largest_bytes = 0
        """Bytes of the items in the largest coarse segment, uncompressed: a split writes them."""

    # -- when --------------------------------------------------------------------------------

    def next_ms(self) -> int | None:
        """Return the time at which a coarse segment has to be split, None if there is none."""
        times = []
        for segment in self._segments.values():
            if segment.key.span is Span.HOUR:
                horizon = self._minute_horizon
            elif segment.key.span is Span.DAY:
                horizon = self._hour_horizon
            else:
                continue
            due_ms = (segment.key.start - horizon) * MINUTE_MS
            times.append(max(due_ms, segment.split_after_ms))
        return min(times, default=None)

    def deadline_ms(self, key: SegmentKey) -> int:
        """Return until when the split of a coarse segment delays nothing.

        What is loaded next must be split by then, and of a day its first hour as well.
        """
        return (key.start - self._minute_horizon // 2) * MINUTE_MS

    def begin(self, now_ms: int) -> "SplitJob | None":
        """Return the next split that is due, having moved the marks over empty time before it.

        What is due before one that waits for another try is split meanwhile, and the marks stay
        where that one begins.
        """
        if self.active is not None:
            return self.active
        now = now_ms // MINUTE_MS
        day_target = _after(now + self._hour_horizon, Span.DAY)
        hour_target = _after(now + self._minute_horizon, Span.HOUR)
        segment = self._first_coarse(Span.DAY, day_target)
        if segment is None:
            self.day_mark = max(self.day_mark, day_target)
            segment = self._first_coarse(Span.HOUR, hour_target)
        else:
            self.day_mark = max(self.day_mark, segment.key.start)
            if now_ms < segment.split_after_ms:
                hour_target = min(hour_target, segment.key.start)
                segment = self._first_coarse(Span.HOUR, hour_target)
        if segment is None:
            self.hour_mark = max(self.hour_mark, hour_target)
            return None
        if segment.key.span is Span.HOUR:
            self.hour_mark = max(self.hour_mark, segment.key.start)
            if now_ms < segment.split_after_ms:
                return None
        # Rows that wait for this segment go in first, while it is still where they belong.
        if not self.filing.flush(now_ms):
            return None
        self.active = SplitJob(splits=self, source=segment, begun_ms=now_ms)
        return self.active

    def _first_coarse(self, span: Span, before: int) -> Segment | None:
        starts = [
            segment.key.start
            for segment in self._segments.values()
            if segment.key.span is span and segment.key.start < before
        ]
        return self._segments[SegmentKey(min(starts), span).code] if starts else None

    # -- how it ends -------------------------------------------------------------------------

    def finish(self, job: "SplitJob") -> None:
        """Put the finer segments in the place of the coarse one."""
        source, facts = job.source, self._facts
        del self._segments[source.key.code]
        facts.pending += source.facts_seen - source.surplus_facts
        # Some may be about rows that wait for a finer segment which has none yet.
        facts.pending -= len(facts.unfiled_of(source.key))
        # Of a damaged one the files stay, for good: what is in them is to survive as well.
        self._files.replace(source, is_retired=not job.damaged)
        for segment in job.finer.values():
            segment.facts_seen = segment.facts + len(facts.unfiled_of(segment.key))
            facts.pending -= segment.facts
            self._segments[segment.key.code] = segment
            for file in (segment.file, segment.facts_file):
                if file.length:
                    self._files.written(file)
        if source.key.span is Span.DAY:
            self.day_mark = max(self.day_mark, source.key.end)
        else:
            self.hour_mark = max(self.hour_mark, source.key.end)
        self._files.names_changed = True
        self._end()
        files = [file.path for file in (source.file, source.facts_file) if file.length]
        (self.filing.quarantined if job.damaged else self.filing.retired).extend(files)

    def abandon(self, job: "SplitJob") -> None:
        """Let the coarse segment have its rows again, until the split is begun anew.

        Nothing names the finer segments yet; the next try writes over their files.
        """
        job.drop_finer()
        self._end()

    def _end(self) -> None:
        self.active = None
        self.filing.waiting.release()
        self.find_largest()

    def find_largest(self) -> None:
        """Look at all coarse segments, of which there may be others now."""
        self.largest_bytes = max(
            (one.raw_bytes for one in self._segments.values() if one.key.span in COARSE), default=0
        )


def _after(minute: int, span: Span) -> int:
    """Return the first minute after the span that covers `minute`."""
    return minute - minute % span.minutes + span.minutes


@dataclass(slots=True)
class SplitJob:
    """One coarse segment on its way into finer ones.

    Until `Splitter.finish` the coarse segment is the one that counts: checkpoints name it,
    and rows that arrive for it are held in memory.
    """

    splits: "Splitter"
    source: Segment
    begun_ms: int
    finer: dict[int, Segment] = field(default_factory=dict)
    is_abandoned: bool = False
    """True where it ended without having split anything, and is begun anew later."""
    _batches: Iterator[SegmentBatch | Damage] | None = None
    _unreadable: list[tuple[str, int]] = field(default_factory=list)
    gathered: list[RowBlock] = field(default_factory=list)
    """Rows that were read and not written yet."""
    damaged: bool = False
    """A batch could not be carried over."""

    @property
    def key(self) -> SegmentKey:
        """The segment being split."""
        return self.source.key

    @property
    def is_last(self) -> bool:
        """Whether it cannot wait any longer: what cannot be read is damaged."""
        return self.begun_ms >= self.splits.deadline_ms(self.key)

    def step(self, now_ms: int) -> bool:
        """Do a bounded part of the work; return True when it is over.

        The finer segments have taken over then, unless the coarse one could not be read. Raises
        StorageFullError where a finer segment finds no space; the step can be repeated.
        """
        if self._batches is None:
            self._batches = self.source.read_rows(
                self.splits.disk, self.source.file.length, unreadable=self._unreadable
            )
        # What found no space is written before anything more is read, or it would pile up.
        if sum(block.weight for block in self.gathered) >= self.splits.filing.gather_bytes_max:
            self._write(now_ms)
            return False
        found = next(self._batches, None)
        if found is not None:
            damage = self._gather(found)
            if self._abandons():
                return True
            if damage is not None:
                self._damaged(damage)
            return False
        self._write(now_ms)
        facts = self._read_facts()
        if self._abandons():
            return True
        self._write_facts(facts, now_ms)
        self.splits.finish(self)
        return True

    def _gather(self, found: SegmentBatch | Damage) -> Damage | None:
        """Take the rows of a batch; return the damage if there are none to be had."""
        if isinstance(found, Damage):
            return found
        try:
            self.gathered.append(found.rows(self.splits.filing.subjects))
        except DamagedError as error:
            return Damage(error.path, error.position, found.header.size, error.reason)
        return None

    def _damaged(self, damage: Damage) -> None:
        self.damaged = True
        self.splits.filing.on_damage(damage)

    def _abandons(self) -> bool:
        """End it if something could not be read, and there is time for another try."""
        if self.is_last or not self._unreadable:
            return False
        self.is_abandoned = True
        self.source.split_after_ms = self.begun_ms + MINUTE_MS
        self.splits.abandon(self)
        return True

    def drop_finer(self) -> None:
        """Let go of the finer segments, which nothing names."""
        for segment in self.finer.values():
            segment.close()
        self.finer.clear()

    def _read_facts(self) -> list[FactBlock | Damage]:
        """Return the facts filed for the coarse segment; nothing else will know of them later."""
        read = len(self._unreadable)
        found = list(self.source.read_facts(self.splits.disk, unreadable=self._unreadable))
        if self.is_last and len(self._unreadable) > read:
            # What was delivered nobody can say: all of it is set aside, and none is sent twice.
            self.drop_finer()
            self.damaged = True
        return found

    def _write_facts(self, found: list[FactBlock | Damage], now_ms: int) -> None:
        for segment in self.finer.values():
            segment.forget_facts()  # Of a try that found no space.
            segment.last_fact = self.source.last_fact
        facts = []
        for block in found:
            if isinstance(block, Damage):
                self._damaged(block)
            else:
                facts.append(block)
        if not facts:
            return
        span = Span.HOUR if self.source.key.span is Span.DAY else Span.MINUTE
        joined = join_facts(facts)
        for code, part in joined.split_by(codes_of_span(joined.minute.astype(np.int64), span)):
            finer = self.finer.get(code)
            if finer is not None:
                finer.append_facts(part, epoch=self.splits.filing.epoch, append_ms=now_ms)

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
                segment = self.splits.filing.new_segment(key_of_code(code))
                self.finer[code] = segment
            block = group.above(segment.last_sequence)
            if len(block):
                self.splits.filing.require_free(block.weight)
                segment.append(
                    block,
                    self.splits.filing.subjects,
                    epoch=self.splits.filing.epoch,
                    append_ms=now_ms,
                )
        self.gathered = []
