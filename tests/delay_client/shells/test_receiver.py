"""Promise: on asyncio and trio each message gets the verdict of its handler, or comes again."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import anyio
import pytest
import sniffio

from delay_client import (
    ClientConfig,
    ReceivedMessage,
    Receiver,
    ReceiverConfig,
    ReceiverRefusedError,
    Reject,
    RetryLater,
    RetryPolicy,
)
from delay_protocol.messages.items import decode_item
from delay_protocol.receivers.attaching import AttachRefused
from delay_protocol.receivers.delivering import Verdict
from tests.delay_client.conftest import Run
from tests.delay_client.fake_delay_server import (
    DUE_MS,
    FakeDelayServer,
    FakeReceiverMeta,
    deliver,
    new_item,
    until,
)

FAST = ReceiverConfig(
    retry=RetryPolicy(base_s=60, jitter=0),
    connecting=ClientConfig(
        backoff_min_s=0.001,
        backoff_max_s=0.004,
        probe_max_s=0.01,
        meta_backoff_min_s=0.001,
        meta_backoff_max_s=0.004,
    ),
)


def receiver_of(*servers: FakeDelayServer, config: ReceiverConfig = FAST) -> Receiver:
    return Receiver("r", servers=[server.address for server in servers], config=config)


async def receive(
    receiver: Receiver,
    handler: Callable[[ReceivedMessage], Any],
    condition: Callable[[], object],
    **options: Any,  # noqa: ANN401 (those of run())
) -> None:
    """Run a receiver until something is so."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(receiver.run, handler, **options))
        await until(condition)
        receiver.stop()


def test_a_message_is_done_when_its_handler_returns(run: Run) -> None:
    got: list[ReceivedMessage] = []

    async def main() -> None:
        async with FakeDelayServer() as server, receiver_of(server) as receiver:
            server.add(new_item(1, **{"h:trace": "7", "qmq_times": "2", "dw_content_type": "t/x"}))

            async def handler(message: ReceivedMessage) -> None:
                got.append(message)
                receiver.stop()

            await receiver.run(handler)
            await until(lambda: server.settles)
            assert server.verdicts() == [("m1", Verdict.DONE)]
        assert [attach.name for attach in server.attached] == ["r"]
        # As many as there are handlers, which wait, and 64 for them.
        assert server.flows[0].items == 64 + FAST.concurrency
        assert (server.flows[-1].items, server.flows[-1].reason) == (0, "the receiver stops")
        assert receiver.counts.verdicts[Verdict.DONE] == receiver.counts.received == 1

    run(main)
    [message] = got
    assert (message.id, message.subject, message.body, message.data) == (
        "m1",
        "s",
        "body 1",
        b"body 1",
    )
    assert (message.headers, message.content_type) == ({"trace": "7"}, "t/x")
    assert (message.attempt, message.tags) == (3, ())
    assert message.due == datetime.fromtimestamp(DUE_MS / 1000, UTC)
    assert message.lateness == (message.arrived_ms - DUE_MS) / 1000 > 0
    assert message.attributes["qmq_times"] == "2"
    assert repr(message) == "<message 'm1' of 's', attempt 3>"


