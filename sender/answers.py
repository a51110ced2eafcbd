"""What an answer to SEND_MESSAGE says about each item of its request.

An item that the answer does not list was taken, so an empty answer needs no look at any item: only
a non-empty one comes here, and only then are the items' ids read.
"""

from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from delay_protocol import ItemCode, decode_send_reply, item_message_ids
from sender.parcels import Mask

UNTOLD: Final = -1
"""Instead of an item code: the answer does not say."""

Codes = npt.NDArray[np.int32]
"""For each item of a request its ItemCode (or a number we do not know), or UNTOLD."""

_TAKEN: Final = {int(ItemCode.SUCCESS), int(ItemCode.MESSAGE_DUPLICATE)}
_SICK: Final = {
    int(ItemCode.BROKER_BUSY),
    int(ItemCode.BROKER_READ_ONLY),
    int(ItemCode.STORE_ERROR),
}


class Items(Protocol):
    """The items of some entries, as they were read."""

    @property
    def joined(self) -> bytes | memoryview:
        """All of them, one after the other."""

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """The bytes of each; 0 for one that is damaged, which is not sent."""


def item_codes(items: Items, answer: bytes) -> Codes:
    """Return the code of each item that was sent.

    Raise MalformedReplyError if the answer cannot be read.

    Items that share a listed id share its code. If a failure is listed that is of none of the items
    (a broker may have mangled its id), an item that is not listed may be the failed one: UNTOLD.
    """
    failures = decode_send_reply(answer)
    ids = item_message_ids(items.joined, filter(None, items.sizes.tolist()))
    strangers = failures.keys() - set(ids)
    is_clear = all(failures[stranger][0] == ItemCode.SUCCESS for stranger in strangers)
    unlisted = (int(ItemCode.SUCCESS) if is_clear else UNTOLD, "")
    return np.array([failures.get(one, unlisted)[0] for one in ids], np.int32)


def permanent(codes: Codes) -> Mask:
    """Say which items were refused in a way that a retry hardly cures."""
    # Most answers are of few items, where numpy.isin takes nine times as long as this.
    told: Mask = (codes == ItemCode.SUBJECT_NOT_ASSIGNED) | (codes == ItemCode.BLOCK)
    return told


def misrouted(codes: Codes) -> Mask:
    """Say which items another group may take: theirs should be asked for anew."""
    told: Mask = (codes == ItemCode.SUBJECT_NOT_ASSIGNED) | (codes == ItemCode.BROKER_READ_ONLY)
    return told


def is_broker_sick(codes: Codes) -> bool:
    """Say whether the answer speaks of the broker rather than of its items.

    It does if the broker took nothing and gave a reason of its own for at least one item.
    """
    told = set(codes.tolist())
    return not told & _TAKEN and bool(told & _SICK)
