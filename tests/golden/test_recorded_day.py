"""A recorded day: requests of all kinds to a meta server, and what it has always answered.

`recorded_day.jsonl.xz` has a step in each line, and what came from the server until it was quiet
again. A test goes through the steps in virtual time and compares. The steps are:

    ["serve", settings]               another meta server, with an empty store; `killed`: it is
                                      killed at each end
    ["restart"]                       the same one again
    ["open", peer, address]           a connection from an IP address
    ["close", peer]
    ["ask", peer, code, body, version]  a request of QMQ's wire; the body is hex
    ["node", peer, fields]            NODE_REGISTER of `meta_rig.node`; `stands` has those of Stands
    ["state", peer, what, state]      what the node on this connection is for producers
    ["change", peer, kind, fields]    GROUP_CHANGE, of the pair that the peer knows; `back` is
                                      taken from its epoch
    ["receiver", peer, fields]        RECEIVER_REGISTER
    ["challenge", peer, secret]       NODE_CHALLENGE; what follows is sealed with this secret
    ["again", peer]                   the very bytes of the peer's last request
    ["operate", operation, arguments, fields]
    ["store", whether it is there]
    ["secret", lines of its file]
    ["keep", {peer: seconds}]         these peers repeat their last registration so often
    ["wait", seconds]

Steps of a list in a line come at once. Answers are compared byte for byte; of each peer those to
requests, ordered by their numbers, then pushes, ordered by what they are about, then the last
answer to what it repeats, where that is another than before. Not compared:

* timestamps of answers to CLIENT_REGISTER, versions of records and of lists of masters, nonces,
  `now_ms` of NODE_REGISTER;
* commands in sentences for people;
* NODE_WATCH, which is not asked. Of an answer to NODE_REGISTER the fields of
  `COMPARED` count, and its request is made by `meta_rig.node`: both forms may change;
* answers to what our own nodes say of their state for producers. What follows for clients is
  compared;
* what is shown to an operator: it counts whether the operation went well.

`python -m tests.golden.test_recorded_day DIRECTORY` writes the answers of the present tree into the
file. That is right only for a change that is meant to be seen by peers: look at the difference.
"""

import lzma
import math
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
import trio

from delay_protocol.basics.codes import CommandCode
from delay_protocol.meta import requests
from delay_protocol.nodes import group_changes
from delay_protocol.nodes.auth import (
    Challenge,
    Direction,
    decode_challenge,
    encode_challenge,
    seal,
    session_key,
    unseal,
)
from delay_protocol.nodes.registration import (
    NodeRegistered,
    Stands,
    decode_node_reply,
    encode_node_register,
)
from delay_protocol.wire.frames import VERSION, Frame, FrameDecoder, encode_request
from meta_server.groups.routing import RoutingLimits
from meta_server.settings.config import ListenerConfig, RegistrationConfig
from tests.kit.operator import OperationRefusedError, Operator
from tests.kit.virtual_time import run_in_virtual_time, virtual_time
from tests.meta_server.meta_rig import World, make_config, node, uuid

FILE = Path(__file__).with_name("recorded_day.jsonl.xz")
COMPARED = ("role", "record", "again_ms", "is_retired", "log_uuid", "members", "clock_fault")
"""Fields of NodeRegistered that are recorded and compared."""
TICK_S = 0.7
"""Steps are taken at multiples of this, and each peer repeats at a time of its own: so it does not
matter how long something takes, and nothing happens just when a time-out of whole or half seconds
is over. Pushes are gathered for 0.05 s."""
NONCE = bytes(range(32))

Step = list[Any]
Answers = dict[str, list[str]]


@dataclass
class DayPeer:
    """A connection of the day."""

    stream: trio.abc.Stream
    decoder: FrameDecoder = field(default_factory=lambda: FrameDecoder(frame_bytes_max=1 << 26))
    opaque: int = 0
    sealed: int = 0
    secret: bytes = b""
    key: bytes = b""
    sent: bytes = b""
    """The last request, as it was sent."""
    repeats: list[tuple[int, bytes]] = field(default_factory=list)
    """Code and body of what the peer sends again and again, beside its registration as a node."""
    state: str | None = None
    """The state of its node, for producers."""
    node: dict[str, Any] = field(default_factory=dict)
    """Fields of its last registration as a node."""
    asked: set[int] = field(default_factory=set)
    """Numbers of requests whose answers are compared one by one."""
    unseen: set[int] = field(default_factory=set)
    """Numbers of requests whose answers are not compared."""
    epoch: int = 0
    version: int = 0
    """Epoch and version of the newest record that the peer knows."""
    masters: int = 0
    """The version of the masters that it was told last."""
    answers: list[tuple[int, str]] = field(default_factory=list)
    pushes: list[tuple[str, str]] = field(default_factory=list)
    """Each with the use of a subject that it is about."""
    repeated: str = ""
    repeated_before: str = ""


