"""Changes of messages that receivers have put off, or that are copies for several names."""

import trio

from delay_protocol.messages.changes import ChangeState
from delay_protocol.messages.items import decode_item
from delay_protocol.receivers.delivering import Settled, Verdict
from tests.delay_server.changing.test_requests import ask, cancel, move, one, raw, states
from tests.delay_server.receiving.test_copies import SUBJECT, received_by, receiver, send
from tests.delay_server.receiving.test_receivers import attached
from tests.delay_server.server_rig import World, make_item, until
from tests.receiver_peer import later_item


async def test_what_a_receiver_has_is_being_sent_and_what_it_put_off_is_cancelled() -> None:
    world = World()
    async with attached(world) as (server, peer):
        due_ms = world.now_ms + 1000
        await world.keep(make_item("m", due_ms))
        await until(lambda: peer.delivered)
        producer = await world.connect()
        result = await one(producer, cancel("m", due_ms))
        assert (result.state, result.to) == (ChangeState.SENDING, "reminders")
        assert due_ms <= (result.at_ms or 0) <= world.now_ms
        ((_, got),) = peer.delivered
        said = {"dw_firstDue": str(due_ms)}
        rest = later_item(got.item, world.now_ms + 60_000, attributes=said)
        assert await peer.settle([Settled(got.sequence, Verdict.LATER, rest)]) == 0
        result = await one(producer, cancel("m", due_ms))
        assert result.state is ChangeState.CANCELLED
        await peer.flow(100)
        await trio.sleep(25)
        await peer.flow(100)
        await until(lambda: not server.node.store.schedule.pending)
        assert len(peer.delivered) == 1


async def test_what_was_moved_and_then_put_off_is_cancelled_by_any_time_that_it_had() -> None:
    world = World()
    async with attached(world) as (_, peer):
        producer = await world.connect()
        sent_ms, moved_ms = world.now_ms + 600_000, world.now_ms + 1000
        names = ("a", "b", "c")
        sent = {"qmq_scheduleReceiveTime": str(sent_ms)}
        await world.keep(*(make_item(name, sent_ms, attributes=sent) for name in names))
        await states(producer, *(move(name, sent_ms, moved_ms) for name in names))
        # Another message of the same id, at the first time of the first one.
        await world.keep(make_item("a", sent_ms, attributes=sent | {"k": "other"}))
        await until(lambda: len(peer.delivered) == len(names))
        put_off_ms = world.now_ms + 1_200_000
        for _, got in peer.delivered:
            rest = later_item(got.item, put_off_ms, attributes={"dw_firstDue": str(sent_ms)})
            assert await peer.settle([Settled(got.sequence, Verdict.LATER, rest)]) == 0
        told = await states(producer, cancel("a", moved_ms), cancel("b", put_off_ms))
        assert told == [ChangeState.CANCELLED] * 2
        assert (await one(producer, cancel("c", sent_ms))).due_ms == put_off_ms
        assert await states(producer, cancel("a", sent_ms)) == [ChangeState.CANCELLED]


async def test_copies_are_cancelled_and_answered_by_name() -> None:
    async with (
        received_by("billing", "shipping") as (world, server),
        receiver(world, "billing", items=1) as billing,
    ):
        (item,) = await send(world, 1)
        due_ms = decode_item(item).due_ms
        await until(lambda: billing.delivered)
        wish = cancel("m0", due_ms, subject=SUBJECT)
        reply = await ask(await world.connect(), wish)
        told = {result.name: result.state for result in reply.results}
        assert told == {"billing": ChangeState.SENDING, "shipping": ChangeState.CANCELLED}
        await billing.done(billing.sequences)
        reply = await ask(await world.connect(), wish)
        told = {result.name: result.state for result in reply.results}
        assert told == {"billing": ChangeState.DELIVERED, "shipping": ChangeState.CHANGED_BEFORE}
        async with receiver(world, "shipping") as shipping:
            await until(lambda: not server.node.store.schedule.pending)
            assert not shipping.delivered


async def test_a_copy_that_its_receiver_put_off_is_cancelled_whatever_the_others_are() -> None:
    async with (
        received_by("billing", "shipping") as (world, server),
        receiver(world, "billing", items=1) as billing,
        receiver(world, "shipping", items=1) as shipping,
    ):
        (item,) = await send(world, 1)
        due_ms = decode_item(item).due_ms
        await until(lambda: billing.delivered and shipping.delivered)
        await shipping.done(shipping.sequences)
        ((_, got),) = billing.delivered
        said = {"dw_firstDue": str(due_ms)}
        rest = later_item(got.item, world.now_ms + 60_000, attributes=said)
        assert await billing.settle([Settled(got.sequence, Verdict.LATER, rest)]) == 0
        reply = await ask(await world.connect(), cancel("m0", due_ms, subject=SUBJECT))
        told = {result.name: result.state for result in reply.results}
        assert told == {"billing": ChangeState.CANCELLED, "shipping": ChangeState.DELIVERED}
        await billing.flow(100)
        await until(lambda: not server.node.store.schedule.pending)
        assert len(billing.delivered) == 1


async def test_a_message_is_cancelled_before_it_is_copied() -> None:
    async with received_by("billing", "shipping") as (world, server):
        items = await send(world, 2, after_ms=600_000)
        wish = cancel("m0", decode_item(items[0]).due_ms, subject=SUBJECT)
        assert await states(await world.connect(), wish) == [ChangeState.CANCELLED]
        async with receiver(world, "billing") as peer:
            await until(lambda: server.master.copier.copied == 2, seconds=700)
            await peer.flow(100)
            await until(lambda: world.now_ms > decode_item(items[1]).due_ms, seconds=700)


async def test_a_change_that_finds_no_space_is_not_made_and_the_message_comes() -> None:
    world = World()
    async with world.serving() as server:
        due_ms = world.now_ms + 600_000
        await world.keep(make_item("m", due_ms), make_item("n", world.now_ms + 1000))
        world.disk.capacity_bytes = sum(map(len, world.disk.contents().values()))
        producer = await world.connect()
        for wish in (cancel("m", due_ms), move("m", due_ms, due_ms + 1)):
            answer = await raw(producer, wish)
            assert (answer.code, b"full" in answer.body) == (51, True)
        assert not len(server.master.cancelling)
        world.disk.capacity_bytes = 1 << 40
        await until(lambda: world.broker.ids == ["n", "m"], seconds=900)


async def test_a_change_that_is_not_committed_is_never_answered() -> None:
    world = World()
    async with world.serving() as server:
        due_ms = world.now_ms + 600_000
        await world.keep(make_item("m", due_ms))
        server.node.commit_point.is_sole = False
        producer = await world.connect()
        with trio.move_on_after(30) as waited:
            await states(producer, cancel("m", due_ms))
        assert waited.cancelled_caught
        assert len(server.master.cancelling) == 1
        server.node.commit_point.is_sole = True
