"""Items as storage knows them, made without the protocol package (which storage must not need)."""

import struct
import zlib


def qmq_item(due_ms: int, subject: bytes, message_id: bytes, body: bytes = b"\0\1k\0\1v") -> bytes:
    """Return a delay item whose CRC is right."""
    rest = (
        struct.pack(">Bqq", 2, due_ms - 1000, due_ms)
        + struct.pack(">h", len(subject))
        + subject
        + struct.pack(">h", len(message_id))
        + message_id
        + struct.pack(">i", len(body))
        + body
    )
    return struct.pack(">q", zlib.crc32(rest)) + rest
