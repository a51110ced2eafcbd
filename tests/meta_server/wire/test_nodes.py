"""Only who has the secret registers; what was overheard is worth nothing."""

from pathlib import Path

import msgspec
import pytest
import trio

from delay_protocol.basics.codes import CommandCode
from delay_protocol.meta.requests import (
    BrokerRegister,
    BrokerRequestType,
    BrokerRole,
    BrokerState,
    ClientType,
)
from delay_protocol.nodes import auth
from delay_protocol.nodes.registration import (
    NodeRegister,
    NodeRegistered,
    Refused,
    decode_node_reply,
    encode_node_register,
)
from delay_protocol.wire.frames import Frame
from meta_server.admin.status import status_of
from meta_server.server import MetaServer
from meta_server.settings.config import MetaServerConfig, RegistrationConfig
from tests.kit.operator import Operator
from tests.meta_server.memory_store import Fault
from tests.meta_server.meta_rig import (
    Peer,
    World,
    broker,
    make_config,
    names,
    node,
    state_of,
    until,
)

REGISTER = CommandCode.NODE_REGISTER
OLD, NEW, WRONG = (word * 8 for word in ("old.", "new.", "none"))
NONCE = bytes(range(32))


class Prover:
    """A delay server with a secret, on a connection of its own."""

    def __init__(self, peer: Peer, secret: str, nonce: bytes) -> None:
        self.peer = peer
        self.key = auth.session_key(secret.encode(), node_nonce=NONCE, meta_nonce=nonce)
        self.number = 0

    @classmethod
    async def on(cls, peer: Peer, secret: str) -> "Prover":
        body = auth.encode_challenge(auth.Challenge(nonce=NONCE))
        answer = await peer.ask(CommandCode.NODE_CHALLENGE, body)
        assert answer.code == 0, answer.body
        return cls(peer, secret, auth.decode_challenge(answer.body).nonce)

    def sealed(self, request: NodeRegister) -> bytes:
        self.number += 1
        return auth.seal(
            self.key, auth.Direction.REQUEST, REGISTER, self.number, encode_node_register(request)
        )

    async def ask(self, request: NodeRegister) -> Frame:
        return await self.peer.ask(REGISTER, self.sealed(request))

    async def register(self, request: NodeRegister) -> NodeRegistered | Refused:
        answer = await self.ask(request)
        assert answer.code == 0, answer.body
        found = auth.unseal([self.key], auth.Direction.ANSWER, REGISTER, answer.body)
        assert found is not None
        assert found[1] == self.number
        return decode_node_reply(found[2])


def write(path: Path, *secrets: str) -> Path:
    new = path.with_suffix(".new")
    new.write_text("\n".join(secrets))
    new.chmod(0o600)
    return new.replace(path)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    return write(tmp_path / "secret", OLD)


@pytest.fixture
def needed() -> bool:
    """Return True: all nodes have to prove the secret, if there is one."""
    return True


@pytest.fixture
def config(secret: Path, needed: bool) -> MetaServerConfig:
    """Return settings with the secret."""
    return make_config(
        registration=RegistrationConfig(secret_file=str(secret), secret_needed=needed)
    )


def is_refused(answer: Frame, reason: str, *, code: int = 1001) -> bool:
    return answer.code == code and reason in answer.body.decode()


async def test_who_has_the_secret_registers_and_is_answered_with_a_proof(
    world: World, server: MetaServer
) -> None:
    prover = await Prover.on(await world.connect(), OLD)
    for _ in range(3):
        reply = await prover.register(node())
        assert isinstance(reply, NodeRegistered)
        assert reply.record.epoch == 1
    refused = await prover.register(node(storage=9))
    assert isinstance(refused, Refused)
    status = status_of(server.observe())
    assert (status["node_authentication"], status["nodes_unauthenticated"]) == ("required", 0)
    assert server.credentials.authenticated == 4


