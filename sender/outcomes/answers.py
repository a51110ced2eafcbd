"""What an answer to SEND_MESSAGE says about each item of its request, and how long it may be.

An item that the answer does not list was taken, so an empty answer needs no look at any item: only
a non-empty one comes here, and only then are the items' ids read. An answer lists each item once at
the most, and nothing else: what lists more, or an id that was not sent, is no answer to its request
and says nothing about any item.
"""

from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from delay_protocol.basics.codes import ItemCode
from delay_protocol.basics.errors import MalformedReplyError
from delay_protocol.messages.items import item_message_ids
from delay_protocol.messages.send_message import decode_send_reply
from delay_protocol.wire.frames import FRAME_OVERHEAD
from sender.queues.parcels import Mask

Codes = npt.NDArray[np.int32]
"""For each item of a request its ItemCode, or a number we do not know."""

_TAKEN: Final = {int(ItemCode.SUCCESS), int(ItemCode.MESSAGE_DUPLICATE)}
_OF_ITEM: Final = {int(ItemCode.SUBJECT_NOT_ASSIGNED), int(ItemCode.BLOCK)}

_STRING_BYTES_MAX: Final = 2**15 - 1
"""Of a message id or a remark: its length is 16 bits with a sign."""

_ROW_BYTES: Final = 8
"""Of a row beside its message id and its remark."""


class Items(Protocol):
    """The items of some entries, as they were read."""

    @property
    def joined(self) -> bytes | memoryview:
        """All of them, one after the other."""

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """The bytes of each; 0 for one that is damaged, which is not sent."""


REMARK_BYTES: Final = 1024
"""Of an item's remark in an answer. QMQ's brokers remark a few words."""


def answer_bytes_max(*, items: int, size: int) -> int:
    """Return how long the frame may be that answers a request of up to so many items.

    They have `size` bytes together, or one of them more by itself. There is room for the ids of all
    of them, for remarks of REMARK_BYTES on the average, and for one of any length.
    """
    ids = max(size, _STRING_BYTES_MAX)
    remarks = max(items * REMARK_BYTES, _STRING_BYTES_MAX)
    return FRAME_OVERHEAD + items * _ROW_BYTES + ids + remarks


def item_codes(items: Items, answer: bytes) -> Codes:
    """Return the code of each item that was sent. Items that share a listed id share its code.

    Raise MalformedReplyError if the answer cannot be read, lists more than the items, or an id that
    is of none of them: whoever wrote it was not asked this, so it is believed in nothing.
    """
    ids = item_message_ids(items.joined, filter(None, items.sizes.tolist()))
    failures = decode_send_reply(answer, results_max=len(ids))
    strangers = failures.keys() - set(ids)
    if strangers:
        stranger = next(one for one in failures if one in strangers)
        raise MalformedReplyError(
            offset=max(answer.find(stranger) - 2, 0),
            reason=f"{len(strangers)} ids that were not sent, the first is {stranger[:100]!r}",
        )
    taken = (int(ItemCode.SUCCESS), "")
    return np.array([failures.get(one, taken)[0] for one in ids], np.int32)


def permanent(codes: Codes) -> Mask:
    """Say which items were refused in a way that a retry hardly cures."""
    # Most answers are of few items, where numpy.isin takes nine times as long as this.
    told: Mask = (codes == ItemCode.SUBJECT_NOT_ASSIGNED) | (codes == ItemCode.BLOCK)
    return told


def is_broker_sick(codes: Codes) -> bool:
    """Say whether the answer speaks of the broker rather than of its items.

    It does if the broker took nothing and did not say of each item that this is due to the item: a
    code that we do not know may mean anything, but it is no delivery.
    """
    told = set(codes.tolist())
    return not told & _TAKEN and not told <= _OF_ITEM
