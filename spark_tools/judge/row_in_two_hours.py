"""Rows of an hour that is done now whose sequence has a row in an hour that was done before."""

from dataclasses import dataclass

import numpy as np

from spark_tools.files.columns import Facts, Int64s, Names, Rows, hour_of
from spark_tools.judge.account import Account, TaskResult
from spark_tools.judge.findings import FindingsMaker
from spark_tools.judge.segments import read_rows
from spark_tools.judge.tasks import Extent, Node, Rules
from storage.batch.batches import Damage


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierTask:
    """Name the rows of the range that are in an hour before as well, one of each sequence.

    certain: sequences of which that is known; suspects: those of which it has to be found out, in
    the segments `others`; settled: the hours that are done; extents: the segments of the range.
    """

    node: Node
    rules: Rules
    certain: Int64s
    suspects: Int64s
    others: tuple[Extent, ...]
    settled: Int64s
    extents: tuple[Extent, ...]

    @property
    def weight(self) -> int:
        """About how many bytes are read."""
        return sum(one.length for one in (*self.others, *self.extents))

    def __call__(self) -> TaskResult:
        """Run the task and return what it counted."""
        subjects, files, account = Names(), Names(), Account()
        found = [self.certain]
        for extent in self.others:
            rows = self._rows(extent, self.suspects, subjects, 0)
            found.append(rows.sequence[np.isin(hour_of(rows.minute), self.settled)])
        doubled = np.unique(np.concatenate(found))
        parts = []
        for extent in self.extents:
            rows = self._rows(extent, doubled, subjects, files.number(extent.file))
            parts.append(rows.take(self.rules.covers(rows.minute)))
        mine = Rows.join(parts)
        _, places = np.unique(mine.sequence, return_index=True)
        account.totals["doubled"] += len(places)
        if len(places):
            account.strays.append((mine.sequence[places], np.full(len(places), -1, np.int64)))
        lengths = {one.file: one.length for one in self.extents}
        maker = FindingsMaker(self.node, subjects.all(), [], files.all(), lengths)
        nothing = np.full(len(places), -1, np.intp)
        maker.add_rows(
            "doubled", mine, places, Facts.empty(), nothing, note="the other is in an hour before"
        )
        return TaskResult(self.node.name, account, maker.table())

    def _rows(self, extent: Extent, wanted: Int64s, subjects: Names, file: int) -> Rows:
        """Return some rows of a segment; what is damaged was told of when it was reconciled."""
        damages: list[Damage] = []
        rows, _ = read_rows(
            self.node,
            extent,
            subjects,
            file,
            damages,
            chosen=lambda sequence: np.isin(sequence, wanted),
        )
        return rows
