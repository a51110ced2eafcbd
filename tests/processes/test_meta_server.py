"""A meta server process keeps what it said through kill -9, on real sockets and a real store.

And it goes on with what it knows while that store is away.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from delay_protocol.basics.codes import CommandCode
from delay_protocol.meta.requests import (
    BrokerRegister,
    BrokerRequestType,
    BrokerRole,
    BrokerState,
    ClientRegister,
    ClientRegisterReply,
    ClientType,
    decode_client_register_reply,
    encode_broker_register,
    encode_client_register,
)
from delay_protocol.nodes.registration import (
    NodeRegister,
    NodeRegistered,
    NodeRole,
    Refused,
    decode_node_reply,
    encode_node_register,
)
from delaywheel.shared.failures import ExitCode
from tests.meta_server.meta_rig import names, node
from tests.meta_server.private_postgresql import PrivatePostgresql
from tests.processes.real_processes import STOP_S, Asker, meta_server, until

pytestmark = pytest.mark.process

AWAY_S = 10.0
"""How long a store is away; tests/meta_server/wire/test_handlers.py has a minute of it."""


@dataclass(frozen=True, slots=True)
class Store:
    """A store that can be taken away from who uses it."""

    url: str
    away: Callable[[], contextlib.AbstractContextManager[None]]


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "sqlite":
        disk = tmp_path / "disk"
        disk.mkdir()

        @contextlib.contextmanager
        def unmounted() -> Iterator[None]:
            elsewhere = disk.rename(tmp_path / "elsewhere")
            try:
                yield
            finally:
                elsewhere.rename(disk)

        yield Store(f"sqlite:///{disk / 'meta.db'}", unmounted)
        return
    server: PrivatePostgresql = request.getfixturevalue("postgresql")

    @contextlib.contextmanager
    def stopped() -> Iterator[None]:
        server.stop(restarts=True)
        try:
            yield
        finally:
            server.start()

    with server.database() as name:
        yield Store(server.url(name), stopped)


def client(asker: Asker, subject: str, client_type: ClientType) -> ClientRegisterReply:
    """Register a client."""
    request = ClientRegister(subject=subject, client_type=client_type, client_id="h@@1")
    answer = asker.ask(CommandCode.CLIENT_REGISTER, encode_client_register(request))
    assert answer.code == 0, answer.body
    return decode_client_register_reply(answer.body)


def broker(
    asker: Asker,
    group: str,
    port: int,
    *,
    role: BrokerRole = BrokerRole.MASTER,
    what: BrokerRequestType = BrokerRequestType.ONLINE,
) -> int:
    """Register a broker; return the answer's code."""
    request = BrokerRegister(
        request_type=what,
        group=group,
        address=f"10.0.0.1:{port}",
        role=role,
        state=BrokerState.RW,
    )
    return asker.ask(CommandCode.BROKER_REGISTER, encode_broker_register(request)).code


def register(asker: Asker, request: NodeRegister) -> NodeRegistered | Refused:
    """Register a delay server."""
    return decode_node_reply(
        asker.ask(CommandCode.NODE_REGISTER, encode_node_register(request)).body
    )


def test_routes_roles_and_timestamps_are_kept_through_kill_9(tmp_path: Path) -> None:
    subjects = [f"subject.{number}" for number in range(30)]
    kinds = (ClientType.PRODUCER, ClientType.CONSUMER, ClientType.DELAY_PRODUCER)
    routes: list[object] = []
    stamps: list[int] = []
    for life in range(4):
        with meta_server(tmp_path / "data") as meta:
            meta.wait_ready()
            assert meta.get("/meta/address") == (200, f"127.0.0.1:{meta.port}".encode())
            with Asker(meta.port) as asker:
                if not life:
                    for number in range(5):
                        assert broker(asker, f"g{number}", 100 + number) == 0
                        role = BrokerRole.DELAY_MASTER
                        assert broker(asker, f"d{number}", 200 + number, role=role) == 0
                replies = [client(asker, subject, kind) for subject in subjects for kind in kinds]
                stamps += [reply.timestamp_ms for reply in replies]
                routes.append([reply.groups for reply in replies])
                master = register(asker, node(group="ours", incarnation=life + 1, last_epoch=life))
                assert isinstance(master, NodeRegistered)
                assert (master.role, master.record.epoch) == (NodeRole.MASTER, life + 1)
                slave = register(
                    asker,
                    node(
                        "n2",
                        group="ours",
                        storage=2,
                        incarnation=life + 1,
                        last_sequence=0,
                        address="10.0.0.6:20801",
                    ),
                )
                assert isinstance(slave, NodeRegistered)
                assert (slave.role, list(slave.record.in_sync)) == (NodeRole.SLAVE, ["n1"])
                stolen = register(asker, node("n9", group="other", storage=9))
                assert isinstance(stolen, Refused)
            meta.kill()
    assert all(route == routes[0] for route in routes)
    assert stamps == sorted(stamps)


