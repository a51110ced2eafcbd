"""Targets for what receivers and their servers say to each other, and for what messages carry."""

from typing import Final

from delay_client.messages.envelope import decode_envelope, encode_envelope
from delay_protocol.basics.errors import MalformedItemError, MalformedMetaError
from delay_protocol.messages.items import decode_attributes
from delay_protocol.receivers.attaching import (
    ATTACH_BYTES_MAX,
    Attached,
    decode_attach,
    decode_attach_reply,
    decode_flow,
    encode_attach,
    encode_attach_reply,
    encode_flow,
)
from delay_protocol.receivers.delivering import (
    decode_deliver,
    decode_settle,
    decode_settle_reply,
    encode_deliver_head,
    encode_settle,
    encode_settle_reply,
)
from delay_protocol.receivers.masters import (
    REGISTER_BYTES_MAX,
    REPLY_BYTES_MAX,
    decode_receiver_register,
    decode_receiver_reply,
    encode_receiver_register,
    encode_receiver_reply,
)
from tests.fuzz.node_targets import read_packed
from tests.fuzz.target import attempt, target

_PACKAGES: Final = ("delay_protocol",)


@target(
    decoders=(
        decode_attach,
        decode_attach_reply,
        decode_flow,
        decode_receiver_register,
        decode_receiver_reply,
    ),
    packages=_PACKAGES,
)
def attaching(data: bytes) -> None:
    """What a receiver asks comes back as it was, and so do the answers."""
    attach = read_packed(decode_attach, encode_attach, data, ATTACH_BYTES_MAX)
    assert attach is None or (attach.name and attach.weight > 0)
    reply = read_packed(decode_attach_reply, encode_attach_reply, data, ATTACH_BYTES_MAX)
    assert not isinstance(reply, Attached) or (reply.epoch >= 0 and reply.lease_s > 0)
    flow = read_packed(decode_flow, encode_flow, data, ATTACH_BYTES_MAX)
    assert flow is None or min(flow.items, flow.bytes) >= 0
    read_packed(decode_receiver_register, encode_receiver_register, data, REGISTER_BYTES_MAX)
    read_packed(decode_receiver_reply, encode_receiver_reply, data, REPLY_BYTES_MAX)


@target(decoders=(decode_deliver, decode_settle, decode_settle_reply), packages=_PACKAGES)
def delivering(data: bytes) -> None:
    """Messages and verdicts are read as they were written, byte for byte."""
    messages = attempt(MalformedMetaError, decode_deliver, data)
    if messages is not None:
        columns = [list(column) for column in zip(*messages, strict=True)] or [[], [], []]
        sequences, attempts, items = columns
        head = encode_deliver_head(sequences, attempts, list(map(len, items)))
        assert b"".join((head, *items)) == data
        assert min([1, *sequences, *attempts]) == 1
    settled = attempt(MalformedMetaError, decode_settle, data)
    assert settled is None or encode_settle(settled) == data
    unknown = attempt(MalformedMetaError, decode_settle_reply, data)
    assert unknown is None or data.startswith(encode_settle_reply(unknown))


@target(decoders=(decode_envelope,), packages=("delay_client", "delay_protocol"))
def envelope(data: bytes) -> None:
    """What any attributes say of a body is what they say again once we have written it."""
    attributes = attempt(MalformedItemError, decode_attributes, data)
    found = attributes and attempt(MalformedItemError, decode_envelope, attributes)
    if found:
        body, headers, content_type = found
        ours = {name: value for name, value in headers.items() if name and name == name.lower()}
        again, *rest = decode_envelope(encode_envelope(body, ours, content_type))
        assert rest == [ours, content_type]
        assert _data(again) == _data(body)


def _data(body: str | bytes) -> bytes:
    return body if isinstance(body, bytes) else body.encode()
