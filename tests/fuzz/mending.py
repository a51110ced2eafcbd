"""Makes checksums and sizes right, so that a fuzzer gets past the door.

A mutated input fails its CRC, and what lies behind the check would never see it. So a target runs
some inputs as they are, and some mended: only the checksums made right (`*_crcs`), or structure and
checksums (`whole_*`), with contents that are still the fuzzer's.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.batch.batches import BATCH_BYTES_MAX, HEADER_SIZE, MAGIC, Codec, encode_batch
from storage.batch.columns import KINDS_WITH_ITEMS, LAYOUTS, RecordKind, row_size
from storage.batch.file_header import FILE_HEADER_SIZE, HEADER_SIZE_MAX
from storage.disk.disk import Bytes

# Wire.

_FRAME_HEAD = bytes.fromhex("0012 dec10ade")


def whole_frames(data: bytes, *, opaques: int = 0) -> bytes:
    """Return a stream of frames only: sizes are cut to what is there, the fixed fields are set.

    With `opaques` each frame is an answer to one of so many requests, numbered from 1.
    """
    out = bytearray(data)
    position = 0
    while len(out) - position >= 24:
        total = int.from_bytes(out[position : position + 4], "big")
        body = min(max(total - 20, 0) % 4096, len(out) - position - 24)
        out[position : position + 4] = (20 + body).to_bytes(4, "big")
        out[position + 4 : position + 10] = _FRAME_HEAD
        if opaques:
            opaque = int.from_bytes(out[position + 14 : position + 18], "big")
            out[position + 14 : position + 18] = (1 + opaque % opaques).to_bytes(4, "big")
            out[position + 21] |= 1
        position += 24 + body
    return bytes(out)


class _Cursor:
    """Takes bytes from the front, fewer where there are no more."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._position

    def take(self, size: int) -> bytes:
        taken = self._data[self._position : self._position + size]
        self._position += len(taken)
        return taken

    def string(self, *, reserve: int) -> bytes:
        """Take a string of at most the size that it states, and leave `reserve` bytes."""
        stated = int.from_bytes(self.take(2), "big") & 0x7FFF
        text = self.take(max(min(stated, self.left - reserve), 0))
        return len(text).to_bytes(2, "big") + text


def whole_items(data: bytes) -> bytes:
    """Return a body of items only: sizes are cut to what is there, CRCs are right."""
    cursor = _Cursor(data)
    out = bytearray()
    while cursor.left >= 33:
        out += _whole_item(cursor)
    return bytes(out)


def _whole_item(cursor: _Cursor) -> bytes:
    cursor.take(8)
    item = bytearray(cursor.take(17))
    item += cursor.string(reserve=6) + cursor.string(reserve=4)
    if item[0] & 4:
        tags: list[bytes] = []
        count = cursor.take(1)[0] % 16 if cursor.left > 4 else 0
        while len(tags) < count and cursor.left >= 6:
            tags.append(cursor.string(reserve=4))
        item += len(tags).to_bytes(1, "big") + b"".join(tags)
    body = cursor.take(int.from_bytes(cursor.take(4), "big"))
    item += len(body).to_bytes(4, "big") + body
    return zlib.crc32(item).to_bytes(8, "big") + bytes(item)


# Disk.

_SIZES = struct.Struct("<II")
_CRCS = struct.Struct("<II")
_UNCHAINED = 0xEEEEEEEE
"""A previous CRC that is left as it is, so that broken chains are seen too."""


def header_crc(data: bytes, *, seed: int = 0) -> bytes:
    """Return bytes that begin with a header (magic, version u16, size u16), its CRC made right."""
    out = bytearray(data)
    _seal_header(out, 0, seed)
    return bytes(out)


def _seal_header(out: bytearray, position: int, seed: int) -> int | None:
    """Set the CRC in the last 4 of `header size` bytes and return it; None if there is no room."""
    size = int.from_bytes(out[position + 6 : position + 8], "little")
    if not 16 <= size <= min(HEADER_SIZE_MAX, len(out) - position):
        return None
    crc = zlib.crc32(out[position : position + size - 4], seed)
    out[position + size - 4 : position + size] = crc.to_bytes(4, "little")
    return crc


def batch_crcs(data: bytes, *, seed: int, start: int = 0) -> bytes:
    """Return the batches from `start` on with all CRCs right, and each naming the one before it."""
    out = bytearray(data)
    position = start
    previous = 0
    while 0 <= position <= len(out) - HEADER_SIZE:
        columns_size, blob_size = _SIZES.unpack_from(out, position + 56)
        blob_at = position + HEADER_SIZE + columns_size
        end = blob_at + blob_size
        if end <= len(out):
            columns = out[position + HEADER_SIZE : blob_at]
            crcs = zlib.crc32(columns, seed), zlib.crc32(out[blob_at:end], seed)
            out[position + 68 : position + 76] = _CRCS.pack(*crcs)
        if int.from_bytes(out[position + 52 : position + 56], "little") != _UNCHAINED:
            out[position + 52 : position + 56] = previous.to_bytes(4, "little")
        crc = _seal_header(out, position, seed)
        if crc is None or end > len(out):
            position = out.find(MAGIC, position + 1)
        else:
            previous, position = crc, end
    return bytes(out)


