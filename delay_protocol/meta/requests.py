"""What clients and brokers ask a meta server, and its answers: bodies of codes 30, 35 and 40.

    CLIENT_REGISTER (35)      i16 count, then count x (str key, str value)
      answer                  i64 timestamp, str subject, str consumer group, i8 online state,
                              i8 client type, i16 count, then count x
                              (str group, str master, i64 updated, i8 broker state)
    BROKER_ACQUIRE_META (40)  str hostname, i32 serve port
      answer                  str group, str master, i32 role
    BROKER_REGISTER (30)      i32 request type, str group, str address, i32 role, i32 state
      answer                  empty

All integers are big-endian; strings are those of strings.py. An answer to CLIENT_REGISTER that
nobody asked for is a push: clients take it as they take any other.

Bytes after the last field are skipped, as every reader of QMQ does: that is how its bodies have
grown (answers to newer clients have partitions there), and the peer of another version is not to be
cut off. Everything up to there is exact: sizes and counts that are negative, or beyond the body,
and codes without a name are refused, because what they would do to a route cannot be known.
"""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeVar

from delay_protocol.basics.errors import LocalProtocolError, MalformedMetaError
from delay_protocol.basics.strings import decode_str, decode_str_bytes, encode_str

META_BODY_BYTES_MAX: Final = 64 * 1024
"""Bytes of a request's body: a larger one is refused unread. QMQ's clients send about 300, and
names of the longest kind (a retry subject) have some hundred."""
CLIENT_REGISTER_ENTRIES_MAX: Final = 64
"""Entries of a CLIENT_REGISTER's map: of a larger one none is read. QMQ's clients send six or
seven; entries we do not know are skipped, and take 0.5 us each."""

_I8_MIN: Final = -(2**7)
_I8_MAX: Final = 2**7 - 1
"""An answer has one signed byte to repeat a client type in."""

_CLIENT_REGISTER_KEYS: Final = frozenset(
    (
        b"subject",
        b"clientTypeCode",
        b"clientId",
        b"consumerGroup",
        b"appCode",
        b"requestType",
        b"clientLDC",
    )
)

_COUNT = struct.Struct(">h")
_I32 = struct.Struct(">i")
_TIMESTAMP = struct.Struct(">q")
_STATE_TYPE_COUNT = struct.Struct(">bbh")
_UPDATED_STATE = struct.Struct(">qb")
_ROLE_STATE = struct.Struct(">ii")

_JAVA_INT = re.compile(r"(?P<sign>[+-]?)0*(?P<digits>[0-9]{1,10})")
"""What Java's parseInt takes, but for digits of other scripts and what is out of its range."""

Code = TypeVar("Code", bound=IntEnum)


class ClientType(IntEnum):
    """What a client does with its subject."""

    PRODUCER = 1
    CONSUMER = 2
    OTHER = 3
    """Also what does not say what it is."""
    DELAY_PRODUCER = 4
    """Sends messages to be delivered later: it is routed to delay groups."""
    DELAY_SERVER = 100
    """Ours: a delay server, which delivers to broker groups and to receivers. Alone of all it is
    told of groups of receivers, whose master is empty."""


class RegisterType(IntEnum):
    """Why a client registers."""

    ONLINE = 1
    """For the first time, as far as the client knows: a HEARTBEAT may have come before."""
    HEARTBEAT = 2
    """Every 60 s for each client type, subject and consumer group."""


class OnlineState(IntEnum):
    """Whether a consumer is to consume; means nothing to producers."""

    ONLINE = 0
    OFFLINE = 1


class BrokerState(IntEnum):
    """What may be done with a broker group: producers keep those to write to, consumers others."""

    RW = 1
    R = 2
    W = 3
    NRW = 4


class BrokerRole(IntEnum):
    """What a broker or delay server is in its group."""

    MASTER = 0
    SLAVE = 1
    STANDBY = 2
    """QMQ's brokers refuse to start with it."""
    DELAY = 3
    """The role of old; QMQ's delay servers have the three below."""
    BACKUP = 4
    DELAY_MASTER = 5
    DELAY_SLAVE = 6
    DELAY_BACKUP = 7