class Day:
    """A meta server, its peers, and what came from it."""

    def __init__(self, nursery: trio.Nursery, directory: Path) -> None:
        self._nursery = nursery
        self._secret_file = directory / "secret"
        self._peers: dict[str, DayPeer] = {}
        self._kept: dict[str, trio.CancelScope] = {}
        self._settings: dict[str, Any] = {}
        self._ended: list[str] = []
        self._world = World()
        self._serving = AsyncExitStack()
        self._operator: Operator

    async def take(self, step: Step) -> Answers:
        """Do what a line says; return what came until all was quiet."""
        steps = step if isinstance(step[0], list) else [step]
        done: list[str] = []
        for what, *arguments in steps:
            if found := await getattr(self, f"_{what}")(*arguments):
                done.append(found)
        await until_next(TICK_S)
        came = {"": done + sorted(self._ended)} if done or self._ended else {}
        self._ended = []
        for name, peer in self._peers.items():
            lines = [line for _, line in sorted(peer.answers)]
            lines += [line for _, line in sorted(peer.pushes, key=lambda push: push[0])]
            if peer.repeated != peer.repeated_before:
                lines.append(f"again: {peer.repeated}")
            if lines:
                came[name] = lines
            peer.answers, peer.pushes = [], []
            peer.repeated_before = peer.repeated
        return came

    async def end(self) -> None:
        """Stop the server."""
        await self._keep({})
        await self._serving.aclose()

    # -- the server --------------------------------------------------------------------------

    async def _serve(self, settings: dict[str, Any]) -> None:
        await self.end()
        self._world, self._settings = World(), settings
        await self._restart()

    async def _restart(self) -> None:
        await self.end()
        self._peers, self._ended = {}, []
        registration = dict(self._settings.get("registration", {}))
        if registration.pop("secret", None):
            registration["secret_file"] = str(self._secret_file)
        config = make_config(
            # When a silent connection ends is drawn at random.
            listener=ListenerConfig(idle_seconds_max=100_000),
            registration=RegistrationConfig(**registration),
            routing=RoutingLimits(**self._settings.get("routing", {})),
        )
        serving = self._world.serving(config, kill=self._settings.get("killed", False))
        self._operator = Operator(await self._serving.enter_async_context(serving))

    async def _store(self, is_there: bool) -> None:
        self._world.medium.is_down = not is_there

    async def _secret(self, lines: str) -> None:
        self._secret_file.write_text(lines)
        self._secret_file.chmod(0o600)

    async def _operate(
        self, operation: str, arguments: list[Any], fields: dict[str, Any]
    ) -> str | None:
        try:
            await getattr(self._operator, operation)(*arguments, **fields)
        except OperationRefusedError:
            return f"{operation} refused"
        return f"{operation} done"

    async def _wait(self, seconds: float) -> None:
        await trio.sleep(seconds)

    # -- connections -------------------------------------------------------------------------

    async def _open(self, name: str, address: str) -> None:
        stream = (await self._world.connect()).stream
        # Before it is accepted: the server knows whence it comes by that.
        stream.peer.peer_name = f"{address}:{40_000 + len(self._peers)}"  # type: ignore[attr-defined]
        self._peers[name] = peer = DayPeer(stream)
        self._nursery.start_soon(self._receive, name, peer)

    async def _close(self, name: str) -> None:
        await self._peers.pop(name).stream.aclose()

    async def _receive(self, name: str, peer: DayPeer) -> None:
        try:
            while data := await peer.stream.receive_some(1 << 20):
                peer.decoder.feed(data)
                for frame in peer.decoder.frames():
                    self._came(peer, frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        if self._peers.get(name) is peer:
            self._ended.append(f"{name} was hung up on")

    def _came(self, peer: DayPeer, frame: Frame) -> None:
        line = shown(peer, frame)
        if not frame.opaque:
            peer.pushes.append((line.partition(" *")[0], line))
        elif frame.opaque in peer.asked:
            peer.answers.append((frame.opaque, f"{frame.opaque}: {line}"))
        elif frame.opaque not in peer.unseen:
            peer.repeated = line

    async def _send(self, peer: DayPeer, code: int, body: bytes, version: int = VERSION) -> int:
        """Send a request; return its number."""
        peer.opaque += 1
        if peer.key and code in SEALED:
            peer.sealed += 1
            body = seal(peer.key, Direction.REQUEST, code, peer.sealed, body)
        peer.sent = encode_request(code=code, opaque=peer.opaque, body=body, version=version)
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await peer.stream.send_all(peer.sent)
        return peer.opaque

    async def _keep(self, periods: dict[str, float]) -> None:
        for scope in self._kept.values():
            scope.cancel()
        self._kept = {name: trio.CancelScope() for name in periods}
        for number, (name, period) in enumerate(periods.items()):
            repeat = (name, period, 0.13 + 0.03 * number, self._kept[name])
            self._nursery.start_soon(self._repeat, *repeat)

    async def _repeat(
        self, name: str, period: float, late_s: float, scope: trio.CancelScope
    ) -> None:
        with scope:
            while True:
                await until_next(period, late_s)
                if peer := self._peers.get(name):
                    if peer.node:
                        await self._send(peer, CommandCode.NODE_REGISTER, registration(peer))
                        # The state was a request of its own: numbers stay as they were recorded.
                        peer.opaque += peer.state is not None
                    for code, body in peer.repeats:
                        await self._send(peer, code, body)

    # -- requests ----------------------------------------------------------------------------

    async def _ask(self, name: str, code: int, body: str, version: int = VERSION) -> None:
        peer = self._peers[name]
        if code == CommandCode.CLIENT_REGISTER:
            peer.repeats = [(code, bytes.fromhex(body))]
        elif code == CommandCode.BROKER_REGISTER:
            # What a broker repeats is its heartbeat.
            peer.repeats = [(code, b"\0\0\0\1" + bytes.fromhex(body)[4:])]
        peer.asked.add(await self._send(peer, code, bytes.fromhex(body), version))

    async def _node(self, name: str, fields: dict[str, Any]) -> None:
        peer = self._peers[name]
        peer.node = fields
        peer.asked.add(await self._send(peer, CommandCode.NODE_REGISTER, registration(peer)))

    async def _state(self, name: str, what: str, state: str) -> None:
        """Register a node with its state for producers, now and whenever it registers."""
        peer = self._peers[name]
        peer.state = {"ONLINE": "RW", "OFFLINE": "NRW"}.get(what, state)
        code = CommandCode.NODE_REGISTER
        peer.unseen.add(await self._send(peer, code, registration(peer)))
        peer.state = state

    async def _change(self, name: str, kind: str, fields: dict[str, Any]) -> None:
        peer, fields = self._peers[name], dict(fields)
        epoch = max(0, peer.epoch - fields.pop("back", 0))
        change: group_changes.GroupChange
        if kind == "vote":
            change = group_changes.Vote(epoch=epoch, **fields)
        elif kind == "alter":
            in_sync = {one: uuid(storage) for one, storage in fields["in_sync"].items()}
            change = group_changes.Alter(epoch=epoch, version=peer.version, in_sync=in_sync)
        else:
            change = group_changes.HandOver(epoch=epoch, version=peer.version, **fields)
        body = group_changes.encode_group_change(change)
        peer.asked.add(await self._send(peer, CommandCode.GROUP_CHANGE, body))

    async def _receiver(self, name: str, fields: dict[str, Any]) -> None:
        peer = self._peers[name]
        body = msgspec.msgpack.encode({**fields, "told": peer.masters})
        peer.asked.add(await self._send(peer, CommandCode.RECEIVER_REGISTER, body))

    async def _challenge(self, name: str, secret: str) -> None:
        peer = self._peers[name]
        peer.secret, peer.key = secret.encode(), b""
        body = encode_challenge(Challenge(nonce=NONCE))
        peer.asked.add(await self._send(peer, CommandCode.NODE_CHALLENGE, body))

    async def _again(self, name: str) -> None:
        await self._peers[name].stream.send_all(self._peers[name].sent)


NAMED = (
    *("node_id", "group", "log", "storage", "incarnation", "last_sequence", "last_epoch"),
    *("address", "cluster", "boot", "replaces"),
)
"""Arguments of `meta_rig.node`; other fields are those of NodeRegister."""
SEALED = {
    CommandCode.NODE_REGISTER,
    *(CommandCode.NODE_WATCH, CommandCode.GROUP_CHANGE),
}


async def until_next(period: float, late_s: float = 0.0) -> None:
    """Wait until the next multiple of a time."""
    count = math.floor((trio.current_time() - late_s) / period + 1.001)
    await trio.sleep_until(count * period + late_s)


def registration(peer: DayPeer) -> bytes:
    """Return the body with which a peer registers as a node; `hears` "now": the epoch it knows."""
    fields = dict(peer.node)
    stands = dict(fields.pop("stands", {}))
    if stands.get("hears") == "now":
        stands["hears"] = peer.epoch
    request = node(**{one: fields.pop(one) for one in NAMED if one in fields})
    said = {"stands": Stands(**stands), "state": peer.state, **fields}
    return encode_node_register(msgspec.structs.replace(request, **said))


def shown(peer: DayPeer, frame: Frame) -> str:
    """Return a line that says all that a frame has, but for what is not compared."""
    head = f"{frame.code} {frame.version} {frame.flag} {frame.request_code}"
    if frame.code or not frame.body:
        return f"{head} {_masked(frame.body.decode())}"
    return f"{head} {_SHOWN.get(frame.request_code, _plain)(peer, frame.body)}"


def _plain(_: DayPeer, body: bytes) -> str:
    return body.hex()


def _client(_: DayPeer, body: bytes) -> str:
    reply = requests.decode_client_register_reply(body)
    assert requests.encode_client_register_reply(reply) == body
    parts = [
        "refused" if reply.timestamp_ms < 0 else "at its time",
        repr(reply.subject),
        repr(reply.consumer_group),
        reply.online_state.name,
        str(reply.client_type),
        *(f"*{one.name}@{one.master} {one.state.name}" for one in reply.groups),
    ]
    return ", ".join(parts)


def _registered(peer: DayPeer, body: bytes) -> str:
    reply = decode_node_reply(_opened(peer, CommandCode.NODE_REGISTER, body))
    if not isinstance(reply, NodeRegistered):
        return f"refused: {_masked(reply.reason)}"
    peer.epoch, peer.version = reply.record.epoch, reply.record.version
    values = msgspec.to_builtins(reply)
    del values["record"]["version"]
    return msgspec.json.encode({one: values[one] for one in COMPARED if one in values}).decode()


def _changed(peer: DayPeer, body: bytes) -> str:
    reply = group_changes.decode_change_reply(_opened(peer, CommandCode.GROUP_CHANGE, body))
    peer.epoch, peer.version = reply.record.epoch, reply.record.version
    record = msgspec.to_builtins(reply.record)
    del record["version"]
    return f"{msgspec.json.encode(record).decode()} {_masked(reply.refusal)}"


def _told_masters(peer: DayPeer, body: bytes) -> str:
    reply = msgspec.msgpack.decode(body)
    peer.masters = reply.pop("version", peer.masters)
    return _masked(msgspec.json.encode(reply).decode())


def _challenged(peer: DayPeer, body: bytes) -> str:
    nonce = decode_challenge(body).nonce
    peer.key, peer.sealed = session_key(peer.secret, node_nonce=NONCE, meta_nonce=nonce), 0
    return f"a nonce of {len(nonce)} bytes"


def _opened(peer: DayPeer, code: int, body: bytes) -> bytes:
    if not peer.key:
        return body
    found = unseal([peer.key], Direction.ANSWER, code, body)
    assert found is not None
    return found[2]


_SHOWN: dict[int, Callable[[DayPeer, bytes], str]] = {
    CommandCode.CLIENT_REGISTER: _client,
    CommandCode.NODE_REGISTER: _registered,
    CommandCode.GROUP_CHANGE: _changed,
    CommandCode.RECEIVER_REGISTER: _told_masters,
    CommandCode.NODE_CHALLENGE: _challenged,
}


def _masked(sentence: str) -> str:
    sentence = re.sub(r"delaywheel admin [^`)]*", "delaywheel admin …", sentence)
    return re.sub(r"version \d+", "version …", sentence)


def recorded() -> Iterator[tuple[Step, Answers]]:
    """Yield the steps of the file, with what came."""
    for line in lzma.decompress(FILE.read_bytes()).splitlines():
        step, answers = msgspec.json.decode(line)
        yield step, answers


def compared(answers: Answers) -> Answers:
    """Return answers without the fields of NodeRegistered that are not compared any more."""
    return {name: [_compared(line) for line in lines] for name, lines in answers.items()}


def _compared(line: str) -> str:
    head, opens, rest = line.partition(' {"role":')
    if not opens:
        return line
    values = msgspec.json.decode(f"{opens}{rest}".encode())
    kept = {one: values[one] for one in COMPARED if one in values}
    return f"{head} {msgspec.json.encode(kept).decode()}"


@asynccontextmanager
async def a_day(directory: Path) -> AsyncIterator[Day]:
    """Begin a day without a server."""
    with structlog.testing.capture_logs():
        async with trio.open_nursery() as nursery:
            day = Day(nursery, directory)
            try:
                yield day
            finally:
                await day.end()
            nursery.cancel_scope.cancel()


@pytest.mark.slow
@virtual_time
async def test_a_recorded_day_gets_the_same_answers(tmp_path: Path) -> None:
    async with a_day(tmp_path) as day:
        for number, (step, answers) in enumerate(recorded(), 1):
            came, expected = compared(await day.take(step)), compared(answers)
            for name in sorted(came.keys() | expected.keys()):
                assert came.get(name) == expected.get(name), f"line {number}, of {name}: {step}"


async def _record(directory: Path) -> None:
    lines = []
    async with a_day(directory) as day:
        for step, _ in recorded():
            lines.append(msgspec.json.encode([step, await day.take(step)]))
    FILE.write_bytes(lzma.compress(b"\n".join(lines), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    run_in_virtual_time(lambda: _record(Path(sys.argv[1])))
