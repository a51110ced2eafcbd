"""The seals log: what became of each complete segment, kept long after its files are gone.

Files `seals/<number of the first seal, 20 digits>.log` of SEALS batches, numbered without gaps. A
segment may have several seals, and the last one counts: its files are marked as deleted by another
seal that is like the first but for that. `LiveSeals` are those whose files are still there; nothing
else is kept in memory.

A batch holds what one checkpoint sealed, often a single segment. So a file that is full, and that
no checkpoint writes to any more, is written once more with its seals in a few large batches: years
of them are read in no time then.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt

from storage.batch.batches import Damage
from storage.batch.chained_file import BatchDraft, ChainedFile
from storage.batch.columns import LAYOUTS, Array, Columns, ColumnsError, RecordKind, encode_columns
from storage.batch.file_header import FileHeader, LogKind
from storage.batch.rows import Int64s
from storage.batch.walk import walk_file, walk_headers
from storage.disk.disk import Disk, ListedDisk, ReadableDisk, size_if_opened
from storage.disk.errors import StorageFullError
from storage.disk.spans import MINUTE_MS, SegmentKey, Span, can_begin_all, code_of
from storage.logs.numbered_log import LogFile, files_from, list_log_files, log_file
from storage.state.checkpoint import Checkpoint

SEALS_DIRECTORY = "seals"
_FILE_BYTES_MAX = 1024 * 1024
_SEALS_PER_BATCH_MAX = 20_000
"""20,000 seals of 151 bytes stay below the 4 MiB of a batch."""

Seals = dict[str, Array]
"""Seals as the columns that they have on disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """One complete segment."""

    key: SegmentKey
    rows: int
    distinct: int
    """Distinct sequences among its facts that are rows of it: equal to `rows`."""
    last_sequence: int
    length: int
    facts_length: int
    digest: tuple[int, int]
    """BLAKE2b-128 of four such digests, of the rows' sequence, due_ms, size and id_hash columns;
    alike on every replica, however the rows were cut into batches."""
    facts_digest: tuple[int, int]
    """BLAKE2b-128 of the distinct sequences that have a fact."""
    outcomes: tuple[int, ...]
    """Facts by outcome, Outcome 1 to 7, repeated ones included."""
    sealed_ms: int = 0
    """When it was sealed, wall ms; its age is counted from here."""
    deleted: bool = False
    """Its files were marked for deletion, and are retired or gone."""


_PLAIN_COLUMNS = (
    "rows",
    "distinct",
    "last_sequence",
    "length",
    "facts_length",
    "sealed_ms",
    "deleted",
)
"""Fields of a seal that are columns of the same name."""
_OUTCOME_COLUMNS = ("delivered", "known", "dead", "cancelled", "moved", "expired", "dropped")


@dataclass(frozen=True, slots=True, kw_only=True)
class SealsEnd:
    """How much of the seals log counts, as the checkpoint says.

    file: first number of the newest file, 0 if there is none; length: bytes of it that count;
    count: the last number; last_crc: of the last batch; needed: number of the first seal whose
    segment has files.
    """

    file: int = 0
    length: int = 0
    count: int = 0
    last_crc: int = 0
    needed: int = 1


def seals_end(checkpoint: Checkpoint) -> SealsEnd:
    """Return how much of the seals log counts by a checkpoint."""
    return SealsEnd(
        file=checkpoint.seals_file,
        length=checkpoint.seals_length,
        count=checkpoint.seals_count,
        last_crc=checkpoint.seals_last_crc,
        needed=checkpoint.seals_needed,
    )


LIVE: Final = np.dtype(
    [
        ("number", np.int64),
        ("code", np.int64),
        ("sealed_ms", np.int64),
        ("length", np.int64),
        ("facts_length", np.int64),
        ("deleted", np.bool_),
    ]
)
"""The part of a seal that is in memory. number: of the seal; code: of the segment's key; sealed_ms:
when it was sealed; length, facts_length: bytes of the segment's two files; deleted: they may be
gone."""

