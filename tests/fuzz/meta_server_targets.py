"""Targets for a whole meta server: what peers send it, and what comes in over HTTP.

Each input gets a server of its own on a store in memory, in virtual time, with a little in it: some
groups, brokers, subjects, routes and a delay server. Whatever is asked,

* every request is answered, once, and never because of a bug of ours;
* what the server knows afterwards is what its store has.
"""

import contextlib
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlsplit

import structlog
import trio

from delay_client.exchange.discovery import ANSWER_BYTES_MAX, AddressAnswer, DiscoveryError
from delay_client.messages.config import parse_server
from delay_protocol.basics.codes import CommandCode
from delay_protocol.meta.requests import BrokerRole, BrokerState, decode_client_register_reply
from delay_protocol.nodes.auth import decode_challenge
from delay_protocol.nodes.group_changes import (
    WATCH_S,
    decode_change_reply,
    decode_watch_reply,
)
from delay_protocol.nodes.registration import decode_node_reply
from delay_protocol.receivers.masters import decode_receiver_reply
from delay_protocol.wire.frames import Frame
from delay_transport.http.addresses import PlaceError, check_local, check_same_site, is_loopback
from delay_transport.http.convert import convert_request, single_values
from delay_transport.http.tokens import Token, decode_tokens, encode_tokens
from delay_transport.meta.address import MetaAddressError, MetaLocator
from delay_transport.seams.errors import ConfigError
from delay_transport.seams.runtime import Address, Listener
from meta_server.admin.api import API
from meta_server.groups.broker_groups import check_address, check_group_name, check_name
from meta_server.groups.receiver_groups import check_pattern, check_receiver
from meta_server.groups.roles import check_belongs, plan_node
from meta_server.known.model import Broker, BrokerGroup, Contents, GroupKind, Route, Subject
from meta_server.known.registry import Registry
from meta_server.server import MetaServer
from tests.asgi import JSON, Answer
from tests.delay_protocol.nodes.bodies import REQUEST
from tests.fuzz.target import attempt, byte_at, fault_of, target
from tests.kit.operator import Operator
from tests.meta_server.memory_store import Medium, MemoryRecordFile, contents_of
from tests.meta_server.meta_rig import World
from tests.simulation.clock import EventClock

_FRAMES_MAX: Final = 6
_CODES: Final = (
    CommandCode.CLIENT_REGISTER,
    CommandCode.BROKER_REGISTER,
    CommandCode.NODE_REGISTER,
    CommandCode.BROKER_ACQUIRE_META,
    CommandCode.NODE_CHALLENGE,
    CommandCode.NODE_WATCH,
    CommandCode.GROUP_CHANGE,
    CommandCode.RECEIVER_REGISTER,
)


def _contents() -> Contents:
    registry = Registry(
        Contents(
            rows=(
                BrokerGroup(name="g1", kind=GroupKind.NORMAL, master="b:1", state=BrokerState.RW),
                BrokerGroup(name="g2", kind=GroupKind.NORMAL, master="b:2", state=BrokerState.RW),
                Broker(
                    hostname="h", serve_port=1, ip="1.2.3.4", group="g1", role=BrokerRole.MASTER
                ),
                Subject(name="s1"),
                Subject(name="s2"),
                Route(name="s1", groups=("g1", "g2")),
                Route(name="p.", is_prefix=True, groups=("g2",), is_chosen=False),
            ),
        )
    )
    node = plan_node(
        registry,
        REQUEST,
        is_heard=False,
        is_present=False,
        now_ms=1,
    )
    registry.apply(node.changes)
    return contents_of(registry)


@dataclass(eq=False)
class _Peer:
    """A connection that takes answers."""

    peer: str = "10.0.0.9:50000"
    where: str = "10.0.0.9"
    answers: list[tuple[Frame, int, bytes]] = field(default_factory=list)
    unsent_bytes: int = 0
    is_closed: bool = False
    pending: int = 0

    def answer(self, request: Frame, code: int, body: bytes = b"") -> None:
        self.answers.append((request, code, body))

    def begin(self, requests: int, _: int) -> None:
        self.pending += requests

    def done(self, requests: int, _: int) -> None:
        self.pending -= requests
        assert self.pending >= 0

    def reply(self, _: bytes) -> None:
        """Take a push."""

    def fault(self, count: int = 1) -> None:
        assert count > 0

    def warn(self, _: str, **details: object) -> None:
        assert all(isinstance(name, str) for name in details)


