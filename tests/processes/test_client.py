"""Promise: what the client's receipts say is on disk, though groups are killed and routes change.

A real meta server, real delay servers as its groups, the client between them, and `delaywheel log`
as the judge of what is on disk.
"""

import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import anyio
import pytest

from delay_client import (
    BlockingClient,
    Client,
    ClientConfig,
    Outcome,
    OutgoingMessage,
    Receipt,
    RetryableError,
)
from delay_protocol.basics.codes import CommandCode
from delay_protocol.meta.requests import (
    BrokerRegister,
    BrokerRequestType,
    BrokerRole,
    BrokerState,
    encode_broker_register,
)
from delaywheel.shared.failures import ExitCode
from tests.kit.dumped import messages_in
from tests.processes.real_processes import (
    Asker,
    RecordingBroker,
    ServerProcess,
    delaywheel,
    meta_server,
    server,
    until,
)

pytestmark = pytest.mark.process

CONFIG = ClientConfig(timeout_s=10.0, meta_backoff_min_s=0.2, meta_backoff_max_s=1.0)


def register(
    asker: Asker,
    group: str,
    port: int,
    what: BrokerRequestType = BrokerRequestType.ONLINE,
) -> None:
    """Register a delay server as the master of a group of its own."""
    is_there = what is not BrokerRequestType.OFFLINE
    request = BrokerRegister(
        request_type=what,
        group=group,
        address=f"127.0.0.1:{port}",
        role=BrokerRole.DELAY_MASTER,
        state=BrokerState.RW if is_there else BrokerState.NRW,
    )
    answer = asker.ask(CommandCode.BROKER_REGISTER, encode_broker_register(request))
    assert answer.code == 0, answer.body


@contextlib.contextmanager
def cluster(
    tmp_path: Path, *groups: str
) -> Iterator[tuple[ServerProcess, dict[str, ServerProcess]]]:
    """Run a meta server and a delay server for each group, registered."""
    for name in ("meta", *groups):
        (tmp_path / name).mkdir()
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(RecordingBroker())
        meta = stack.enter_context(meta_server(tmp_path / "meta" / "data"))
        servers = {
            name: stack.enter_context(server(tmp_path / name / "data", broker_port=broker.port))
            for name in groups
        }
        meta.wait_ready()
        with Asker(meta.port) as asker:
            for name, process in servers.items():
                register(asker, name, process.wait_ready().port)
        yield meta, servers


def run_limited(main: Callable[[], Awaitable[None]], backend: str) -> None:
    """Run for 60 s at most."""

    async def limited() -> None:
        with anyio.fail_after(60):
            await main()

    anyio.run(limited, backend=backend)


def judge(
    outcomes: Sequence[tuple[str, Outcome]],
    on_disk: dict[str, list[str]],
    addresses: dict[str, str],
) -> int:
    """Hold outcomes against the disks; return how many were accepted."""
    accepted = 0
    kept = {name: set(ids) for name, ids in on_disk.items()}
    for message_id, outcome in outcomes:
        assert outcome.message_id == message_id
        if isinstance(outcome, Receipt):
            accepted += 1
            assert message_id in kept[addresses[outcome.server]], "acknowledged and not on disk"
        else:
            assert isinstance(outcome, RetryableError), outcome
            is_kept = any(message_id in ids for ids in kept.values())
            assert outcome.maybe_kept or not is_kept
    return accepted


@pytest.mark.long
@pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=pytest.mark.long)])
def test_kill_9_of_a_group_in_a_stream_of_sends_loses_nothing(tmp_path: Path, backend: str) -> None:
    with cluster(tmp_path, "d1", "d2") as (meta, servers):
        addresses = {f"127.0.0.1:{process.port}": name for name, process in servers.items()}
        outcomes: list[tuple[str, Outcome]] = []
        slowest = 0.0

        async def main() -> None:
            async with Client(meta=meta.http, config=CONFIG) as client:
                is_over = False

                async def send_batches(task: int) -> None:
                    number = 0
                    while not is_over:
                        messages = [
                            OutgoingMessage(
                                f"s{(number + n) % 7}",
                                "x",
                                3600.0,
                                message_id=f"b{task}.{number + n}",
                            )
                            for n in range(200)
                        ]
                        for message, outcome in zip(
                            messages, await client.send_many(messages), strict=True
                        ):
                            assert message.message_id is not None
                            outcomes.append((message.message_id, outcome))
                        number += len(messages)

                async def send_one_by_one(task: int) -> None:
                    nonlocal slowest
                    number = 0
                    while not is_over:
                        name = f"o{task}.{number}"
                        began = time.monotonic()
                        try:
                            outcome: Outcome = await client.send(
                                f"s{number % 7}", "x", delay=3600, message_id=name
                            )
                        except RetryableError as error:
                            outcome = error
                        slowest = max(slowest, time.monotonic() - began)
                        outcomes.append((name, outcome))
                        number += 1

                async with anyio.create_task_group() as tasks:
                    for task in range(2):
                        tasks.start_soon(send_batches, task)
                        tasks.start_soon(send_one_by_one, task)
                    await anyio.sleep(1)
                    servers["d1"].process.kill()
                    await anyio.sleep(1.5)
                    is_over = True

        run_limited(main, backend)
        servers["d1"].wait(5)
        servers["d2"].terminate()
        on_disk = {name: messages_in(tmp_path / name / "data") for name in servers}
        accepted = judge(outcomes, on_disk, addresses)
        # There was a second group all the time: everything was accepted, and soon.
        assert accepted == len(outcomes) > 200
        assert {outcome.server for _, outcome in outcomes if isinstance(outcome, Receipt)} == set(
            addresses
        ), "both groups had a part in it"
        assert slowest < 5
        for name in servers:
            verified = delaywheel("log", "verify", str(tmp_path / name / "data"))
            assert verified.returncode in {0, ExitCode.LOGS if name == "d1" else 0}, verified.stdout