LiveSeals = npt.NDArray[np.void]
"""Sealed segments, as an array of LIVE; those that still have files in the order of their seals."""


def seals_header(log_uuid: UUID, first_number: int) -> FileHeader:
    """Return the header of a file of the seals log."""
    return FileHeader(kind=LogKind.SEALS, log_uuid=log_uuid, first_sequence=first_number)


def columns_of_seals(seals: Sequence[Seal]) -> Seals:
    """Return seals as columns."""
    values: dict[str, list[int]] = {
        name: [getattr(seal, name) for seal in seals] for name in _PLAIN_COLUMNS
    }
    for name in ("digest", "facts_digest"):
        for half in (0, 1):
            values[f"{name}_{half}"] = [getattr(seal, name)[half] for seal in seals]
    values["start_minute"] = [seal.key.start for seal in seals]
    values["span"] = [seal.key.span for seal in seals]
    values["reserved"] = [0 for _ in seals]
    for place, name in enumerate(_OUTCOME_COLUMNS):
        values[name] = [seal.outcomes[place] for seal in seals]
    return {name: np.array(values[name], dtype) for name, dtype in LAYOUTS[RecordKind.SEALS]}


def require_seals(columns: Columns) -> None:
    """Raise ColumnsError if a seal of a batch is of a segment that cannot exist."""
    starts, spans = columns.arrays["start_minute"], columns.arrays["span"]
    wrong = ~can_begin_all(starts.astype(np.int64), spans)
    if wrong.any():
        place = int(wrong.argmax())
        raise ColumnsError(
            f"seal of a segment of span {spans[place]} from minute {starts[place]} on"
        )


def seals_of_columns(columns: Columns) -> list[Seal]:
    """Return the seals of one batch; ColumnsError if one is of a segment that cannot exist."""
    require_seals(columns)
    arrays = {name: values.tolist() for name, values in columns.arrays.items()}
    return [
        Seal(
            key=SegmentKey(start, Span(span)),
            digest=(arrays["digest_0"][place], arrays["digest_1"][place]),
            facts_digest=(arrays["facts_digest_0"][place], arrays["facts_digest_1"][place]),
            outcomes=tuple(arrays[name][place] for name in _OUTCOME_COLUMNS),
            **{name: arrays[name][place] for name in _PLAIN_COLUMNS},
        )
        for place, (start, span) in enumerate(
            zip(arrays["start_minute"], arrays["span"], strict=True)
        )
    ]


def join_seals(parts: Sequence[Seals]) -> Seals:
    """Return the seals of all parts one after another."""
    if len(parts) == 1:
        return parts[0]
    return {
        name: np.concatenate([part[name] for part in parts] or [np.empty(0, dtype)])
        for name, dtype in LAYOUTS[RecordKind.SEALS]
    }


def marked_deleted(seals: Seals) -> Seals:
    """Return the seals that say that the files of these segments may be deleted."""
    return seals | {"deleted": np.ones_like(seals["deleted"])}


def codes_of(seals: Seals) -> Int64s:
    """Return the codes of the segments' keys."""
    return code_of(seals["start_minute"].astype(np.int64), seals["span"])


def _last_places(codes: Int64s) -> npt.NDArray[np.intp]:
    """Return the place of the last of each code, ascending."""
    # The first of each code, counted from the end.
    _, places = np.unique(codes[::-1], return_index=True)
    return np.sort(len(codes) - 1 - places)


def _count(seals: Seals) -> int:
    return len(seals["rows"])


def _live(first_number: int, seals: Seals) -> LiveSeals:
    """Return what is kept in memory of these seals, numbered from `first_number`."""
    live = np.empty(_count(seals), LIVE)
    live["number"] = np.arange(first_number, first_number + len(live))
    live["code"] = codes_of(seals)
    for name in ("sealed_ms", "length", "facts_length", "deleted"):
        live[name] = seals[name]
    return live