async def test_whoever_has_it_not_changes_nothing(world: World, server: MetaServer) -> None:
    peer = await world.connect()
    plain = encode_node_register(node())
    assert is_refused(await peer.ask(REGISTER, plain), "have to prove the secret")
    wrong = await Prover.on(await world.connect(), WRONG)
    assert is_refused(await wrong.ask(node()), "the files differ")
    # Once a challenge was asked for nothing goes without a seal.
    assert is_refused(await wrong.peer.ask(REGISTER, plain), "the files differ")
    assert is_refused(await wrong.peer.ask(REGISTER, b""), "the files differ")
    assert server.registry.nodes == {}
    assert status_of(server.observe())["nodes_unauthenticated"] == 4
    assert server.handlers.dispatcher.refusals["NODE_REGISTER"] == 4


async def test_a_recording_is_worth_nothing_here_and_elsewhere(
    world: World, server: MetaServer
) -> None:
    prover = await Prover.on(await world.connect(), OLD)
    first, second = prover.sealed(node()), prover.sealed(node())
    assert (await prover.peer.ask(REGISTER, second)).code == 0
    for again in (second, first):
        answer = await prover.peer.ask(REGISTER, again)
        assert is_refused(answer, "was used before")
    thief = await Prover.on(await world.connect(), WRONG)
    for overheard in (first, second):
        assert is_refused(await thief.peer.ask(REGISTER, overheard), "the files differ")
    # A new challenge on the same connection makes what came before worthless, too.
    anew = await Prover.on(prover.peer, OLD)
    assert is_refused(await anew.peer.ask(REGISTER, second), "the files differ")
    assert (await anew.ask(node())).code == 0
    assert len(server.credentials._talks) == 2
    await prover.peer.stream.aclose()
    await until(lambda: len(server.credentials._talks) == 1)


async def test_a_secret_is_exchanged_while_everybody_goes_on(
    world: World, server: MetaServer, secret: Path
) -> None:
    old = await Prover.on(await world.connect(), OLD)
    assert (await old.ask(node())).code == 0
    write(secret, OLD, NEW)
    await until(lambda: len(server.secret.entries) == 2)
    new = await Prover.on(await world.connect(), NEW)
    assert (await new.ask(node())).code == 0
    assert (await old.ask(node())).code == 0
    write(secret, NEW)
    await until(lambda: len(server.secret.entries) == 1)
    # What began with the old one does not outlive it.
    assert is_refused(await old.ask(node()), "the files differ")
    assert (await new.ask(node())).code == 0
    secret.chmod(0o644)  # noqa: ASYNC240 (virtual time)
    await until(lambda: server.secret.fault)
    assert is_refused(await new.ask(node()), "cannot be used")


@pytest.mark.parametrize("needed", [False])
async def test_until_all_have_it_those_without_may_be_let_in(
    world: World, server: MetaServer
) -> None:
    other = await world.connect()
    new = await other.node(node())
    # Whose group is known: a new one begins with the secret.
    assert isinstance(new, Refused)
    assert "have to prove the secret" in new.reason
    assert (await (await Prover.on(await world.connect(), OLD)).ask(node())).code == 0
    assert isinstance(await other.node(node()), NodeRegistered)
    wrong = await Prover.on(await world.connect(), WRONG)
    assert is_refused(await wrong.ask(node()), "the files differ")
    assert status_of(server.observe())["node_authentication"] == "optional"


@pytest.mark.parametrize("config", [make_config()])
async def test_without_a_secret_nothing_is_proved(world: World, server: MetaServer) -> None:
    peer = await world.connect()
    body = auth.encode_challenge(auth.Challenge(nonce=NONCE))
    answer = await peer.ask(CommandCode.NODE_CHALLENGE, body)
    assert is_refused(answer, "set registration.secret_file")
    assert isinstance(await peer.node(node()), NodeRegistered)
    malformed = await peer.ask(CommandCode.NODE_CHALLENGE, b"\x80")
    assert malformed.code == 51
    assert status_of(server.observe())["node_authentication"] == "none"


