"""The body of a message follows from its id, so that whoever gets it knows what it has to be."""

import zlib


def body_of(message_id: str) -> str:
    """Return the body of a message."""
    return f"{message_id} {zlib.crc32(message_id.encode()):08x} " + "v" * (len(message_id) * 7 % 90)