def _drafts(seals: Seals, *, first_number: int, append_ms: int) -> Iterator[BatchDraft]:
    for begin in range(0, _count(seals), _SEALS_PER_BATCH_MAX):
        part = {name: array[begin : begin + _SEALS_PER_BATCH_MAX] for name, array in seals.items()}
        yield BatchDraft(
            kind=RecordKind.SEALS,
            base_sequence=first_number + begin,
            count=_count(part),
            columns=encode_columns(RecordKind.SEALS, [], part),
            append_ms=append_ms,
        )


def _files_that_count(disk: ListedDisk, end: SealsEnd, retired: Collection[str]) -> list[LogFile]:
    """Return the files of the log, the newest last: it counts though it may be gone."""
    files = [
        file
        for file in list_log_files(disk, SEALS_DIRECTORY)
        if file.first_sequence < end.file and file.path not in retired
    ]
    return [*files, log_file(SEALS_DIRECTORY, end.file)]


def _with_ends(files: Sequence[LogFile], end: SealsEnd) -> Iterator[tuple[LogFile, int]]:
    """Yield files with the number behind their last seal.

    A file may be longer than that: a power cut brings back what was cut off, once it is closed.
    """
    ends = [*(file.first_sequence for file in files[1:]), end.count + 1]
    return zip(files, ends, strict=False)


class LastSeals(NamedTuple):
    """What was read of the seals of all segments."""

    seals: Seals
    damages: list[Damage]
    begin: int
    """Number of the first seal that was read; 1 if none was left out."""


def read_last_seals(
    disk: ListedDisk,
    log_uuid: UUID,
    end: SealsEnd,
    *,
    retired: Collection[str],
    deleted_from_minute: int = 0,
) -> LastSeals:
    """Return the last seal of each segment, deleted ones included, and what of the log is damaged.

    Seals of `retired` files, which were deleted for their age or may be at any moment, are left
    out, and so are old files that tell of nothing but deleted segments which ended at or before
    `deleted_from_minute`: seals are kept for years.
    """
    parts: list[Seals] = []
    damages: list[Damage] = []
    if not end.file:
        return LastSeals(join_seals(parts), damages, 1)
    files = _files_that_count(disk, end, retired)
    files = files[_untold(disk, log_uuid, files, end, deleted_from_minute * MINUTE_MS) :]
    begin = number = files[0].first_sequence
    for file, until in _with_ends(files, end):
        for found in _read_file(disk, log_uuid, file, end, until=until):
            if isinstance(found, Damage):
                damages.append(found)
                continue
            first, _, columns = found
            if number < first and not damages:
                reason = f"seals {number} to {first - 1} are missing"
                damages.append(Damage(file.path, 0, 0, reason))
            parts.append(_copy(dict(columns.arrays)))
            number = first + _count(parts[-1])
    if number <= end.count and not damages:
        reason = f"seals {number} to {end.count} are missing"
        damages.append(Damage(files[-1].path, 0, 0, reason))
    seals = join_seals(parts)
    last = _last_places(codes_of(seals))
    return LastSeals({name: array[last] for name, array in seals.items()}, damages, begin)


def _untold(
    disk: ReadableDisk, log_uuid: UUID, files: Sequence[LogFile], end: SealsEnd, before_ms: int
) -> int:
    """Return how many of the oldest files tell only of deleted segments that ended before.

    A segment is sealed when the floor, which does not run ahead of the clock, has passed its end.
    """
    old = len(files) - len(files_from(files, end.needed))
    for place, file in enumerate(files[:old]):
        newest_ms = _newest_append_ms(disk, log_uuid, file)
        if newest_ms is None or newest_ms > before_ms:
            return place
    return old


def _newest_append_ms(disk: ReadableDisk, log_uuid: UUID, file: LogFile) -> int | None:
    """Return when a closed file was appended to last, by its headers; None if it has damage."""
    newest_ms = 0
    length = size_if_opened(disk, file.path)
    header = seals_header(log_uuid, file.first_sequence)
    for found in walk_headers(disk, file.path, length, header):
        if isinstance(found, Damage):
            return None
        newest_ms = max(newest_ms, found.append_ms)
    return newest_ms


_Found = tuple[int, int, Columns]


