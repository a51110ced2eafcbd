"""Promise: cancel, move and a second send do the same on a fake cluster and on a real one."""

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import anyio
import pytest

from delay_client import (
    Changed,
    ChangeOutcome,
    ChangeState,
    Client,
    InvalidMessage,
    InvalidToken,
    MessageName,
    OtherCluster,
    OutgoingMessage,
    Receipt,
    ReceivedMessage,
    Refused,
    Reject,
    RetryLater,
)
from delay_client.messages.cancel_tokens import Place, cluster_hash, encode_token
from delay_client.messages.changed import When
from tests.contract.test_contract import Play, play, real
from tests.contract.worlds import World, running

__all__ = ["play", "real"]

S = ChangeState
HOUR = timedelta(hours=1)


def states(outcomes: list[ChangeOutcome]) -> list[ChangeState | type]:
    return [one.state if isinstance(one, Changed) else type(one) for one in outcomes]


async def settled(client: Client, receipt: Receipt) -> Changed:
    """Return what became of a message, once it is with nobody and the fact of it is applied."""
    with anyio.fail_after(15):
        while True:
            changed = await client.cancel(receipt)
            if changed.state is not S.SENDING and (changed.to or changed.state is not S.DELIVERED):
                return changed
            await anyio.sleep(0.05)