def test_what_a_handler_raises_is_the_verdict(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def handler(message: ReceivedMessage) -> None:
        match message.id:
            case "m1":
                raise ValueError("no such flight")
            case "m2":
                raise RetryLater(timedelta(hours=2))
            case "m3":
                raise Reject("never: " + "ü" * 3000)
            case "m4":
                raise LookupError("again")
            case "m5":
                await message.later(5)

    async def main() -> None:
        async with FakeDelayServer() as server, receiver_of(server) as receiver:
            server.add(*map(new_item, (1, 2, 3)), new_item(4, qmq_times="15"), new_item(5))
            await receive(receiver, handler, lambda: len(server.rests()) == 5)
        verdicts = dict(server.verdicts())
        assert verdicts == {
            "m1": Verdict.LATER,
            "m2": Verdict.LATER,
            "m3": Verdict.REFUSED,
            "m4": Verdict.REFUSED,
            "m5": Verdict.LATER,
        }
        rests = dict(zip([name for name, _ in server.verdicts()], server.rests(), strict=True))
        for name, wait_s in (("m1", 60), ("m2", 7200), ("m5", 5)):
            again = decode_item(rests[name])
            assert (again.message_id, again.subject, again.create_ms) == (name, "s", DUE_MS - 1000)
            wait = again.due_ms / 1000 - datetime.now(UTC).timestamp()
            assert wait_s - 20 < wait <= wait_s
            assert again.attributes == {
                "body": f"body {name[1:]}",
                "qmq_times" if name == "m1" else "dw_putOff": "1",
                "qmq_scheduleReceiveTime": str(again.due_ms),
                "dw_firstDue": str(DUE_MS),
            }
        assert len(rests["m3"]) == 1023
        assert rests["m3"].decode().startswith("never: ü")
        assert rests["m4"] == b"given up after 16 tries: LookupError: again"

    run(main)
    assert "comes again in 60 s" in caplog.text
    assert "given up" in caplog.text


def test_a_plain_function_runs_in_a_thread_and_one_that_returns_a_coroutine_is_awaited(
    run: Run,
) -> None:
    threads: list[int] = []

    def plain(_: ReceivedMessage) -> None:
        threads.append(threading.get_ident())

    async def other(_: ReceivedMessage, number: int) -> None:
        threads.append(number)

    class Callee:
        async def __call__(self, _: ReceivedMessage) -> None:
            threads.append(threading.get_ident())

    async def main() -> None:
        async with FakeDelayServer() as server, receiver_of(server) as receiver:
            for handler in (plain, lambda message: other(message, -7), Callee()):
                server.settles.clear()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(receiver.run, handler)
                    await until(lambda: receiver.is_attached)
                    await server.hand(new_item(1))
                    await until(server.rests)
                    tasks.cancel_scope.cancel()
                assert server.verdicts() == [("m1", Verdict.DONE)]

    run(main)
    assert threads[0] != threading.get_ident()
    assert threads[1:] == [-7, threading.get_ident()]


def test_messages_of_a_loop_get_their_verdict_by_how_their_block_ends(run: Run) -> None:
    async def main() -> None:
        async with FakeDelayServer() as server:
            server.add(*map(new_item, range(1, 7)))
            async with receiver_of(server) as receiver:
                async for message in receiver:
                    if message.id == "m5":
                        break
                    if message.id == "m4":
                        await message.reject("no")
                        await message.done()
                        continue
                    async with message:
                        if message.id == "m2":
                            raise RetryLater(1)
                        if message.id == "m3":
                            raise Reject("bad")
            # A LATER goes in a request of its own.
            later = ("m2", Verdict.LATER)
            assert later in server.verdicts()
            assert [one for one in server.verdicts() if one != later] == [
                ("m1", Verdict.DONE),
                ("m3", Verdict.REFUSED),
                ("m4", Verdict.REFUSED),
                # What nobody has begun, then what has no verdict.
                ("m6", Verdict.RELEASE),
                ("m5", Verdict.RELEASE),
            ]
            assert receiver.counts.dropped == 0

    run(main)


def test_an_error_passes_on_out_of_a_block_and_the_message_comes_again(run: Run) -> None:
    async def main() -> None:
        async with FakeDelayServer() as server:
            server.add(new_item(1))
            with pytest.raises(LookupError, match="no seat"):
                async with receiver_of(server) as receiver, await anext(receiver):
                    raise LookupError("no seat")
            assert server.verdicts() == [("m1", Verdict.LATER)]

    run(main)


def test_a_loop_over_batches_that_is_left_gives_its_messages_back(run: Run) -> None:
    async def main() -> None:
        async with FakeDelayServer() as server:
            server.add(*map(new_item, range(3)))
            async with receiver_of(server) as receiver:
                async for batch in receiver.batches(max_items=2):
                    await batch[1].done()
                    break
            assert sorted(server.verdicts()) == [
                ("m0", Verdict.RELEASE),
                ("m1", Verdict.DONE),
                ("m2", Verdict.RELEASE),
            ]

    run(main)


def test_there_are_never_more_messages_than_the_credit_nor_handlers_than_may_be(run: Run) -> None:
    at_work: list[int] = [0, 0]

    async def handler(_: ReceivedMessage) -> None:
        at_work[0] += 1
        at_work[1] = max(at_work)
        await anyio.sleep(0.001)
        at_work[0] -= 1

    async def main() -> None:
        config = ReceiverConfig(credit_items=20, settle_items_max=7)
        async with FakeDelayServer() as server, receiver_of(server, config=config) as receiver:
            server.add(*map(new_item, range(200)))
            await receive(receiver, handler, lambda: len(server.rests()) == 200, concurrency=3)
        assert server.unsettled_max == 20
        assert max(map(len, server.settles)) <= 7
        assert at_work == [0, 3]

    run(main)


def test_large_items_that_come_again_go_in_requests_that_a_server_reads(run: Run) -> None:
    async def handler(_: ReceivedMessage) -> None:
        raise RetryLater(60)

    async def main() -> None:
        large = {f"k{number}": "x" * 32_000 for number in range(30)}
        async with FakeDelayServer(deliver_items_max=2) as server:
            server.add(*(new_item(number, **large) for number in range(12)))
            async with receiver_of(server) as receiver, anyio.create_task_group() as tasks:
                tasks.start_soon(receiver.run, handler)
                await until(lambda: len(server.rests()) == 12)
                receiver.stop()
        assert max(server.frame_sizes) <= 4 << 20
        assert receiver.counts.dropped == 0

    run(main)


def test_stop_finishes_what_runs_and_gives_the_rest_back(run: Run) -> None:
    began: list[str] = []

    async def main() -> None:
        gate = anyio.Event()

        async def handler(message: ReceivedMessage) -> None:
            began.append(message.id)
            await gate.wait()

        async with FakeDelayServer() as server, receiver_of(server) as receiver:
            server.add(*map(new_item, range(5)))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: receiver.run(handler, concurrency=2))
                await until(lambda: len(began) == 2)
                receiver.stop()
                await until(lambda: len(server.rests()) == 3)
                assert {verdict for _, verdict in server.verdicts()} == {Verdict.RELEASE}
                gate.set()
            # run() has returned; what is on its way to the server is waited for below.
        assert began == ["m0", "m1"]
        assert sorted(server.verdicts())[:2] == [("m0", Verdict.DONE), ("m1", Verdict.DONE)]
        assert server.unknown == 0

    run(main)


