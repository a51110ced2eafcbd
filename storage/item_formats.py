"""What storage knows of a message item: whether its bytes are whole, and the right ones.

Item format 1 is QMQ's (docs/formats/batches.md): big-endian, an int64 CRC-32 over everything after
it, a flag byte (bit 1: the item carries a schedule time), int64 create time, int64 schedule time.
"""

import struct
import zlib

QMQ_ITEM = 1
_QMQ_HEAD = struct.Struct(">qBqq")
_HAS_DUE_TIME = 2


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


def qmq_message_id(item: bytes | memoryview) -> bytes:
    """Return the message id of an item that is whole (empty if it is not)."""
    place = _QMQ_HEAD.size
    text = b""
    for _ in range(2):  # The subject, then the id.
        if len(item) < place + 2:
            return b""
        size = int.from_bytes(item[place : place + 2], "big")
        text = bytes(item[place + 2 : place + 2 + size])
        place += 2 + size
    return text
