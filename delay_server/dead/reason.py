"""Why a message was given up: the text that a DEAD record carries, and `dead show` shows.

It is JSON, so that it can be read without this code; docs/formats/message_log.md has its fields.
"""

from typing import Final

import msgspec

from delay_protocol.basics.codes import ItemCode
from sender.outcomes.dead import Refusal

REASON_BYTES_MAX: Final = 1024
"""Bytes of the text that says why a message was given up. Where it would be longer, its oldest
refusals are left out, and what the last one said is cut."""
REASON_BYTES_MIN: Final = 512
"""However full a batch is, a reason may have so much."""

_GROUP_LETTERS_MAX = 64


class RefusalText(msgspec.Struct, frozen=True, array_like=True):
    """One refusal: the broker group, its item code, when, wall ms, and why, if it said so."""

    group: str
    code: int
    at_ms: int
    said: str = ""


class DeadReason(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a message that was given up.

    code, group, last_ms: of the last refusal; first_ms: when it was first refused for good; tries:
    how often it was sent, for whatever reason in vain; refused: how often for good; refusals: of
    these the last ones, oldest first.
    """

    code: int
    group: str
    tries: int
    refused: int
    first_ms: int
    last_ms: int
    refusals: tuple[RefusalText, ...] = ()


def encode_reason(last: Refusal, tries: int, *, bytes_max: int) -> bytes:
    """Return the text for a message whose last refusal this was, of at most `bytes_max` bytes.

    Where it would be longer the oldest refusals are left out, and what the last one said is cut.
    """
    most = max(bytes_max, REASON_BYTES_MIN)
    refusals = last.all()
    texts = [_text(one) for one in refusals]
    while True:
        reason = DeadReason(
            code=last.code,
            group=last.group[:_GROUP_LETTERS_MAX],
            tries=tries,
            refused=last.number,
            first_ms=refusals[0].at_ms,
            last_ms=last.at_ms,
            refusals=tuple(texts),
        )
        encoded = msgspec.json.encode(reason)
        excess = len(encoded) - most
        if excess <= 0 or not texts:
            return encoded
        if len(texts) > 1:
            del texts[0]
        else:
            # A character is one byte at the least, and six at the most: `\u0000`.
            (only,) = texts
            kept = only.said[: -max(excess // 6, 1)]
            texts = [msgspec.structs.replace(only, said=kept)] if only.said else []


def _text(refusal: Refusal) -> RefusalText:
    group = refusal.group[:_GROUP_LETTERS_MAX]
    return RefusalText(group, refusal.code, refusal.at_ms, refusal.said)


def decode_reason(text: bytes) -> DeadReason | None:
    """Return what a text says; None if it is not one of ours, as a newer version's may not be."""
    try:
        return _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


_DECODER = msgspec.json.Decoder(DeadReason)


def code_name(code: int) -> str:
    """Return how an item code is called, in lower case; its number if it has no name."""
    try:
        return ItemCode(code).name.lower()
    except ValueError:
        return str(code)
