"""What an answer to SEND_MESSAGE says about each item of its request.

An item that the answer does not list was taken, so an empty answer needs no look at any item: only
a non-empty one comes here, and only then are the items' ids read.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from delay_protocol import ItemCode, decode_send_reply, item_message_id
from sender.parcels import Mask

UNTOLD: Final = -1
"""Instead of an item code: the answer does not say."""

Codes = npt.NDArray[np.int32]
"""For each item of a request its ItemCode (or a number we do not know), or UNTOLD."""

_PERMANENT = (ItemCode.SUBJECT_NOT_ASSIGNED, ItemCode.BLOCK)
_MISROUTED = (ItemCode.SUBJECT_NOT_ASSIGNED, ItemCode.BROKER_READ_ONLY)
_SICK = (ItemCode.BROKER_BUSY, ItemCode.BROKER_READ_ONLY, ItemCode.STORE_ERROR)


def item_codes(items: Sequence[bytes | memoryview], answer: bytes) -> Codes:
    """Return the code of each item; raise MalformedReplyError if the answer cannot be read.

    Items that share a listed id share its code. If a failure is listed that is of none of the items
    (a broker may have mangled its id), an item that is not listed may be the failed one: UNTOLD.
    """
    failures = decode_send_reply(answer)
    ids = [item_message_id(item) for item in items]
    strangers = failures.keys() - set(ids)
    is_clear = all(failures[stranger][0] == ItemCode.SUCCESS for stranger in strangers)
    unlisted = (ItemCode.SUCCESS if is_clear else UNTOLD, "")
    return np.fromiter((failures.get(i, unlisted)[0] for i in ids), np.int32, len(ids))


def permanent(codes: Codes) -> Mask:
    """Say which items were refused in a way that a retry hardly cures."""
    return np.isin(codes, _PERMANENT)


def misrouted(codes: Codes) -> Mask:
    """Say which items another group may take: theirs should be asked for anew."""
    return np.isin(codes, _MISROUTED)


def is_broker_sick(codes: Codes) -> bool:
    """Say whether the answer speaks of the broker rather than of its items.

    It does if the broker took nothing and gave a reason of its own for at least one item.
    """
    taken = np.isin(codes, (ItemCode.SUCCESS, ItemCode.MESSAGE_DUPLICATE))
    return not taken.any() and bool(np.isin(codes, _SICK).any())
