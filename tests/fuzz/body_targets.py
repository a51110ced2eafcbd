"""Targets for bodies of requests and answers: QMQ's, and those of nodes and receivers."""

from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Any, Final
from zlib import crc32

from delay_client.messages.cancel_tokens import decode_token, encode_token
from delay_client.messages.errors import InvalidToken
from delay_protocol.basics.errors import LocalProtocolError, MalformedMetaError
from delay_protocol.basics.strings import decode_str, decode_str_bytes
from delay_protocol.messages import changes
from delay_protocol.meta import requests
from delay_protocol.nodes import following
from delay_protocol.nodes.auth import NONCE_SIZE, decode_challenge, encode_challenge
from delay_protocol.receivers import delivering
from storage.disk.errors import CopyRefusedError
from storage.node.snapshot import decode_copy, encode_copy, files_of
from tests.delay_protocol.nodes.bodies import BODIES
from tests.fuzz.target import attempt, byte_at, target
from tests.storage.small_logs import LOG_UUID

PROTOCOL: Final = ("delay_protocol",)


@target(
    decoders=(
        requests.decode_client_register,
        requests.decode_client_register_reply,
        decode_str,
        decode_str_bytes,
    ),
    packages=PROTOCOL,
    size_max=512,
)
def meta_client(data: bytes) -> None:
    """A registration and a route come back as they were.

    An odd first byte makes a map of the texts that follow, divided by zeros.
    """
    body = _map_of(data[1:]) if byte_at(data, 0) & 1 else data[1:]
    request = attempt(MalformedMetaError, requests.decode_client_register, body)
    if request is not None:
        assert len(body) <= requests.META_BODY_BYTES_MAX
        encoded = requests.encode_client_register(request)
        # It may be too long with the keys that the body left out.
        if len(encoded) <= requests.META_BODY_BYTES_MAX:
            assert requests.decode_client_register(encoded) == request
    _begins_with(body, requests.decode_client_register_reply, requests.encode_client_register_reply)


def _map_of(texts: bytes) -> bytes:
    parts = texts.split(b"\0")[: 2 * requests.CLIENT_REGISTER_ENTRIES_MAX]
    parts = parts[: len(parts) // 2 * 2]
    sized = [min(len(part), 65_535).to_bytes(2, "big") + part[:65_535] for part in parts]
    return (len(parts) // 2).to_bytes(2, "big") + b"".join(sized)


@target(
    decoders=(
        requests.decode_acquire_meta,
        requests.decode_acquire_meta_reply,
        requests.decode_broker_register,
    ),
    packages=PROTOCOL,
    size_max=256,
)
def meta_broker(data: bytes) -> None:
    """What brokers ask and are told comes back as it was."""
    _begins_with(data, requests.decode_acquire_meta, requests.encode_acquire_meta)
    _begins_with(data, requests.decode_acquire_meta_reply, requests.encode_acquire_meta_reply)
    _begins_with(data, requests.decode_broker_register, requests.encode_broker_register)


def _begins_with(
    body: bytes, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]
) -> None:
    """Check that a body that can be read begins with what is written of it."""
    found = attempt(MalformedMetaError, decode, body)
    if found is not None:
        again = encode(found)
        assert again == body[: len(again)]


@target(
    decoders=(*{body.decode: None for body in BODIES.values()}, decode_challenge),
    packages=PROTOCOL,
    size_max=4096,
)
def nodes(data: bytes) -> None:
    """What a node or a receiver says, or is told, comes back as it was, within the limits."""
    challenge = attempt(MalformedMetaError, decode_challenge, data)
    if challenge is not None:
        assert len(challenge.nonce) == NONCE_SIZE
        assert decode_challenge(encode_challenge(challenge)) == challenge
    for decode, body in {body.decode: body for body in BODIES.values()}.items():
        found = attempt(MalformedMetaError, decode, data)
        if found is not None:
            assert len(data) <= body.bytes_max
            # Too long it may be with the keys that the body left out.
            again = attempt(LocalProtocolError, body.encode, found)
            assert again is not None or 2 * len(data) > body.bytes_max
            assert again is None or decode(again) == found


@target(
    decoders=(changes.decode_change, changes.decode_change_reply, decode_token),
    packages=("delay_protocol", "delay_client"),
    size_max=2048,
)
def cancelling(data: bytes) -> None:
    """A change, its answer and a token come back as they were.

    An odd first byte makes a token of what follows, with the CRC that it should have.
    """
    request = attempt(MalformedMetaError, changes.decode_change, data)
    assert request is None or changes.decode_change(changes.encode_change(request)) == request
    reply = attempt(MalformedMetaError, changes.decode_change_reply, data)
    if reply is not None:
        assert changes.decode_change_reply(changes.encode_change_reply(reply)) == reply
    body = data[1:]
    if byte_at(data, 0) & 1:
        body = urlsafe_b64encode(b"\1" + body + crc32(b"\1" + body).to_bytes(4)).rstrip(b"=")
    place = attempt(InvalidToken, decode_token, body.decode(errors="replace"))
    assert place is None or decode_token(encode_token(place)) == place


@target(
    decoders=(
        following.decode_batches,
        delivering.decode_deliver,
        delivering.decode_settle,
        delivering.decode_settle_reply,
    ),
    packages=PROTOCOL,
)
def heads(data: bytes) -> None:
    """Bodies that begin with numbers are handed on whole, and come back as they were."""
    found = attempt(MalformedMetaError, following.decode_batches, data)
    if found is not None:
        head, batches = found
        assert following.encode_batches_head(head) + bytes(batches) == data
        assert 0 < head.first <= head.behind
        assert (head.first < head.behind) is bool(batches)
    delivered = attempt(MalformedMetaError, delivering.decode_deliver, data)
    if delivered is not None:
        sequences, attempts, items = zip(*delivered, strict=True) if delivered else ((), (), ())
        assert len(delivered) <= delivering.DELIVER_ITEMS_MAX
        start = delivering.encode_deliver_head(sequences, attempts, list(map(len, items)))
        assert start + b"".join(items) == data
    settled = attempt(MalformedMetaError, delivering.decode_settle, data)
    if settled is not None:
        assert len(settled) <= delivering.SETTLE_ITEMS_MAX
        assert delivering.encode_settle(settled) == data
    reply = attempt(MalformedMetaError, delivering.decode_settle_reply, data)
    assert reply is None or delivering.encode_settle_reply(*reply) == data[:12]


@target(decoders=(decode_copy,), packages=("storage.node.snapshot",), size_max=2048)
def snapshots(data: bytes) -> None:
    """A checkpoint of a copy comes back as it was, and names files of segments alone."""
    checkpoint = attempt(CopyRefusedError, decode_copy, data)
    if checkpoint is not None:
        assert decode_copy(encode_copy(checkpoint)) == checkpoint
        assert not checkpoint.retired
        assert not checkpoint.quarantined
        for file in files_of(checkpoint, LOG_UUID):
            assert file.path.rpartition("/")[0] in {"schedule_log", "dispatch_log"}
            assert file.length > 0
