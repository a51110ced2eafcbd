"""Promise: on asyncio and on trio, over real sockets, what goes in comes out as one outcome."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup

from delay_client import (
    Client,
    ClientClosed,
    ClientConfig,
    OutgoingMessage,
    Receipt,
    Unavailable,
)
from delay_protocol.messages.items import FLAG_DELAY, FLAG_TAGS
from delay_protocol.meta.requests import ClientType
from tests.delay_client.conftest import (
    DROP,
    FAST,
    SILENCE,
    Request,
    Run,
    ScriptedServer,
    StartServer,
)
from tests.delay_client.fake_meta import FakeMeta, group


def accept(request: Request) -> bytes:
    return request.accept()


def numbered(count: int) -> Iterator[OutgoingMessage]:
    for number in range(count):
        yield OutgoingMessage("departures", f"flight {number}", 60.0, message_id=f"m{number}")


def test_a_message_is_sent_and_its_receipt_returned(run: Run, start_server: StartServer) -> None:
    server = start_server(accept)
    at = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)

    async def main() -> None:
        async with Client([server.address], config=FAST) as client:
            receipt = await client.send(
                "departures",
                at=at,
                message_id="m1",
                tags=("eu",),
                attributes={"flight": "LH 400"},
            )
        assert receipt == Receipt(
            "m1", int(at.timestamp() * 1000), server.address, 1, subject="departures"
        )
        assert receipt.due_at == at

    run(main)
    (item,) = server.items()
    assert (item.subject, item.message_id, item.tags) == ("departures", "m1", ("eu",))
    assert item.flag == FLAG_DELAY | FLAG_TAGS
    assert item.attributes["flight"] == "LH 400"


def test_ten_thousand_messages_are_pipelined_and_their_outcomes_are_in_order(
    run: Run, start_server: StartServer
) -> None:
    gate = threading.Event()

    def hold_the_first(request: Request) -> bytes:
        # Nothing is answered before several requests have come.
        if request.number == 3:
            gate.set()
        return request.accept()

    server = start_server(hold_the_first)

    async def main() -> None:
        async with Client([server.address], config=FAST) as client:
            outcomes = await client.send_many(numbered(10_000))
        assert [outcome.message_id for outcome in outcomes] == [f"m{n}" for n in range(10_000)]
        assert all(isinstance(outcome, Receipt) for outcome in outcomes)

    run(main)
    assert gate.is_set()
    assert len(server.requests) == 20
    assert [item.message_id for item in server.items()] == [f"m{n}" for n in range(10_000)]


def test_another_server_takes_over_when_one_dies(run: Run, start_server: StartServer) -> None:
    doomed: ScriptedServer

    def die(_: Request) -> bytes:
        doomed.close()
        return DROP

    doomed = start_server(die)
    heir = start_server(accept)

    async def main() -> None:
        async with Client([doomed.address, heir.address], config=FAST) as client:
            outcomes = await client.send_many(numbered(3000))
            assert all(isinstance(outcome, Receipt) for outcome in outcomes)
            receipt = await client.send("s", "x", delay=60)
            assert receipt.server == heir.address

    run(main)
    assert {item.message_id for item in heir.items()} >= {f"m{n}" for n in range(3000)}


def test_without_a_server_the_error_names_address_and_reason(run: Run, unused_address: str) -> None:
    async def main() -> None:
        async with Client([unused_address], config=FAST) as client:
            with pytest.raises(Unavailable, match="refused") as caught:
                await client.send("s", "x", delay=60, timeout=0.05, message_id="m1")
        assert unused_address in str(caught.value)
        assert not caught.value.maybe_kept
        assert caught.value.message_id == "m1"

    run(main)


def test_without_a_server_send_many_ends_in_one_time_out_and_not_in_one_per_request(
    run: Run, unused_address: str
) -> None:
    async def main() -> None:
        config = ClientConfig(backoff_min_s=0.001, backoff_max_s=0.01, request_items_max=1)
        async with Client([unused_address], config=config) as client:
            began = anyio.current_time()
            outcomes = await client.send_many(numbered(300), timeout=0.1)
            assert anyio.current_time() - began < 5
        assert len(outcomes) == 300
        assert {type(outcome) for outcome in outcomes} == {Unavailable}

    run(main)


def test_trouble_is_told_after_a_second(run: Run, unused_address: str) -> None:
    told: list[str] = []

    async def main() -> None:
        async with Client([unused_address], config=FAST, on_trouble=told.append) as client:
            with pytest.raises(Unavailable):
                await client.send("s", "x", delay=60, timeout=1.3)

    run(main)
    reason = f"{unused_address}: Connection refused"
    assert told == [f"no message was accepted for 1 s ({reason}): still trying"]


def test_a_silent_connection_is_replaced(run: Run, start_server: StartServer) -> None:
    server = start_server(lambda request: request.accept() if request.connection else SILENCE)

    async def main() -> None:
        config = ClientConfig(backoff_min_s=0.001, backoff_max_s=0.004, try_timeout_s=0.05)
        async with Client([server.address], config=config) as client:
            receipt = await client.send("s", "x", delay=60)
        assert receipt.attempts == 2

    run(main)
    assert server.connections == 2


def test_a_cancelled_send_does_not_spoil_the_stream(run: Run, start_server: StartServer) -> None:
    release = threading.Event()

    def hold_the_first(request: Request) -> bytes:
        if request.number == 0:
            release.wait(10)
        return request.accept()

    server = start_server(hold_the_first)
    large = "x" * 30_000

    async def main() -> None:
        # Far more than socket buffers hold, so that the writer is in the middle of a frame.
        messages = [OutgoingMessage("s", large * 30, 60.0)] * 8
        async with Client([server.address], config=FAST) as client:
            with anyio.move_on_after(0.05) as scope:
                await client.send_many(messages)
            assert scope.cancelled_caught
            with anyio.move_on_after(0.01) as scope:
                await client.send("s", "x", delay=60)
            assert scope.cancelled_caught
            release.set()
            receipt = await client.send("s", "y", delay=60)
            assert receipt.attempts == 1

    run(main)
    assert server.connections == 1
    assert server.items()[-1].attributes["body"] == "y"


def test_many_tasks_share_requests_and_each_gets_its_own_outcome(
    run: Run, start_server: StartServer
) -> None:
    def script(request: Request) -> bytes:
        odd = [name for name in request.ids if int(name[1:]) % 2]
        return request.fail_items(*((name, 5, name) for name in odd))

    server = start_server(script)

    async def main() -> None:
        outcomes: dict[int, object] = {}

        async def send(client: Client, number: int) -> None:
            try:
                outcomes[number] = await client.send("s", delay=60, message_id=f"m{number}")
            except Exception as error:  # noqa: BLE001 (what it is is looked at below)
                outcomes[number] = error

        async with (
            Client([server.address], config=FAST) as client,
            anyio.create_task_group() as tasks,
        ):
            for number in range(500):
                tasks.start_soon(send, client, number)
        for number in range(500):
            outcome = outcomes[number]
            if number % 2:
                assert f"m{number}" in str(outcome)
            else:
                assert isinstance(outcome, Receipt)
                assert outcome.message_id == f"m{number}"

    run(main)
    assert len(server.requests) < 100


def test_leaving_the_block_waits_for_what_is_on_its_way(
    run: Run, start_server: StartServer
) -> None:
    server = start_server(accept)

    async def main() -> None:
        receipts: list[Receipt] = []

        async def send(client: Client) -> None:
            receipts.append(await client.send("s", "x", delay=60))

        async with (
            anyio.create_task_group() as tasks,
            Client([server.address], config=FAST) as client,
        ):
            tasks.start_soon(send, client)
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
        assert len(receipts) == 1

    run(main)


def test_an_error_in_the_block_comes_out_as_itself(run: Run, start_server: StartServer) -> None:
    server = start_server(accept)

    async def main() -> None:
        async def fail(error: Exception) -> None:
            async with Client([server.address], config=FAST) as client:
                await client.send("s", "x", delay=60)
                raise error

        for error in (KeyError("k"), ExceptionGroup("g", [ValueError("v")])):
            with pytest.raises(type(error)) as caught:
                await fail(error)
            assert caught.value is error

    run(main)


def test_an_error_in_the_block_settles_calls_of_other_tasks(
    run: Run, start_server: StartServer
) -> None:
    server = start_server(lambda _: SILENCE)

    async def main() -> None:
        ended: list[str] = []

        async def send(client: Client) -> None:
            with pytest.raises(ClientClosed) as caught:
                await client.send("s", "x", delay=60, message_id="m1")
            ended.append(str(caught.value.message_id))

        async def send_many(client: Client) -> None:
            outcomes = await client.send_many(numbered(3000))
            ended.extend({type(outcome).__name__ for outcome in outcomes})

        async def fail(tasks: TaskGroup) -> None:
            async with Client([server.address], config=FAST) as client:
                tasks.start_soon(send, client)
                tasks.start_soon(send_many, client)
                await anyio.sleep(0.02)
                raise KeyError

        async with anyio.create_task_group() as tasks:
            with pytest.raises(KeyError):
                await fail(tasks)
        assert sorted(ended) == ["ClientClosed", "m1"]

    run(main)


def test_a_cancelled_block_ends_at_once(run: Run, start_server: StartServer) -> None:
    server = start_server(lambda _: SILENCE)

    async def main() -> None:
        with anyio.move_on_after(0.02) as scope:
            async with Client([server.address], config=FAST) as client:
                await client.send("s", "x", delay=60)
        assert scope.cancelled_caught

    run(main)


def test_outside_its_block_a_client_sends_nothing(run: Run) -> None:
    async def main() -> None:
        client = Client()
        with pytest.raises(ClientClosed, match="async with"):
            await client.send("s", "x", delay=60)
        async with client:
            pass
        with pytest.raises(ClientClosed):
            await client.send_many([])

    run(main)


def test_an_error_of_the_callers_iterable_is_the_callers(
    run: Run, start_server: StartServer
) -> None:
    server = start_server(accept)

    def broken() -> Iterator[OutgoingMessage]:
        yield from numbered(1200)
        raise KeyError("mine")

    async def main() -> None:
        async with Client([server.address], config=FAST) as client:
            with pytest.raises(KeyError, match="mine"):
                await client.send_many(broken())
            assert isinstance(await client.send("s", "x", delay=60), Receipt)

    run(main)


WARNING_SERVICE = """
import sys
import anyio
from delay_client import Receiver
from delay_client.testing import FakeCluster