class BrokerRequestType(IntEnum):
    """Why a broker registers."""

    ONLINE = 0
    """It serves, and this is its address."""
    HEARTBEAT = 1
    """Every 10 s, with the state it is in."""
    OFFLINE = 2
    """It is about to stop; sent three times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRegister:
    """A client asks for the route of a subject, and says that it is there.

    What the body leaves out, or gives as no number, is what QMQ's meta server takes it for.
    """

    subject: str = ""
    """As sent: of a retry, `%RETRY%subject%group`. The answer repeats it."""
    client_type: int = ClientType.OTHER
    """A ClientType, or a number that we do not know (-128 to 127), which the answer repeats."""
    client_id: str = ""
    """`host@@md5`; empty from a delay server."""
    consumer_group: str = ""
    """Empty from producers."""
    app_code: str = ""
    register_type: int = RegisterType.ONLINE
    """A RegisterType, or a number that we do not know."""
    ldc: str = ""
    """The logical room; sent only where the client knows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerGroupInfo:
    """A broker group as a client sees it."""

    name: str
    master: str
    """host:port; empty of receivers, and a client but a delay server drops a group without."""
    updated_ms: int
    """Wall ms."""
    state: BrokerState


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRegisterReply:
    """The route of a subject.

    A client other than a consumer goes on with the groups it had if there are none here.
    """

    timestamp_ms: int
    """Wall ms, or -2: a client changes its online state only if this is not below the last one it
    saw from anybody."""
    subject: str
    """Of the request, as it was: clients look their request up by it and the client type."""
    consumer_group: str
    online_state: OnlineState
    client_type: int
    """Of the request, -128 to 127."""
    groups: tuple[BrokerGroupInfo, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireMeta:
    """A broker or delay server asks who it is, once, at its start."""

    hostname: str
    serve_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireMetaReply:
    """Who it is, for as long as its process lives."""

    group: str
    master: str
    """host:port of whom it copies from, at its port for copies; empty for a master."""
    role: BrokerRole


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegister:
    """A broker or delay server says how it is."""

    request_type: BrokerRequestType
    group: str
    address: str
    """host:port for clients."""
    role: BrokerRole
    state: BrokerState


def encode_client_register(request: ClientRegister) -> bytes:
    """Return the body of a CLIENT_REGISTER; raise LocalProtocolError for what does not fit."""
    entries = {
        "subject": request.subject,
        "clientTypeCode": str(int(request.client_type)),
        "clientId": request.client_id,
        "consumerGroup": request.consumer_group,
        "appCode": request.app_code,
        "requestType": str(int(request.register_type)),
    }
    if request.ldc:
        entries["clientLDC"] = request.ldc
    parts = [_COUNT.pack(len(entries))]
    for key, value in entries.items():
        parts += (encode_str(key), encode_str(value))
    return b"".join(parts)


def decode_client_register(body: bytes) -> ClientRegister:
    """Return what a CLIENT_REGISTER says; raise MalformedMetaError.

    Of a repeated key the last value counts. A map with a negative count is refused, though a reader
    of QMQ takes it for an empty one: no writer means it.
    """
    _check_size(body)
    (count,) = _unpack(_COUNT, body, 0)
    if not 0 <= count <= CLIENT_REGISTER_ENTRIES_MAX:
        raise MalformedMetaError(f"a map of {count} entries, at most {CLIENT_REGISTER_ENTRIES_MAX}")
    position = _COUNT.size
    values: dict[bytes, str] = {}
    for _ in range(count):
        key, value_at = decode_str_bytes(body, position, error=MalformedMetaError)
        # What we do not know need not be text.
        if key in _CLIENT_REGISTER_KEYS:
            values[key], position = decode_str(body, value_at, error=MalformedMetaError)
        else:
            _, position = decode_str_bytes(body, value_at, error=MalformedMetaError)
    client_type = _number(values, b"clientTypeCode", ClientType.OTHER)
    return ClientRegister(
        subject=values.get(b"subject", ""),
        client_type=client_type if _I8_MIN <= client_type <= _I8_MAX else ClientType.OTHER,
        client_id=values.get(b"clientId", ""),
        consumer_group=values.get(b"consumerGroup", ""),
        app_code=values.get(b"appCode", ""),
        register_type=_number(values, b"requestType", RegisterType.ONLINE),
        ldc=values.get(b"clientLDC", ""),
    )


def encode_client_register_reply(reply: ClientRegisterReply) -> bytes:
    """Return the body of an answer to CLIENT_REGISTER; raise LocalProtocolError."""
    parts = [
        _pack(_TIMESTAMP, reply.timestamp_ms),
        encode_str(reply.subject),
        encode_str(reply.consumer_group),
        _pack(_STATE_TYPE_COUNT, reply.online_state, reply.client_type, len(reply.groups)),
    ]
    for group in reply.groups:
        parts += (
            encode_str(group.name),
            encode_str(group.master),
            _pack(_UPDATED_STATE, group.updated_ms, group.state),
        )
    return b"".join(parts)


def decode_client_register_reply(body: bytes) -> ClientRegisterReply:
    """Return what an answer to CLIENT_REGISTER, or a push, says; raise MalformedMetaError.

    It has as many groups as its writer put into it: its bytes, so the connection's limit for a
    frame, bound what it takes.
    """
    (timestamp_ms,) = _unpack(_TIMESTAMP, body, 0)
    subject, position = decode_str(body, _TIMESTAMP.size, error=MalformedMetaError)
    consumer_group, position = decode_str(body, position, error=MalformedMetaError)
    online_state, client_type, count = _unpack(_STATE_TYPE_COUNT, body, position)
    if count < 0:
        raise MalformedMetaError(f"{count} broker groups")
    position += _STATE_TYPE_COUNT.size
    groups: list[BrokerGroupInfo] = []
    for _ in range(count):
        name, position = decode_str(body, position, error=MalformedMetaError)
        master, position = decode_str(body, position, error=MalformedMetaError)
        updated_ms, state = _unpack(_UPDATED_STATE, body, position)
        position += _UPDATED_STATE.size
        groups.append(
            BrokerGroupInfo(
                name=name, master=master, updated_ms=updated_ms, state=_code(BrokerState, state)
            )
        )
    return ClientRegisterReply(
        timestamp_ms=timestamp_ms,
        subject=subject,
        consumer_group=consumer_group,
        online_state=_code(OnlineState, online_state),
        client_type=client_type,
        groups=tuple(groups),
    )


def encode_acquire_meta(request: AcquireMeta) -> bytes:
    """Return the body of a BROKER_ACQUIRE_META; raise LocalProtocolError."""
    return encode_str(request.hostname) + _pack(_I32, request.serve_port)


def decode_acquire_meta(body: bytes) -> AcquireMeta:
    """Return what a BROKER_ACQUIRE_META says; raise MalformedMetaError."""
    _check_size(body)
    hostname, position = decode_str(body, 0, error=MalformedMetaError)
    (serve_port,) = _unpack(_I32, body, position)
    return AcquireMeta(hostname=hostname, serve_port=serve_port)


def encode_acquire_meta_reply(reply: AcquireMetaReply) -> bytes:
    """Return the body of an answer to BROKER_ACQUIRE_META; raise LocalProtocolError."""
    return encode_str(reply.group) + encode_str(reply.master) + _pack(_I32, reply.role)


def decode_acquire_meta_reply(body: bytes) -> AcquireMetaReply:
    """Return what an answer to BROKER_ACQUIRE_META says; raise MalformedMetaError."""
    group, position = decode_str(body, 0, error=MalformedMetaError)
    master, position = decode_str(body, position, error=MalformedMetaError)
    (role,) = _unpack(_I32, body, position)
    return AcquireMetaReply(group=group, master=master, role=_code(BrokerRole, role))


def encode_broker_register(request: BrokerRegister) -> bytes:
    """Return the body of a BROKER_REGISTER; raise LocalProtocolError."""
    return b"".join(
        (
            _pack(_I32, request.request_type),
            encode_str(request.group),
            encode_str(request.address),
            _pack(_ROLE_STATE, request.role, request.state),
        )
    )


def decode_broker_register(body: bytes) -> BrokerRegister:
    """Return what a BROKER_REGISTER says; raise MalformedMetaError."""
    _check_size(body)
    (request_type,) = _unpack(_I32, body, 0)
    group, position = decode_str(body, _I32.size, error=MalformedMetaError)
    address, position = decode_str(body, position, error=MalformedMetaError)
    role, state = _unpack(_ROLE_STATE, body, position)
    return BrokerRegister(
        request_type=_code(BrokerRequestType, request_type),
        group=group,
        address=address,
        role=_code(BrokerRole, role),
        state=_code(BrokerState, state),
    )


def _check_size(body: bytes) -> None:
    if len(body) > META_BODY_BYTES_MAX:
        raise MalformedMetaError(f"a body of {len(body)} bytes, at most {META_BODY_BYTES_MAX}")


def _number(values: Mapping[bytes, str], key: bytes, default: int) -> int:
    """Return the number a value stands for as Java's parseInt reads it, or the default."""
    found = _JAVA_INT.fullmatch(values.get(key, ""))
    if found is None:
        return default
    number = int(found["sign"] + found["digits"])
    return number if -(2**31) <= number < 2**31 else default


def _code(kind: type[Code], number: int) -> Code:
    try:
        return kind(number)
    except ValueError:
        raise MalformedMetaError(f"{number} is no {kind.__name__}") from None


def _pack(layout: struct.Struct, *numbers: int) -> bytes:
    try:
        return layout.pack(*numbers)
    except struct.error as error:
        raise LocalProtocolError(f"{numbers} do not fit: {error}") from error


def _unpack(layout: struct.Struct, body: bytes, position: int) -> tuple[int, ...]:
    try:
        return layout.unpack_from(body, position)
    except struct.error:
        raise MalformedMetaError(
            f"{layout.size} bytes needed at {position} of {len(body)}"
        ) from None