def test_a_signal_stops_the_receiver(run: Run) -> None:
    async def main() -> None:
        async with FakeDelayServer() as server:
            async with receiver_of(server) as receiver:

                async def handler(_: ReceivedMessage) -> None:
                    os.kill(os.getpid(), signal.SIGTERM)
                    await anyio.sleep(0.05)

                server.add(*map(new_item, range(3)))
                await receiver.run(handler, concurrency=1, handle_signals=True)
            assert server.verdicts()[-1] == ("m0", Verdict.DONE)
            assert sorted(server.verdicts())[1:] == [
                ("m1", Verdict.RELEASE),
                ("m2", Verdict.RELEASE),
            ]

    run(main)


def test_a_run_that_is_cancelled_gives_its_messages_back(run: Run) -> None:
    async def handler(_: ReceivedMessage) -> None:
        await anyio.sleep_forever()

    async def main() -> None:
        async with FakeDelayServer() as server, receiver_of(server) as receiver:
            server.add(new_item(1))
            with anyio.move_on_after(0.05):
                await receiver.run(handler)
            await until(lambda: server.settles)
            assert server.verdicts()[0] == ("m1", Verdict.RELEASE)

    run(main)


async def a_cancelled_task() -> None:
    """Wait for a task that somebody cancels; trio has none such, and its Cancelled stays inside."""
    if sniffio.current_async_library() == "trio":
        raise GeneratorExit
    task = asyncio.get_running_loop().create_task(asyncio.sleep(9))
    task.cancel()
    await task


