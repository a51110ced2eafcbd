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
from delaywheel.shared.failures import ExitCode
from tests.meta_server.meta_rig import names
from tests.meta_server.private_postgresql import PrivatePostgresql
from tests.processes.real_processes import Asker, meta_server, until

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
