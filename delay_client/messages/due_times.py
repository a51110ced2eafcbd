"""Items that are to be due at another time, byte for byte the same in all else."""

from dataclasses import replace

from delay_protocol.messages.items import FLAG_DELAY, Item, encode_item
from delay_protocol.messages.origin import DUE_KEY


def due_at(item: Item, due_ms: int, **more: str) -> bytes:
    """Return the bytes of an item that is due then, with more attributes.

    Raises LocalProtocolError for an item that only others write: with a value of 40,000 bytes, say.
    """
    attributes = {**item.attributes, DUE_KEY: str(due_ms), **more}
    flag = item.flag | FLAG_DELAY
    return encode_item(replace(item, flag=flag, due_ms=due_ms, attributes=attributes))