class _Rig:
    """One server object for all inputs; what it knows is loaded anew for each."""

    def __init__(self) -> None:
        self.world = World()
        self.server: MetaServer = self.world.server()
        self.server.ready.set()
        self.operator = Operator(self.server, headers={"x-api-token": "x"})
        self.contents = _contents()

    async def run(self, use: Callable[["_Rig"], Awaitable[None]]) -> None:
        self.world.medium = Medium(self.contents)
        self.world.record_file.document = MemoryRecordFile(self.contents).document
        self.world.chance.seed(1)
        await self.server.open()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.server.committer.run)
            nursery.start_soon(self.server.silence.run)
            nursery.start_soon(self.server.handlers.held.run)
            nursery.start_soon(self.server.handlers.dispatcher.run)
            await use(self)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        known, stored = contents_of(self.server.registry), self.world.medium.contents
        assert known.timestamp_ms == stored.timestamp_ms
        assert set(map(repr, known.rows)) == set(map(repr, stored.rows))


_RIGS: Final[list[_Rig]] = []


def _run(use: Callable[[_Rig], Awaitable[None]]) -> None:
    async def main() -> None:
        if not _RIGS:
            _RIGS.append(_Rig())
        await _RIGS[0].run(use)

    # Refusals are told in the log, which is nobody's here.
    with structlog.testing.capture_logs():
        trio.run(main, clock=EventClock())


META_SERVER = ("meta_server", "delay_protocol")
_SERVER_MEMORY: Final = 8 * 1024 * 1024
"""A server of its own, with types of requests that are looked up at first."""


@target(
    decoders=(
        *(check_name, check_group_name, check_address, check_belongs),
        *(check_receiver, check_pattern),
    ),
    packages=META_SERVER,
    memory_per_byte=2000,
    memory_base=_SERVER_MEMORY,
)
def meta_peers(data: bytes) -> None:
    """Each request that brokers, clients and nodes send is answered once, and can be read.

    Requests are cut at their sizes: a byte for the code, two for the body's size, the body.
    """
    frames: list[Frame] = []
    position = 0
    while position < len(data) and len(frames) < _FRAMES_MAX:
        code = _CODES[data[position] % len(_CODES)]
        size = int.from_bytes(data[position + 1 : position + 3], "big")
        body = data[position + 3 : position + 3 + size]
        position += 3 + size
        frames.append(
            Frame(code=code, version=9, opaque=len(frames), flag=0, request_code=code, body=body)
        )

    async def use(rig: _Rig) -> None:
        peer: Any = _Peer()
        dispatch = rig.server.handlers.dispatch()
        for frame in frames:
            dispatch.frames(peer, [frame])
        # What asks for news waits until there are others than it was sent.
        await trio.sleep(WATCH_S + 5)
        assert sorted(frame.opaque for frame, _, _ in peer.answers) == list(range(len(frames)))
        assert peer.pending == 0
        for frame, code, body in peer.answers:
            if code == 0 and frame.code == CommandCode.CLIENT_REGISTER:
                decode_client_register_reply(body)
            elif code == 0 and frame.code == CommandCode.NODE_REGISTER:
                decode_node_reply(body)
            elif code == 0 and frame.code == CommandCode.NODE_CHALLENGE:
                decode_challenge(body)
            elif code == 0 and frame.code == CommandCode.NODE_WATCH:
                controls = decode_watch_reply(body).controls
                assert controls is None or controls.id.store == rig.server.store.uuid
            elif code == 0 and frame.code == CommandCode.GROUP_CHANGE:
                decode_change_reply(body)
            elif code == 0 and frame.code == CommandCode.RECEIVER_REGISTER:
                decode_receiver_reply(body)
        assert len(rig.server.handlers.held) == 0
        dispatch.closed(peer, None)  # type: ignore[arg-type]
        assert rig.server.handlers.sessions.uses == 0

    _run(use)


@target(
    decoders=(convert_request, single_values),
    packages=META_SERVER,
    memory_per_byte=2000,
    memory_base=_SERVER_MEMORY,
)
def meta_admin(data: bytes) -> None:
    """Every operation of the API answers what it is asked, or says which field is wrong.

    The first byte chooses the operation; then, divided by zeros: parts of the path, names and
    values of parameters after a zero more, and the body.
    """
    operation = API.operations[byte_at(data, 0) % len(API.operations)]
    path, query, body = _three(data[1:])
    target = operation.path
    for name in operation.path_type.__struct_fields__:
        part, _, path = path.partition(b"\0")
        target = target.replace(f"{{{name}}}", quote(part.decode(errors="replace"), safe="") or "-")
    parameters = _pairs(query)

    async def use(rig: _Rig) -> None:
        answer = await rig.operator.ask(
            operation.method,
            f"{API.prefix}{target}",
            raw=body if operation.body_type is not None else None,
            headers=JSON if operation.body_type is not None else None,
            query=parameters,
        )
        _check(answer)
        if operation.method == "GET":
            assert rig.world.medium.commits == []

    _run(use)


def _check(answer: Answer) -> None:
    assert answer.code != 500, answer.body
    if answer.code >= 400 and answer.body.startswith(b"{"):
        error = answer.error
        assert error["code"]
        assert error["message"]
        assert answer.code != 400 or error["field"]


def _three(data: bytes) -> tuple[bytes, bytes, bytes]:
    path, _, rest = data.partition(b"\0\0")
    query, _, body = rest.partition(b"\0\0")
    return path, query, body


