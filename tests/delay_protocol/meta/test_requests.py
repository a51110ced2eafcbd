"""What a meta server is asked and answers, byte for byte as QMQ has it, and nothing worse."""

import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from delay_protocol.basics.errors import LocalProtocolError, MalformedMetaError
from delay_protocol.meta.requests import (
    CLIENT_REGISTER_ENTRIES_MAX,
    META_BODY_BYTES_MAX,
    AcquireMeta,
    AcquireMetaReply,
    BrokerGroupInfo,
    BrokerRegister,
    BrokerRequestType,
    BrokerRole,
    BrokerState,
    ClientRegister,
    ClientRegisterReply,
    ClientType,
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
from delay_protocol.wire.frames import FRAME_OVERHEAD
from tests.delay_protocol.wire.test_frames import VECTORS


def body_of(vector: str) -> bytes:
    return bytes.fromhex(VECTORS[vector][0])[FRAME_OVERHEAD:]


CREATED_MS = 1_700_000_000_000
DG1 = BrokerGroupInfo(
    name="dg1", master="10.0.0.5:20801", updated_ms=CREATED_MS, state=BrokerState.RW
)

CLIENT = ClientRegister(
    subject="a.b", client_type=ClientType.DELAY_PRODUCER, client_id="h@@1", app_code="app"
)
CLIENT_REPLY = ClientRegisterReply(
    timestamp_ms=CREATED_MS,
    subject="a.b",
    consumer_group="",
    online_state=OnlineState.ONLINE,
    client_type=ClientType.DELAY_PRODUCER,
    groups=(DG1,),
)
ACQUIRE = AcquireMeta(hostname="host1", serve_port=20801)
ACQUIRE_REPLY = AcquireMetaReply(group="dg1", master="", role=BrokerRole.DELAY_MASTER)
BROKER = BrokerRegister(
    request_type=BrokerRequestType.ONLINE,
    group="dg1",
    address="10.0.0.5:20801",
    role=BrokerRole.DELAY_MASTER,
    state=BrokerState.RW,
)

BODIES: dict[str, tuple[Any, Callable[..., bytes], Callable[[bytes], Any]]] = {
    "a client registers": (CLIENT, encode_client_register, decode_client_register),
    "its answer": (CLIENT_REPLY, encode_client_register_reply, decode_client_register_reply),
    "a broker asks for its group": (ACQUIRE, encode_acquire_meta, decode_acquire_meta),
    "the group": (ACQUIRE_REPLY, encode_acquire_meta_reply, decode_acquire_meta_reply),
    "a broker registers": (BROKER, encode_broker_register, decode_broker_register),
}
"""By the vector's name: what it says, and who writes and reads it."""

REQUESTS = ("a client registers", "a broker asks for its group", "a broker registers")


def register_map(*entries: tuple[str | bytes, str | bytes], count: int | None = None) -> bytes:
    """Return the body of a CLIENT_REGISTER with these entries, whatever they are."""
    parts = [struct.pack(">h", len(entries) if count is None else count)]
    for text in (text for entry in entries for text in entry):
        data = text if isinstance(text, bytes) else text.encode()
        parts += (struct.pack(">H", len(data)), data)
    return b"".join(parts)


@pytest.mark.parametrize("name", BODIES)
def test_a_vector_is_decoded_and_encoded_again_to_its_bytes(name: str) -> None:
    value, encode, decode = BODIES[name]
    assert decode(body_of(name)) == value
    assert encode(value) == body_of(name)


@pytest.mark.parametrize("name", BODIES)
def test_what_a_newer_peer_appends_is_skipped(name: str) -> None:
    # Readers of QMQ skip it too, and its bodies have grown at the end: see the module's docstring.
    value, _, decode = BODIES[name]
    for appended in (b"\0", b"\xff" * 40):
        assert decode(body_of(name) + appended) == value


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_beyond_the_limit_is_refused_unread(name: str) -> None:
    value, _, decode = BODIES[name]
    room = META_BODY_BYTES_MAX - len(body_of(name))
    assert decode(body_of(name) + bytes(room)) == value
    with pytest.raises(MalformedMetaError, match=f"at most {META_BODY_BYTES_MAX}"):
        decode(body_of(name) + bytes(room + 1))


# CLIENT_REGISTER


def test_what_a_client_leaves_out_has_the_defaults_of_qmq() -> None:
    assert decode_client_register(register_map()) == ClientRegister(
        subject="",
        client_type=3,
        client_id="",
        consumer_group="",
        app_code="",
        register_type=1,
        ldc="",
    )


def test_the_room_is_sent_only_where_it_is_known() -> None:
    assert encode_client_register(ClientRegister(ldc="")).count(b"clientLDC") == 0
    body = encode_client_register(ClientRegister(ldc="room1"))
    assert body == register_map(
        ("subject", ""),
        ("clientTypeCode", "3"),
        ("clientId", ""),
        ("consumerGroup", ""),
        ("appCode", ""),
        ("requestType", "1"),
        ("clientLDC", "room1"),
    )


def test_a_value_of_32767_bytes_is_read_and_one_more_is_a_negative_size() -> None:
    assert len(decode_client_register(register_map(("subject", "x" * 32_767))).subject) == 32_767
    for text in ("x" * 32_768, "x" * 60_000):
        with pytest.raises(MalformedMetaError, match="string of -"):
            decode_client_register(register_map(("subject", text)))
        with pytest.raises(MalformedMetaError, match="string of -"):
            decode_client_register(register_map((text, "")))


def test_a_map_has_as_many_entries_as_it_says_and_no_more_than_it_may() -> None:
    entries = [(f"k{place}", "v") for place in range(CLIENT_REGISTER_ENTRIES_MAX - 1)]
    largest = register_map(*entries, ("subject", "s"))
    assert decode_client_register(largest).subject == "s"
    with pytest.raises(MalformedMetaError, match="at most 64"):
        decode_client_register(register_map(*entries, ("subject", "s"), ("one more", "")))
    with pytest.raises(MalformedMetaError, match="no room"):
        decode_client_register(register_map(*entries, count=CLIENT_REGISTER_ENTRIES_MAX))


# The other bodies


def test_a_count_of_groups_is_believed_only_as_far_as_there_are_groups() -> None:
    body = bytearray(body_of("its answer"))
    body[17:19] = b"\x7f\xff"
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMetaError):
            decode_client_register_reply(bytes(body))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20_000