def _read_file(
    disk: ReadableDisk, log_uuid: UUID, file: LogFile, end: SealsEnd, *, until: int
) -> Iterator[_Found | Damage]:
    """Yield first number, append time and columns of each batch of a file that counts.

    Those with seals from the number `until` on are bytes of another time.
    """
    length = end.length
    if file.first_sequence != end.file:
        length = size_if_opened(disk, file.path)
    header = seals_header(log_uuid, file.first_sequence)
    for found in walk_file(disk, file.path, length, header):
        if isinstance(found, Damage):
            yield found
            continue
        batch = found.header
        try:
            require_seals(found.columns)
        except ColumnsError as error:
            yield Damage(file.path, found.position, batch.size, str(error), batch)
        else:
            if batch.next_sequence <= until:
                yield batch.base_sequence, batch.append_ms, found.columns


@dataclass(slots=True)
class _ClosedFile:
    """A file that nothing is appended to any more, in the parts in which it was written."""

    first: int
    parts: list[Seals]
    append_ms: int


class _Reading:
    """Reads from the first seal that is needed to the last that counts."""

    def __init__(self, disk: Disk, log_uuid: UUID, end: SealsEnd) -> None:
        self._disk = disk
        self._log_uuid = log_uuid
        self._end = end
        self._next = 0
        self._found = [np.empty(0, LIVE)]
        self.damages: list[Damage] = []
        self.closed: list[_ClosedFile] = []
        """Files of many batches."""
        self.newest: list[Seals] = []
        """The parts of the newest file."""

    def run(self, retired: Collection[str]) -> list[LogFile]:
        """Read what is needed; return all files of the log, newest last."""
        end = self._end
        if not end.file:
            return []
        files = _files_that_count(self._disk, end, retired)
        wanted = files_from(files, end.needed)
        self._next = min(wanted[0].first_sequence, end.needed)
        for file, until in _with_ends(wanted, end):
            self._read(file, until)
        self._expect(end.count + 1, files[-1].path)
        return files

    def _read(self, file: LogFile, until: int) -> None:
        self._expect(file.first_sequence, file.path)
        parts: list[Seals] = []
        append_ms, whole = 0, True
        for found in _read_file(self._disk, self._log_uuid, file, self._end, until=until):
            if isinstance(found, Damage):
                whole = False
                self.damages.append(found)
                continue
            first, append_ms, columns = found
            whole &= first == self._next
            seals = dict(columns.arrays)
            self._next = first + _count(seals)
            self._found.append(_live(first, seals))
            parts.append(seals)
        # Where the columns themselves are kept, they are copied: the mapping is let go.
        if file.first_sequence == self._end.file:
            self.newest = [_copy(seals) for seals in parts]
        elif whole and len(parts) > 1 + _sum(parts) // _SEALS_PER_BATCH_MAX:
            copies = [_copy(seals) for seals in parts]
            self.closed.append(_ClosedFile(file.first_sequence, copies, append_ms))

    def _expect(self, number: int, path: str) -> None:
        """Report it if seals before this number were not there; told once, if damage was."""
        if self._next < number and not self.damages:
            reason = f"seals {self._next} to {number - 1} are missing"
            self.damages.append(Damage(path, 0, 0, reason))
        self._next = max(self._next, number)

    def live(self) -> LiveSeals:
        """Return the last seal of each segment, unless that one says that its files are gone."""
        found = np.concatenate(self._found)
        last = _last_places(found["code"])
        live: LiveSeals = found[last[~found["deleted"][last]]]
        return live


def _copy(seals: Seals) -> Seals:
    return {name: array.copy() for name, array in seals.items()}


def _sum(parts: Sequence[Seals]) -> int:
    return sum(map(_count, parts))


