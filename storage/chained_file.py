"""One append-only file of batches in which each batch names the CRC of the one before it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from storage.batches import (
    BatchHeader,
    Codec,
    Damage,
    check_blob,
    check_columns,
    encode_batch,
    log_seed,
    scan_batches,
)
from storage.columns import Columns, RecordKind
from storage.disk import Bytes, Disk, File
from storage.errors import DamagedError
from storage.file_header import (
    FILE_HEADER_SIZE,
    FileHeader,
    decode_file_header,
    encode_file_header,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDraft:
    """A batch to be appended: everything but its place in the chain."""

    kind: RecordKind
    base_sequence: int
    count: int
    columns: bytes
    blob: Sequence[Bytes] = ()
    epoch: int = 1
    floor_minute: int = 0
    append_ms: int = 0
    codec: Codec = Codec.RAW
    item_format: int = 0


@dataclass(slots=True)
class ChainedFile:
    """A file of batches that grows at its end.

    Invariant: bytes 0 to `length` are a file header and whole batches whose last has CRC
    `last_crc`; what lies beyond is garbage of a failed write. `length` 0: there is no file yet,
    the first append makes it.
    """

    disk: Disk
    path: str
    header: FileHeader
    length: int = 0
    last_crc: int = 0
    _file: File | None = field(default=None, repr=False)

    @property
    def seed(self) -> int:
        """The seed of the file's CRCs."""
        return log_seed(self.header.log_uuid, self.header.kind)

    @property
    def is_open(self) -> bool:
        """Whether a descriptor is held."""
        return self._file is not None

    def append(self, drafts: Sequence[BatchDraft]) -> list[tuple[int, BatchHeader]]:
        """Append batches in one write; return position and header of each. Not synced.

        Raises StorageFullError with nothing appended, or FatalDiskError.
        """
        file = self.file()
        buffers: list[Bytes] = [] if self.length else [encode_file_header(self.header)]
        position = self.length or FILE_HEADER_SIZE
        crc = self.last_crc
        placed = []
        for draft in drafts:
            header, parts = encode_batch(
                seed=self.seed,
                kind=draft.kind,
                epoch=draft.epoch,
                base_sequence=draft.base_sequence,
                count=draft.count,
                floor_minute=draft.floor_minute,
                append_ms=draft.append_ms,
                previous_crc=crc,
                columns=draft.columns,
                blob=draft.blob,
                codec=draft.codec,
                item_format=draft.item_format,
            )
            buffers += parts
            placed.append((position, header))
            position += header.size
            crc = header.crc
        file.write_at(self.length, buffers)
        self.length = position
        self.last_crc = crc
        return placed

    def file(self) -> File:
        """Return the open file, opening or making it first."""
        if self._file is None:
            # A file that was lost is made anew, with a hole where its bytes were.
            make = not self.disk.exists(self.path)
            self._file = self.disk.open(self.path, create=make)
        return self._file

    def close(self) -> None:
        """Give the descriptor back; synced or not is the caller's business."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def cut(self) -> None:
        """Cut what lies beyond `length`, where there is any."""
        file = self.file()
        if file.size() > self.length:
            file.truncate(self.length)


def read_columns(
    disk: Disk, path: str, length: int, header: FileHeader
) -> Iterator[tuple[int, BatchHeader, Columns] | Damage]:
    """Yield position, header and checked columns of each batch; Damage where there is some.

    Blobs are hopped over unread. A damaged file header is reported like any other damage: the
    batches carry all that is needed to read them. A file that cannot be read at all is damage too.
    Raises UnsupportedFormatError.
    """
    try:
        view = disk.map(path)
    except OSError as error:
        yield Damage(path=path, position=0, size=length, reason=f"cannot be read: {error}")
        return
    try:
        found = decode_file_header(view, kind=header.kind, log_uuid=header.log_uuid, path=path)
    except DamagedError as error:
        yield Damage(path=path, position=0, size=FILE_HEADER_SIZE, reason=error.reason)
    else:
        if (found.span, found.start_minute) != (header.span, header.start_minute):
            reason = f"this is the file of {found.span.name.lower()} {found.start_minute}"
            yield Damage(path=path, position=0, size=length, reason=reason)
            return
    if len(view) < length:
        yield Damage(
            path=path, position=len(view), size=length - len(view), reason="the file is cut short"
        )
    end = min(length, len(view))
    seed = log_seed(header.log_uuid, header.kind)
    for scanned in scan_batches(view, start=FILE_HEADER_SIZE, end=end, seed=seed, path=path):
        if isinstance(scanned, Damage):
            yield scanned
            continue
        place, batch = scanned.position, scanned.header
        data = view[place : place + batch.size]
        try:
            columns = check_columns(batch, data, seed=seed, path=path, position=place)
        except DamagedError as error:
            yield Damage(path=path, position=place, size=batch.size, reason=error.reason)
            continue
        yield place, batch, columns


def read_blob(
    view: memoryview, batch: BatchHeader, *, position: int, path: str, header: FileHeader
) -> bytes:
    """Return the checked, decompressed blob of a batch. Raises DamagedError."""
    seed = log_seed(header.log_uuid, header.kind)
    data = view[position : position + batch.size]
    return bytes(check_blob(batch, data, seed=seed, path=path, position=position))
