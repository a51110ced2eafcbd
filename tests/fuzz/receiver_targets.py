"""Targets for what receivers and their servers say to each other, and what messages carry."""

from delay_client.messages.envelope import decode_envelope, encode_envelope
from delay_protocol.basics.errors import MalformedItemError, MalformedMetaError
from delay_protocol.messages.items import decode_attributes
from delay_protocol.receivers import delivering
from delay_protocol.receivers.attaching import (
    ATTACH_BYTES_MAX,
    decode_attach,
    decode_attach_reply,
    decode_flow,
    encode_attach,
    encode_attach_reply,
    encode_flow,
)
from delay_protocol.receivers.masters import (
    REGISTER_BYTES_MAX,
    REPLY_BYTES_MAX,
    decode_receiver_register,
    decode_receiver_reply,
    encode_receiver_register,
    encode_receiver_reply,
)
from tests.fuzz.node_targets import read_back
from tests.fuzz.target import attempt, target


@target(
    decoders=(
        *(decode_attach, decode_attach_reply, decode_flow),
        *(delivering.decode_deliver, delivering.decode_settle, delivering.decode_settle_reply),
        *(decode_receiver_register, decode_receiver_reply),
    ),
    packages=("delay_protocol",),
    size_max=4096,
)
def receivers(data: bytes) -> None:
    """What receivers and servers say comes back as it was."""
    attach = read_back(decode_attach, encode_attach, data, ATTACH_BYTES_MAX)
    assert attach is None or len(attach.instance) == 16
    read_back(decode_attach_reply, encode_attach_reply, data, ATTACH_BYTES_MAX)
    flow = read_back(decode_flow, encode_flow, data, ATTACH_BYTES_MAX)
    assert flow is None or min(flow.items, flow.bytes) >= 0
    read_back(decode_receiver_register, encode_receiver_register, data, REGISTER_BYTES_MAX)
    read_back(decode_receiver_reply, encode_receiver_reply, data, REPLY_BYTES_MAX)
    delivered = attempt(MalformedMetaError, delivering.decode_deliver, data)
    if delivered is not None:
        sequences, attempts, items = zip(*delivered, strict=True) if delivered else ((), (), ())
        assert len(delivered) <= delivering.DELIVER_ITEMS_MAX
        head = delivering.encode_deliver_head(sequences, attempts, list(map(len, items)))
        assert head + b"".join(items) == data
    settled = attempt(MalformedMetaError, delivering.decode_settle, data)
    if settled is not None:
        assert len(settled) <= delivering.SETTLE_ITEMS_MAX
        assert delivering.encode_settle(settled) == data
    reply = attempt(MalformedMetaError, delivering.decode_settle_reply, data)
    assert reply is None or delivering.encode_settle_reply(*reply) == data[:12]


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
