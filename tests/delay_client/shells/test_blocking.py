"""Promise: the blocking client keeps the promises of the other one, whatever interrupts a call."""

import dataclasses
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import anyio
import pytest

from delay_client import (
    BlockingClient,
    ClientClosed,
    OutgoingMessage,
    Receipt,
    Unavailable,
)
from tests.delay_client.conftest import (
    FAST,
    SILENCE,
    Request,
    StartServer,
)
from tests.delay_client.fake_meta import FakeMeta, group


def accept(request: Request) -> bytes:
    return request.accept()


def numbered(count: int) -> Iterator[OutgoingMessage]:
    for number in range(count):
        yield OutgoingMessage("departures", f"flight {number}", 60.0, message_id=f"m{number}")


def test_a_message_is_sent_and_its_receipt_returned(start_server: StartServer) -> None:
    server = start_server(accept)
    at = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    with BlockingClient([server.address], config=FAST) as client:
        receipt = client.send("departures", at=at, message_id="m1", attributes={"flight": "LH 400"})
    assert receipt == Receipt(
        "m1", int(at.timestamp() * 1000), server.address, 1, subject="departures"
    )
    (item,) = server.items()
    assert item.attributes["flight"] == "LH 400"


def test_ten_thousand_messages_are_pipelined_and_their_outcomes_are_in_order(
    start_server: StartServer,
) -> None:
    server = start_server(accept)
    with BlockingClient([server.address], config=FAST) as client:
        outcomes = client.send_many(numbered(10_000))
    assert [outcome.message_id for outcome in outcomes] == [f"m{n}" for n in range(10_000)]
    assert all(isinstance(outcome, Receipt) for outcome in outcomes)
    assert [item.message_id for item in server.items()] == [f"m{n}" for n in range(10_000)]


def test_a_level_counts_by_the_table_of_the_meta_server(start_server: StartServer) -> None:
    server = start_server(accept)
    with (
        FakeMeta(default=[group("a", server.address)]) as meta,
        BlockingClient(meta=meta.address, config=FAST) as client,
    ):
        client.send("departures", level=1)
        client.send_many([OutgoingMessage("departures", level=3)])
    assert [item.due_ms - item.create_ms for item in server.items()] == [7000, 9000]


def test_a_name_that_does_not_resolve_is_unavailable() -> None:
    with (
        BlockingClient(["no-such-host.invalid:1"], config=FAST) as client,
        pytest.raises(Unavailable, match=r"no-such-host\.invalid"),
    ):
        client.send("s", "x", delay=60, timeout=0.05)


def test_threads_share_the_connection_and_each_gets_its_own_outcome(
    start_server: StartServer,
) -> None:
    server = start_server(accept)
    receipts: dict[str, Receipt] = {}
    with BlockingClient([server.address], config=FAST) as client:

        def send(thread: int) -> None:
            for number in range(50):
                name = f"t{thread}n{number}"
                receipts[name] = client.send("s", "x", delay=60, message_id=name)
            many = client.send_many(
                OutgoingMessage("s", "x", 60.0, message_id=f"t{thread}m{number}")
                for number in range(1000)
            )
            for number, outcome in enumerate(many):
                assert isinstance(outcome, Receipt)
                assert outcome.message_id == f"t{thread}m{number}"

        threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
    assert len(receipts) == 400
    assert all(name == receipt.message_id for name, receipt in receipts.items())
    assert len({item.message_id for item in server.items()}) == 8400
    assert server.connections == 1


def test_a_forked_process_is_told_to_make_its_own_client(start_server: StartServer) -> None:
    server = start_server(accept)
    with BlockingClient([server.address], config=FAST) as client:
        client.send("s", "parent", delay=60)
        child = os.fork()
        if child == 0:
            signal.alarm(10)  # ends it where it hangs
            try:
                with pytest.raises(ClientClosed, match="forked"):
                    client.send("s", "child", delay=60)
                client.close()
                BlockingClient([server.address], config=FAST).send("s", "child", delay=60)
            except BaseException:  # noqa: BLE001 (the tests are the parent's)
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert client.send("s", "parent", delay=60).attempts == 1
    assert server.connections == 2
    assert [item.attributes["body"] for item in server.items()] == ["parent", "child", "parent"]