def test_a_cancelled_message_never_comes(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        got: list[ReceivedMessage] = []
        async with (
            world.client() as client,
            running(world.receiver(name, [name]), got),
        ):
            soon = timedelta(seconds=3 * world.unit_s)
            receipts = [await client.send(name, str(n), delay=soon) for n in range(5)]
            first, second, third, fourth, last = receipts
            assert (await client.cancel(first)).state is S.CANCELLED
            changed = await client.cancel(second.cancel_token)
            assert (changed.state, changed.due_ms) == (S.CANCELLED, second.due_ms)
            names = (name, third.message_id)
            assert (await client.cancel(*names, at=third.due_at)).state is S.CANCELLED
            assert (await client.cancel(name, fourth.message_id)).state is S.CANCELLED
            again = await client.cancel_many(receipts[:4])
            assert states(again) == [S.CHANGED_BEFORE] * 4
            await world.advance(3)
            await world.until(lambda: got)
            await world.advance(1)
        assert [message.id for message in got] == [last.message_id]

    play(main)


def test_a_moved_message_comes_at_its_new_time_as_it_was(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        got: list[ReceivedMessage] = []
        async with (
            world.client() as client,
            running(world.receiver(name, [name]), got),
        ):
            receipt = await client.send(name, "tea", delay=HOUR, headers={"a": "b"})
            to = world.now().replace(microsecond=0) + timedelta(days=1)
            moved = await client.move(receipt, to=to)
            assert (moved.state, moved.due_at) == (S.MOVED, to)
            # Under its old time it was moved before.
            assert (await client.cancel(receipt)).state is S.CHANGED_BEFORE
            names = (name, receipt.message_id)
            again = await client.move(*names, at=to, to=timedelta(seconds=world.unit_s))
            assert again.state is S.MOVED
            assert not got
            await world.advance(1)
            await world.until(lambda: got)
        [message] = got
        assert (message.id, message.body, message.headers["a"]) == (names[1], "tea", "b")
        assert message.due_ms == again.due_ms
        assert message.lateness >= 0

    play(main)


def test_what_went_on_its_way_is_told_of(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        begun, go = anyio.Event(), anyio.Event()

        async def handle(message: ReceivedMessage) -> None:
            if message.body == "bad":
                raise Reject("no")
            begun.set()
            await go.wait()

        async with (
            world.client() as client,
            anyio.create_task_group() as tasks,
            world.receiver(name, [name]) as receiver,
        ):
            tasks.start_soon(receiver.run, handle)
            bad = await client.send(name, "bad", delay=0)
            await world.refused(name, 1)
            good = await client.send(name, "good", delay=0)
            with anyio.fail_after(15):
                await begun.wait()
            sending = await client.cancel(good)
            assert (sending.state, sending.to) == (S.SENDING, name)
            assert sending.retry_after_s is not None
            assert sending.at_ms is not None
            go.set()
            done = await settled(client, good)
            assert (done.state, done.to) == (S.DELIVERED, name)
            assert done.at_ms is not None
            assert (await client.cancel(bad)).state is S.DEAD
            receiver.stop()

    play(main)


def test_what_nobody_has_is_unknown(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        async with world.client() as client:
            receipt = await client.send(name, delay=HOUR)
            due = receipt.due_at
            others = [
                MessageName(name, "other", due),
                MessageName(f"{name}.other", receipt.message_id, due),
                MessageName(name, receipt.message_id, due + timedelta(hours=1)),
                MessageName(name, "other"),
            ]
            outcomes = await client.cancel_many(others)
            assert states(outcomes) == [S.UNKNOWN] * 4
            assert (await client.cancel(receipt)).state is S.CANCELLED

    play(main)


def test_each_name_has_a_copy_of_its_own(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        got: list[ReceivedMessage] = []
        mail, sms = f"{name}-mail", f"{name}-sms"
        async with world.client() as client:
            # One takes it, the other is not there.
            await world.subscribe(sms, name, tries=3, waits="1s")
            async with running(world.receiver(mail, [name]), got):
                receipt = await client.send(name, delay=0)
                await world.until(lambda: got)
                await world.advance(1)
            changed = await settled(client, receipt)
        by_name = {one: changed.by_name[one].state for one in changed.by_name}
        assert by_name == {mail: S.DELIVERED, sms: S.CANCELLED}
        assert changed.state is S.DELIVERED

    play(main)


def test_what_was_moved_and_then_put_off_is_known_by_the_time_that_it_was_moved_to(
    play: Play,
) -> None:
    async def main(world: World, name: str) -> None:
        begun = anyio.Event()

        async def handle(_: ReceivedMessage) -> None:
            begun.set()
            raise RetryLater(HOUR)

        async with (
            world.client() as client,
            anyio.create_task_group() as tasks,
            world.receiver(name, [name]) as receiver,
        ):
            receipt = await client.send(name, delay=HOUR)
            moved = await client.move(receipt, to=0)
            tasks.start_soon(receiver.run, handle)
            with anyio.fail_after(15):
                await begun.wait()
                while True:
                    changed = await client.cancel(name, receipt.message_id, at=moved.due_at)
                    if changed.state is not S.SENDING:
                        break
                    await anyio.sleep(0.05)
            assert changed.state is S.CANCELLED
            assert changed.due_at is not None
            assert changed.due_at > world.now()
            receiver.stop()

    play(main)


def test_what_cannot_be_is_refused_and_the_others_are_changed(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        async with world.client() as client:
            receipts = [await client.send(name, delay=HOUR) for _ in range(5)]
            now = world.now()
            to: list[When] = [
                now + HOUR,
                now - HOUR,
                datetime(9000, 1, 1, tzinfo=UTC),
                now + 3 * HOUR,
                60,
            ]
            with pytest.raises(InvalidMessage, match="cancel"):
                await client.move(receipts[0], to=None)  # type: ignore[arg-type]
            outcomes = await client.move_many(list(zip(receipts, to, strict=True)))
            assert states(outcomes) == [S.MOVED, Refused, Refused, S.MOVED, S.MOVED]
            bad = [receipts[1].cancel_token[:-3], "nonsense"]
            outcomes = await client.cancel_many([*bad, receipts[1]])
            assert states(outcomes) == [InvalidToken, InvalidToken, S.CANCELLED]

    play(main)


def test_a_message_that_is_sent_again_is_the_first_one(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        got: list[ReceivedMessage] = []
        soon = timedelta(seconds=4 * world.unit_s)
        own: dict[str, Any] = {"message_id": f"{name}-own"}
        async with (
            world.client() as client,
            running(world.receiver(name, [name]), got),
        ):
            first = await client.send(name, "a", delay=soon, **own)
            await world.advance(0.2)
            again = await client.send(name, "a", delay=soon, **own)
            assert (first.duplicate, again.duplicate) == (False, True)
            assert again.due_ms == first.due_ms
            assert not (await client.send(name, "b", delay=soon, **own)).duplicate
            assert not (await client.send(name, "a", delay=2 * soon, **own)).duplicate
            at = first.due_at + HOUR
            receipts = [await client.send(name, "a", at=at, **own) for _ in range(2)]
            duplicates = [one.duplicate for one in receipts]
            assert duplicates == [False, True]
            await world.advance(5)
            await world.until(lambda: len(got) == 2)
        assert sorted(str(message.body) for message in got) == ["a", "b"]

    play(main)


def test_equal_ids_at_a_time_have_receipts_of_their_own(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        at = (world.now() + HOUR).replace(microsecond=0)
        own = OutgoingMessage(name, "a", at=at, message_id="own")
        async with world.client() as client:
            all_at_once = [own, own, own._replace(body="b"), own._replace(at=at + HOUR)]
            receipts = cast("list[Receipt]", await client.send_many(all_at_once))
            assert [one.duplicate for one in receipts] == [False, True, False, False]
            assert receipts[3].due_at == at + HOUR
            told: dict[str, Receipt] = {}

            async def send(subject: str, at: datetime) -> None:
                told[subject] = await client.send(subject, "a", at=at, message_id="own")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send, name, at)
                tasks.start_soon(send, f"{name}.other", at + HOUR)
            assert told[name].duplicate
            other = told[f"{name}.other"]
            assert (other.duplicate, other.due_at) == (False, at + HOUR)
            assert (await client.cancel(other)).state is S.CANCELLED

    play(main)


def test_what_was_cancelled_is_no_first_message(play: Play) -> None:
    async def main(world: World, name: str) -> None:
        async with world.client() as client:
            first = await client.send(name, "a", delay=HOUR, message_id="own")
            assert (await client.cancel(first)).state is S.CANCELLED
            again = await client.send(name, "a", delay=HOUR, message_id="own")
            assert not again.duplicate
            to = world.now() + 2 * HOUR
            assert (await client.move(again, to=to)).state is S.MOVED
            assert (await client.send(name, "a", delay=HOUR, message_id="own")).duplicate

    play(main)


@pytest.mark.process
def test_a_token_of_another_cluster_is_refused(real: World) -> None:
    async def main() -> None:
        async with real.client() as client:
            receipt = await client.send("elsewhere", delay=HOUR)
            assert receipt.cluster == cluster_hash("delaywheel")
            place = (cluster_hash("other"), receipt.due_ms, "elsewhere", receipt.message_id)
            with pytest.raises(OtherCluster):
                await client.cancel(encode_token(Place(*place)))
            assert (await client.cancel(receipt)).state is S.CANCELLED

    anyio.run(main)
