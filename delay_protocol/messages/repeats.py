"""Decides if an item is another one again: what a producer sends twice differs in a few bytes.

    may differ                         because
    CRC, create_ms, qmq_createTime     a program that starts again makes the message anew
    due_ms, qmq_scheduleReceiveTime    only where both items have the same dw_delay: the sender said
                                       a delay, and it counts from another moment now

All other bytes have to be equal, flags, tags and the order of attributes among them.
"""

from typing import Final

from delay_protocol.basics.errors import MalformedItemError
from delay_protocol.basics.strings import decode_str_bytes
from delay_protocol.messages.items import FLAG_TAGS
from delay_protocol.messages.origin import DUE_KEY

DELAY_KEY: Final = "dw_delay"
"""The delay in ms, as the sender said it."""

_CREATE: Final = b"qmq_createTime"
_DUE: Final = DUE_KEY.encode()
_DELAY: Final = DELAY_KEY.encode()

_FLAG_AT: Final = 8
_DUE_AT: Final = 17
_SUBJECT_AT: Final = 25
_BODY_SIZE_BYTES: Final = 4


def is_repeat(item: bytes, original: bytes) -> bool:
    """Return True if an item is the same message as another one; the CRCs of both were checked.

    An item whose attributes cannot be read is the same only if its bytes are.
    """
    if item[_FLAG_AT] != original[_FLAG_AT]:
        return False
    has_same_due = item[_DUE_AT:_SUBJECT_AT] == original[_DUE_AT:_SUBJECT_AT]
    if has_same_due and item[_SUBJECT_AT:] == original[_SUBJECT_AT:]:
        return True
    try:
        head, attributes = _divided(item)
        original_head, original_attributes = _divided(original)
    except MalformedItemError:
        return False
    may_differ = {_CREATE}
    if not has_same_due:
        delays = [value for name, value in attributes if name == _DELAY]
        if not delays or delays != [x for name, x in original_attributes if name == _DELAY]:
            return False
        may_differ.add(_DUE)
    return (
        head == original_head
        and len(attributes) == len(original_attributes)
        and all(
            one == other or (one[0] == other[0] and one[0] in may_differ)
            for one, other in zip(attributes, original_attributes, strict=True)
        )
    )


def _divided(item: bytes) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Return subject, id and tags as they are in an item, and its attributes in their order."""
    _, position = decode_str_bytes(item, _SUBJECT_AT, error=MalformedItemError)
    _, position = decode_str_bytes(item, position, error=MalformedItemError)
    if item[_FLAG_AT] & FLAG_TAGS:
        count = item[position]
        position += 1
        for _ in range(count):
            _, position = decode_str_bytes(item, position, error=MalformedItemError)
    head = item[_SUBJECT_AT:position]
    position += _BODY_SIZE_BYTES
    attributes = []
    while position < len(item):
        name, position = decode_str_bytes(item, position, error=MalformedItemError)
        value, position = decode_str_bytes(item, position, error=MalformedItemError, unsigned=True)
        attributes.append((name, value))
    return head, attributes
