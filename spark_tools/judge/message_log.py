"""The message_log held against the segments: each record that was replayed is one row, once.

Records lie by when they came, rows by when they are due: nothing that fits into memory has both.
So blocks of sequences are compared by digests first (`LogTask`, and each segment's own), and only
where these differ are records and rows read once more and put side by side (`BlocksTask`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_tools.files.columns import (
    RECORD_COLUMNS,
    Facts,
    Int64s,
    Mask,
    Names,
    Places,
    Rows,
    hour_of,
    ints,
    rows_of,
    sift,
)
from spark_tools.judge.account import Account, TaskResult
from spark_tools.judge.digests import add_digests, digests_of, hashes_of_rows
from spark_tools.judge.findings import FindingsMaker
from spark_tools.judge.hour_counts import Cells
from spark_tools.judge.segments import read_rows
from spark_tools.judge.sequences import BLOCK
from spark_tools.judge.tasks import Cover, Extent, LogRange, Node, Rules
from storage.batch.batches import Damage
from storage.readers.arrow import ArrowReader, Kind

BLOCKS_AT_ONCE = 32
"""Blocks that differ and are read together: a million sequences."""
WITH_ROWS = pa.array(["message", "move"])
"""Kinds of records that make a row."""


def read_records(
    node: Node, log: LogRange, subjects: Names, file: int, damages: list[Damage]
) -> Iterator[Rows]:
    """Yield the records of a file of the message_log that make a row."""
    reader = ArrowReader(node.disk(), node.log_uuid, Kind.MESSAGE, RECORD_COLUMNS)
    found = reader.messages(
        log.file,
        length=log.length,
        first_sequence=log.first_sequence,
        next_sequence=log.next_sequence,
    )
    for table in sift(found, damages):
        kept = table.filter(pc.is_in(table.column("kind"), value_set=WITH_ROWS))
        if kept.num_rows:
            yield rows_of(kept, file, subjects, ints(kept, "filed_minute"))


def _readable_ranges(logs: Sequence[LogRange], damages: Sequence[Damage]) -> list[range]:
    """Return the sequences of which it is known whether there are records that make a row.

    None at all, if there is damage of which nobody knows which records it hides.
    """
    ranges = [range(one.first_sequence, one.next_sequence) for one in logs]
    for damage in damages:
        first, after = damage.first_sequence, damage.next_sequence
        if first is None or after is None:
            return []
        cut = [
            (range(one.start, min(one.stop, first)), range(max(one.start, after), one.stop))
            for one in ranges
        ]
        ranges = [part for pair in cut for part in pair if len(part)]
    return ranges


def is_filed(sequence: Int64s, places: Places, cover: Cover, filed_sequence: int) -> Mask:
    """Say of records whether they are in their segment; places: as `Cover.places` tells."""
    filed = sequence <= filed_sequence
    if len(cover.start):
        filed |= (places >= 0) & (sequence <= cover.last_sequence[places])
    return filed


def _starts(cover: Cover, places: Places) -> Int64s:
    """Return the start of the segments at these places, -1 where there is none."""
    if not len(cover.start):
        return np.full(len(places), -1, np.int64)
    return np.where(places >= 0, cover.start[places], -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expecting:
    """What both tasks know of a node: which records must have a row where they look."""

    node: Node
    rules: Rules
    cover: Cover
    filed_sequence: int
    deleted_from_minute: int
    lacks_segments: bool
    """Whether minutes that no segment covers may be those of one that nobody tells of."""

    def places(self, rows: Rows) -> tuple[Places, Mask, Mask]:
        """Return each record's segment, whether it must be there, and whether nobody can say."""
        cover, rules = self.cover, self.rules
        places = cover.places(rows.minute)
        filed = is_filed(rows.sequence, places, cover, self.filed_sequence)
        in_range = rules.covers(rows.minute)
        covered = places >= 0
        gone = filed & in_range & ~covered
        if not self.lacks_segments:
            gone &= rows.minute < self.deleted_from_minute
        if not len(cover.start):
            return places, filed & in_range & ~gone, gone
        gone |= filed & in_range & covered & (cover.is_there[places] == 0)
        wanted = covered & (cover.is_wanted[places] == 1)
        expected = filed & (wanted | (in_range & ~covered)) & ~gone
        return places, expected, gone


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTask:
    """Take digests of the records of one file that must have a row."""

    expecting: Expecting
    log: LogRange

    @property
    def weight(self) -> int:
        """About how many bytes are read."""
        return self.log.length

    def __call__(self) -> TaskResult:
        """Run the task and return what it counted."""
        account, damages = Account(), list[Damage]()
        node = self.expecting.node
        for rows in read_records(node, self.log, Names(), 0, damages):
            _, expected, gone = self.expecting.places(rows)
            account.totals["unchecked"] += int(np.count_nonzero(gone))
            in_range = self.expecting.rules.covers(rows.minute)
            account.totals["records"] += int(np.count_nonzero(expected & in_range))
            chosen = rows.take(expected)
            add_digests(account.logged, digests_of(chosen, hashes_of_rows(chosen)))
        account.damages = {(node.node_id, damage) for damage in damages}
        return TaskResult(node.name, account, FindingsMaker.nothing())


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksTask:
    """Put records and rows of some blocks of sequences side by side.

    extents: the segments that were reconciled; loose: accepted rows that are in none of them;
    repaired: records that were missing and were sent again.
    """

    expecting: Expecting
    blocks: tuple[int, ...]
    logs: tuple[LogRange, ...]
    extents: tuple[Extent, ...]
    loose: Rows
    repaired: Int64s = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def weight(self) -> int:
        """About how many bytes are read."""
        return sum(one.length for one in self.logs) + sum(one.length for one in self.extents)

    def __call__(self) -> TaskResult:
        """Run the task and return what it counted."""
        return _Blocks(self).run()


