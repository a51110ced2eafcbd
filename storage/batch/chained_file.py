"""One append-only file of batches in which each batch names the CRC of the one before it.

It is written here, and read by the walk (walk.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from storage.batch.batches import BatchHeader, Codec, encode_batch, file_seed
from storage.batch.columns import RecordKind
from storage.batch.file_header import FILE_HEADER_SIZE, FileHeader, encode_file_header
from storage.disk.disk import Bytes, Disk, File


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
    features: int = 0


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
        return file_seed(self.header)

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
                features=draft.features,
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

    def cut(self) -> bool:
        """Cut what lies beyond `length`; say whether there was any. Not durable by itself."""
        file = self.file()
        if file.size() <= self.length:
            return False
        file.truncate(self.length)
        return True
