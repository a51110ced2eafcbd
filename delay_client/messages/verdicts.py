"""Verdicts: what an answer's code means for a message. The one table of codes to errors.

The error's type is the remedy: after a RetryableError the client tries again, after a FatalError
it does not, and None means that the message is kept.
"""

import re
from typing import Final

from delay_client.messages.errors import (
    DelayTooLong,
    FatalError,
    IllegalSubject,
    MessageTooLarge,
    Overloaded,
    Refused,
    RetryableError,
    Unavailable,
)
from delay_protocol.basics.codes import ItemCode, ResponseCode

_REQUEST_SETBACKS: Final[dict[int, tuple[type[RetryableError], str]]] = {
    ResponseCode.BROKER_ERROR: (Overloaded, "could not take messages just then (code 51)"),
    ResponseCode.BROKER_REJECT: (Unavailable, "does not take messages in its role (code 52)"),
}

_REMARK_LENGTH_MAX: Final = 500
"""Letters of it that an error repeats."""

_ITEM_SETBACKS: Final[dict[int, tuple[type[RetryableError], str]]] = {
    ItemCode.BROKER_BUSY: (Overloaded, "is busy (item code 1)"),
    ItemCode.BROKER_READ_ONLY: (Unavailable, "takes no messages at present (item code 4)"),
    ItemCode.STORE_ERROR: (Unavailable, "could not keep the message as it arrived (item code 6)"),
}


def request_setback(code: int, remark: str) -> tuple[type[RetryableError], str] | None:
    """Return why a whole request should be tried again, or None if that is no use.

    `remark` is what the answer says: servers of ours tell why they take no messages at all.
    """
    if code == ResponseCode.BROKER_ERROR and remark:
        return Unavailable, f"takes no messages (code 51): {remark[:_REMARK_LENGTH_MAX]!r}"
    return _REQUEST_SETBACKS.get(code)


_MASTER: Final = re.compile(r"the master of this group is .+ at (?P<address>\S+)")


def master_named(remark: str) -> str:
    """Return the address of the master that another node names; empty if it names none."""
    found = _MASTER.fullmatch(remark)
    return "" if found is None else found["address"]


def request_refusal(code: int, *, server: str, message_id: str, attempts: int) -> FatalError:
    """Return the error of a message whose request was answered with a code of no use."""
    meaning = "it does not know SEND_MESSAGE" if code == ResponseCode.UNKNOWN_CODE else "unexpected"
    return Refused(
        f"{server} answered code {code} ({meaning}): check that this is a delay server's address",
        message_id=message_id,
        server=server,
        attempts=attempts,
    )


def item_setback(code: int, remark: str) -> tuple[type[RetryableError], str] | None:
    """Return why one item should be tried again, or None if it was refused for good."""
    found = _ITEM_SETBACKS.get(code)
    if found is None or not remark:
        return found
    kind, text = found
    return kind, f"{text}: {remark!r}"


def item_refusal(
    code: int, remark: str, *, server: str, message_id: str, attempts: int
) -> FatalError:
    """Return the error of an item that was refused for good."""
    kind, advice = _REFUSALS[_refusal_name(code, remark)]
    said = f"{remark!r}" if remark else "no remark"
    return kind(
        f"{server} refused the message (item code {code}, {said}): {advice}",
        message_id=message_id,
        server=server,
        attempts=attempts,
    )


_REFUSALS: Final[dict[str, tuple[type[FatalError], str]]] = {
    "subject": (IllegalSubject, "use another subject, or have this one assigned"),
    "delay": (DelayTooLong, "deliver it earlier, or raise the server's horizon"),
    "size": (MessageTooLarge, "send less, or raise the server's limit"),
    "other": (Refused, "correct the message; sending it again as it is will not help"),
}


def _refusal_name(code: int, remark: str) -> str:
    """Code 5 has several reasons that only the remark tells apart, in words for people."""
    if code == ItemCode.SUBJECT_NOT_ASSIGNED:
        return "subject"
    if code == ItemCode.BLOCK:
        words = remark.lower()
        if words.startswith(("a subject", "a retry subject")):
            return "subject"
        if words.startswith("due in") or "horizon" in words or "delay" in words:
            return "delay"
        if "large" in words or "bytes" in words or "size" in words:
            return "size"
    return "other"
