"""What storage knows of a message item: whether its bytes are whole, and the right ones.

Item format 1 is QMQ's (docs/formats/batches.md): big-endian, an int64 CRC-32 over everything after
it, a flag byte (bit 1: the item carries a schedule time; bit 2: tags follow the id), int64 create
time, int64 schedule time, then subject and id, each behind its size (u16), the count of tags (u8)
and the tags alike, and the body behind its size (u32).
"""

import struct
import zlib

QMQ_ITEM = 1
_QMQ_HEAD = struct.Struct(">qBqq")
QMQ_ITEM_SIZE_MIN = _QMQ_HEAD.size
"""Shorter bytes are no item."""
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


def cut_qmq_items(
    view: memoryview, positions: list[int], sizes: list[int], due_ms: list[int]
) -> tuple[list[memoryview], list[int]]:
    """Return the items at these positions, and which of them qmq_item_fault() would not pass.

    The one loop per message on the way out. All items must lie in the view and have at least
    QMQ_ITEM_SIZE_MIN bytes.
    """
    unpack, crc32 = _QMQ_HEAD.unpack_from, zlib.crc32
    items: list[memoryview] = []
    suspects: list[int] = []
    for position, size, due in zip(positions, sizes, due_ms, strict=True):
        item = view[position : position + size]
        crc, flag, _create_ms, item_due_ms = unpack(item)
        if crc32(item[8:]) != crc or (item_due_ms != due and flag & _HAS_DUE_TIME):
            suspects.append(len(items))
        items.append(item)
    return items, suspects


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


def qmq_item_size(data: bytes, position: int) -> int | None:
    """Return how long an item that begins here is, or None if none can: its CRC is not checked."""
    place = position + _QMQ_HEAD.size
    if place > len(data):
        return None
    sizes = 2  # Subject and id, then the tags.
    if data[position + 8] & _HAS_TAGS:
        place, sizes = _behind_strings(data, place, 2), 0
        if place >= len(data):
            return None
        sizes = data[place]
        place += 1
    place = _behind_strings(data, place, sizes)
    if place + 4 > len(data):
        return None
    end = place + 4 + int.from_bytes(data[place : place + 4], "big")
    return end - position if end <= len(data) else None


def _behind_strings(data: bytes, place: int, count: int) -> int:
    """Return where `count` strings end; beyond the data where they do not."""
    for _ in range(count):
        if place + 2 > len(data):
            return len(data) + 1
        place += 2 + int.from_bytes(data[place : place + 2], "big")
    return place