@dataclass(slots=True)
class _Found:
    """Rows, and where each was found."""

    rows: Rows
    start: Int64s
    end: Int64s


class _Blocks:
    """One run of a BlocksTask."""

    def __init__(self, task: BlocksTask) -> None:
        self._task = task
        self._node = task.expecting.node
        self._rules = task.expecting.rules
        self._account = Account()
        self._subjects, self._files = Names(), Names()
        self._blocks = np.array(sorted(task.blocks), np.int64)
        self._lengths: dict[str, int] = {}
        self._damaged_starts: list[int] = []
        """Of segments of which not all rows could be read."""

    def run(self) -> TaskResult:
        """Read, and compare."""
        damages: list[Damage] = []
        records = self._records(damages)
        readable = _readable_ranges(self._task.logs, damages)
        found = self._rows()
        in_range = self._rules.covers(found.rows.minute)
        maker = FindingsMaker(
            self._node, self._subjects.all(), [], self._files.all(), self._lengths
        )
        self._doubled(found, in_range, maker)
        self._missing(records, found, maker)
        self._strange(records, found, in_range, readable, maker)
        return TaskResult(self._node.name, self._account, maker.table())

    def _chosen(self, sequence: Int64s) -> Mask:
        chosen: Mask = np.isin(sequence // BLOCK, self._blocks)
        return chosen

    def _records(self, damages: list[Damage]) -> Rows:
        parts: list[Rows] = []
        first, last = int(self._blocks[0]) * BLOCK, (int(self._blocks[-1]) + 1) * BLOCK
        for log in self._task.logs:
            self._lengths[log.file] = log.length
            if log.next_sequence <= first or log.first_sequence >= last:
                continue
            file = self._files.number(log.file)
            found = read_records(self._node, log, self._subjects, file, damages)
            parts += [rows.take(self._chosen(rows.sequence)) for rows in found]
        return Rows.join(parts)

    def _rows(self) -> _Found:
        """Return the rows of these blocks in all segments; what is loose comes last."""
        task, parts, starts, ends = self._task, list[Rows](), list[Int64s](), list[Int64s]()
        for extent in task.extents:
            if extent.last_sequence < int(self._blocks[0]) * BLOCK:
                continue
            self._lengths[extent.file] = extent.length
            damages: list[Damage] = []
            file = self._files.number(extent.file)
            rows, count = read_rows(
                self._node, extent, self._subjects, file, damages, chosen=self._chosen
            )
            if damages or count != extent.rows:
                self._damaged_starts.append(extent.start)
            parts.append(rows)
            starts.append(np.full(len(rows), extent.start, np.int64))
            ends.append(np.full(len(rows), extent.end, np.int64))
        return _Found(
            Rows.join(parts),
            np.concatenate([np.empty(0, np.int64), *starts]),
            np.concatenate([np.empty(0, np.int64), *ends]),
        )

    def _doubled(self, found: _Found, in_range: Mask, maker: FindingsMaker) -> None:
        """Name every row of the range beyond the first of its sequence."""
        loose = self._task.loose
        taken = np.isin(found.rows.sequence, loose.sequence[self._rules.covers(loose.minute)])
        places = np.flatnonzero(in_range)
        places = places[np.argsort(found.rows.sequence[places], kind="stable")]
        sequence = found.rows.sequence[places]
        again = taken[places]
        again[1:] |= sequence[1:] == sequence[:-1]
        self._name("doubled", found.rows, places[again], maker)

    def _missing(self, records: Rows, found: _Found, maker: FindingsMaker) -> None:
        """Name the records whose segment has no row of them."""
        places, expected, _ = self._task.expecting.places(records)
        expected &= self._rules.covers(records.minute)
        start = _starts(self._task.expecting.cover, places)
        there = np.zeros(len(records), np.bool_)
        for one in np.unique(start[expected]).tolist():
            mine = expected & (start == one)
            rows = found.rows.sequence[found.start == one]
            there[mine] = np.isin(records.sequence[mine], rows)
        absent = expected & ~there
        unsure = np.isin(start, np.array(self._damaged_starts, np.int64))
        self._account.totals["unchecked"] += int(np.count_nonzero(absent & unsure))
        repaired = absent & ~unsure & np.isin(records.sequence, self._task.repaired)
        self._account.totals["repaired_records"] += int(np.count_nonzero(repaired))
        self._account.totals["repairs_found"] += int(np.count_nonzero(repaired))
        absent &= ~repaired
        self._name("missing", records, np.flatnonzero(absent & ~unsure), maker)
        lost = records.take(absent & ~unsure)
        cells = Cells(hour_of(lost.minute), lost.subject.astype(np.int64))
        counts = {"missing": cells.counts(np.zeros(len(lost), np.int64), 1)[:, 0]}
        self._account.missing.add(cells.table("subject", self._subjects.all(), counts))

    def _strange(
        self,
        records: Rows,
        found: _Found,
        in_range: Mask,
        readable: list[range],
        maker: FindingsMaker,
    ) -> None:
        """Name the rows of which there is no record, or one that belongs elsewhere."""
        rows = found.rows
        asked = np.zeros(len(rows), np.bool_)
        for one in readable:
            asked |= (rows.sequence >= one.start) & (rows.sequence < one.stop)
        asked &= in_range
        order = np.argsort(records.sequence, kind="stable")
        known = records.sequence[order]
        at = np.searchsorted(known, rows.sequence)
        at[at == len(known)] = 0
        has_record = (known[at] == rows.sequence) if len(known) else np.zeros(len(rows), np.bool_)
        self._name("unlogged", rows, np.flatnonzero(asked & ~has_record), maker)
        if not len(known):
            return
        record = records.take(order[at])
        elsewhere = (record.minute < found.start) | (record.minute >= found.end)
        # What its own due time gives away was counted with the segment.
        told = rows.due_ms // 60_000 >= found.end
        places = np.flatnonzero(asked & has_record & elsewhere & ~told)
        self._name("misfiled", rows, places, maker)
        differs = (record.due_ms != rows.due_ms) | (record.size != rows.size)
        differs |= (record.id_hash != rows.id_hash) | (record.origin != rows.origin)
        self._name("altered", rows, np.flatnonzero(asked & has_record & differs), maker)

    def _name(self, name: str, rows: Rows, places: Places, maker: FindingsMaker) -> None:
        self._account.totals[f"{name}_in_log" if name == "misfiled" else name] += len(places)
        nothing = np.full(len(places), -1, np.intp)
        maker.add_rows(name, rows, places, Facts.empty(), nothing)
