"""Targets for what a meta server is asked and answers: QMQ's bodies, and those of our own nodes."""

from collections.abc import Callable
from typing import Any, Final

from delay_protocol.basics.errors import LocalProtocolError, MalformedMetaError
from delay_protocol.basics.strings import decode_str, decode_str_bytes
from delay_protocol.meta.requests import (
    CLIENT_REGISTER_ENTRIES_MAX,
    META_BODY_BYTES_MAX,
    BrokerRequestType,
    BrokerRole,
    BrokerState,
    ClientRegister,
    OnlineState,
    decode_acquire_meta,
    decode_acquire_meta_reply,
    decode_broker_register,
    decode_client_register,
    decode_client_register_reply,
    encode_acquire_meta,
    encode_acquire_meta_reply,
    encode_broker_register,
    encode_client_register,
    encode_client_register_reply,
)
from delay_protocol.nodes import group_changes, registration
from delay_protocol.nodes.auth import NONCE_SIZE, decode_challenge, encode_challenge
from tests.fuzz.reference import (
    CutOffError,
    TooManyError,
    java_int,
    read_acquire,
    read_acquired,
    read_broker_register,
    read_route,
    read_string_map,
)
from tests.fuzz.target import attempt, byte_at, is_text, target

PROTOCOL = ("delay_protocol",)


@target(
    decoders=(
        decode_client_register,
        decode_client_register_reply,
        decode_str,
        decode_str_bytes,
    ),
    packages=PROTOCOL,
    size_max=512,
)
def meta_client(data: bytes) -> None:
    """A registration and a route say what the slow reader finds, and come back as they were.

    An odd first byte makes a map of the texts that follow, divided by zeros.
    """
    body = _map_of(data[1:]) if byte_at(data, 0) & 1 else data[1:]
    request = attempt(MalformedMetaError, decode_client_register, body)
    assert request == _expected_register(body)
    if request is not None:
        encoded = encode_client_register(request)
        # It may be too long with the keys that the body left out.
        if len(encoded) <= META_BODY_BYTES_MAX:
            assert decode_client_register(encoded) == request
    reply = attempt(MalformedMetaError, decode_client_register_reply, body)
    expected = attempt((CutOffError, UnicodeDecodeError, ValueError), _expected_route, body)
    if reply is None:
        assert expected is None
        return
    groups = [(one.name, one.master, one.updated_ms, one.state) for one in reply.groups]
    assert (
        reply.timestamp_ms,
        reply.subject,
        reply.consumer_group,
        reply.online_state,
        reply.client_type,
        groups,
    ) == expected
    again = encode_client_register_reply(reply)
    assert again == body[: len(again)]