def whole_batches(data: bytes, *, seed: int, kinds: Sequence[RecordKind]) -> bytes:
    """Return batches that decode to their last byte, made of bytes laid out like some."""
    parts: list[Bytes] = []
    position = 0
    previous = 0
    while len(data) - position >= HEADER_SIZE:
        head = data[position : position + HEADER_SIZE]
        position += HEADER_SIZE
        fields = struct.unpack_from("<BBHIQqqII", head, 16)
        columns_size, blob_size = _SIZES.unpack_from(head, 56)
        kind = next((one for one in kinds if one == fields[0]), kinds[fields[0] % len(kinds)])
        rest = len(data) - position
        columns_size = columns_size if columns_size <= rest else columns_size % (rest + 1)
        count, columns = _whole_columns(kind, fields[3], data[position : position + columns_size])
        position += columns_size
        blob = b""
        if count and kind in KINDS_WITH_ITEMS:
            rest = len(data) - position
            blob_size = blob_size if blob_size <= rest else blob_size % (rest + 1)
            blob = data[position : position + blob_size]
            columns, blob = _whole_blob(kind, count, columns, blob)
            position += blob_size
        chained = fields[8] != _UNCHAINED
        if count and HEADER_SIZE + len(columns) + len(blob) <= BATCH_BYTES_MAX:
            header, buffers = encode_batch(
                seed=seed,
                kind=kind,
                epoch=fields[4],
                base_sequence=fields[5],
                count=count,
                floor_minute=fields[7],
                append_ms=fields[6],
                previous_crc=previous if chained else fields[8],
                columns=columns,
                blob=[blob] if blob else [],
                codec=Codec(fields[1] % 2),
            )
            parts += buffers
            previous = header.crc
    # A torn end, now and then.
    return b"".join(parts) + data[position:]


_INDEXES = frozenset({"subject", "target", "reason"})
"""Columns that point into the table of names."""


def _whole_columns(kind: RecordKind, count: int, data: bytes) -> tuple[int, bytes]:
    """Return how many rows the bytes hold as columns of this kind, and the columns."""
    names, position = _leading_names(data)
    layout = LAYOUTS[kind]
    if layout:
        count = (len(data) - position) // row_size(kind)
    if not count or (not names and any(name in _INDEXES for name, _ in layout)):
        return 0, b""
    table = b"".join(len(name).to_bytes(2, "little") + name for name in names)
    table = len(names).to_bytes(2, "little") + table
    parts = [table + bytes(-len(table) % 8)]
    for name, dtype in layout:
        array: npt.NDArray[Any] = np.frombuffer(data, dtype, count, position)
        position += array.nbytes
        parts.append((array % len(names) if name in _INDEXES else array).astype(dtype).tobytes())
    return count, b"".join(parts)


def _leading_names(data: bytes) -> tuple[list[bytes], int]:
    if len(data) < 8:
        return [], len(data)
    (count,) = struct.unpack_from("<H", data)
    position = 2
    names = []
    for _ in range(count % 64):
        if len(data) - position < 2:
            break
        (size,) = struct.unpack_from("<H", data, position)
        size = min(size, len(data) - position - 2)
        names.append(data[position + 2 : position + 2 + size])
        position += 2 + size
    return names, min(max(position + -position % 8, 8), len(data))


def _whole_blob(kind: RecordKind, count: int, columns: bytes, blob: bytes) -> tuple[bytes, bytes]:
    """Return columns whose sizes add up to the blob, and the blob with its items' CRCs right."""
    end = len(columns)
    for name, dtype in reversed(LAYOUTS[kind]):
        end -= count * dtype.itemsize
        if name == "size":
            break
    sizes = []
    out = bytearray(blob)
    begin = 0
    for number, stated in enumerate(np.frombuffer(columns, "<u4", count, end).tolist(), start=1):
        rest = len(blob) - begin
        size = min(stated, rest) if number < count else rest
        if size > 8:
            crc = zlib.crc32(out[begin + 8 : begin + size])
            out[begin : begin + 8] = crc.to_bytes(8, "big")
        sizes.append(size)
        begin += size
    array = np.array(sizes, "<u4").tobytes()
    return columns[:end] + array + columns[end + len(array) :], bytes(out)


LEVELS = 3
"""As it is; checksums right; structure and checksums right."""


def log_image(
    data: bytes,
    *,
    level: int,
    header: bytes,
    seed: int,
    kinds: Sequence[RecordKind],
) -> bytes:
    """Return the image of a log file, mended as far as the level says.

    `header` is the file header that belongs there; the input has its own only at the lower levels.
    """
    match level % LEVELS:
        case 0:
            return data
        case 1:
            mended = header_crc(data[:FILE_HEADER_SIZE]) + data[FILE_HEADER_SIZE:]
            return batch_crcs(mended, seed=seed, start=FILE_HEADER_SIZE)
        case _:
            return header + whole_batches(data[FILE_HEADER_SIZE:], seed=seed, kinds=kinds)


def seeded_crc(body: bytes, *, seed: int) -> bytes:
    """Return the 4 bytes of a little-endian CRC."""
    return zlib.crc32(body, seed).to_bytes(4, "little")
