"""Rows of dead segments: an item and, behind it, how it came to be given up.

    +----------------------------+------------------------------+-------------+----------+
    | the item, byte for byte;   | JSON of `DeadNote`           | size of the | CRC of   |
    | it says its own length too |                              | JSON, u32   | the JSON |
    +----------------------------+------------------------------+-------------+----------+

They are ordinary rows, of a segment for each UTC day on which messages were given up; `size` counts
all of it. The item proves itself by its own CRC, and the note by its own (zlib.crc32, u32), so each
is read and checked without the other, and without the batch.
"""

import struct
import zlib
from typing import Annotated

import msgspec
import numpy as np

from storage.batch.batches import LogBatch
from storage.batch.entries import SubjectTable
from storage.batch.rows import RowBlock
from storage.disk.disk import Bytes
from storage.disk.spans import dead_minute, dead_segment_of

_END = struct.Struct("<II")
NOTE_BYTES_MAX = 16 * 1024
"""A note has less: its reason has at most 1,024 bytes, twice as many where all are escaped."""


_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class DeadNote(msgspec.Struct, frozen=True, kw_only=True):
    """What a row of a dead segment says beside its item.

    old_sequence, old_minute: of the row that the message had before; dead_ms: when the DEAD record
    was appended, wall ms; reason: the text of that record.
    """

    old_sequence: _Int64
    old_minute: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    dead_ms: _Int64
    reason: str


def dead_rows_of(batch: LogBatch, subjects: SubjectTable) -> RowBlock:
    """Return the rows that a DEAD batch of the message_log makes; they are alike on all nodes."""
    header, arrays = batch.header, batch.columns.arrays
    texts = [name.decode(errors="replace") for name in batch.columns.names]
    parts: list[Bytes] = []
    sizes: list[int] = []
    end = 0
    for size, old_sequence, old_minute, reason in zip(
        arrays["size"].tolist(),
        arrays["old_sequence"].tolist(),
        arrays["old_minute"].tolist(),
        arrays["reason"].tolist(),
        strict=True,
    ):
        begin, end = end, end + size
        note = DeadNote(
            old_sequence=old_sequence,
            old_minute=old_minute,
            dead_ms=header.append_ms,
            reason=texts[reason],
        )
        behind = encode_note(note)
        parts += (batch.blob[begin:end], behind)
        sizes.append(size + len(behind))
    minute = dead_minute(dead_segment_of(header.append_ms, header.floor_minute))
    return RowBlock(
        sequence=np.arange(header.base_sequence, header.next_sequence, dtype=np.int64),
        due_ms=arrays["due_ms"],
        id_hash=arrays["id_hash"],
        size=np.array(sizes, np.uint32),
        subject=subjects.numbers(batch.columns.names)[arrays["subject"]],
        origin=np.zeros(header.count, np.uint8),
        minute=np.full(header.count, minute, np.int64),
        blob=b"".join(parts),
    )


def encode_note(note: DeadNote) -> bytes:
    """Return what follows the item of a row."""
    text = msgspec.json.encode(note)
    return text + _END.pack(len(text), zlib.crc32(text))


def note_of_row(row: bytes) -> tuple[int, DeadNote] | None:
    """Return how many bytes at the end of a row are no item, and the note; None if it is damaged.

    The last NOTE_BYTES_MAX bytes of the row are enough.
    """
    if len(row) < _END.size:
        return None
    size, crc = _END.unpack_from(row, len(row) - _END.size)
    text = row[-_END.size - size : -_END.size]
    if len(text) != size or zlib.crc32(text) != crc:
        return None
    try:
        return size + _END.size, _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


_DECODER = msgspec.json.Decoder(DeadNote)