def _map_of(texts: bytes) -> bytes:
    parts = texts.split(b"\0")[: 2 * CLIENT_REGISTER_ENTRIES_MAX]
    parts = parts[: len(parts) // 2 * 2]
    sized = [min(len(part), 65_535).to_bytes(2, "big") + part[:65_535] for part in parts]
    return (len(parts) // 2).to_bytes(2, "big") + b"".join(sized)


def _expected_register(body: bytes) -> ClientRegister | None:
    if len(body) > META_BODY_BYTES_MAX:
        return None
    pairs = attempt((CutOffError, TooManyError), read_string_map, body, CLIENT_REGISTER_ENTRIES_MAX)
    if pairs is None:
        return None
    names = {
        b"subject": "subject",
        b"clientId": "client_id",
        b"consumerGroup": "consumer_group",
        b"appCode": "app_code",
        b"clientLDC": "ldc",
        b"clientTypeCode": "client_type",
        b"requestType": "register_type",
    }
    # Of a repeated key the last value counts; the others are text as well, or it is refused.
    if not all(is_text(value) for key, value in pairs if key in names):
        return None
    values: dict[str, Any] = {names[key]: value.decode() for key, value in pairs if key in names}
    for name, low, high in (("client_type", -128, 127), ("register_type", -(2**31), 2**31 - 1)):
        number = java_int(values.pop(name, ""))
        if number is not None and low <= number <= high:
            values[name] = number
    return ClientRegister(**values)


def _expected_route(body: bytes) -> tuple[object, ...]:
    timestamp, subject, consumer_group, online, client_type, groups = read_route(body)
    return (
        timestamp,
        subject.decode(),
        consumer_group.decode(),
        OnlineState(online),
        client_type,
        [
            (name.decode(), master.decode(), updated, BrokerState(state))
            for name, master, updated, state in groups
        ],
    )


@target(
    decoders=(decode_acquire_meta, decode_acquire_meta_reply, decode_broker_register),
    packages=PROTOCOL,
    size_max=256,
)
def meta_broker(data: bytes) -> None:
    """What brokers ask and are told is what the slow reader finds, and comes back as it was."""
    _compare(data, decode_acquire_meta, encode_acquire_meta, _acquire, request=True)
    _compare(data, decode_acquire_meta_reply, encode_acquire_meta_reply, _acquired, request=False)
    _compare(data, decode_broker_register, encode_broker_register, _registered, request=True)


def _acquire(body: bytes) -> tuple[object, ...]:
    hostname, port = read_acquire(body)
    return hostname.decode(), port


def _acquired(body: bytes) -> tuple[object, ...]:
    group, master, role = read_acquired(body)
    return group.decode(), master.decode(), BrokerRole(role)


def _registered(body: bytes) -> tuple[object, ...]:
    kind, group, address, role, state = read_broker_register(body)
    return (
        BrokerRequestType(kind),
        group.decode(),
        address.decode(),
        BrokerRole(role),
        BrokerState(state),
    )


def _compare(
    body: bytes,
    decode: Callable[[bytes], Any],
    encode: Callable[[Any], bytes],
    reference: Callable[[bytes], tuple[object, ...]],
    *,
    request: bool,
) -> None:
    found = attempt(MalformedMetaError, decode, body)
    expected = attempt((CutOffError, UnicodeDecodeError, ValueError), reference, body)
    if request and len(body) > META_BODY_BYTES_MAX:
        expected = None
    if found is None:
        assert expected is None
        return
    assert tuple(getattr(found, name) for name in found.__slots__) == expected
    again = encode(found)
    assert again == body[: len(again)]


_OF_GROUPS: Final[tuple[tuple[Callable[[bytes], Any], Callable[[Any], bytes]], ...]] = (
    (group_changes.decode_node_watch, group_changes.encode_node_watch),
    (group_changes.decode_watch_reply, group_changes.encode_watch_reply),
    (group_changes.decode_group_change, group_changes.encode_group_change),
    (group_changes.decode_change_reply, group_changes.encode_change_reply),
)


@target(
    decoders=(
        *(registration.decode_node_register, registration.decode_node_reply, decode_challenge),
        *(decode for decode, _ in _OF_GROUPS),
    ),
    packages=PROTOCOL,
    size_max=4096,
)
def nodes(data: bytes) -> None:
    """What a node says, or is told, comes back as it was and is within the limits."""
    challenge = attempt(MalformedMetaError, decode_challenge, data)
    if challenge is not None:
        assert len(challenge.nonce) == NONCE_SIZE
        assert decode_challenge(encode_challenge(challenge)) == challenge
    request = attempt(MalformedMetaError, registration.decode_node_register, data)
    if request is not None:
        assert 0 < request.incarnation < 2**63
        assert request.cluster
        encoded = attempt(LocalProtocolError, registration.encode_node_register, request)
        assert encoded is None or registration.decode_node_register(encoded) == request
    reply = attempt(MalformedMetaError, registration.decode_node_reply, data)
    assert request is None or reply is None or b"type" in data
    if reply is not None:
        if isinstance(reply, registration.NodeRegistered):
            assert len(reply.record.in_sync) <= registration.REPLICAS_MAX
            assert 0 < reply.record.min_isr <= registration.REPLICAS_MAX
        encoded = attempt(LocalProtocolError, registration.encode_node_reply, reply)
        assert encoded is None or registration.decode_node_reply(encoded) == reply
    assert len(data) <= registration.NODE_BODY_BYTES_MAX or (request is None and reply is None)
    for decode, encode in _OF_GROUPS:
        found = attempt(MalformedMetaError, decode, data)
        if found is not None:
            again = attempt(LocalProtocolError, encode, found)
            assert again is None or decode(again) == found
