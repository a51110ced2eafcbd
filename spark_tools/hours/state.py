"""The state directory of runs by hour: every file is there whole, or not at all.

    lock
    ledger.json                          which hours are done, and their sums; replaced last
    summary.json                         the same for people and monitors
    hours/20261121T1400Z.json            the result of one hour: with it the hour is done
    hours/20261121T1400Z-1-….parquet     its details, named by it, with the number of the try
    index/<log uuid>/<first>-<after>.parquet    pieces of the message_log (`log_index.py`)
    index/<log uuid>/gone.parquet        what is remembered of pieces that have left

A file is written beside its place, fsynced and renamed, and its directory is fsynced; what a file
names is there before it. So whatever the moment of a kill or a power cut, what is found is the
state before a step or the one behind it, and files that nothing names; `Ledger.clean` removes them.
"""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from spark_tools.files.errors import ReconcileError
from storage.disk.disk import Bytes, Disk, File
from storage.disk.errors import DataDirectoryError, NotPermittedError

LEDGER_SCHEMA = 1
"""Counted up when an older version would misunderstand a newer one."""
HOURS, INDEX = "hours", "index"
_WRITTEN_AT_ONCE = 1 << 20
_LEDGER, _TEMPORARY = "ledger.json", ".tmp"


class HourEntry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One hour in the ledger. Times are ms since 1970, by the manifests.

    state: `final`, or what another try may change: `open` (not all of it was settled), `incomplete`
    (something could not be read). details: files of the hour by what is in them.
    """

    hour: int
    """Its first minute, since 1970."""
    state: str
    verdict: str
    complete: bool
    accepted: int
    findings: dict[str, int]
    """How many of each class, without zeros."""
    problems: list[str]
    """Why it is not complete, the first few."""
    tries: int
    first_ms: int
    last_ms: int
    details: dict[str, str]
    repaired: dict[str, int] = {}
    """In a summary: findings that no longer count, since a repair has sent the messages."""

    @property
    def is_final(self) -> bool:
        """Whether no later run changes it."""
        return self.state == "final"


class GroupSums(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A group, and its counts over all hours that are done for good."""

    cluster: str
    group: str
    log_uuid: str
    totals: dict[str, int] = {}
    deleted: dict[str, int] = {}
    lateness: dict[int, tuple[int, int]] = {}
    """Deliveries by bucket of lateness: how many, and the largest lateness of them, ms."""
    is_gone: bool = False
    """Whether no hour needs it any more."""

    def add_lateness(self, bucket: int, count: int, latest_ms: int) -> None:
        """Count deliveries of one bucket."""
        before, latest = self.lateness.get(bucket, (0, latest_ms))
        self.lateness[bucket] = before + count, max(latest, latest_ms)