async def a_group() -> None:
    raise BaseExceptionGroup("", [GeneratorExit()])


async def cancelled_itself() -> None:
    """Cancel the handler's task, as libraries for time-outs do."""
    if sniffio.current_async_library() == "trio":
        await a_group()
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(9)


async def cancelled_itself_at_last() -> None:
    """Cancel the handler's task, and return."""
    if sniffio.current_async_library() == "trio":
        await a_group()
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@pytest.mark.parametrize(
    "fails",
    [
        a_cancelled_task,
        a_group,
        cancelled_itself,
        cancelled_itself_at_last,
    ],
)
def test_a_cancellation_of_others_is_a_failure_of_the_handler_alone(
    run: Run, caplog: pytest.LogCaptureFixture, fails: Callable[[], Awaitable[None]]
) -> None:
    async def main() -> None:
        async with FakeDelayServer() as server, receiver_of(server) as receiver:
            server.add(*map(new_item, (1, 2)))
            gate = anyio.Event()

            async def handler(message: ReceivedMessage) -> None:
                if message.id == "m1":
                    await gate.wait()
                else:
                    await fails()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(receiver.run, handler)
                await until(server.rests)
                assert server.verdicts() == [("m2", Verdict.LATER)]
                assert decode_item(server.rests()[0]).attributes["qmq_times"] == "1"
                await server.hand(new_item(3))
                await until(lambda: len(server.rests()) == 2)
                gate.set()
                await until(lambda: len(server.rests()) == 3)
                assert server.verdicts()[2] == ("m1", Verdict.DONE)
                receiver.stop()

    run(main)
    assert "comes again in 60 s" in caplog.text


@pytest.mark.parametrize("fails", [a_cancelled_task, a_group])
def test_a_cancellation_of_others_in_the_block_of_a_message_is_a_failure(
    run: Run, fails: Callable[[], Awaitable[None]]
) -> None:
    async def main() -> None:
        async with FakeDelayServer() as server:
            server.add(new_item(1))
            with pytest.raises((asyncio.CancelledError, GeneratorExit, BaseExceptionGroup)):
                async with receiver_of(server) as receiver, await anext(receiver):
                    await fails()
            assert server.verdicts() == [("m1", Verdict.LATER)]
            assert decode_item(server.rests()[0]).attributes["qmq_times"] == "1"

    run(main)


def test_a_time_out_around_the_block_of_a_message_puts_it_off(run: Run) -> None:
    async def main() -> None:
        async with FakeDelayServer() as server, receiver_of(server) as receiver:
            server.add(new_item(1))
            message = await anext(receiver)
            with anyio.move_on_after(0.01):
                async with message:
                    await anyio.sleep(9)
            await until(server.rests)
            again = decode_item(server.rests()[0]).attributes
            assert (again.get("qmq_times"), again["dw_putOff"]) == (None, "1")

    run(main)


@pytest.mark.parametrize("fails", [True, False])
def test_a_handler_that_cancels_itself_leaves_nothing_of_that_to_the_next(*, fails: bool) -> None:
    async def handler(message: ReceivedMessage) -> None:
        task = asyncio.current_task()
        assert task is not None
        if message.id == "m2":
            assert task.cancelling() == 0
            await asyncio.sleep(0)
        else:
            task.cancel()
            if fails:
                raise ValueError
            task.cancel()

    async def main() -> None:
        async with FakeDelayServer() as server, receiver_of(server) as receiver:
            server.add(*map(new_item, (1, 2)))
            await receive(receiver, handler, lambda: len(server.verdicts()) == 2, concurrency=1)
            assert dict(server.verdicts()) == {"m1": Verdict.LATER, "m2": Verdict.DONE}

    asyncio.run(main())


