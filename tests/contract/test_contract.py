"""Promise: a fake cluster does as a real one does, in all that a service can see.

Each test runs on FakeCluster, on asyncio and on trio, and on a real meta server and delay server.
"""

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import count, pairwise
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from delay_client import (
    ClientClosed,
    ClientConfig,
    DelayTooLong,
    DelaywheelError,
    IllegalSubject,
    InvalidMessage,
    MessageTooLarge,
    OutgoingItem,
    OutgoingMessage,
    Receipt,
    ReceivedMessage,
    ReceiverConfig,
    ReceiverRefusedError,
    Reject,
    RetryLater,
    RetryPolicy,
)
from delay_client.messages.item_encoder import ItemEncoder
from delay_client.messages.message_ids import MessageIdMaker
from delay_client.receiving import attachment
from delay_protocol.messages.items import decode_item, encode_item
from delay_protocol.receivers.attaching import UNSETTLED_REASON
from tests.contract.worlds import CONNECTING, FakeWorld, World, real_world, running

NUMBERS = count(1)

Play = Callable[[Callable[[World, str], Awaitable[Any]]], None]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with real_world(tmp_path_factory.mktemp("cluster")) as world:
        yield world


@pytest.fixture(
    params=[
        "fake-asyncio",
        "fake-trio",
        pytest.param("real", marks=pytest.mark.process),
    ]
)
def play(request: pytest.FixtureRequest) -> Play:
    """Run a test in a world, for 40 s at most, with a name of its own."""
    is_real = request.param == "real"
    world = request.getfixturevalue("real") if is_real else FakeWorld()
    backend = "trio" if request.param == "fake-trio" else "asyncio"

    def run(test: Callable[[World, str], Awaitable[Any]]) -> None:
        async def limited() -> None:
            with anyio.fail_after(40):
                await test(world, f"s{next(NUMBERS)}")

        anyio.run(limited, backend=backend)

    return run


def bodies(messages: list[ReceivedMessage]) -> list[str | bytes]:
    return [message.body for message in messages]


