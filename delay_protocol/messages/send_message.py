"""SEND_MESSAGE (10): its request is items back to back, its answer lists the items that failed.

    request   item, repeated                                     (items.py)
    answer    (str message id, i32 item code, str remark), repeated until the body ends

An item that the answer does not list has succeeded, so an empty answer means that all did. A code
other than SUCCESS in the answer's frame says that none did, and its body is empty. An answer has at
most one row for each item of its request; of rows with one id the last counts.
"""

import struct
from collections.abc import Iterable, Sequence

from delay_protocol.basics.errors import LocalProtocolError, MalformedReplyError

_SIZE = struct.Struct(">h")
_CODE_AND_SIZE = struct.Struct(">ih")


def encode_send_request_body(items: Sequence[bytes | memoryview]) -> bytes:
    """Return the body of a request that carries these items as they are.

    A request without items is refused: every broker answers it with success, which a sender would
    take for a delivery.
    """
    body = b"".join(items)
    if not body:
        raise LocalProtocolError("a SEND_MESSAGE without items")
    return body


def encode_send_reply(failures: Iterable[tuple[bytes, int, str]]) -> bytes:
    """Return the body of an answer: (message id, item code, remark) of each item that failed."""
    parts: list[bytes] = []
    for message_id, code, remark in failures:
        try:
            text = remark.encode()
            parts += (
                _SIZE.pack(len(message_id)),
                message_id,
                _CODE_AND_SIZE.pack(code, len(text)),
                text,
            )
        except (struct.error, UnicodeEncodeError) as error:
            raise LocalProtocolError(f"result {code} does not fit: {error}") from error
    return b"".join(parts)


def decode_send_reply(
    body: bytes, *, results_max: int | None = None
) -> dict[bytes, tuple[int, str]]:
    """Return (item code, remark) of each message id that failed; of a repeated id the last.

    Raise MalformedReplyError unless the body is results to its last byte, and no more of them than
    `results_max`: whoever sent the request knows how many items it had. Nothing is read beyond.
    """
    failures: dict[bytes, tuple[int, str]] = {}
    start = rows = 0
    while start < len(body):
        rows += 1
        if results_max is not None and rows > results_max:
            raise MalformedReplyError(
                offset=start, reason=f"more results than the {results_max} items that were sent"
            )
        try:
            (id_size,) = _SIZE.unpack_from(body, start)
            code_at = start + 2 + max(id_size, 0)
            code, remark_size = _CODE_AND_SIZE.unpack_from(body, code_at)
        except struct.error as error:
            raise MalformedReplyError(offset=start, reason=str(error)) from error
        remark_at = code_at + _CODE_AND_SIZE.size
        end = remark_at + remark_size
        if id_size < 0 or remark_size < 0 or end > len(body):
            raise MalformedReplyError(offset=start, reason=f"sizes {id_size} and {remark_size}")
        # Nothing is decided by the remark, so bad text in it must not spoil the answer.
        remark = body[remark_at:end].decode(errors="replace")
        failures[body[start + 2 : code_at]] = (code, remark)
        start = end
    return failures