# What is said for a group of delay servers


def said(what: str, *, group: str = "d1", address: str = "10.0.0.5:20801") -> BrokerRegister:
    """Return what QMQ's delay servers, and ours, tell of their group."""
    return broker(
        group, what=BrokerRequestType[what], address=address, role=BrokerRole.DELAY_MASTER
    )


ONLINE, HEARTBEAT, OFFLINE = "ONLINE", "HEARTBEAT", "OFFLINE"


@pytest.mark.parametrize("needed", [True, False])
async def test_the_state_of_a_group_that_proved_itself_comes_with_the_proof_of_its_master_alone(
    world: World, server: MetaServer
) -> None:
    producer = await world.connect()
    prover = await Prover.on(await world.connect(), OLD)
    serving = msgspec.structs.replace(node(), state="RW")
    await prover.register(serving)
    await until(lambda: state_of(server, "d1") is BrokerState.RW)
    reply = await prover.register(serving)
    assert isinstance(reply, NodeRegistered)
    assert reply.state == "RW"
    stranger = await world.connect()
    for what in (OFFLINE, HEARTBEAT, ONLINE):
        for address in ("10.0.0.5:20801", "10.6.6.6:1"):
            for role in (BrokerRole.DELAY_MASTER, BrokerRole.MASTER, BrokerRole.DELAY_SLAVE):
                request = broker(
                    "d1",
                    what=BrokerRequestType[what],
                    address=address,
                    role=role,
                    state=BrokerState.NRW,
                )
                answer = await stranger.broker(request)
                assert answer.code == 51
                assert b"when it registers as a node" in answer.body
    # A slave has proved that it has the secret, and is not the master.
    slave = await Prover.on(await world.connect(), OLD)
    other = node("n2", storage=202, address="10.0.0.6:20801", last_sequence=0)
    other = msgspec.structs.replace(other, state="NRW")
    assert isinstance(await slave.register(other), NodeRegistered)
    await trio.sleep(0.1)
    assert state_of(server, "d1") is BrokerState.RW
    told = await producer.register("a.b", ClientType.DELAY_PRODUCER)
    assert names(told.groups) == ["d1"]
    await prover.register(msgspec.structs.replace(node(), state="NRW"))
    await until(lambda: state_of(server, "d1") is BrokerState.NRW)


async def test_qmqs_own_delay_servers_and_brokers_prove_nothing_and_are_taken_when_entered(
    world: World, server: MetaServer, operator: Operator
) -> None:
    theirs = await world.connect()
    new = await theirs.broker(said(ONLINE, group="qmq-delay"))
    assert is_refused(new, "have to prove the secret", code=51)
    assert "qmq-delay" not in server.registry.groups
    await operator.add_group("qmq-delay", kind="delay")
    assert (await theirs.broker(said(ONLINE, group="qmq-delay"))).code == 0
    assert (await theirs.broker(broker("real-time"))).code == 0
    # They come back on any connection.
    again = await world.connect()
    for what, state in (
        (HEARTBEAT, BrokerState.RW),
        (OFFLINE, BrokerState.NRW),
        (ONLINE, BrokerState.RW),
    ):
        assert (await again.broker(said(what, group="qmq-delay"))).code == 0
        assert state_of(server, "qmq-delay") is state


@pytest.mark.parametrize("config", [make_config()])
async def test_a_state_that_the_store_could_not_be_told_is_stored_with_the_next_registration(
    world: World, server: MetaServer
) -> None:
    peer = await world.registered(node())
    world.medium.next_faults = [Fault.LOST]
    reply = await peer.node(msgspec.structs.replace(node(), state="RW"))
    assert isinstance(reply, NodeRegistered)
    assert reply.state == "NRW"
    await until(lambda: not server.committer.is_stale and not world.medium.next_faults)
    assert state_of(server, "d1") is BrokerState.NRW
    await peer.state("RW")
    assert state_of(server, "d1") is BrokerState.RW