def _pairs(data: bytes) -> dict[str, list[str]]:
    pairs: dict[str, list[str]] = {}
    texts = [part.decode(errors="replace") for part in data.split(b"\0")[:20]]
    for name, value in itertools.zip_longest(texts[::2], texts[1::2], fillvalue=""):
        if name:
            pairs.setdefault(name, []).append(value)
    return pairs


@target(
    decoders=(parse_server,),
    packages=("delay_client.exchange.discovery", "delay_client.messages.config"),
)
def discovery(data: bytes) -> None:
    """What /meta/address answers is an address or an error of ours, however the answer is cut."""
    cut = byte_at(data, 0) + 1
    body = data[1:]
    whole = _discovered(body, len(body) or 1)
    pieces = _discovered(body, cut)
    # An answer may be refused sooner for what has come so far; if both find one it is the same.
    if whole is not None and pieces is not None:
        assert whole == pieces
    for found in (whole, pieces):
        if found is not None:
            host, port = found
            assert host
            assert 0 < port < 65536
            assert parse_server(f"[{host}]:{port}" if ":" in host else f"{host}:{port}") == found


def _discovered(body: bytes, step: int) -> tuple[str, int] | None:
    answer = AddressAnswer()
    with contextlib.suppress(DiscoveryError):
        for start in range(0, len(body), step):
            answer.feed(body[start : start + step])
        assert len(body) <= ANSWER_BYTES_MAX
        return answer.finish()
    return None


@target(
    decoders=(MetaLocator.locate,),
    packages=("delay_transport.meta.address", "delay_client.exchange.discovery", "h11"),
    memory_base=4 * 1024 * 1024,
)
def meta_address(data: bytes) -> None:
    """A delay server finds the address that a client finds, or says why there is none.

    The first byte says how the answer is cut.
    """
    step, body = byte_at(data, 0) + 1, data[1:]

    async def ask() -> Address | None:
        try:
            return await MetaLocator(_Answering(body, step), [("m", 80)]).locate()
        except MetaAddressError as error:
            ((address, reason),) = error.reasons
            assert address == ("m", 80)
            assert reason
            return None

    found = trio.run(ask, clock=EventClock())
    if found is None:
        return
    assert found[0]
    assert 0 < found[1] < 65536
    # They differ in what is too odd for them, not in what it means.
    assert _discovered(body, len(body) or 1) in {None, found}


class _Answer(trio.abc.Stream):
    """What one says who answers so to anything, bit by bit, and closes."""

    def __init__(self, answer: bytes, step: int) -> None:
        self._rest = answer
        self._step = step

    async def send_all(self, _: object) -> None:
        """Take a question."""

    async def wait_send_all_might_not_block(self) -> None:
        """Take one at any time."""

    async def receive_some(self, _: int | None = None) -> bytes:
        part, self._rest = self._rest[: self._step], self._rest[self._step :]
        return part

    async def aclose(self) -> None:
        """Be gone."""


class _Answering:
    """A network on which everybody answers the same."""

    def __init__(self, answer: bytes, step: int) -> None:
        self._answer = answer
        self._step = step

    async def connect(self, _host: str, _port: int) -> trio.abc.Stream:
        return _Answer(self._answer, self._step)

    async def listen(self, host: str, port: int) -> Listener:
        raise NotImplementedError


@target(decoders=(decode_tokens,), packages=("delay_transport.http.tokens",))
def tokens(data: bytes) -> None:
    """A file of tokens is what was written, or refused with a sentence."""
    found = attempt(ConfigError, decode_tokens, data, source="tokens.json")
    if found is not None:
        assert all(isinstance(token, Token) for token in found)
        assert decode_tokens(encode_tokens(found), source="again") == found


@target(
    decoders=(check_local, check_same_site),
    packages=("delay_transport.http.addresses",),
    size_max=512,
)
def http_access(data: bytes) -> None:
    """Headers let nobody pass who is not on this machine, or comes from a page of elsewhere."""
    values = data.decode("latin-1").split("\0")[:3]
    headers = dict(zip(("host", "origin", "sec-fetch-site"), values, strict=False))
    fault = fault_of(PlaceError, check_local, headers, "127.0.0.1", {_OWN})
    assert fault is None or fault.kind == "host"
    if fault is None and "host" in headers:
        name = headers["host"].lower()
        if name not in {_OWN, "localhost"} and not is_loopback(name):
            found = urlsplit(f"//{name}").hostname or ""
            assert found == _OWN or is_loopback(found)
    assert fault_of(PlaceError, check_local, headers, "10.0.0.9", {_OWN}) is not None
    fault = fault_of(PlaceError, check_same_site, headers)
    assert fault is None or fault.kind == "origin"
    if fault is None and "origin" in headers:
        assert headers["origin"].endswith("://" + headers["host"])


_OWN: Final = "10.0.0.5"
"""What the machine of http_access is called."""