class SealsLog:
    """The open seals log of one node.

    Invariant: seals up to `end.count` are durable. They count when a checkpoint says so: `settle`
    tells that one did, `take_back` that it never will.
    """

    def __init__(
        self, disk: Disk, log_uuid: UUID, *, end: SealsEnd, file_bytes_max: int = _FILE_BYTES_MAX
    ) -> None:
        """Take over an empty log, or what `recover` found."""
        self._disk = disk
        self._log_uuid = log_uuid
        self._file_bytes_max = file_bytes_max
        self._settled = end
        self._count = end.count
        self._file: ChainedFile | None = None
        if end.file:
            self._file = self._chained(end)
        self._parts: list[Seals] = []
        self._append_ms = 0
        self._closed: list[_ClosedFile] = []
        self.files: list[LogFile] = []
        """All files, newest last."""
        self.live: LiveSeals = np.empty(0, LIVE)
        """The sealed segments whose files are still there."""
        self._settled_live = self.live
        self._settled_parts: Sequence[Seals] = ()

    @classmethod
    def recover(
        cls,
        disk: Disk,
        log_uuid: UUID,
        *,
        end: SealsEnd,
        retired: Collection[str] = (),
        file_bytes_max: int = _FILE_BYTES_MAX,
    ) -> tuple["SealsLog", list[Damage]]:
        """Open the log as a checkpoint describes it, without its `retired` files.

        What was appended for a checkpoint that never came to be is cut off or deleted.
        """
        for name in disk.list(SEALS_DIRECTORY):
            if name.endswith(".tmp"):
                disk.unlink(f"{SEALS_DIRECTORY}/{name}")
        for file in list_log_files(disk, SEALS_DIRECTORY):
            if file.first_sequence > end.file:
                disk.unlink(file.path)
        log = cls(disk, log_uuid, end=end, file_bytes_max=file_bytes_max)
        reading = _Reading(disk, log_uuid, end)
        log.files = reading.run(retired)
        log._parts, log._closed = reading.newest, reading.closed
        log._settled_parts = tuple(log._parts)
        log.live = log._settled_live = reading.live()
        if log._file is not None and disk.exists(log._file.path):
            if log._file.cut():
                # The next seals may go to another file, and this one be read to its end.
                log._file.file().sync()
            log._file.close()
        return log, reading.damages

    def _chained(self, end: SealsEnd) -> ChainedFile:
        path = log_file(SEALS_DIRECTORY, end.file).path
        header = seals_header(self._log_uuid, end.file)
        return ChainedFile(self._disk, path, header, end.length, end.last_crc)

    @property
    def end(self) -> SealsEnd:
        """How much of the log is durable, and needed: what the next checkpoint is to say."""
        file = self._file
        if file is None:
            return self._settled
        return SealsEnd(
            file=file.header.first_sequence,
            length=file.length,
            count=self._count,
            last_crc=file.last_crc,
            needed=int(self.live["number"][0]) if len(self.live) else self._count + 1,
        )

    def append(self, seals: Seals, *, append_ms: int) -> None:
        """Record seals; durable when this returns, but they count only with a checkpoint.

        Raises StorageFullError with nothing recorded, or FatalDiskError.
        """
        first = self._count + 1
        file = self._file_for(first)
        new = not file.length
        file.append(list(_drafts(seals, first_number=first, append_ms=append_ms)))
        file.file().sync()
        if new:
            self._disk.sync_directory(SEALS_DIRECTORY)
        self._count += _count(seals)
        self._parts.append(seals)
        self._append_ms = append_ms
        added = _live(first, seals)
        kept = self.live[~np.isin(self.live["code"], added["code"])]
        self.live = np.concatenate([kept, added[~added["deleted"]]])

    def _file_for(self, number: int) -> ChainedFile:
        file = self._file
        if file is not None and file.length < self._file_bytes_max and self._is_whole(file):
            return file
        if file is not None:
            if self._disk.exists(file.path) and file.cut():
                # What was taken back is behind its end, to which it will be read.
                file.file().sync()
            file.close()
            first = file.header.first_sequence
            if _sum(self._parts) == number - first:
                self._closed.append(_ClosedFile(first, self._parts, self._append_ms))
            self._parts = []
        place = log_file(SEALS_DIRECTORY, number)
        self.files.append(place)
        self._file = self._chained(SealsEnd(file=number))
        return self._file

    def _is_whole(self, file: ChainedFile) -> bool:
        """Say whether another batch would stand right behind the last; the file may be lost."""
        return (
            file.is_open
            or not file.length
            or (self._disk.exists(file.path) and file.file().size() >= file.length)
        )

    def settle(self) -> None:
        """Note that a durable checkpoint says what `end` does."""
        self._settled = self.end
        self._settled_live = self.live
        self._settled_parts = tuple(self._parts)

    def take_back(self) -> None:
        """Forget what was appended since the last checkpoint: it will be appended again."""
        end, file = self._settled, self._file
        self.live, self._count = self._settled_live, end.count
        self._parts = list(self._settled_parts)
        if file is None:
            return
        if file.header.first_sequence == end.file:
            file.length, file.last_crc = end.length, end.last_crc
            return
        file.close()
        if self._disk.exists(file.path):
            self._disk.unlink(file.path)
        self.files.pop()
        self._closed = [closed for closed in self._closed if closed.first != end.file]
        self._file = self._chained(end) if end.file else None

    def compact(self) -> None:
        """Write files that no checkpoint writes to any more again, in a few large batches.

        Where there is no space for it they stay as they are. Raises FatalDiskError.
        """
        while self._closed and self._closed[0].first < self._settled.file:
            try:
                self._rewrite(self._closed[0])
            except StorageFullError:
                return
            del self._closed[0]

    def _rewrite(self, closed: _ClosedFile) -> None:
        path = log_file(SEALS_DIRECTORY, closed.first).path
        temporary = f"{path}.tmp"
        if self._disk.exists(temporary):
            self._disk.unlink(temporary)
        file = ChainedFile(self._disk, temporary, seals_header(self._log_uuid, closed.first))
        seals = join_seals(closed.parts)
        try:
            file.append(list(_drafts(seals, first_number=closed.first, append_ms=closed.append_ms)))
            file.file().sync()
        finally:
            file.close()
        self._disk.rename(temporary, path)
        self._disk.sync_directory(SEALS_DIRECTORY)

    def find(self, numbers: Int64s) -> tuple[Seals, list[Damage]]:
        """Return the seals with these numbers (ascending), as far as they can be read."""
        starts = np.array([file.first_sequence for file in self.files], np.int64)
        places = np.searchsorted(starts, numbers, side="right") - 1
        parts: list[Seals] = []
        damages: list[Damage] = []
        for place in np.unique(places).tolist():
            wanted = numbers[places == place]
            following = self.files[place + 1 : place + 2]
            until = following[0].first_sequence if following else self._count + 1
            for first, seals in self._seals_of(self.files[place], until, damages):
                rows = wanted[(wanted >= first) & (wanted < first + _count(seals))] - first
                if len(rows):
                    parts.append({name: array[rows] for name, array in seals.items()})
        return join_seals(parts), damages

    def _seals_of(
        self, file: LogFile, until: int, damages: list[Damage]
    ) -> Iterator[tuple[int, Seals]]:
        if file is self.files[-1] and _sum(self._parts) == self._count + 1 - file.first_sequence:
            first = file.first_sequence
            for seals in self._parts:
                yield first, seals
                first += _count(seals)
            return
        for found in _read_file(self._disk, self._log_uuid, file, self.end, until=until):
            if isinstance(found, Damage):
                damages.append(found)
            else:
                yield found[0], dict(found[2].arrays)

    def give_up(self, codes: Int64s) -> None:
        """Take these segments for such as have no files: those they have are to stay for good."""
        self.live = self.live[~np.isin(self.live["code"], codes)]
        self._settled_live = self._settled_live[~np.isin(self._settled_live["code"], codes)]

    def forget(self, paths: Collection[str]) -> None:
        """Forget files, which the caller deletes; never the newest."""
        self.files = [file for file in self.files if file.path not in paths]
        kept = {file.first_sequence for file in self.files}
        self._closed = [closed for closed in self._closed if closed.first in kept]

    def close(self) -> None:
        """Give the descriptor back."""
        if self._file is not None:
            self._file.close()
