"""Facts of the schedule_log: counted when their records are applied, filed by checkpoints.

outcome durable --> known: its row is not handed out
its record applied --> counted, and not filed yet --> in the facts file of its segment
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from storage.batch.batches import Damage
from storage.batch.facts import FactBlock, join_facts
from storage.batch.number_set import Mask
from storage.batch.rows import Int64s
from storage.disk.disk import Disk
from storage.disk.errors import StorageFullError
from storage.disk.spans import DEAD_MINUTES_FROM, SegmentKey, Span, dead_key, key_of_minute
from storage.schedule.row_places import SequenceSet
from storage.schedule.segment import Segment
from storage.schedule.segment_files import SegmentFiles

_WAITS: Final = -1
_SEALED: Final = -2
"""In the place of a segment's code: facts that wait for its first rows, or that nobody needs."""


class CrossingOff:
    """The facts that are not in files yet, and who has which."""

    def __init__(
        self,
        disk: Disk,
        *,
        segments: dict[int, Segment],
        files: SegmentFiles,
        on_damage: Callable[[Damage], None],
        waits: Callable[[int, int], bool],
    ) -> None:
        """Hold no facts yet.

        waits: says whether rows of the filed minutes from one up to another wait in memory.
        """
        self._disk = disk
        self._segments = segments
        self._files = files
        self._on_damage = on_damage
        self._waits = waits
        self._unfiled: list[FactBlock] = []
        self._known: list[FactBlock] = []
        """Of records that are durable and not applied."""
        self._known_sequences: SequenceSet | None = None
        self.pending = 0
        """Messages without a fact, those included that wait to be written."""
        self.dead_pending = 0
        """Dead letters likewise."""

    def count_pending(self, span: Span, change: int) -> None:
        """Count rows of a segment as pending, or not any more."""
        if span is Span.DEAD:
            self.dead_pending += change
        else:
            self.pending += change

    # -- what is durable and not applied -----------------------------------------------------

    def know(self, facts: FactBlock) -> None:
        """Have rows with an outcome that is durable, and maybe never committed, not handed out.

        They are crossed off when the records are applied.
        """
        self._known.append(facts)
        self._known_sequences = None

    def applied_to(self, record: int) -> None:
        """Forget what was known of records up to this one."""
        while self._known and int(self._known[0].record[-1]) <= record:
            self._known.pop(0)
            self._known_sequences = None

    @property
    def has_unapplied_outcomes(self) -> bool:
        """Whether outcomes are durable whose records are not applied."""
        return bool(self._known)

    def has_outcome(self, sequences: Int64s) -> Mask:
        """Say which rows have one of these."""
        if self._known_sequences is None:
            self._known_sequences = SequenceSet([block.sequence for block in self._known])
        return self._known_sequences.contains(sequences)

    # -- what is applied ---------------------------------------------------------------------

    def cross_off(self, facts: FactBlock) -> None:
        """Count facts; they are filed at the next checkpoint.

        Those that are filed already are passed over, and those about rows that are sealed, or were
        lost: nothing has to know of them.
        """
        minutes, counts = np.unique(facts.minute, return_counts=True)
        kept = np.ones(len(facts), np.bool_)
        for minute, count in zip(minutes.tolist(), counts.tolist(), strict=True):
            segment = self.covering(minute)
            if segment is None:
                if not self._waits(minute, minute + 1):
                    kept &= facts.minute != minute
                    continue
            else:
                if segment.last_fact >= facts.record[0]:
                    here = facts.minute == minute
                    kept &= ~here | (facts.record > segment.last_fact)
                    count = int(np.count_nonzero(kept & here))  # noqa: PLW2901
                segment.facts_seen += count
            span = Span.DEAD if minute >= DEAD_MINUTES_FROM else Span.MINUTE
            self.count_pending(span, -count)
        if not kept.all():
            facts = facts.take(np.flatnonzero(kept))
        if len(facts):
            self._unfiled.append(facts)

    def note_surplus(self, segment: Segment, surplus: int) -> None:
        """Take from the count of a segment's facts those that do not tell of one more of its rows.

        Else damage would leave messages that nobody counts, and a node be given up that has some.
        """
        self.count_pending(segment.key.span, surplus - segment.surplus_facts)
        segment.surplus_facts = surplus

    def covering(self, minute: int) -> Segment | None:
        """Return the segment that has the rows of a filed minute."""
        if minute >= DEAD_MINUTES_FROM:
            return self._segments.get(dead_key(minute).code)
        for span in (Span.MINUTE, Span.HOUR, Span.DAY):
            segment = self._segments.get(key_of_minute(minute, span).code)
            if segment is not None:
                return segment
        return None

    @property
    def in_no_file(self) -> list[FactBlock]:
        """The facts that no segment's file has, and the outcomes whose records are not applied."""
        return [*self._unfiled, *self._known]

    def unfiled_of(self, key: SegmentKey) -> Int64s:
        """Return the sequences of the facts of a segment that are not filed yet."""
        return _sequences_of(self._unfiled, key)

    def of_segment(self, segment: Segment) -> Int64s | None:
        """Return the sequences of a segment that have a fact, or an outcome that is durable.

        Repeated ones are included. Returns None where facts cannot be read: nobody can say what was
        delivered, and the segment is withheld from then on.
        """
        found: list[Int64s] = []
        unreadable: list[tuple[str, int]] = []
        if not segment.is_withheld:
            for block in segment.read_facts(self._disk, unreadable=unreadable):
                if isinstance(block, Damage):
                    self._on_damage(block)
                else:
                    found.append(block.sequence)
            segment.is_withheld = bool(unreadable)
        if segment.is_withheld:
            return None
        key = segment.key
        return np.concatenate([*found, self.unfiled_of(key), _sequences_of(self._known, key)])

    # -- for the checkpoint ------------------------------------------------------------------

    def file(self, *, epoch: int, now_ms: int) -> bool:
        """Write the facts crossed off so far beside their segments; False where some wait on.

        Those do that find no space, or whose segment has no row on disk yet.
        """
        if not self._unfiled:
            return True
        facts, waiting = join_facts(self._unfiled), []
        minutes = np.unique(facts.minute)
        codes = np.array([self._filed_in(minute) for minute in minutes.tolist()], np.int64)
        for code, part in facts.split_by(codes[np.searchsorted(minutes, facts.minute)]):
            if code == _SEALED:
                continue
            # All of a segment's or none, so that the last record says which.
            if code == _WAITS or not self._append(self._segments[code], part, epoch, now_ms):
                waiting.append(part)
        self._unfiled = waiting
        return not waiting

    def _filed_in(self, minute: int) -> int:
        """Return the code of the segment beside which facts of a minute are filed now."""
        segment = self.covering(minute)
        if segment is not None and segment.rows:
            # Of a row that waits, of a split segment say, nothing in the file would tell.
            waits = self._waits(*segment.key.filed_minutes)
            return _WAITS if waits else segment.key.code
        # Its first rows wait, and no checkpoint names it before; or it was sealed meanwhile.
        return _WAITS if self._waits(minute, minute + 1) else _SEALED

    def _append(self, segment: Segment, facts: FactBlock, epoch: int, now_ms: int) -> bool:
        self._files.names_changed |= not segment.facts_file.length
        try:
            segment.append_facts(facts, epoch=epoch, append_ms=now_ms)
        except StorageFullError:
            return False
        self._files.written(segment.facts_file)
        return True

    def oldest_unfiled(self) -> int | None:
        """Return the first record of which a fact is in no file; None if all are."""
        return min((int(block.record.min()) for block in self._unfiled), default=None)


def _sequences_of(blocks: Sequence[FactBlock], key: SegmentKey) -> Int64s:
    """Return the sequences of the facts about rows of a segment."""
    begin, end = key.filed_minutes
    found = [block.sequence[(block.minute >= begin) & (block.minute < end)] for block in blocks]
    return np.concatenate(found) if found else np.empty(0, np.int64)
