"""A peer of a simulated meta server that means ill, or is broken: what it says has to be refused.

Each case is a request and what has to come back. Floods ask for much: what they may cost is bounded
by settings, which the world looks after.
"""

import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from uuid import UUID

import trio

from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.meta import requests
from delay_protocol.nodes.group_changes import NodeWatch, encode_node_watch
from delay_protocol.nodes.registration import (
    NodeRegister,
    Refused,
    decode_node_reply,
    encode_node_register,
)
from delay_protocol.wire.frames import Frame, encode_request
from meta_server.known import model
from tests.simulation.meta_peers import ENDS, META, Call, Process, SimDelayNode, changed
from tests.simulation.meta_witness import MetaWitness
from tests.simulation.network import SimNetwork

_NO_HOSTS = ("a b:1", "x..y:5", ".:5", "x" * 100 + ":5", "a\0b:5", "ä:5", "1.2.3:5", "[::1]:5")
"""What no resolver finds, and some end the program over that asks them."""
FLOODS = ("subjects", "uses", "heartbeats", "groups", "nodes", "connections", "deaf", "nonsense")
_HEARD_S = 10.0
"""Whoever was acknowledged so lately is certainly alive for the meta server."""
_FLOOD_S = 20.0


class Expected(Enum):
    """What has to come back."""

    IGNORED = "code 0, timestamp -2, OFFLINE, no groups"
    REFUSED = "code 51 and a reason"
    SILENTLY_REFUSED = "code 51 and nothing"
    NODE_REFUSED = "code 0 and a reason"
    UNKNOWN = "code 3"
    ACCEPTED = "code 0"
    ANY = "anything"


@dataclass(frozen=True, slots=True)
class Case:
    """Something that has to be refused."""

    what: str
    code: int
    body: bytes
    expected: Expected