class Ledger(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The hours that are done. Each final hour is in the sums, once."""

    schema: int = LEDGER_SCHEMA
    covered_from: int
    """The first hour in the ledger, in minutes since 1970."""
    dropped_before: int
    """Final hours before this one are in the sums only."""
    hours_summed: int = 0
    verdicts: dict[str, int] = {}
    """Hours that are summed, by verdict."""
    findings: dict[str, int] = {}
    """Of these hours."""
    groups: list[GroupSums] = []
    hours: list[HourEntry] = []
    """In order, without those that were dropped."""


class HourResult(msgspec.Struct, kw_only=True):
    """The part of an hour's result that the ledger needs.

    sums: what the hour adds to those of each group.
    """

    hour: HourEntry
    sums: list[GroupSums]


class _Versioned(msgspec.Struct):
    schema: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """An hour that is over and not closed. is_late: it should have closed by now."""

    hour: int
    reason: str
    is_late: bool


class StateDirectory:
    """The files of a state directory."""

    def __init__(self, disk: Disk, name: str) -> None:
        """name: of the directory, for messages."""
        self._disk = disk
        self._name = name

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other runs out. Raises ReconcileError if one is at work."""
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(self._disk.lock("lock"))
            except NotPermittedError:
                raise  # It says whose the directory is.
            except DataDirectoryError as error:
                raise ReconcileError(
                    f"another run is at work in {self._name}: wait until it has ended"
                ) from error
            for directory in (HOURS, INDEX):
                self.make_directory(directory)
            yield

    # -- files -------------------------------------------------------------------------------

    def read(self, path: str) -> bytes | None:
        """Return a file, None if there is none."""
        try:
            file = self._disk.open_read(path)
        except FileNotFoundError:
            return None
        try:
            return file.read_at(0, file.size())
        finally:
            file.close()

    def read_table(self, path: str) -> pa.Table:
        """Return a Parquet file. Raises ReconcileError if it is gone or damaged."""
        data = self.read(path)
        if data is None:
            raise self._unreadable(path, "it is gone")
        try:
            return pq.read_table(pa.BufferReader(data))
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(path, error) from error

    def _unreadable(self, path: str, reason: object) -> ReconcileError:
        return ReconcileError(
            f"{self._name}/{path} cannot be read: {reason}; put it back from a backup, or begin "
            "with a new state directory"
        )

    def write(self, path: str, data: bytes) -> None:
        """Put a file in its place, durably."""
        with self.writing(path) as sink:
            sink.write(data)
        self.sync(path)

    def write_table(self, path: str, table: pa.Table) -> None:
        """Put a Parquet file in its place; durable after `sync`."""
        with (
            self.writing(path) as sink,
            pq.ParquetWriter(
                pa.PythonFile(sink, mode="w"), table.schema, compression="zstd"
            ) as writer,
        ):
            writer.write_table(table)

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator["Sink"]:
        """Yield a new file to write to, which replaces the old one at the end.

        Its name is durable after `sync`.
        """
        temporary = path + _TEMPORARY
        if self._disk.exists(temporary):
            self._disk.unlink(temporary)
        file = self._disk.open(temporary, create=True)
        try:
            sink = Sink(file)
            yield sink
            sink.finish()
            file.sync()
        finally:
            file.close()
        self._disk.rename(temporary, path)

    def sync(self, path: str) -> None:
        """Make the names beside a file durable."""
        self._disk.sync_directory(path.rpartition("/")[0])

    def make_directory(self, path: str) -> None:
        """Make a directory, durably, and whatever names a run that was killed has left in it."""
        self._disk.make_directory(path)
        self._disk.sync_directory(path)
        self.sync(path)

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory."""
        return list(self._disk.list(directory))

    def remove(self, directory: str, names: list[str]) -> None:
        """Remove files, durably."""
        for name in names:
            self._disk.unlink(f"{directory}/{name}")
        if names:
            self._disk.sync_directory(directory)

    # -- what is known -----------------------------------------------------------------------

    def ledger(self) -> Ledger | None:
        """Return the ledger, None if there is none.

        Raises ReconcileError if it cannot be read, or is one of a newer version.
        """
        data = self.read(_LEDGER)
        if data is None:
            return None
        try:
            schema = msgspec.json.decode(data, type=_Versioned).schema
            if schema == LEDGER_SCHEMA:
                return msgspec.json.decode(data, type=Ledger)
        except msgspec.DecodeError as error:
            raise self._unreadable(_LEDGER, error) from error
        reason = f"it is of schema {schema}, this version knows {LEDGER_SCHEMA}"
        raise self._unreadable(_LEDGER, reason)

    def write_ledger(self, ledger: Ledger) -> None:
        """Replace the ledger: the end of a run."""
        self.write(_LEDGER, msgspec.json.format(msgspec.json.encode(ledger), indent=1) + b"\n")

    def results(self, known: Ledger) -> list[HourResult]:
        """Return the results of hours that the ledger does not tell of: of a run that was killed.

        Raises ReconcileError if one cannot be read.
        """
        tries = {entry.hour: entry for entry in known.hours}
        found = []
        for name in self.names(HOURS):
            hour = hour_of_name(name)
            if hour is None or name != result_name(hour) or hour < known.dropped_before:
                continue
            if hour in tries and tries[hour].is_final:
                continue
            data = self.read(f"{HOURS}/{name}")
            try:
                result = msgspec.json.decode(data or b"", type=HourResult)
            except msgspec.DecodeError as error:
                raise ReconcileError(
                    f"{self._name}/{HOURS}/{name} cannot be read: {error}; remove it, and the hour "
                    "is done once more"
                ) from error
            if hour not in tries or tries[hour].tries != result.hour.tries:
                found.append(result)
        return found

    def clean(self, entries: Iterable[HourEntry]) -> None:
        """Remove files that nothing names: of killed runs, earlier tries and dropped hours.

        Files that are none of ours stay.
        """
        named = {name for entry in entries for name in entry.details.values()}
        named |= {result_name(entry.hour) for entry in entries}
        strays = [
            name
            for name in self.names(HOURS)
            if hour_of_name(name) is not None and name not in named
        ]
        self.remove(HOURS, strays)
        for name in self.names(INDEX):
            directory = f"{INDEX}/{name}"
            left = [one for one in self.names(directory) if one.endswith(_TEMPORARY)]
            self.remove(directory, left)


class Sink:
    """A file that is written from front to back. pyarrow writes a few bytes at a time."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._end = 0
        self._waiting = bytearray()
        self.closed = False

    def write(self, data: Bytes) -> int:
        """Add bytes at the end."""
        self._waiting += data
        if len(self._waiting) >= _WRITTEN_AT_ONCE:
            self.finish()
        return len(data)

    def tell(self) -> int:
        """Return how much was written."""
        return self._end + len(self._waiting)

    def flush(self) -> None:
        """Leave it to `finish`."""

    def finish(self) -> None:
        """Write what waits."""
        if self._waiting:
            self._end += self._file.write_at(self._end, [bytes(self._waiting)])
            self._waiting.clear()

    def close(self) -> None:
        """Leave the file to whoever opened it."""
        self.closed = True


def hour_name(hour: int) -> str:
    """Return what the files of an hour begin with."""
    return f"{datetime.fromtimestamp(hour * 60, UTC):%Y%m%dT%H%MZ}"


def result_name(hour: int) -> str:
    """Return the name of the result of an hour."""
    return f"{hour_name(hour)}.json"


def hour_of_name(name: str) -> int | None:
    """Return the hour of a file, None of one that is none of ours."""
    try:
        when = datetime.strptime(name[:14], "%Y%m%dT%H%MZ").replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(when.timestamp()) // 60