def test_a_generator_is_no_handler(run: Run) -> None:
    def handler(_: ReceivedMessage) -> Iterator[None]:
        yield

    async def main() -> None:
        async with FakeDelayServer() as server, receiver_of(server) as receiver:
            with pytest.raises(TypeError, match="must not yield"):
                await receiver.run(handler)

    run(main)


def test_a_task_of_run_that_is_cancelled_while_it_waits_goes_on() -> None:
    tasks: list[asyncio.Task[object]] = []

    async def handler(_: ReceivedMessage) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)

    async def main() -> None:
        async with FakeDelayServer() as server, receiver_of(server) as receiver:
            server.add(new_item(1))
            async with anyio.create_task_group() as group:
                group.start_soon(partial(receiver.run, handler, concurrency=1))
                await until(lambda: len(server.verdicts()) == 1)
                tasks[0].cancel()
                await server.hand(new_item(2))
                await until(lambda: len(server.verdicts()) == 2)
                receiver.stop()
            assert [verdict for _, verdict in server.verdicts()] == [Verdict.DONE] * 2

    asyncio.run(main())


@pytest.mark.parametrize(
    "error",
    [
        GeneratorExit(),
        StopIteration(),
        asyncio.CancelledError(),
        BaseExceptionGroup("", [GeneratorExit()]),
    ],
)
def test_what_a_handler_in_a_thread_raises_is_its_failure(run: Run, error: BaseException) -> None:
    def handler(_: ReceivedMessage) -> None:
        raise error

    async def main() -> None:
        async with FakeDelayServer() as server, receiver_of(server) as receiver:
            server.add(new_item(1))
            await receive(receiver, handler, server.rests)
            assert server.verdicts() == [("m1", Verdict.LATER)]

    run(main)


@pytest.mark.parametrize("in_group", [True, False])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_ends_it(
    run: Run, kind: type[BaseException], *, in_group: bool
) -> None:
    async def handler(_: ReceivedMessage) -> None:
        raise BaseExceptionGroup("", [kind()]) if in_group else kind()

    async def main() -> None:
        async with FakeDelayServer() as server, receiver_of(server) as receiver:
            server.add(new_item(1))
            await receiver.run(handler)

    with pytest.raises((kind, BaseExceptionGroup)):
        run(main)


def test_paused_it_takes_nothing_and_says_why(run: Run) -> None:
    async def handler(_: ReceivedMessage) -> None:
        pass

    async def main() -> None:
        async with FakeDelayServer() as server, receiver_of(server) as receiver:
            await until(lambda: server.flows)
            receiver.pause("the database is away")
            await until(lambda: server.flows[-1].items == 0)
            assert server.flows[-1].reason == "the database is away"
            await server.hand(new_item(1))
            await anyio.sleep(0.02)
            assert server.pending
            # One that was on its way goes back.
            server.items[9] = new_item(9)
            server.connections[0].unsettled[9] = new_item(9)
            await server.shout(deliver([(9, 1, new_item(9))]))
            await until(lambda: server.verdicts() == [("m9", Verdict.RELEASE)])
            server.pending.pop()
            receiver.resume()
            await receive(receiver, handler, lambda: len(server.verdicts()) == 2)
            assert server.verdicts()[1] == ("m1", Verdict.DONE)
            with pytest.raises(ValueError, match="at most 1000 characters"):
                receiver.pause("x" * 1001)

    run(main)


def test_after_a_loss_it_attaches_again_and_drops_verdicts_of_before(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "delaywheel.receiver")
    seen: list[tuple[str, int]] = []

    async def main() -> None:
        async with FakeDelayServer() as server, receiver_of(server) as receiver:

            async def handler(message: ReceivedMessage) -> None:
                seen.append((message.id, message.attempt))
                if message.attempt == 1:
                    await server.drop_connections()
                    await anyio.sleep(0.05)

            server.add(new_item(1))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: receiver.run(handler, concurrency=2))
                await until(lambda: server.settles)
                await until(lambda: receiver.counts.dropped)
                receiver.stop()
        assert server.verdicts() == [("m1", Verdict.DONE)]
        assert len({attach.instance for attach in server.attached}) == 1
        assert (receiver.counts.dropped, receiver.counts.unknown) == (1, 0)

    run(main)
    assert seen == [("m1", 1), ("m1", 2)]
    lines = [record.getMessage() for record in caplog.records]
    assert sum("attached, group g1" in line for line in lines) == 2
    assert sum("lost: " in line and "1 messages come again" in line for line in lines) == 1


