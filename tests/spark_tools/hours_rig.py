"""Runs by hour on a state directory in memory, and what they have left there."""

import random
from collections import Counter
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from spark_tools.hours.by_hour import HoursRequest, Outcome, run_hours
from spark_tools.hours.state import HOURS, HourEntry, StateDirectory, result_name
from spark_tools.repaired.repairs import Repairs
from spark_tools.run.local import local_engine
from spark_tools.run.plan import Request, Source
from tests.simulation.disk import SimDisk

HOURLY = HoursRequest(request=Request(max_late_ms=1000, examples=3), open_hours=1, retry_hours=2)


class Watcher:
    """A state directory in memory, and runs on it."""

    def __init__(self, request: HoursRequest = HOURLY, disk: SimDisk | None = None) -> None:
        self.disk = disk or SimDisk(random.Random(1))
        self.request = request

    @property
    def state(self) -> StateDirectory:
        return StateDirectory(self.disk, "state")

    def run(self, *sources: Source, repairs: Repairs | None = None) -> Outcome:
        return run_hours(
            self.state, lambda _: sources, self.request, local_engine(1), repairs=repairs
        )

    def document(self, entry: HourEntry) -> dict[str, Any]:
        return self.json(f"{HOURS}/{result_name(entry.hour)}")

    def json(self, path: str) -> dict[str, Any]:
        data = self.disk.content(path)
        assert data is not None, path
        found: dict[str, Any] = msgspec.json.decode(data)
        return found

    def table(self, entry: HourEntry, name: str) -> pa.Table | None:
        if name not in entry.details:
            return None
        data = self.disk.content(f"{HOURS}/{entry.details[name]}")
        return pq.read_table(pa.BufferReader(data))

    def totals(self, entry: HourEntry) -> Counter[str]:
        return Counter(self.document(entry)["sums"][0]["totals"])

    def findings(self, entry: HourEntry, *, doubled: bool = False) -> Counter[tuple[Any, ...]]:
        table = self.table(entry, "findings")
        return Counter() if table is None else named(table, doubled=doubled)


def named(table: pa.Table, *, doubled: bool = False) -> Counter[tuple[Any, ...]]:
    """Return findings that a run over everything has too; of doubled rows which is no matter."""
    columns = ("class", "sequence", "message_id", "due_ms", "at_ms", "file", "position", "target")
    rows = zip(*(table[name].to_pylist() for name in columns), strict=True)
    found = Counter(row for row in rows if row[0] != "log_differs")
    if doubled:
        return Counter(row[1:2] for row in found.elements() if row[0] == "doubled")
    return Counter({row: count for row, count in found.items() if row[0] != "doubled"})


def check_same_state(here: Watcher, there: Watcher, outcome: Outcome) -> None:
    """Hold two state directories against each other; outcome: of the run on the first."""
    one, other = here.disk.contents(), there.disk.contents()
    assert one.keys() == other.keys()
    # Findings are written down as they come.
    assert all(one[path] == other[path] or "findings" in path for path in one)
    assert [here.findings(entry) for entry in outcome.done] == [
        there.findings(entry) for entry in outcome.done
    ]
