"""Tables of many hours added up: counts by subject and by broker group, and buckets of lateness."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from spark_tools.account import SUBJECT_MEASURES, TARGET_MEASURES, GroupName, Tally
from spark_tools.report import TABLES, with_group

_BUCKET = {"bucket": pa.int64()}


def _tally(name: str) -> Tally:
    """Return the empty table of this name: as in an account, but of all hours together."""
    key = {name.partition("_")[0].removesuffix("s"): pa.string()}
    if name.endswith("_lateness"):
        return Tally({**key, **_BUCKET}, ["count"])
    return Tally(key, SUBJECT_MEASURES if name == "subjects" else TARGET_MEASURES)


class Sums:
    """The tables of a run (`TABLES`), each of all groups, over many hours."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, GroupName], Tally] = {}

    def add(self, name: str, table: pa.Table) -> None:
        """Add the table of this name, of one hour or of many."""
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
