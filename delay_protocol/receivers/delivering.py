"""DELIVER (1041) and SETTLE (1042): messages to a receiver, and what became of each. Ours.

    DELIVER, one-way   i32 count, count x (i64 sequence, i32 attempt, i32 size),
                       then the items one after another, as they are kept
    SETTLE             i32 count, count x (i64 sequence, i8 verdict, i32 size),
                       then what goes with each verdict, one after another
    its answer         i32 count of sequences that were not unsettled on this connection,
                       i64 what the server's wall clock shows, ms since 1970

    verdict       what goes with it
    1 DONE        nothing: the message is done with
    2 RELEASE     nothing: it goes to others, or comes again; it counts as no attempt
    3 LATER       its item, with another due time: it comes again then
    4 REFUSED     the reason, UTF-8, at most 1024 bytes: a dead letter

All integers are big-endian and signed. A sequence is a number within the delay group and tells a
message as long as it is unsettled; after LATER the message has another one, and the same id.
"""

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from delay_protocol.basics.errors import LocalProtocolError, MalformedMetaError

DELIVER_ITEMS_MAX: Final = 1024
"""Items of one DELIVER: what is beyond comes in the next."""
SETTLE_ITEMS_MAX: Final = 2048
"""Sequences of one SETTLE: so many take the server some 10 ms, and 50 if all are REFUSED."""
REFUSED_BYTES_MAX: Final = 1024
"""Bytes of the reason of a REFUSED."""

_COUNT: Final = struct.Struct(">i")
_SETTLE_REPLY: Final = struct.Struct(">iq")
_DELIVERED: Final = struct.Struct(">qii")
_SETTLED: Final = struct.Struct(">qbi")


class Verdict(IntEnum):
    """What became of a message at its receiver."""

    DONE = 1
    RELEASE = 2
    LATER = 3
    REFUSED = 4


_BARE: Final = {int(Verdict.DONE), int(Verdict.RELEASE)}
_LATER: Final = int(Verdict.LATER)
_REFUSED: Final = int(Verdict.REFUSED)


class Delivered(NamedTuple):
    """One message of a DELIVER."""

    sequence: int
    attempt: int
    """Which try of this mastership it is, from 1. `qmq_times` counts the failed ones before."""
    item: bytes
    """As it was kept, CRC included."""


class Settled(NamedTuple):
    """One message of a SETTLE."""

    sequence: int
    verdict: int
    """A Verdict."""
    rest: bytes = b""
    """The item of a LATER, the reason of a REFUSED."""


def encode_deliver_head(
    sequences: Sequence[int], attempts: Sequence[int], sizes: Sequence[int]
) -> bytes:
    """Return the first bytes of a DELIVER, behind which the items come."""
    rows = map(_DELIVERED.pack, sequences, attempts, sizes)
    return b"".join((_COUNT.pack(len(sequences)), *rows))


def decode_deliver(body: bytes) -> list[Delivered]:
    """Return the messages of a DELIVER, items unchecked; raise MalformedMetaError."""
    rows, at = _rows(body, _DELIVERED, DELIVER_ITEMS_MAX, "DELIVER")
    found = []
    for sequence, attempt, size in rows:
        if sequence < 1 or attempt < 1:
            raise MalformedMetaError(f"sequence {sequence}, attempt {attempt}: both are from 1")
        found.append(Delivered(sequence, attempt, body[at : at + size]))
        at += size
    return found


def encode_settle(settled: Iterable[Settled]) -> bytes:
    """Return the body of a SETTLE; raise LocalProtocolError for what no server would read."""
    rows, rests = [], []
    for sequence, verdict, rest in settled:
        try:
            _check_verdict(sequence, verdict, len(rest))
        except MalformedMetaError as error:
            raise LocalProtocolError(str(error)) from error
        rows.append(_SETTLED.pack(sequence, verdict, len(rest)))
        if rest:
            rests.append(rest)
    if len(rows) > SETTLE_ITEMS_MAX:
        raise LocalProtocolError(f"a SETTLE of {len(rows)} sequences, at most {SETTLE_ITEMS_MAX}")
    return b"".join((_COUNT.pack(len(rows)), *rows, *rests))


def decode_settle(body: bytes) -> list[Settled]:
    """Return what a SETTLE says; raise MalformedMetaError."""
    rows, at = _rows(body, _SETTLED, SETTLE_ITEMS_MAX, "SETTLE")
    found = []
    for sequence, verdict, size in rows:
        _check_verdict(sequence, verdict, size)
        found.append(Settled(sequence, verdict, body[at : at + size]))
        at += size
    return found


def encode_settle_reply(unknown: int, now_ms: int) -> bytes:
    """Return the body of an answer to SETTLE."""
    return _SETTLE_REPLY.pack(unknown, now_ms)


def decode_settle_reply(body: bytes) -> tuple[int, int]:
    """Return how many sequences were unknown, and the server's clock; raise MalformedMetaError."""
    if len(body) < _SETTLE_REPLY.size:
        raise MalformedMetaError(f"an answer to SETTLE of {len(body)} bytes")
    unknown, now_ms = _SETTLE_REPLY.unpack_from(body)
    if min(unknown, now_ms) < 0:
        raise MalformedMetaError(f"an answer to SETTLE with {unknown} unknown, at {now_ms} ms")
    return unknown, now_ms


def _check_verdict(sequence: int, verdict: int, size: int) -> None:
    """Raise MalformedMetaError for a verdict that is none, or that has what it may not have."""
    if sequence < 1:
        raise MalformedMetaError(f"sequence {sequence}: they are from 1")
    if verdict in _BARE:
        fits = not size
    elif verdict == _LATER:
        fits = size > 0
    elif verdict == _REFUSED:
        fits = size <= REFUSED_BYTES_MAX
    else:
        raise MalformedMetaError(f"verdict {verdict} of sequence {sequence}: there is none such")
    if not fits:
        name = Verdict(verdict).name
        raise MalformedMetaError(f"{size} bytes with {name} of sequence {sequence}")


def _rows(
    body: bytes, row: struct.Struct, count_max: int, name: str
) -> tuple[Iterable[tuple[int, int, int]], int]:
    """Return the rows of a body, whose last field is a size, and where what they size begins.

    Raises MalformedMetaError unless the sizes are those of the rest of the body.
    """
    if len(body) < _COUNT.size:
        raise MalformedMetaError(f"a {name} of {len(body)} bytes")
    (count,) = _COUNT.unpack_from(body)
    if not 0 <= count <= count_max:
        raise MalformedMetaError(f"a {name} of {count} messages, at most {count_max} are taken")
    behind = _COUNT.size + count * row.size
    if behind > len(body):
        raise MalformedMetaError(f"a {name} of {count} messages in {len(body)} bytes")
    rows: list[tuple[int, int, int]] = list(row.iter_unpack(body[_COUNT.size : behind]))
    if (
        any(size < 0 for _, _, size in rows)
        or sum(size for _, _, size in rows) != len(body) - behind
    ):
        raise MalformedMetaError(f"the sizes of a {name} are not those of what follows")
    return rows, behind
