"""What storage knows of a message item: whether its bytes are whole, and the right ones.

Item format 1 is QMQ's (docs/formats/batches.md): big-endian, an int64 CRC-32 over everything after
it, a flag byte (bit 1: the item carries a schedule time; bit 2: tags follow the id), int64 create
time, int64 schedule time, then subject and id, each behind its size (u16), the count of tags (u8)
and the tags alike, and the body behind its size (u32): the names and values of attributes, one
after another, each behind its size (u16).
"""

import struct
import zlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

QMQ_ITEM = 1
_QMQ_HEAD = struct.Struct(">qBqq")
QMQ_ITEM_SIZE_MIN = _QMQ_HEAD.size
"""Shorter bytes are no item."""
_HEAD_FIELDS: Final = np.dtype(
    [("crc", ">i8"), ("flag", "u1"), ("create_ms", ">i8"), ("due_ms", ">i8")]
)
assert _HEAD_FIELDS.itemsize == _QMQ_HEAD.size
_ROWS_PER_SIZE_MIN: Final = 24
"""With fewer items of each size on the average they are copied one by one."""
_HAS_DUE_TIME = 2
_HAS_TAGS = 4


def qmq_item_fault(item: bytes | memoryview, due_ms: int) -> str | None:
    """Say why these bytes are not the item that is due at `due_ms`, or None if they are."""
    if len(item) < _QMQ_HEAD.size:
        return f"{len(item)} bytes are no item"
    crc, flag, _create_ms, item_due_ms = _QMQ_HEAD.unpack_from(item)
    if zlib.crc32(item[8:]) != crc:
        return "the item's CRC does not match its bytes"
    if flag & _HAS_DUE_TIME and item_due_ms != due_ms:
        return f"an intact item, but one that is due at {item_due_ms}, not {due_ms}"
    return None


def join_qmq_items(
    view: memoryview, positions: Int64s, sizes: Int64s, due_ms: Int64s
) -> tuple[memoryview, Mask]:
    """Return a copy of the items at these positions, one after the other, and the suspects.

    Suspects are those that qmq_item_fault() would not pass: what is checked is the copy. All items
    must lie in the view and have at least QMQ_ITEM_SIZE_MIN bytes; there must be one at least.

    The one loop per message on the way out. Where items are of few sizes, those of one size are
    copied by numpy, which takes a third of the time.
    """
    size = int(sizes[0])
    if (sizes == size).all():
        rows, suspects = _rows_of_one_size(view, positions, size, due_ms)
        return rows.view(np.uint8).data, suspects
    starts = np.cumsum(sizes) - sizes
    by_size = np.argsort(sizes, kind="stable")
    edges = [0, *(np.flatnonzero(np.diff(sizes[by_size])) + 1).tolist(), len(sizes)]
    if (len(edges) - 1) * _ROWS_PER_SIZE_MIN > len(sizes):
        return _joined_one_by_one(view, positions, sizes, due_ms, starts)
    joined = np.empty(int(sizes.sum()), np.uint8)
    suspects = np.zeros(len(sizes), np.bool_)
    for begin, end in pairwise(edges):
        places = by_size[begin:end]
        size = int(sizes[places[0]])
        rows, suspects[places] = _rows_of_one_size(view, positions[places], size, due_ms[places])
        # Wherever in the copy an item of this size could begin.
        np.ndarray(len(joined) - size + 1, rows.dtype, joined, 0, (1,))[starts[places]] = rows
    return joined.data, suspects


def _rows_of_one_size(
    view: memoryview, positions: Int64s, size: int, due_ms: Int64s
) -> tuple[npt.NDArray[np.void], Mask]:
    """Return items of one size as rows of so many bytes each, and the suspects among them."""
    # Wherever in the view an item of this size could begin.
    anywhere: npt.NDArray[np.void] = np.ndarray(len(view) - size + 1, f"V{size}", view, 0, (1,))
    rows = anywhere[positions]
    heads: npt.NDArray[np.void] = np.ndarray(len(rows), _HEAD_FIELDS, rows, 0, (size,))
    behind_crc: npt.NDArray[np.void] = np.ndarray(len(rows), f"V{size - 8}", rows, 8, (size,))
    crcs = np.fromiter(map(zlib.crc32, behind_crc.tolist()), np.int64, len(rows))
    return rows, _suspects(heads, crcs, due_ms)


def _joined_one_by_one(
    view: memoryview, positions: Int64s, sizes: Int64s, due_ms: Int64s, starts: Int64s
) -> tuple[memoryview, Mask]:
    ends = (positions + sizes).tolist()
    joined = b"".join([view[a:b] for a, b in zip(positions.tolist(), ends, strict=True)])
    return memoryview(joined), _suspects_at(joined, starts, sizes, due_ms)