def test_a_message_comes_when_it_is_due_and_not_before(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        got: list[ReceivedMessage] = []
        async with (
            world.client() as client,
            running(world.receiver(name, [name]), got),
        ):
            receipt = await client.send(name, "tea", delay=timedelta(seconds=2 * world.unit_s))
            await world.advance(1)
            # A machine may stand still for longer than that.
            assert not got or world.now() >= receipt.due_at
            await world.advance(1)
            await world.until(lambda: got)
            await world.advance(1)
        [message] = got
        assert message.lateness >= 0
        assert (message.id, message.due_ms) == (receipt.message_id, receipt.due_ms)
        assert (message.subject, message.attempt) == (name, 1)

    play(main)


def test_a_body_its_headers_and_its_type_come_as_they_were_sent(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        got: list[ReceivedMessage] = []
        binary, large = bytes(range(256)), "ü" * 40_000
        async with (
            world.client() as client,
            running(world.receiver(name, [name]), got),
        ):
            await client.send(
                *(name, binary),
                delay=0,
                headers={"Trace": "1"},
                content_type="image/png",
                tags=("a", "b"),
                message_id=f"{name}-mine",
            )
            await client.send(name, large, delay=0)
            await client.send(name, {"n": [1, None]}, delay=0, attributes={"k": "v"})
            await client.send(name, at=world.now() - timedelta(days=1))
            await world.until(lambda: len(got) == 4)
        by_body = {message.data: message for message in got}
        first = by_body[binary]
        assert (first.body, first.id, first.content_type) == (binary, f"{name}-mine", "image/png")
        assert (dict(first.headers), tuple(first.tags)) == ({"trace": "1"}, ("a", "b"))
        assert by_body[large.encode()].body == large
        [as_json] = [message for message in got if message.attributes.get("k") == "v"]
        assert (as_json.json(), as_json.content_type) == ({"n": [1, None]}, "application/json")
        assert max(message.lateness for message in got) >= 86_400

    play(main)


def test_a_receipt_says_that_a_message_was_past_due(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        past, soon = world.now() - timedelta(days=1), world.now() + timedelta(days=1)
        async with world.client() as client:
            receipts = [await client.send(name, at=at) for at in (past, soon)]
            outcomes = await client.send_many(OutgoingMessage(name, at=at) for at in (past, soon))
        assert [receipt.past_due for receipt in receipts] == [True, False]
        assert [isinstance(one, Receipt) and one.past_due for one in outcomes] == [True, False]

    play(main)


def test_what_is_done_does_not_come_again(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        got: list[ReceivedMessage] = []
        async with world.client() as client:
            async with running(world.receiver(name, [name]), got):
                await client.send(name, delay=0)
                await world.until(lambda: got)
            async with running(world.receiver(name, [name]), got):
                await world.advance(2)
        assert len(got) == 1
        assert not await world.refused(name)

    play(main)


def test_a_handler_says_when_a_message_comes_again(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        got: list[ReceivedMessage] = []

        async def handler(message: ReceivedMessage) -> None:
            got.append(message)
            if message.put_offs == 0:
                raise RetryLater(2 * world.unit_s)
            if message.put_offs == 1:
                await message.later(timedelta(seconds=world.unit_s))

        receiver = world.receiver(name, [name])
        async with world.client() as client, receiver, anyio.create_task_group() as tasks:
            tasks.start_soon(receiver.run, handler)
            await client.send(name, "again", delay=0)
            await world.until(lambda: len(got) == 1)
            began = world.now()
            await world.advance(1)
            assert len(got) == 1 or world.now() - began > timedelta(seconds=2 * world.unit_s)
            await world.advance(2)
            await world.until(lambda: len(got) == 3)
            await world.advance(1)
            receiver.stop()
        assert [(message.attempt, message.put_offs) for message in got] == [(1, 0), (1, 1), (1, 2)]
        assert len({message.id for message in got}) == 1
        assert bodies(got) == ["again"] * 3
        assert got[1].due_ms - got[0].due_ms >= 2000 * world.unit_s
        assert got[2].due_ms - got[1].due_ms >= 1000 * world.unit_s

    play(main)


def test_what_handlers_do_not_begin_goes_to_another_receiver_and_does_not_come_back(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(world: World, name: str) -> None:
        monkeypatch.setattr(attachment, "UNBEGUN_S", 3 * world.unit_s)
        began: list[ReceivedMessage] = []
        got: list[ReceivedMessage] = []
        gate = anyio.Event()

        async def stuck(message: ReceivedMessage) -> None:
            began.append(message)
            await gate.wait()

        first = world.receiver(name, [name])
        async with world.client() as client, first, anyio.create_task_group() as tasks:
            tasks.start_soon(partial(first.run, stuck, concurrency=2))
            await client.send_many(OutgoingMessage(name, str(one), 0) for one in range(200))
            await world.until(lambda: first.counts.received == 66)
            async with running(world.receiver(name, [name]), got):
                await world.until(lambda: len(got) == 134)
                await world.advance(2)
                assert (len(began), first.counts.received) == (2, 66)
                await world.advance(2)
                await world.until(lambda: len(got) == 198)
                await world.advance(4)
                assert first.counts.received == 66
                gate.set()
                first.stop()
        assert {message.attempt for message in got} == {1}
        assert len({message.id for message in began + got}) == 200

    play(main)


def test_a_retry_policy_ends_in_a_dead_letter(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        got: list[ReceivedMessage] = []

        async def handler(message: ReceivedMessage) -> None:
            got.append(message)
            raise ValueError("no such cup")

        receiver = world.receiver(name, [name])
        retry = RetryPolicy(base_s=world.unit_s / 2, factor=1, jitter=0, tries=3)
        async with world.client() as client, receiver, anyio.create_task_group() as tasks:
            tasks.start_soon(partial(receiver.run, handler, retry=retry))
            receipt = await client.send(name, delay=0)
            await world.advance(2)
            await world.until(lambda: len(got) == 3)
            receiver.stop()
        assert [message.attempt for message in got] == [1, 2, 3]
        reason = "given up after 3 tries: ValueError: no such cup"
        assert await world.refused(name, 1) == {receipt.message_id: reason}

    play(main)


def test_a_level_is_a_delay_of_the_table_that_the_cluster_has(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        levels = {0: 0, 1: 1, 2: 2, 3: 2, 2**40: 2}
        earliest = world.now()
        # A table of the settings is for clients without a meta server.
        async with world.client(ClientConfig(levels="9s")) as client:
            receipts = [await client.send(name, level=level) for level in levels]
            messages = [OutgoingMessage(name, level=level) for level in levels]
            outcomes = await client.send_many(messages)
        latest = world.now()
        assert not any(receipt.past_due for receipt in receipts)
        for receipt, delay_s in zip([*receipts, *outcomes], [*levels.values()] * 2, strict=True):
            assert isinstance(receipt, Receipt)
            due = receipt.due_at - timedelta(seconds=delay_s)
            assert earliest - timedelta(milliseconds=1) <= due <= latest

    play(main)


def test_a_policy_of_levels_waits_by_the_table_that_the_cluster_has(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        due: list[datetime] = []

        async def handler(message: ReceivedMessage) -> None:
            due.append(message.due)
            raise ValueError("no such cup")

        receiver = world.receiver(name, [name])
        async with world.client() as client, receiver, anyio.create_task_group() as tasks:
            tasks.start_soon(partial(receiver.run, handler, retry=RetryPolicy.levels(1, tries=4)))
            receipt = await client.send(name, level=0)
            await world.advance(13)
            await world.until(lambda: len(due) == 4)
            receiver.stop()
        waits = [(after - before).total_seconds() for before, after in pairwise(due)]
        assert all(least <= wait < least + 2 for least, wait in zip((1, 2, 2), waits, strict=True))
        reason = "given up after 4 tries: ValueError: no such cup"
        assert await world.refused(name, 1) == {receipt.message_id: reason}

    play(main)


def test_a_rejected_message_is_a_dead_letter_with_its_reason(play: Play) -> None:
    reason = "never: " + "ü" * 600

    async def main(world: World, name: str) -> None:
        receiver = world.receiver(name, [name])
        async with world.client() as client, receiver:
            first = await client.send(name, "1", delay=0)
            second = await client.send(name, "2", delay=0)
            seen = 0
            async for message in receiver:
                async with message:
                    if message.id == first.message_id:
                        raise Reject(reason)
                    await message.reject("broken")
                seen += 1
                if seen == 2:
                    receiver.stop()
                    break
        refused = await world.refused(name, 2)
        assert refused[second.message_id] == "broken"
        # How much is kept depends on what else the record says; no character is cut in two.
        kept = refused[first.message_id]
        assert reason.startswith(kept)
        assert 800 <= len(kept.encode()) <= 1024
        assert len(refused) == 2

    play(main)


def test_what_a_receiver_leaves_goes_to_another_and_counts_as_no_try(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        got: list[ReceivedMessage] = []
        async with world.client() as client:
            first = world.receiver(name, [name])
            async with first:
                await client.send_many(OutgoingMessage(name, str(one), 0) for one in range(5))
                await world.until(lambda: first.counts.received == 5)
                message = await anext(first)
                assert message.attempt == 1
            async with running(world.receiver(name, [name]), got):
                await world.until(lambda: len(got) == 5)
        assert {message.attempt for message in got} == {1}
        assert set(bodies(got)) == set("01234")

    play(main)


def test_a_receiver_that_is_cancelled_loses_a_try_of_what_it_had(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        got: list[ReceivedMessage] = []
        async with world.client() as client:
            await client.send(name, delay=0)
            with anyio.CancelScope() as scope:
                async with world.receiver(name, [name]) as receiver:
                    late = await anext(receiver)
                    scope.cancel()
                    await anyio.sleep(1)
            # Too late.
            await late.done()
            async with running(world.receiver(name, [name]), got):
                await world.until(lambda: got)
        assert [message.attempt for message in got] == [2]

    play(main)


def test_a_paused_receiver_gets_nothing_until_it_resumes(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        got: list[ReceivedMessage] = []
        receiver = world.receiver(name, [name])
        async with world.client() as client, running(receiver, got):
            receiver.pause("the kettle is cold")
            await world.advance(1)
            await client.send(name, delay=0)
            await world.advance(1)
            assert not got
            receiver.resume()
            await world.until(lambda: got)
            with pytest.raises(ValueError, match="reason"):
                receiver.pause("x" * 100_000)
        assert got[0].attempt == 1

    play(main)


def test_messages_come_in_batches(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        receiver = world.receiver(name, [name])
        sizes, seen = [], Counter[str | bytes]()
        async with world.client() as client, receiver:
            outcomes = await client.send_many(
                OutgoingMessage(name, str(number), 0) for number in range(50)
            )
            assert all(isinstance(outcome, Receipt) for outcome in outcomes)
            async for batch in receiver.batches(max_items=20):
                sizes.append(len(batch))
                await batch[0].reject("the first")
                await batch.done()
                seen.update(message.body for message in batch)
                if seen.total() >= 50:
                    receiver.stop()
        assert seen == Counter(map(str, range(50)))
        assert max(sizes) <= 20
        assert len(await world.refused(name, len(sizes))) == len(sizes)

    play(main)


def test_an_operator_says_how_often_a_name_tries(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        got: list[ReceivedMessage] = []

        async def handler(message: ReceivedMessage) -> None:
            got.append(message)
            raise ValueError("no such cup")

        receiver = world.receiver(name, [])
        async with world.client() as client, receiver, anyio.create_task_group() as tasks:
            tasks.start_soon(receiver.run, handler)
            await world.subscribe(name, name, tries=2, waits="1s")
            receipt = await client.send(name, delay=0)
            await world.advance(4)
            await world.until(lambda: len(got) == 2)
            receiver.stop()
        assert (got[1].due - got[0].due).total_seconds() >= 0.8
        reason = "given up after 2 tries: ValueError: no such cup"
        assert await world.refused(name, 1) == {receipt.message_id: reason}

    play(main)


def test_a_message_goes_to_each_name_of_which_a_pattern_takes_it(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        got: dict[str, list[ReceivedMessage]] = {"a": [], "b": [], "c": [], "d": []}
        async with (
            world.client() as client,
            running(world.receiver(f"{name}a", [f"{name}.eu.tea"]), got["a"]),
            running(world.receiver(f"{name}b", [f"{name}.eu.*"]), got["b"]),
            running(world.receiver(f"{name}c", [f"{name}.*"]), got["c"]),
            running(world.receiver(f"{name}d", [f"{name}other"]), got["d"]),
        ):
            for subject in ("eu.tea", "eu.milk", "eu.", "us.tea"):
                await client.send(f"{name}.{subject}", subject, delay=0)
            await client.send(f"{name}other", "other", delay=0)
            await client.send(f"{name}nobody", delay=0)
            await world.until(lambda: sum(map(len, got.values())) == 9)
            await world.advance(1)
        found = {receiver: sorted(bodies(messages)) for receiver, messages in got.items()}
        assert found == {
            "a": ["eu.tea"],
            "b": ["eu.", "eu.milk", "eu.tea"],
            "c": ["eu.", "eu.milk", "eu.tea", "us.tea"],
            "d": ["other"],
        }
        assert {one.subject for one in got["b"]} == {f"{name}.eu.{x}" for x in ("", "milk", "tea")}

    play(main)


def test_what_one_name_does_with_a_message_the_other_does_not_see(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        once: list[ReceivedMessage] = []
        tried: list[ReceivedMessage] = []

        async def fail(message: ReceivedMessage) -> None:
            tried.append(message)
            raise RuntimeError("no")

        retry = RetryPolicy(base_s=world.unit_s / 2, factor=1, jitter=0, tries=2)
        other = world.receiver(f"{name}b", [name])
        async with (
            world.client() as client,
            running(world.receiver(f"{name}a", [name]), once),
            other,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(partial(other.run, fail, retry=retry))
            await world.until(lambda: other.is_attached)
            receipt = await client.send(name, delay=0)
            await world.advance(2)
            await world.until(lambda: len(tried) == 2)
            other.stop()
        reason = "given up after 2 tries: RuntimeError: no"
        assert await world.refused(name, 1) == {receipt.message_id: reason}
        assert [one.attempt for one in once] == [1]
        assert [one.attempt for one in tried] == [1, 2]
        assert {one.subject for one in tried} == {name}

    play(main)


def test_what_nobody_receives_waits_for_who_comes(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        got: list[ReceivedMessage] = []
        async with world.client() as client:
            await client.send(name, "early", delay=0)
            await client.send(name, "later", delay=world.unit_s)
            await world.advance(2)
            async with running(world.receiver(name, [f"{name}*"]), got):
                await world.until(lambda: len(got) == 2)
        assert {message.attempt for message in got} == {1}

    play(main)


def test_receivers_of_a_name_share(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        first: list[ReceivedMessage] = []
        second: list[ReceivedMessage] = []
        one, other = world.receiver(name, [name]), world.receiver(name, [name])
        async with world.client() as client, running(one, first), running(other, second):
            await world.advance(1)
            await client.send_many(OutgoingMessage(name, str(number), 0) for number in range(400))
            await world.until(lambda: len(first) + len(second) == 400)
        assert len(first) > 50
        assert len(second) > 50
        assert len({message.id for message in first + second}) == 400

    play(main)


def test_no_more_is_unsettled_than_a_receiver_takes(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        config = ReceiverConfig(credit_items=3)
        receiver = world.receiver(name, [name], config=config)
        async with world.client() as client, receiver:
            await client.send_many(OutgoingMessage(name, "", 0) for _ in range(10))
            await world.until(lambda: receiver.counts.received == 3)
            await world.advance(1)
            assert receiver.counts.received == 3
            await (await anext(receiver)).done()
            await world.until(lambda: receiver.counts.received == 4)

    play(main)


BAD: list[tuple[type[DelaywheelError], dict[str, Any]]] = [
    (IllegalSubject, {"subject": ""}),
    (IllegalSubject, {"subject": "a b"}),
    (IllegalSubject, {"subject": "a/b"}),
    (IllegalSubject, {"subject": "%"}),
    (IllegalSubject, {"subject": "%DLQ%billing"}),
    (IllegalSubject, {"subject": "x" * 101}),
    (IllegalSubject, {"subject": "orders.*"}),
    (InvalidMessage, {"subject": ["s"]}),
    (InvalidMessage, {"delay": None}),
    (InvalidMessage, {"delay": -1}),
    (InvalidMessage, {"delay": "soon"}),
    (InvalidMessage, {"delay": float("nan")}),
    (InvalidMessage, {"delay": None, "at": datetime(2030, 1, 1)}),  # noqa: DTZ001 (it has none)
    (InvalidMessage, {"at": datetime(2030, 1, 1).astimezone()}),
    (InvalidMessage, {"body": "\ud800"}),
    (InvalidMessage, {"body": 7}),
    (InvalidMessage, {"body": {"n": float("nan")}}),
    (InvalidMessage, {"attributes": {"qmq_times": "100"}}),
    (InvalidMessage, {"attributes": {"n": 7}}),
    (InvalidMessage, {"message_id": ""}),
    (InvalidMessage, {"headers": {"a": "1", "A": "2"}}),
    (MessageTooLarge, {"body": b"\xff" * 800_000}),
    (MessageTooLarge, {"tags": ["x" * 40_000]}),
    (InvalidMessage, {"level": 1}),
    (InvalidMessage, {"delay": None, "level": -1}),
    (InvalidMessage, {"delay": None, "level": 1, "at": datetime(2030, 1, 1).astimezone()}),
    (InvalidMessage, {"delay": None, "level": 1.0}),
    (DelayTooLong, {"delay": timedelta(days=731)}),
    (DelayTooLong, {"delay": 1e12}),
]


def test_bad_input_is_refused_with_the_same_errors(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        good: dict[str, Any] = {"subject": name, "delay": timedelta(days=729)}
        async with world.client() as client:
            for kind, bad in BAD:
                with pytest.raises(DelaywheelError) as found:
                    await client.send(**(good | bad))
                assert type(found.value) is kind, (bad, found.value)
            messages = [OutgoingMessage(**(good | bad)) for bad in ({}, *(bad for _, bad in BAD))]
            no_message: Any = "tea"
            outcomes = await client.send_many([*messages, no_message, messages[0]])
            kinds = [Receipt, *(kind for kind, _ in BAD), InvalidMessage, Receipt]
            assert [type(outcome) for outcome in outcomes] == kinds
            with pytest.raises(ValueError, match="timeout"):
                await client.send(name, delay=0, timeout=-1)
        with pytest.raises(ClientClosed):
            await client.send(name, delay=0)

    play(main)


def test_a_limit_of_the_client_counts(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        async with world.client(ClientConfig(item_bytes_max=1000)) as client:
            with pytest.raises(MessageTooLarge):
                await client.send(name, "x" * 1000, delay=0)

    play(main)


def test_bad_receivers_are_refused_with_the_same_errors(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        for bad in ("", "x" * 300):
            with pytest.raises(ValueError, match="name"):
                world.receiver(bad, [name])
        with pytest.raises(ValueError, match="subjects"):
            world.receiver(name, "a*")
        for pattern in ("*", "a*b*", "%RETRY%a%b", "%a", "%DLQ%a*", "a b"):
            receiver = world.receiver(f"{name}r", [pattern])
            async with receiver:
                with pytest.raises(ReceiverRefusedError, match=r"pattern|illegal subject"):
                    await receiver.run(print)
        receiver = world.receiver(name, [name])
        with pytest.raises(ClientClosed):
            await anext(receiver)
        async with receiver:
            with pytest.raises(ValueError, match="concurrency"):
                await receiver.run(print, concurrency=0)
            with pytest.raises(ValueError, match="max_items"):
                await anext(receiver.batches(max_items=0))

    play(main)


def test_what_was_entered_is_not_entered_again(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        for one in (world.client(), world.receiver(name, [name])):
            async with one:
                with pytest.raises(ClientClosed, match="entered before"):
                    await one.__aenter__()
            with pytest.raises(ClientClosed, match="entered before"):
                await one.__aenter__()

    play(main)


def test_items_are_sent_again_as_they_are(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        got: list[ReceivedMessage] = []
        encoder = ItemEncoder(ids=MessageIdMaker(random.Random(1)), item_bytes_max=1000)
        message = OutgoingMessage(name, "kept", 5, message_id=f"{name}-m")
        data, _, due_ms, _ = encoder.encode(message, 1_700_000_000_000)
        async with (
            world.client() as client,
            running(world.receiver(name, [name]), got),
        ):
            dead = encode_item(replace(decode_item(data), subject="%DLQ%a"))
            good, bad, other, illegal = await client.send_items(
                [
                    OutgoingItem(name, data),
                    OutgoingItem(name, b"x"),
                    OutgoingItem("o", data),
                    OutgoingItem("%DLQ%a", dead),
                ]
            )
            assert isinstance(good, Receipt)
            assert good.past_due
            assert (type(bad), type(other)) == (InvalidMessage, InvalidMessage)
            assert isinstance(illegal, IllegalSubject), illegal
            await world.until(lambda: got)
        [message_again] = got
        assert message_again.kept == data
        assert (message_again.id, message_again.due_ms) == (f"{name}-m", due_ms)

    play(main)


def test_what_ends_its_receivers_is_a_dead_letter_and_the_others_are_each_handled(
    play: Play,
) -> None:
    async def main(world: World, name: str) -> None:
        done: list[str | bytes] = []
        here: list[int] = []

        async def live() -> None:
            """Be a receiver until a message ends it; note how many were here then."""
            with anyio.CancelScope() as life:
                async with world.receiver(name, [name]) as receiver:
                    async for message in receiver:
                        if message.body == "poison":
                            counts = receiver.counts
                            here.append(counts.received - sum(counts.verdicts.values()))
                            # An exception would give back what is here.
                            life.cancel()
                            await anyio.lowlevel.checkpoint()
                        await message.done()
                        done.append(message.body)

        async with world.client() as client:
            for body in ("a", "poison", "b", "c"):
                await client.send(name, body, delay=0, message_id=f"{name}-{body}")
        await world.subscribe(name, name, tries=16, waits="1s", unsettled_tries=5)
        for _ in range(5):
            await live()
        reasons = await world.refused(name, 1)
        assert reasons == {f"{name}-poison": UNSETTLED_REASON}
        assert here[2:] == [1] * 3, "it came alone"
        got: list[ReceivedMessage] = []
        async with running(world.receiver(name, [name]), got):
            await world.until(lambda: {*done, *bodies(got)} == {"a", "b", "c"})

    play(main)


def test_who_sent_a_message_and_when_it_was_due_at_first_stays_with_it(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        got: list[ReceivedMessage] = []

        async def handler(message: ReceivedMessage) -> None:
            got.append(message)
            if len(got) < 3:
                raise RetryLater(world.unit_s) if len(got) == 1 else ValueError("no")

        config = ReceiverConfig(connecting=CONNECTING, retry=RetryPolicy(base_s=world.unit_s))
        async with (
            world.client(app_code="shop") as client,
            world.receiver(name, [name], config=config) as receiver,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(receiver.run, handler)
            receipt = await client.send(name, "x", delay=world.unit_s)
            await world.advance(4)
            await world.until(lambda: len(got) == 3)
            receiver.stop()
        assert [one.app_code for one in got] == ["shop"] * 3
        assert [one.first_due for one in got] == [receipt.due_at] * 3
        assert [one.attempt for one in got] == [1, 1, 2]
        assert got[0].due == receipt.due_at < got[1].due < got[2].due

    play(main)