class SimHostile(Process):
    """A process that connects, says what is wrong, and looks at the answer."""

    def __init__(
        self,
        *,
        network: SimNetwork,
        chance: random.Random,
        witness: MetaWitness,
        nodes: Sequence[SimDelayNode],
        group: str,
        delay_group: str,
        corpus: Sequence[tuple[int, bytes]],
        faults: Counter[str],
    ) -> None:
        """Know a broker group, and a delay group of ours, and inputs that once broke decoders."""
        super().__init__("hostile", network, chance)
        self._witness = witness
        self._nodes = nodes
        self._group = group
        self._delay_group = delay_group
        self._corpus = corpus
        self._faults = faults
        self._flood_number = 0
        # One life at a time.
        self._busy = trio.Lock()

    async def offend(self, count: int) -> None:
        """Say so many wrong things."""

        async def body() -> None:
            for _ in range(count):
                kinds = (
                    self._client_cases,
                    self._broker_cases,
                    self._node_cases,
                    self._other_cases,
                )
                cases = list(self.chance.choice(kinds)())
                await self._try(self.chance.choice(cases))
                await trio.sleep(self.chance.choice((0.0, 0.0, 1.0)))

        async with self._busy:
            await self.live(body)

    async def _try(self, case: Case) -> None:
        self._faults["hostile requests"] += 1
        call = Call(self)
        answer = await call.ask(case.code, case.body)
        call.hang_up()
        if answer is not None and not self._fits(case, answer):
            self._witness.complain(f"refused: {case.what}: {case.expected.value}, not {answer}")

    def _fits(self, case: Case, answer: Frame) -> bool:
        code, body = answer.code, answer.body
        is_success, is_error = code == ResponseCode.SUCCESS, code == ResponseCode.BROKER_ERROR
        fits: dict[Expected, Callable[[], bool]] = {
            Expected.IGNORED: lambda: is_success and _is_ignored(body),
            Expected.REFUSED: lambda: is_error and bool(body),
            Expected.SILENTLY_REFUSED: lambda: is_error and not body,
            Expected.NODE_REFUSED: lambda: is_success and _has_reason(body),
            Expected.UNKNOWN: lambda: code == ResponseCode.UNKNOWN_CODE,
            Expected.ACCEPTED: lambda: is_success,
            Expected.ANY: lambda: True,
        }
        return fits[case.expected]()

    # -- what is wrong -----------------------------------------------------------------------

    def _other_cases(self) -> Iterator[Case]:
        code, body = self.chance.choice(self._corpus)
        yield Case("what once broke a decoder", code, body, Expected.ANY)
        yield Case("no command", 77, b"", Expected.UNKNOWN)
        code = CommandCode.NODE_WATCH
        asked = encode_node_watch(NodeWatch())
        yield Case("controls for whoever asks", code, asked, Expected.REFUSED)
        yield Case("half a question for controls", code, asked[:-1], Expected.REFUSED)
        yield Case("97 KiB of it", code, asked + bytes(97 * 1024), Expected.REFUSED)

    def _client_cases(self) -> Iterator[Case]:
        chance = self.chance
        code = CommandCode.CLIENT_REGISTER
        subjects = ("", "a b", "a/b", "a\nb", "%RETRY%a b%g", "x" * 256, "ä" * 200, "x" * 20_000)
        for subject in subjects:
            request = requests.ClientRegister(subject=subject, client_type=chance.randint(-3, 6))
            body = requests.encode_client_register(request)
            yield Case(f"subject {subject[:20]!a}", code, body, Expected.IGNORED)
        for field in ("client_id", "consumer_group", "app_code", "ldc"):
            request = replace(requests.ClientRegister(subject="s1"), **{field: "y" * 513})  # type: ignore[arg-type]
            yield Case(
                f"huge {field}", code, requests.encode_client_register(request), Expected.IGNORED
            )
        good = requests.encode_client_register(requests.ClientRegister(subject="s1"))
        for what, body in (
            ("half a map", good[: chance.randrange(2, len(good))]),
            ("a negative map", struct.pack(">h", -1)),
            ("a map of 65", struct.pack(">h", 65) + good[2:]),
            ("70 KB", good + bytes(70_000)),
        ):
            yield Case(what, code, body, Expected.REFUSED)

    def _broker_cases(self) -> Iterator[Case]:
        chance = self.chance
        wrong = requests.BrokerRegister(
            request_type=requests.BrokerRequestType.HEARTBEAT,
            group=self._group,
            address="10.66.0.1:1",
            role=requests.BrokerRole.MASTER,
            state=chance.choice(list(requests.BrokerState)),
        )

        def said(what: str, expected: Expected = Expected.REFUSED, **fields: object) -> Case:
            body = requests.encode_broker_register(_with(wrong, **fields))
            return Case(what, CommandCode.BROKER_REGISTER, body, expected)

        yield said("an address that is not entered")
        for kind in requests.BrokerRequestType:
            yield said(f"{kind.name} from elsewhere", request_type=kind)
        yield said("standby", role=requests.BrokerRole.STANDBY)
        yield said("a slave", Expected.ACCEPTED, role=requests.BrokerRole.SLAVE)
        yield said("a delay backup", Expected.ACCEPTED, role=requests.BrokerRole.DELAY_BACKUP)
        if self._group in self._witness.medium.rows[model.BrokerGroup]:
            for kind in requests.BrokerRequestType:
                yield said(
                    f"{kind.name} of a master of another kind",
                    role=requests.BrokerRole.DELAY_MASTER,
                    request_type=kind,
                )
        for name in ("", "a b", "a/b", "x" * 256, "x" * 30_000, "a\0b"):
            yield said(f"group {name[:20]!a}", group=name)
        for address in ("", "here", "h:0", "h:99999", "h:1x", ":1", "x" * 300 + ":1", *_NO_HOSTS):
            yield said(f"address {address[:20]!a}", group="g-new", address=address)
        if self._delay_group in self._witness.medium.rows[model.DelayGroup]:
            yield said(
                "a master that the record does not name",
                group=self._delay_group,
                role=requests.BrokerRole.DELAY_MASTER,
            )
        body = requests.encode_broker_register(wrong)
        code = CommandCode.BROKER_REGISTER
        yield Case("no such type", code, struct.pack(">i", 9) + body[4:], Expected.REFUSED)
        yield Case("half of it", code, body[: chance.randrange(len(body))], Expected.REFUSED)
        body = requests.encode_acquire_meta(requests.AcquireMeta(hostname="nobody", serve_port=1))
        code = CommandCode.BROKER_ACQUIRE_META
        yield Case("who is nobody", code, body, Expected.SILENTLY_REFUSED)

    def _node_cases(self) -> Iterator[Case]:
        medium = self._witness.medium

        def said(what: str, request: NodeRegister) -> Case:
            body = encode_node_register(request)
            return Case(what, CommandCode.NODE_REGISTER, body, Expected.NODE_REFUSED)

        for node in self._nodes:
            if node.registered is None:
                continue
            storage, incarnation, address = node.registered
            own = changed(
                node.request(), storage_uuid=storage, incarnation=incarnation, address=address
            )
            elsewhere = changed(own, address="10.66.0.2:1")
            if incarnation > 1:
                yield said("an older incarnation", changed(own, incarnation=incarnation - 1))
            yield said("a copy of the directory", elsewhere)
            if trio.current_time() - node.heard_s < _HEARD_S and node.is_alive:
                yield said("a later copy", changed(elsewhere, incarnation=incarnation + 1))
            yield from self._starts_of_copies(node, own, said)
            yield said("a copy by another name", changed(own, node_id="copy"))
            yield said("another cluster", changed(own, cluster="c2"))
            yield said("no name", changed(own, node_id="a b"))
            yield said("no address", changed(own, address="nowhere"))
            yield said("no host", changed(own, address=self.chance.choice(_NO_HOSTS)))
            yield said("no host for HTTP", changed(own, http_address=self.chance.choice(_NO_HOSTS)))
            if self._group in medium.rows[model.BrokerGroup]:
                yield said("a group of brokers", changed(own, group=self._group))
            group = medium.rows[model.DelayGroup].get(node.group)
            if group is not None and node.node_id in group.record.in_sync:
                other = UUID(int=self.chance.getrandbits(128))
                yield said("another disk in sync", changed(own, storage_uuid=other))
                yield said(
                    "the log of another group",
                    changed(own, group="d-new", storage_uuid=other, log_uuid=group.log_uuid),
                )
        code = CommandCode.NODE_REGISTER
        yield Case("no msgpack", code, self.chance.randbytes(40), Expected.REFUSED)
        yield Case("40 KB", code, bytes(40_000), Expected.REFUSED)

    def _starts_of_copies(
        self, node: SimDelayNode, own: NodeRegister, said: Callable[[str, NodeRegister], Case]
    ) -> Iterator[Case]:
        """Yield starts on copies of a node's directory, in its place."""
        boot_id = UUID(int=self.chance.getrandbits(128))
        if trio.current_time() - node.heard_s < _HEARD_S and node.is_alive:
            yield said("another start with one number", changed(own, boot_id=boot_id))
        rows = self._witness.medium.rows
        row = rows[model.DelayNode].get((own.cluster, own.group, own.node_id))
        group = rows[model.DelayGroup].get(own.group)
        if row is None or group is None or not row.last_epoch:
            return
        if group.record.in_sync.get(own.node_id) == own.storage_uuid:
            start = changed(own, incarnation=row.incarnation + 1, boot_id=boot_id)
            epoch = changed(start, last_epoch=row.last_epoch - 1)
            yield said("a copy without the last epoch", epoch)
            records = changed(start, last_sequence=row.last_sequence - 1)
            yield said("a copy without the last record", records)

    # -- floods ------------------------------------------------------------------------------

    async def flood(self, kind: str, count: int) -> None:
        """Ask for so much at once."""
        self._faults[f"flood of {kind}"] += 1
        self._flood_number += 1
        makers: dict[str, Callable[[int], bytes]] = {
            "subjects": self._new_subject,
            "uses": self._new_use,
            "deaf": self._new_use,
            "heartbeats": lambda _: encode_request(code=CommandCode.HEARTBEAT, opaque=1, body=b""),
            "groups": self._new_group,
            "nodes": self._new_node,
            "nonsense": lambda _: encode_request(
                code=CommandCode.CLIENT_REGISTER, opaque=1, body=b"\0\7"
            ),
        }

        async def body() -> None:
            with trio.move_on_after(_FLOOD_S):
                if kind == "connections":
                    await self._many_connections(count)
                else:
                    data = b"".join(makers[kind](number) for number in range(count))
                    if self.chance.random() < 0.3:
                        data += self.chance.choice((b"\xde\xad", data[: len(data) // 2 + 1]))
                    await self._pour(data, reads=kind != "deaf")

        async with self._busy:
            await self.live(body)

    async def _pour(self, data: bytes, *, reads: bool) -> None:
        try:
            stream = await self.network.connect(*META)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.send_all, data)
                while reads and await stream.receive_some():
                    pass
                await trio.sleep(_FLOOD_S)
        except* ENDS:
            pass

    async def _many_connections(self, count: int) -> None:
        streams = []
        try:
            for _ in range(count):
                streams.append(await self.network.connect(*META))
                if self.chance.random() < 0.5:
                    await streams[-1].send_all(b"\xde")
            await trio.sleep(_FLOOD_S)
        except ENDS:
            pass
        for stream in streams:
            stream.close_now()

    def _name(self, number: int) -> str:
        return f"flood{self._flood_number}-{number}"

    def _new_subject(self, number: int) -> bytes:
        kind = self.chance.choice((requests.ClientType.PRODUCER, requests.ClientType.CONSUMER))
        return self._client(self._name(number), kind, "")

    def _new_use(self, number: int) -> bytes:
        kind = self.chance.choice(
            (requests.ClientType.CONSUMER, requests.ClientType.DELAY_PRODUCER)
        )
        return self._client("s1", kind, self._name(number))

    @staticmethod
    def _client(subject: str, kind: requests.ClientType, consumer_group: str) -> bytes:
        request = requests.ClientRegister(
            subject=subject, client_type=kind, client_id="hostile", consumer_group=consumer_group
        )
        return encode_request(
            code=CommandCode.CLIENT_REGISTER,
            opaque=1,
            body=requests.encode_client_register(request),
        )

    def _new_group(self, number: int) -> bytes:
        request = requests.BrokerRegister(
            request_type=requests.BrokerRequestType.ONLINE,
            group=self._name(number),
            address=f"10.66.1.1:{number + 1}",
            role=self.chance.choice((requests.BrokerRole.MASTER, requests.BrokerRole.DELAY)),
            state=requests.BrokerState.RW,
        )
        return encode_request(
            code=CommandCode.BROKER_REGISTER,
            opaque=1,
            body=requests.encode_broker_register(request),
        )

    def _new_node(self, number: int) -> bytes:
        request = NodeRegister(
            cluster="c1",
            group=self._name(number),
            node_id=self._name(number),
            log_uuid=UUID(int=self.chance.getrandbits(128)),
            storage_uuid=UUID(int=self.chance.getrandbits(128)),
            incarnation=1,
            boot_id=UUID(int=self.chance.getrandbits(128)),
            last_sequence=0,
            address=f"10.66.2.1:{number + 1}",
            http_address="",
            version="1.0",
        )
        return encode_request(
            code=CommandCode.NODE_REGISTER, opaque=1, body=encode_node_register(request)
        )


def _is_ignored(body: bytes) -> bool:
    reply = requests.decode_client_register_reply(body)
    said = (reply.timestamp_ms, reply.online_state, reply.groups)
    return said == (-2, requests.OnlineState.OFFLINE, ())


def _has_reason(body: bytes) -> bool:
    reply = decode_node_reply(body)
    return isinstance(reply, Refused) and bool(reply.reason)


def _with(request: requests.BrokerRegister, **fields: object) -> requests.BrokerRegister:
    return replace(request, **fields)  # type: ignore[arg-type]