@pytest.mark.long
def test_the_client_follows_groups_that_go_come_and_move(tmp_path: Path) -> None:
    with cluster(tmp_path, "d1") as (meta, servers), RecordingBroker() as broker:
        with BlockingClient(meta=meta.http, config=CONFIG) as client, Asker(meta.port) as asker:
            first = f"127.0.0.1:{servers['d1'].port}"
            assert client.send("s", "x", delay=3600, message_id="m1").server == first
            (tmp_path / "d2").mkdir()
            with server(tmp_path / "d2" / "data", broker_port=broker.port) as other:
                second = f"127.0.0.1:{other.wait_ready().port}"
                register(asker, "d2", other.port)
                register(asker, "d1", servers["d1"].port, BrokerRequestType.OFFLINE)

                def sent_to() -> str:
                    return client.send("s", "x", delay=3600).server

                assert until(lambda: sent_to() == second, seconds=5)
                # The second dies, the first comes back elsewhere, with what it had.
                servers["d1"].terminate()
                other.kill()
                with server(tmp_path / "d1" / "data", broker_port=broker.port) as again:
                    moved = f"127.0.0.1:{again.wait_ready().port}"
                    late: list[Outcome] = []
                    sending = threading.Thread(
                        target=lambda: late.append(client.send("s", "x", delay=3600))
                    )
                    sending.start()
                    time.sleep(0.5)
                    assert late == [], "there was nobody to take it"
                    register(asker, "d1", again.port)
                    register(asker, "d2", other.port, BrokerRequestType.OFFLINE)
                    sending.join(10)
                    [receipt] = late
                    assert isinstance(receipt, Receipt)
                    assert receipt.server == moved
                    again.terminate()
        assert {"m1", receipt.message_id} <= set(messages_in(tmp_path / "d1" / "data"))


@pytest.mark.long
def test_a_restart_of_the_meta_server_is_not_noticed_by_those_who_send(tmp_path: Path) -> None:
    with cluster(tmp_path, "d1", "d2") as (meta, _):
        options = ("--listen", f"127.0.0.1:{meta.port}", "--http", meta.http)

        async def main() -> None:
            async with Client(meta=meta.http, config=CONFIG) as client:
                await client.send("known", "x", delay=3600)
                meta.process.kill()
                for _ in range(20):
                    receipt = await client.send("known", "x", delay=3600, timeout=1)
                    assert receipt.attempts == 1
                with pytest.raises(RetryableError, match="no meta server could be asked"):
                    await client.send("new", "x", delay=3600, timeout=0.7)
                with meta_server(tmp_path / "meta" / "data", options=options) as again:
                    await anyio.to_thread.run_sync(again.wait_ready)
                    assert isinstance(await client.send("new", "x", delay=3600), Receipt)

        run_limited(main, "trio")
        meta.wait(5)


@pytest.mark.long
def test_the_command_sends_by_the_meta_server_and_says_if_it_cannot(tmp_path: Path) -> None:
    with cluster(tmp_path, "d1") as (meta, servers):
        result = delaywheel(
            *("send", "--meta", meta.http, "--subject", "s", "--delay", "1h", "--id", "m", "x")
        )
        assert result.returncode == 0, result.stderr
        address = f"127.0.0.1:{servers['d1'].port}"
        assert result.stdout.startswith(f"m kept by {address}, due ")
        listener = f"127.0.0.1:{meta.port}"
        result = delaywheel(
            *("send", "--meta", listener, "--subject", "s", "--delay", "1h", "--timeout", "1s", "x")
        )
        assert result.returncode == ExitCode.NETWORK
        assert "give the address of a meta server's HTTP port" in result.stderr
        servers["d1"].terminate()
        assert messages_in(tmp_path / "d1" / "data") == ["m"]
