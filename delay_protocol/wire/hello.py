"""HELLO (1001): who is delivering, and of which epoch. Ours, not QMQ's.

The body of the request and, with SUCCESS, of the answer is one msgpack map. A receiver that has
seen a newer epoch of the same group answers BROKER_REJECT; QMQ's own brokers answer UNKNOWN_CODE,
which means that they cannot fence. A delay server answers BROKER_REJECT and which one it is: what
it were given it would deliver itself, and so perhaps to whoever gave it. A client that sends
messages says HELLO too, of no group and epoch 0: it knows a delay server by that answer. Keys that
a reader does not know are skipped, so keys may be added.
"""

from typing import Annotated

import msgspec

from delay_protocol.basics.errors import LocalProtocolError, MalformedHelloError


class Hello(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one side says of itself at the beginning of a connection."""

    group: str
    """The sender's delay group; in an answer, the broker group."""
    epoch: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    """The leader epoch it acts for; in an answer, the newest epoch seen of the sender's group."""
    node_id: str
    """Which node it is, for logs."""
    log_uuid: str = ""
    """Of the log that a delay server has. Who answers with one is no broker."""
    now_ms: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    """The wall clock by which a delay server delivers, in its answers."""
    cluster: str = ""
    """Name of the cluster of a delay server; receipts and the tokens that cancel name it."""


_DECODER = msgspec.msgpack.Decoder(Hello)


def encode_hello(hello: Hello) -> bytes:
    """Return the body of a HELLO, or of its answer."""
    try:
        return msgspec.msgpack.encode(hello)
    except (UnicodeEncodeError, OverflowError) as error:
        raise LocalProtocolError(f"{hello} is not encodable: {error}") from error


def decode_hello(body: bytes) -> Hello:
    """Return what the body of a HELLO, or of its answer, says; raise MalformedHelloError."""
    try:
        return _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        # The last of keys that would be skipped, but are nested too deeply for that.
        raise MalformedHelloError(str(error)) from error