def test_a_master_of_an_older_epoch_is_left(run: Run) -> None:
    async def main() -> None:
        async with (
            FakeDelayServer(epoch=3) as old,
            FakeDelayServer(epoch=4) as new,
            receiver_of(old) as receiver,
        ):
            await until(lambda: old.flows)
            receiver._reception._attach_to([new.address])
            receiver._ring()
            # The one that is attached is left when a newer one is seen, and not taken again.
            await until(lambda: new.flows and not old.connections and len(old.attached) > 2)
            assert len(old.flows) == 1
            old.epoch = 5
            await until(lambda: len(old.flows) > 1 and not new.connections)

    run(main)


def test_what_cannot_be_decoded_becomes_a_dead_letter(run: Run) -> None:
    item = new_item(1)
    bad_base64 = new_item(2, dw_encoding="base64")

    async def handler(message: ReceivedMessage) -> None:
        assert message.id == "m3"

    async def main() -> None:
        async with FakeDelayServer() as server, receiver_of(server) as receiver:
            server.add(item[:-1] + b"\xff", bad_base64, b"x", new_item(3))
            await receive(receiver, handler, lambda: len(server.rests()) == 4)
        verdicts = [Verdict(verdict) for settle in server.settles for _, verdict, _ in settle]
        assert verdicts == [Verdict.REFUSED] * 3 + [Verdict.DONE]
        crc, base64, short, _ = server.rests()
        assert crc.startswith(b"the receiver cannot decode it: item carries crc")
        assert base64.startswith(b"the receiver cannot decode it: the body is not the base64")
        assert short.startswith(b"the receiver cannot decode it: 1 bytes")
        assert receiver.counts.poison == 3

    run(main)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "frame length"),
        (deliver([(1, 0, new_item(1))]), "both are from 1"),
        (deliver([(1, 1, new_item(1)), (1, 1, new_item(2))]), "what is here already"),
        (deliver([(n, 1, b"x") for n in range(1, 12)]), "more than it was to send"),
        (deliver([(1, 1, b"x" * (4 << 20)), (2, 1, b"x")]), "more than it was to send"),
    ],
    ids=["http", "attempt", "twice", "items", "bytes"],
)
def test_what_is_no_protocol_ends_the_connection(
    run: Run, caplog: pytest.LogCaptureFixture, data: bytes, said: str
) -> None:
    async def main() -> None:
        config = ReceiverConfig(credit_items=10, credit_bytes=4 << 20, connecting=FAST.connecting)
        async with FakeDelayServer() as server, receiver_of(server, config=config) as receiver:
            await until(lambda: server.flows)
            await server.shout(data)
            await until(lambda: len(server.attached) == 2)
            assert receiver.counts.garbage == 1

    run(main)
    assert "does not speak the protocol: " in caplog.text
    assert said in caplog.text


def test_a_refusal_is_asked_again_unless_it_is_final(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "delaywheel.receiver")

    async def handler(_: ReceivedMessage) -> None:
        pass

    async def main() -> None:
        async with FakeDelayServer() as server:
            server.answer = AttachRefused(reason="it is a slave")
            async with receiver_of(server) as receiver:
                await until(lambda: len(server.attached) > 2)
                server.answer = AttachRefused(reason="a group of brokers", is_final=True)
                with pytest.raises(ReceiverRefusedError, match="a group of brokers"):
                    await receiver.run(handler)
                with pytest.raises(ReceiverRefusedError):
                    async for _ in receiver:
                        pass

    run(main)
    lines = [record.getMessage() for record in caplog.records]
    assert sum("it refuses the receiver: it is a slave" in line for line in lines) == 1