@pytest.mark.long
def test_a_change_reaches_a_connected_client_and_a_stop_is_quick(tmp_path: Path) -> None:
    options = ("--set", "registration.broker_timeout_ms=1000")
    with meta_server(tmp_path / "data", options=options) as meta:
        meta.wait_ready()
        with Asker(meta.port) as asker, Asker(meta.port) as speaker:
            assert broker(speaker, "g1", 100) == 0
            assert [group.name for group in client(asker, "a.b", ClientType.PRODUCER).groups] == [
                "g1"
            ]
            began = time.monotonic()
            pushed = decode_client_register_reply(asker.receive().body)
            assert pushed.groups == ()
            assert 0.5 < time.monotonic() - began < 3
            assert broker(speaker, "g1", 100, what=BrokerRequestType.HEARTBEAT) == 0
            assert decode_client_register_reply(asker.receive().body).groups
            assert until(lambda: meta.status()["pushes"] == 2, seconds=5)
            assert meta.terminate() < STOP_S


@pytest.mark.slow
@pytest.mark.long
def test_a_store_that_goes_away_leaves_what_is_known_and_is_used_again_when_it_is_back(
    tmp_path: Path, store: Store
) -> None:
    options = ["--set", f"store.url={store.url}", "--set", "registration.broker_timeout_ms=4000"]
    with contextlib.ExitStack() as stack:
        meta = stack.enter_context(meta_server(tmp_path / "data", options=options)).wait_ready()
        asker, early, speaker = [stack.enter_context(Asker(meta.port)) for _ in range(3)]
        for number in (1, 2):
            assert broker(speaker, f"g{number}", number) == 0
        known = client(asker, "known", ClientType.PRODUCER).groups
        assert sorted(names(known)) == ["g1", "g2"]
        new = ClientRegister(subject="new", client_type=ClientType.PRODUCER, client_id="h@@2")
        with store.away():
            until_s = time.monotonic() + AWAY_S
            assert early.ask(CommandCode.CLIENT_REGISTER, encode_client_register(new)).code == 51
            while time.monotonic() < until_s:
                assert client(asker, "known", ClientType.PRODUCER).groups == known
                refusal = early.ask(CommandCode.CLIENT_REGISTER, encode_client_register(new))
                assert (refusal.code, refusal.body) == (51, b"the store cannot be reached")
                code, said = meta.get("/readyz")
                assert (code, b"known routes are served, nothing can change" in said) == (503, True)
                # The other one has gone for good, which cannot be stored yet.
                assert broker(speaker, "g1", 1, what=BrokerRequestType.HEARTBEAT) == 0
                time.sleep(0.5)
        assert until(lambda: meta.get("/readyz")[0] == 200, seconds=10)
        # Whoever was refused is told its route without asking again.
        assert decode_client_register_reply(early.receive().body).subject == "new"
        assert broker(speaker, "g1", 1, what=BrokerRequestType.HEARTBEAT) == 0
        left = decode_client_register_reply(asker.receive().body)
        assert (left.subject, names(left.groups)) == ("known", ["g1"])
        assert broker(speaker, "g1", 1, what=BrokerRequestType.HEARTBEAT) == 0
        with Asker(meta.port) as later:
            assert names(client(later, "later", ClientType.PRODUCER).groups) == ["g1"]
        assert '"group":"g1","event":"a broker group timed out"' not in meta.log()
        assert '"group":"g2","event":"a broker group timed out"' in meta.log()
        meta.kill()
    with meta_server(tmp_path / "data", options=options) as meta:
        meta.wait_ready()
        assert meta.status()["subjects"] == 3


@pytest.mark.long
def test_what_makes_serving_impossible_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = ("--listen", f"127.0.0.1:{taken.getsockname()[1]}")
        with meta_server(tmp_path / "data", options=options) as meta:
            assert meta.wait(20) == ExitCode.NETWORK
            assert "cannot listen on" in meta.sentence()


@pytest.mark.long
def test_a_store_that_is_none_is_said_and_left_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "meta.db").write_bytes(b"no database at all, but long enough to be looked at" * 50)
    with meta_server(data) as meta:
        assert meta.wait(20) == ExitCode.LOGS
        assert meta.sentence()
    assert (data / "meta.db").read_bytes().startswith(b"no database")
