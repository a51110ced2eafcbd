"""Attributes of an item that tell its past: who sent it, its first due time, its tries.

qmq_appCode               the application that sent it
qmq_scheduleReceiveTime   ms since 1970 at which it is due, as its sender or its receiver wrote
dw_firstDue               the same as its sender wrote it; there once a receiver put it off
qmq_times                 how many tries failed before it came again
"""

from collections.abc import Mapping
from typing import Final

from delay_protocol.messages.items import FLAG_DELAY, Item

APP_KEY: Final = "qmq_appCode"
DUE_KEY: Final = "qmq_scheduleReceiveTime"
FIRST_DUE_KEY: Final = "dw_firstDue"
TIMES_KEY: Final = "qmq_times"

_COUNT_MAX: Final = 2**31 - 1
_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999."""


def count_of(attributes: Mapping[str, str], key: str, most: int = _COUNT_MAX) -> int:
    """Return what an item counts there; 0 where it says nothing that is a count."""
    try:
        return min(max(int(attributes.get(key, "0")), 0), most)
    except ValueError:
        return 0


def first_due_ms(item: Item) -> int:
    """Return when an item was due at first, in ms since 1970, however often it was put off.

    A dead letter that an operator requeued with another due time is the same in its attributes.
    """
    found = (count_of(item.attributes, key, _MS_MAX) for key in (FIRST_DUE_KEY, DUE_KEY))
    return next(filter(None, found), item.due_ms if item.flag & FLAG_DELAY else item.create_ms)