def test_masters_come_from_a_meta_server_and_are_followed(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    async def main() -> None:
        async with (
            FakeReceiverMeta() as meta,
            FakeDelayServer("g1") as first,
            FakeDelayServer("g2") as second,
        ):
            gate = anyio.Event()

            async def handler(message: ReceivedMessage) -> None:
                seen.append(message.id)
                await gate.wait()

            async with Receiver(
                "r",
                subjects=["a.*", "b"],
                meta=meta.http,
                token="t",  # noqa: S106 (no secret)
                config=FAST,
            ) as receiver:
                await until(lambda: len(meta.asked) == 2)
                assert [asked.told for asked in meta.asked] == [0, 1]
                assert meta.asked[0].patterns == ("a.*", "b")
                first.add(new_item(1))
                await meta.change(first)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(receiver.run, handler)
                    await until(lambda: seen == ["m1"])
                    # The old master gets its verdict before it is left.
                    first.group = "g2"
                    await meta.change(second, waits="approve r")
                    await until(lambda: second.flows)
                    # g1 has no master now, so its connection stays.
                    await second.hand(new_item(2))
                    await until(lambda: seen == ["m1", "m2"])
                    gate.set()
                    await until(lambda: first.settles and second.settles)
                    await meta.drop_connections()
                    await until(lambda: meta.asked[-2].told == 0)
                    receiver.stop()
                assert first.verdicts() == [("m1", Verdict.DONE)]
            assert [attach.token for attach in second.attached] == ["t"]

    run(main)
    assert "approve r" in caplog.text


def test_a_master_that_was_replaced_is_left_once_its_messages_are_settled(run: Run) -> None:
    async def main() -> None:
        async with (
            FakeReceiverMeta() as meta,
            FakeDelayServer("g1", epoch=1) as first,
            FakeDelayServer("g1", epoch=1) as second,
            Receiver("r", subjects=["s"], meta=meta.http, config=FAST) as receiver,
        ):
            await meta.change(first)
            first.add(new_item(1), new_item(2))
            message = await anext(receiver)
            await meta.change(second)
            await until(lambda: second.flows and first.flows[-1].items == 0)
            assert first.flows[-1].reason == "it is no master any more"
            await until(lambda: first.verdicts() == [("m2", Verdict.RELEASE)])
            assert first.connections
            await message.done()
            await until(lambda: not first.connections)
            assert first.verdicts()[1:] == [("m1", Verdict.DONE)]
            assert len(receiver._reception.lines) == 2

    run(main)


def test_a_handler_that_never_waits_does_not_keep_the_receiver_from_its_server(run: Run) -> None:
    async def main() -> None:
        async with FakeDelayServer() as server, receiver_of(server) as receiver:
            server.add(*map(new_item, range(40)))
            settled_at_end: list[int] = []

            async def handler(message: ReceivedMessage) -> None:
                threading.Event().wait(0.003)
                if message.id == "m39":
                    settled_at_end.append(len(server.rests()))
                    receiver.stop()

            await receiver.run(handler, concurrency=1)
            assert settled_at_end[0] > 10

    run(main)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": ""}, "a name of 1 to 255 characters"),
        ({"name": "r", "weight": 0}, "a weight from 1 to 1000"),
        ({"name": "r", "subjects": "s", "meta": "m:1"}, "list of subjects"),
        ({"name": "r", "subjects": [""], "meta": "m:1"}, "subjects of 1 to 255 characters"),
        ({"name": "r", "subjects": ["s"]}, "give meta="),
        ({"name": "r", "servers": ["h:1"], "meta": "m:1"}, "not both"),
        ({"name": "r", "servers": []}, "are no servers"),
        ({"name": "r", "servers": "h:1"}, "are no servers"),
        ({"name": "r", "servers": ["h"]}, "not an address"),
        ({"name": "r", "meta": []}, "no meta server"),
    ],
)
def test_what_can_be_no_receiver_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Receiver(**arguments)