def fail(message):
    raise ValueError("no such cup")

async def main():
    cluster = FakeCluster()
    async with cluster.client() as client, cluster.receiver("r", subjects=["s"]) as receiver:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receiver.run, fail)
            await client.send("s", delay=0)
            await cluster.advance()
            receiver.stop()
    async with Receiver("alone", subjects=["s"], meta=sys.argv[1]):
        await anyio.sleep(1.2)

anyio.run(main)
"""


def test_where_no_logging_is_configured_warnings_go_to_stderr(unused_address: str) -> None:
    words = [sys.executable, "-c", WARNING_SERVICE, unused_address]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert "attempt 1>: comes again in" in done.stderr
    assert "ValueError: no such cup" in done.stderr
    assert f"receiver alone: no answer from meta server at {unused_address} yet" in done.stderr
    assert not done.stdout


# With a meta server.


async def until_it_goes_to(address: str, client: Client) -> None:
    """Send until messages go to this server, for 10 s at most."""
    for _ in range(1_000):
        if (await client.send("departures", "x", delay=60)).server == address:
            return
        await anyio.sleep(0.01)
    raise AssertionError(f"nothing goes to {address}")


def test_a_meta_server_tells_where_to_send(run: Run, start_server: StartServer) -> None:
    first, second = start_server(accept), start_server(accept)
    with FakeMeta(default=[group("a", first.address)]) as meta:

        async def main() -> None:
            async with Client(meta=meta.address, app_code="shop", config=FAST) as client:
                receipt = await client.send("departures", "x", delay=60)
                assert receipt.server == first.address
                meta.set_default(group("b", second.address))
                await until_it_goes_to(second.address, client)
                outcomes = await client.send_many(numbered(2_000))
                assert [outcome.message_id for outcome in outcomes] == [
                    f"m{number}" for number in range(2_000)
                ]
                assert {outcome.server for outcome in outcomes} == {second.address}

        run(main)
    assert {(asked.subject, asked.client_type, asked.app_code) for asked in meta.asked} == {
        ("departures", ClientType.DELAY_PRODUCER, "shop")
    }
    assert (meta.discoveries, meta.connections) == (1, 1)


def test_levels_are_those_of_the_meta_server_or_of_the_settings(
    run: Run, start_server: StartServer
) -> None:
    server = start_server(accept)
    with FakeMeta(default=[group("a", server.address)]) as meta:

        async def main() -> None:
            async with Client(meta=meta.address, config=FAST) as client:
                await client.send("departures", level=1)
                await client.send_many([OutgoingMessage("departures", level=5)])
            async with Client([server.address], config=replace(FAST, levels="3s")) as client:
                await client.send("departures", level=2**40)

        run(main)
    assert [item.due_ms - item.create_ms for item in server.items()] == [7000, 9000, 3000]


def test_many_calls_pause_and_go_on_without_a_group_for_a_while(
    run: Run, start_server: StartServer
) -> None:
    server = start_server(accept)
    with FakeMeta() as meta:

        async def main() -> None:
            async with Client(meta=meta.address, config=FAST) as client:
                collected: list[int] = []

                async def send() -> None:
                    outcomes = await client.send_many(numbered(5_000))
                    assert {type(outcome) for outcome in outcomes} == {Receipt}
                    collected.append(len(outcomes))

                async with anyio.create_task_group() as tasks:
                    for _ in range(4):
                        tasks.start_soon(send)
                    await anyio.sleep(0.2)
                    meta.set_default(group("a", server.address))
                assert collected == [5_000] * 4

        run(main)


def test_servers_and_meta_together_are_refused() -> None:
    with pytest.raises(ValueError, match="either servers or meta="):
        Client(["127.0.0.1:20801"], meta="127.0.0.1:8080")
    with pytest.raises(ValueError, match="no meta server"):
        Client(meta=[])
    with pytest.raises(ValueError, match="is not an address"):
        Client(meta="http://127.0.0.1:8080")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_in_another_event_loop_it_says_so_at_once(
    run: Run, start_server: StartServer, backend: str
) -> None:
    server = start_server(accept)

    async def main() -> None:
        async with Client([server.address], config=FAST) as client:

            async def elsewhere() -> None:
                with pytest.raises(ClientClosed, match="another event loop"):
                    await client.send("s", "x", delay=60)
                with pytest.raises(ClientClosed, match="another event loop"):
                    await client.send_many([OutgoingMessage("s", "x", 60.0)])

            await anyio.to_thread.run_sync(lambda: anyio.run(elsewhere, backend=backend))
            await client.send("s", "x", delay=60)

    run(main)