def _suspects_at(data: bytes | memoryview, begin: Int64s, size: Int64s, due_ms: Int64s) -> Mask:
    """Say which of the items at these places do not fit; each is at least QMQ_ITEM_SIZE_MIN."""
    crc32 = zlib.crc32
    behind_crc = zip((begin + 8).tolist(), (begin + size).tolist(), strict=True)
    crcs = np.fromiter([crc32(data[a:b]) for a, b in behind_crc], np.int64, len(begin))
    return _suspects(_heads_anywhere(data)[begin], crcs, due_ms)


def _heads_anywhere(data: bytes | memoryview | npt.NDArray[np.uint8]) -> npt.NDArray[np.void]:
    """Return the head of an item, wherever in the data it could begin."""
    heads: npt.NDArray[np.void] = np.ndarray(
        len(data) - _QMQ_HEAD.size + 1, _HEAD_FIELDS, data, 0, (1,)
    )
    return heads


def _suspects(heads: npt.NDArray[np.void], crcs: Int64s, due_ms: Int64s) -> Mask:
    """Say of which items the head does not fit to the CRC of what follows, or to the due time."""
    suspects: Mask = heads["crc"] != crcs
    suspects |= (heads["due_ms"] != due_ms) & (heads["flag"] & _HAS_DUE_TIME != 0)
    return suspects


@dataclass(frozen=True, slots=True)
class QmqFields:
    """Fields of many items. What an item cannot have, its bytes being too few, is not read.

    create_ms: ms since 1970, 0 without `has_head`; id_begin, id_end: where the message id lies, the
    same place twice without `has_id`, and ascending where the items do.
    """

    create_ms: Int64s
    id_begin: Int64s
    id_end: Int64s
    has_head: Mask
    has_id: Mask


def qmq_fields(data: npt.NDArray[np.uint8], begin: Int64s, size: Int64s) -> QmqFields:
    """Return the fields of items that lie in `data`, of any size, without a loop over them."""
    has_head = size >= QMQ_ITEM_SIZE_MIN
    end = begin + size
    create_ms = np.zeros(len(begin), np.int64)
    if len(data) >= QMQ_ITEM_SIZE_MIN:
        at = np.where(has_head, begin, 0)
        found: Int64s = _heads_anywhere(data)["create_ms"][at].astype(np.int64)
        create_ms = np.where(has_head, found, 0)
    place = begin + _QMQ_HEAD.size
    behind_subject, is_inside = _behind_string(data, place, end)
    id_end, has_id = _behind_string(data, behind_subject, end)
    has_id &= is_inside
    return QmqFields(
        create_ms=create_ms,
        id_begin=np.where(has_id, behind_subject + 2, begin),
        id_end=np.where(has_id, id_end, begin),
        has_head=has_head,
        has_id=has_id,
    )


def _behind_string(data: npt.NDArray[np.uint8], place: Int64s, end: Int64s) -> tuple[Int64s, Mask]:
    """Return where the strings at these places end, and which of them do so inside their items."""
    if not len(data):
        return place, np.zeros(len(place), np.bool_)
    has_size = place + 2 <= end
    at = np.where(has_size, place, 0)
    # An item without room for a size is not looked at, and what the first bytes say is dropped.
    size = data[at].astype(np.int64) << 8 | data[np.minimum(at + 1, len(data) - 1)]
    behind = place + 2 + np.where(has_size, size, 0)
    return behind, has_size & (behind <= end)


def qmq_suspects(data: memoryview, begin: Int64s, size: Int64s, due_ms: Int64s) -> Mask:
    """Say which items qmq_item_fault() would not pass. One CRC per item, in a loop."""
    suspects: Mask = size < QMQ_ITEM_SIZE_MIN
    whole = np.flatnonzero(~suspects)
    if len(whole):
        suspects[whole] = _suspects_at(data, begin[whole], size[whole], due_ms[whole])
    return suspects


def qmq_message_id(item: bytes | memoryview) -> bytes:
    """Return the message id of an item that is whole (empty if it is not)."""
    return qmq_names(item)[1]


def qmq_names(item: bytes | memoryview) -> tuple[bytes, bytes]:
    """Return subject and message id of an item that is whole (empty where it is not)."""
    names = []
    place = _QMQ_HEAD.size
    for _ in range(2):
        if len(item) < place + 2:
            return b"", b""
        size = int.from_bytes(item[place : place + 2], "big")
        names.append(bytes(item[place + 2 : place + 2 + size]))
        place += 2 + size
    return names[0], names[1]


def qmq_attributes(item: bytes) -> dict[bytes, bytes]:
    """Return the attributes of an item that is whole; of another one anything."""
    place = _behind(item, _behind(item, _QMQ_HEAD.size))
    if item[8:9] and item[8] & _HAS_TAGS:
        tags = int.from_bytes(item[place : place + 1], "big")
        place += 1
        for _ in range(tags):
            place = _behind(item, place)
    place += 4
    found: dict[bytes, bytes] = {}
    while place < len(item):
        middle = _behind(item, place)
        end = _behind(item, middle)
        found[item[place + 2 : middle]] = item[middle + 2 : end]
        place = end
    return found


def _behind(item: bytes, place: int) -> int:
    return place + 2 + int.from_bytes(item[place : place + 2], "big")
