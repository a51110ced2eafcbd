"""Decides if an item is another one again: what a producer sends twice differs in a few bytes.

    may differ                         because
    CRC, create_ms, qmq_createTime     a program that starts again makes the message anew
    due_ms, qmq_scheduleReceiveTime    only where both items have the same dw_delay: the sender said
                                       a delay, and it counts from another moment now

All else has to be equal, flags, tags and the order of attributes among them.
"""

from collections.abc import Collection
from typing import Final

from delay_protocol.basics.errors import BodyError
from delay_protocol.messages.items import Item, decode_item, names_due_time
from delay_protocol.messages.origin import DUE_KEY

DELAY_KEY: Final = "dw_delay"
"""The delay in ms, as the sender said it."""

_CREATE_KEY: Final = "qmq_createTime"
_DELAY_BYTES: Final = DELAY_KEY.encode()


def has_one_due_time(item: bytes) -> bool:
    """Return False if what an item repeats may have been due at another time.

    So it is where the sender said a delay, and where a message is due whenever it comes.
    """
    return names_due_time(item) and _DELAY_BYTES not in item


def is_repeat(item: bytes, original: bytes) -> bool:
    """Return True if an item is the same message as another one.

    An item that cannot be decoded is the same only if its bytes are.
    """
    if item == original:
        return True
    try:
        one, other = decode_item(item), decode_item(original)
    except BodyError:
        return False
    may_differ = {_CREATE_KEY}
    if one.due_ms != other.due_ms:
        delay = one.attributes.get(DELAY_KEY)
        if delay is None or delay != other.attributes.get(DELAY_KEY):
            return False
        may_differ.add(DUE_KEY)
    return _compared(one, may_differ) == _compared(other, may_differ)


def _compared(item: Item, may_differ: Collection[str]) -> tuple[object, ...]:
    """Return all of an item that has to be equal."""
    attributes = [
        (name, "" if name in may_differ else value) for name, value in item.attributes.items()
    ]
    return item.flag, item.subject, item.message_id, item.tags, attributes
