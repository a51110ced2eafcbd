"""The state directory of runs by hour.

    lock
    summary.json                        all hours that are kept, for people and monitors
    hours/2026-11-21T14Z/result.json    the result of an hour; beside it the files of `--details`
    index/<log uuid>.parquet            what was read of the message_log (`log_index.py`)

An hour is written into a directory beside its place, fsynced and renamed: where it is, the hour is
done, and what is known of hours is what is in their directories. The index comes before the hours
that were held against it, the summary last. So a run that was killed leaves hours that are done, a
directory `….tmp` that the next run removes or puts back, and an older summary.
"""

import contextlib
import io
import shutil
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from spark_tools.files.errors import ReconcileError
from spark_tools.judge.log_index import INDEX_SCHEMA, LogIndex
from storage.disk.disk import DirectoryDisk, replace_file
from storage.disk.errors import DataDirectoryError, NotPermittedError

HOURS, INDEX, SUMMARY, RESULT = "hours", "index", "summary.json", "result.json"
_TEMPORARY = ".tmp"
_OLD = ".old.tmp"


class HourEntry(msgspec.Struct, kw_only=True):
    """One hour that was done. Times are ms since 1970, by the manifests.

    state: `final`, or what each later run tries again: `open` (not all of it was settled),
    `incomplete` (something could not be read).
    """

    hour: int
    """Its first minute, since 1970."""
    state: str
    verdict: str
    complete: bool
    accepted: int
    findings: dict[str, int]
    """Their number by class, without zeros."""
    problems: list[str]
    """Why it is not complete, the first few."""
    repairs: int
    """Messages of the hour that had been sent again, by the audits of that run."""
    first_ms: int
    """When it was tried first in this state."""
    last_ms: int
    covered_from: int
    """The first hour that runs cover, in minutes since 1970."""

    @property
    def is_final(self) -> bool:
        """True if no later run changes it, but one that is told of repairs."""
        return self.state == "final"


class GroupSums(msgspec.Struct, kw_only=True):
    """A group, and its counts in some hours."""

    cluster: str
    group: str
    log_uuid: str
    totals: dict[str, int] = {}
    deleted: dict[str, int] = {}
    lateness: dict[int, tuple[int, int]] = {}
    """Deliveries by bucket of lateness: how many, and the largest lateness of them, ms."""


class HourResult(msgspec.Struct, kw_only=True):
    """The part of a result that runs by hour read again. sums: of each group it should be of."""

    hour: HourEntry
    sums: list[GroupSums]


class StateDirectory:
    """The files of a state directory. Its methods raise ReconcileError, StorageError or OSError."""

    def __init__(self, root: Path) -> None:
        """root: a directory that is there."""
        self._root = root
        self._disk = DirectoryDisk(root)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other runs out, and remove what a killed one has left half-done."""
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(self._disk.lock("lock"))
            except NotPermittedError:
                raise  # It says whose the directory is.
            except DataDirectoryError as error:
                raise ReconcileError(
                    f"another run is at work in {self._root}: wait until it has ended"
                ) from error
            for name in (HOURS, INDEX):
                (self._root / name).mkdir(exist_ok=True)
            self._disk.sync_directory("")
            self._tidy()
            yield

    def _tidy(self) -> None:
        """Put back, or remove, what a run has left that was killed while it replaced an hour."""
        for path in (self._root / HOURS).glob(f"*{_OLD}"):
            place = path.with_name(path.name.removesuffix(_OLD))
            if not place.exists():
                path.rename(place)
        for path in (self._root / HOURS).glob(f"*{_TEMPORARY}"):
            shutil.rmtree(path)

    def results(self) -> dict[int, HourResult]:
        """Return the hours that are done, in order. What is none of ours is left alone."""
        found = {}
        for path in sorted((self._root / HOURS).glob(f"*/{RESULT}")):
            if (hour := hour_of_name(path.parent.name)) is None:
                continue
            try:
                found[hour] = msgspec.json.decode(path.read_bytes(), type=HourResult)
            except msgspec.DecodeError as error:
                raise ReconcileError(
                    f"{path} cannot be read: {error}; remove its directory, and the hour is done "
                    "once more"
                ) from error
        return found

    @contextlib.contextmanager
    def replacing(self, hour: int) -> Iterator[Path]:
        """Yield a new directory, which takes the place of the hour's at the end."""
        place = self._root / HOURS / hour_name(hour)
        new = place.with_name(f"{place.name}{_TEMPORARY}")
        new.mkdir()
        yield new
        for path in new.iterdir():
            self._sync(path)
        self._disk.sync_directory(f"{HOURS}/{new.name}")
        if place.exists():
            place.rename(place.with_name(f"{place.name}{_OLD}"))
        new.rename(place)
        self._disk.sync_directory(HOURS)
        self._tidy()

    def forget(self, hour: int) -> None:
        """Remove the directory of an hour."""
        shutil.rmtree(self._root / HOURS / hour_name(hour))

    def index(self, log_uuid: str) -> LogIndex:
        """Return what was read of a message_log."""
        path = self._root / INDEX / f"{log_uuid}.parquet"
        if not path.exists():
            return LogIndex()
        try:
            return LogIndex(pq.read_table(path, partitioning=None).cast(INDEX_SCHEMA))
        except (pa.ArrowException, ValueError) as error:
            raise ReconcileError(
                f"{path} cannot be read: {error}; put it back from a backup, or remove it: then "
                "rows are compared with what is still kept of the message_log"
            ) from error

    def write_index(self, log_uuid: str, index: LogIndex) -> None:
        """Replace what was read of a message_log."""
        data = io.BytesIO()
        table = index.table.sort_by([("first", "ascending"), ("hour", "ascending")])
        pq.write_table(table.combine_chunks(), data, compression="zstd")
        replace_file(self._disk, f"{INDEX}/{log_uuid}.parquet", [data.getvalue()])

    def summary_made_ms(self) -> int:
        """Return when the manifests of the last run that ended were made; 0 without one."""
        try:
            found = msgspec.json.decode((self._root / SUMMARY).read_bytes())
            return int(found["made_ms"])
        except FileNotFoundError:
            return 0
        except (msgspec.DecodeError, LookupError, TypeError) as error:
            raise ReconcileError(
                f"{self._root / SUMMARY} cannot be read: {error}; remove it, and the next run "
                "tells of all hours that are done"
            ) from error

    def write_summary(self, document: Mapping[str, Any]) -> None:
        """Replace the summary: the end of a run."""
        data = msgspec.json.format(msgspec.json.encode(document), indent=1)
        replace_file(self._disk, SUMMARY, [data + b"\n"])

    def _sync(self, path: Path) -> None:
        """Make what is in a file durable."""
        with contextlib.closing(self._disk.open(str(path.relative_to(self._root)))) as file:
            file.sync()


def hour_name(hour: int) -> str:
    """Return the name of the directory of an hour."""
    return f"{datetime.fromtimestamp(hour * 60, UTC):%Y-%m-%dT%HZ}"


def hour_of_name(name: str) -> int | None:
    """Return the hour of a directory, None of one that is none of ours."""
    try:
        when = datetime.strptime(name, "%Y-%m-%dT%HZ").replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(when.timestamp()) // 60
