"""Tables of many hours added up: counts by subject and by broker group, and buckets of lateness."""

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from spark_tools.judge.account import (
    LATEST,
    OTHER_SUBJECTS,
    SUBJECT_MEASURES,
    TARGET_MEASURES,
    Tally,
    lateness_tally,
)
from spark_tools.judge.lateness import bucket_from_ms
from spark_tools.judge.tasks import GroupName
from spark_tools.run.report import TABLES, with_group


def _tally(name: str) -> Tally:
    """Return the empty table of this name: as in an account, but of all hours together."""
    key = {name.partition("_")[0].removesuffix("s"): pa.string()}
    if name.endswith("_lateness"):
        return lateness_tally(key)
    return Tally(key, SUBJECT_MEASURES if name == "subjects" else TARGET_MEASURES)


class Sums:
    """The tables of a run (`TABLES`), each of all groups, over many hours."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, GroupName], Tally] = {}

    def add(self, name: str, table: pa.Table) -> None:
        """Add the table of this name, of one hour or of many."""
        table = _with_all_columns(table, _tally(name))
        groups = table.select(GroupName._fields).group_by(list(GroupName._fields)).aggregate([])
        for group in groups.to_pylist():
            whose = GroupName(**group)
            mine = table.filter(
                pc.and_(
                    pc.equal(table["cluster"], whose.cluster), pc.equal(table["group"], whose.group)
                )
            )
            tally = self._tallies.setdefault((name, whose), _tally(name))
            tally.add(mine.select(tally.schema.names))

    def move(
        self, whose: GroupName, before: str, after: str, counts: Mapping[str | None, int]
    ) -> None:
        """Count some of each subject's messages as `after`, and no more as `before`."""
        tally = self._tallies.setdefault(("subjects", whose), _tally("subjects"))
        known = set(tally.table()["subject"].to_pylist())
        rows = [
            {
                **dict.fromkeys(tally.measures, 0),
                # Where it was left out for others it still is.
                "subject": subject if subject in known else OTHER_SUBJECTS,
                before: -count,
                after: count,
            }
            for subject, count in counts.items()
        ]
        tally.add(pa.Table.from_pylist(rows, schema=tally.schema))

    def fold_subjects(self, most: int) -> None:
        """Keep the first `most` subjects of each group by name; others are one.

        That is what a run over all hours would keep: a name that is among the first of all hours is
        among the first of each.
        """
        for tally in self._tallies.values():
            if "subject" in tally.keys:
                tally.fold_subjects(most)

    def tables(self) -> Iterator[tuple[str, pa.Table]]:
        """Yield each table with its name."""
        for name in TABLES:
            empty = with_group(GroupName("", ""), _tally(name).table())
            parts = [
                with_group(whose, tally.table())
                for (mine, whose), tally in sorted(self._tallies.items())
                if mine == name
            ]
            yield name, pa.concat_tables([empty, *parts])


def _with_all_columns(table: pa.Table, tally: Tally) -> pa.Table:
    """Return a table with the columns that an older version did not write.

    It counted nothing of these; the latest of a bucket is at most at its end.
    """
    there = table.schema.names
    for name in (one for one in tally.measures if one not in there):
        table = table.append_column(name, pa.repeat(pa.scalar(0), table.num_rows))
    if LATEST in tally.largest and LATEST not in there:
        bounds = [bucket_from_ms(bucket + 1) - 1 for bucket in table["bucket"].to_pylist()]
        table = table.append_column(LATEST, pa.array(bounds, pa.int64()))
    return table