def test_an_answer_that_refuses_has_a_timestamp_of_minus_two() -> None:
    reply = ClientRegisterReply(
        timestamp_ms=-2,
        subject="a b",
        consumer_group="g",
        online_state=OnlineState.OFFLINE,
        client_type=ClientType.CONSUMER,
    )
    body = encode_client_register_reply(reply)
    assert body == bytes.fromhex("fffffffffffffffe 0003 612062 0001 67 01 02 0000")
    assert decode_client_register_reply(body) == reply


@pytest.mark.parametrize(
    ("encode", "value"),
    [
        (encode_client_register, ClientRegister(subject="x" * 32_768)),
        (encode_client_register, ClientRegister(client_id="\ud800")),
        (encode_acquire_meta, AcquireMeta(hostname="h", serve_port=2**31)),
        (
            encode_client_register_reply,
            ClientRegisterReply(
                timestamp_ms=0,
                subject="s",
                consumer_group="",
                online_state=OnlineState.ONLINE,
                client_type=1,
                groups=(DG1,) * 32_768,
            ),
        ),
        (
            encode_client_register_reply,
            ClientRegisterReply(
                timestamp_ms=2**63,
                subject="s",
                consumer_group="",
                online_state=OnlineState.ONLINE,
                client_type=1,
            ),
        ),
        (
            encode_client_register_reply,
            ClientRegisterReply(
                timestamp_ms=0,
                subject="s",
                consumer_group="",
                online_state=OnlineState.ONLINE,
                client_type=128,
            ),
        ),
    ],
    ids=["a string", "no text", "a port", "groups", "a timestamp", "a client type"],
)
def test_what_does_not_fit_is_the_callers_error(
    encode: Callable[[object], bytes], value: object
) -> None:
    with pytest.raises(LocalProtocolError):
        encode(value)


def test_an_answer_holds_as_many_groups_as_its_count_can_tell() -> None:
    groups = tuple(
        BrokerGroupInfo(name=f"g{n}", master="h:1", updated_ms=n, state=BrokerState.RW)
        for n in range(32_767)
    )
    reply = ClientRegisterReply(
        timestamp_ms=0,
        subject="s",
        consumer_group="",
        online_state=OnlineState.ONLINE,
        client_type=1,
        groups=groups,
    )
    assert decode_client_register_reply(encode_client_register_reply(reply)) == reply