def test_a_client_that_was_not_used_before_the_fork_serves_both_sides(
    start_server: StartServer,
) -> None:
    server = start_server(accept)
    with BlockingClient([server.address], config=FAST) as client:
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            os._exit(not isinstance(client.send("s", "child", delay=60), Receipt))
        assert os.waitpid(child, 0)[1] == 0
        client.send("s", "parent", delay=60)


class Interruption(BaseException):
    """Not an Exception, as KeyboardInterrupt is none."""


def test_an_interrupted_call_says_that_its_message_may_have_been_kept(
    start_server: StartServer,
) -> None:
    def interrupt(*_: object) -> None:
        raise Interruption

    server = start_server(lambda request: request.accept() if request.number else SILENCE)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with BlockingClient([server.address], config=FAST) as client:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(Interruption) as caught:
                client.send("s", "first", delay=60)
            assert client.send("s", "second", delay=60).attempts == 1
    finally:
        signal.signal(signal.SIGALRM, before)
    assert "may have been kept" in caught.value.__notes__[0]
    assert [item.attributes["body"] for item in server.items()] == ["first", "second"]


def test_what_an_iterable_raises_comes_out_before_anything_is_sent(
    start_server: StartServer,
) -> None:
    def broken() -> Iterator[OutgoingMessage]:
        yield from numbered(2500)
        raise LookupError("no more rows")

    server = start_server(accept)
    with BlockingClient([server.address], config=FAST) as client:
        with pytest.raises(LookupError):
            client.send_many(broken())
        client.send("s", "x", delay=60)
    assert len(server.items()) == 1


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_it_may_be_made_and_used_where_an_event_loop_runs(
    start_server: StartServer, backend: str
) -> None:
    server = start_server(accept)

    async def main() -> None:
        with BlockingClient([server.address], config=FAST) as client:
            client.send("s", "x", delay=60)
            assert len(client.send_many(numbered(1500))) == 1500

    anyio.run(main, backend=backend)


def test_a_process_ends_without_closing_its_client(start_server: StartServer) -> None:
    server = start_server(accept)
    program = (
        "from delay_client import BlockingClient; "
        f"client = BlockingClient(['{server.address}']); client.send('s', 'x', delay=60)"
    )
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, check=False, timeout=20)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


def test_a_client_that_nobody_has_any_more_ends(start_server: StartServer) -> None:
    server = start_server(accept)
    client = BlockingClient([server.address], config=FAST)
    client.send("s", "x", delay=60)
    assert not server.ended
    del client
    gc.collect()
    until = time.monotonic() + 5
    while not server.ended:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_closing_in_the_middle_of_a_send_many_settles_the_rest(start_server: StartServer) -> None:
    server = start_server(lambda request: SILENCE if request.number else request.accept())
    two_at_a_time = dataclasses.replace(FAST, requests_in_flight_max=2)
    client = BlockingClient([server.address], config=two_at_a_time)

    def close() -> None:
        # The third is sent once the first was answered.
        while len(server.requests) < 3:
            time.sleep(0.001)
        client.close()

    closer = threading.Thread(target=close)
    closer.start()
    outcomes = client.send_many(numbered(1500))
    closer.join(10)
    assert not closer.is_alive()
    assert [type(outcome) for outcome in outcomes] == [Receipt] * 500 + [ClientClosed] * 1000
    with pytest.raises(ClientClosed), client:
        pass


def test_a_client_is_not_used_in_its_own_thread(unused_address: str) -> None:
    ended: list[BaseException] = []

    def use(_: str) -> None:
        try:
            client.send("s", "x", delay=60)
        except ClientClosed as error:
            ended.append(error)

    client = BlockingClient([unused_address], config=FAST, on_trouble=use)
    with client, pytest.raises(Unavailable):
        client.send("s", "x", delay=60, timeout=1.3)
    assert "on_trouble" in str(ended[0])


def test_closing_ends_the_calls_of_other_threads(start_server: StartServer) -> None:
    server = start_server(lambda _: SILENCE)
    client = BlockingClient([server.address], config=FAST)
    ended: list[BaseException] = []

    def send() -> None:
        try:
            client.send("s", "x", delay=60)
        except ClientClosed as error:
            ended.append(error)

    threads = [threading.Thread(target=send) for _ in range(3)]
    for thread in threads:
        thread.start()
    while len(server.items()) < 3:
        threading.Event().wait(0.001)
    client.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert len(ended) == 3
    with pytest.raises(ClientClosed, match="closed"):
        client.send("s", "x", delay=60)
    client.close()
