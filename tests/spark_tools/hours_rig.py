"""Runs by hour on a state directory, and what they have left there."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from spark_tools.hours.by_hour import HoursRequest, Outcome, run_hours
from spark_tools.hours.state_directory import HOURS, HourEntry, StateDirectory, hour_name
from spark_tools.repaired.repairs import Repairs
from spark_tools.run.local import local_engine
from spark_tools.run.plan import Request, Source

HOURLY = HoursRequest(request=Request(max_late_ms=1000, examples=3), open_hours=1, retry_hours=2)


class Watcher:
    """A state directory, and runs on it."""

    def __init__(self, root: Path, request: HoursRequest = HOURLY) -> None:
        root.mkdir(exist_ok=True)
        self.root = root
        self.request = request

    def run(self, *sources: Source, repairs: Repairs | None = None) -> Outcome:
        return run_hours(
            StateDirectory(self.root),
            lambda _: sources,
            self.request,
            local_engine(1),
            repairs=repairs,
        )

    def contents(self) -> dict[str, bytes]:
        """Return all files but the lock."""
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file() and path.name != "lock"
        }

    def document(self, entry: HourEntry) -> dict[str, Any]:
        return self.json(f"{HOURS}/{hour_name(entry.hour)}/result.json")

    def json(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode((self.root / path).read_bytes())
        return found

    def table(self, entry: HourEntry, name: str) -> pa.Table:
        path = self.root / HOURS / hour_name(entry.hour) / f"{name}.parquet"
        return pq.read_table(path, partitioning=None)

    def totals(self, entry: HourEntry) -> Counter[str]:
        return Counter(self.document(entry)["sums"][0]["totals"])

    def findings(self, entry: HourEntry) -> Counter[tuple[Any, ...]]:
        return named(self.table(entry, "findings"))


def named(table: pa.Table) -> Counter[tuple[Any, ...]]:
    """Return findings that a run over the same hour has too."""
    columns = ("class", "sequence", "message_id", "due_ms", "at_ms", "file", "position", "target")
    rows = zip(*(table[name].to_pylist() for name in columns), strict=True)
    return Counter(row for row in rows if row[0] != "log_differs")


def check_same_state(here: Watcher, there: Watcher) -> None:
    """Hold two state directories against each other."""
    one, other = here.contents(), there.contents()
    assert one.keys() == other.keys()
    # Findings are written down as they come.
    assert all(one[path] == other[path] or "findings" in path for path in one)
