"""A subject that several names receive, in virtual time: each gets each message, for itself."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from delay_protocol.messages.items import decode_item
from delay_protocol.receivers.delivering import Settled, Verdict
from delay_server.server import DelayServer
from tests.delay_server.receiving.test_receivers import peer_of
from tests.delay_server.route_rig import RouteWorld, routed_config
from tests.delay_server.server_rig import World, make_item, until
from tests.receiver_peer import ReceiverPeer, later_item

SUBJECT = "orders"


@asynccontextmanager
async def received_by(
    *names: str, **sections: object
) -> AsyncIterator[tuple[RouteWorld, DelayServer]]:
    """Serve with a meta server that leads every subject to these names."""
    world = RouteWorld(1)
    world.meta.masters |= dict.fromkeys(("billing", "shipping", "audit"), "")
    world.meta.rest = names
    async with world.routing(routed_config(**sections)) as (server, _):
        yield world, server


@asynccontextmanager
async def receiver(world: World, name: str, items: int = 10_000) -> AsyncIterator[ReceiverPeer]:
    """Attach a receiver of a name; it takes so many messages at a time."""
    async with peer_of(world) as peer:
        await peer.begin(name, items)
        yield peer


async def send(
    world: World, count: int, *, after_ms: int = 500, subject: str = SUBJECT, name: str = "m"
) -> list[bytes]:
    """Have the server keep messages m0, m1 and so on; return their items."""
    producer, due_ms = await world.connect(), world.now_ms + after_ms
    items = [make_item(f"{name}{n}", due_ms, subject=subject) for n in range(count)]
    assert await producer.send(*items) == {}
    return items


def came(peer: ReceiverPeer) -> Counter[bytes]:
    """Return the items that a receiver got, and how often."""
    return Counter(one.item for _, one in peer.delivered)


async def until_all_came(items: Sequence[bytes], *peers: ReceiverPeer) -> None:
    """Wait until each of them has each item, byte for byte, once."""
    await until(lambda: all(len(peer.delivered) >= len(items) for peer in peers), seconds=150)
    assert [came(peer) for peer in peers] == [Counter(items)] * len(peers)


def pending(server: DelayServer) -> int:
    """Return how many messages have no outcome, as far as it is filed."""
    return server.node.store.schedule.pending


async def test_each_name_gets_each_message_byte_for_byte_when_it_is_due() -> None:
    async with received_by("billing", "shipping") as (world, server):
        items = await send(world, 600, after_ms=200_000)
        due_ms = decode_item(items[0]).due_ms
        # Copied as soon as they are loaded, so that nobody waits for it when they are due.
        await until(lambda: server.master.copier.copied == 1200, seconds=150)
        assert world.now_ms < due_ms - 60_000
        await until(lambda: world.now_ms > due_ms - 5000, seconds=150)
        async with (
            receiver(world, "billing") as billing,
            receiver(world, "shipping") as shipping,
        ):
            await _all_in_time(items, billing, shipping)
        assert not set(billing.sequences) & set(shipping.sequences)
        await until(lambda: not pending(server))


async def _all_in_time(items: Sequence[bytes], *peers: ReceiverPeer) -> None:
    await until_all_came(items, *peers)
    for peer in peers:
        late_ms = [at_ms - decode_item(one.item).due_ms for at_ms, one in peer.delivered]
        assert 0 <= min(late_ms) <= max(late_ms) < 1000
        assert await peer.done(peer.sequences) == 0


async def test_what_one_name_does_the_other_does_not_see() -> None:
    async with (
        received_by("billing", "shipping") as (world, server),
        receiver(world, "billing") as billing,
        receiver(world, "shipping") as shipping,
    ):
        items = await send(world, 3)
        await until_all_came(items, billing, shipping)
        first = {decode_item(one.item).message_id: one for _, one in billing.delivered}
        due_ms = world.now_ms + 2000
        verdicts = [
            Settled(first["m0"].sequence, Verdict.LATER, later_item(first["m0"].item, due_ms)),
            Settled(first["m1"].sequence, Verdict.REFUSED, b"no"),
            Settled(first["m2"].sequence, Verdict.DONE),
        ]
        assert await billing.settle(verdicts) == 0
        assert await shipping.done(shipping.sequences) == 0
        await until(lambda: len(billing.delivered) == 4)
        at_ms, again = billing.delivered[-1]
        assert (decode_item(again.item).message_id, at_ms >= due_ms) == ("m0", True)
        assert decode_item(again.item).subject == SUBJECT
        assert await billing.done([again.sequence]) == 0
        (letter,) = server.master.dead_letters.listed()
        assert letter.subject == b"%RETRY%orders%billing"
        await server.master.dead_letters.requeue([letter])
        await until(lambda: len(billing.delivered) == 5)
        assert await billing.done(billing.sequences[-1:]) == 0
        await until(lambda: not pending(server))
        assert len(shipping.delivered) == 3


async def test_what_one_name_holds_is_taken_back_when_another_joins() -> None:
    async with (
        received_by("billing") as (world, server),
        receiver(world, "billing", items=10) as billing,
        receiver(world, "shipping") as shipping,
    ):
        items = await send(world, 500)
        await until(lambda: len(billing.delivered) == 10)
        await world.meta.reroute(SUBJECT, "billing", "shipping")
        await until(lambda: len(shipping.delivered) == 490)
        # What the first had goes to the second no more; what it puts off stays its own.
        held = [one for _, one in billing.delivered]
        await billing.settle(
            Settled(one.sequence, Verdict.LATER, later_item(one.item, world.now_ms + 1000))
            for one in held
        )
        await billing.flow(10_000)
        await until(lambda: len(billing.delivered) == 510)
        await trio.sleep(5)
        assert set(came(shipping)) == set(items) - {one.item for one in held}
        assert set(came(billing)) >= set(items) - {one.item for one in held}
        await billing.done(billing.sequences)
        await shipping.done(shipping.sequences)
        await until(lambda: not pending(server))


async def test_a_route_that_is_single_again_leaves_what_was_copied_to_its_names() -> None:
    async with received_by("billing", "shipping") as (world, server):
        items = await send(world, 50)
        await until(lambda: server.master.copier.copied == 100)
        await world.meta.reroute(SUBJECT, "billing")
        more = await send(world, 5, name="more")
        async with receiver(world, "billing") as billing:
            await until_all_came([*items, *more], billing)
            await world.meta.reroute(SUBJECT, "billing", "shipping")
            async with receiver(world, "shipping") as shipping:
                await until_all_came(items, shipping)


async def test_nothing_is_copied_for_names_that_are_gone_and_nothing_is_lost() -> None:
    async with received_by("billing", "shipping") as (world, server):
        server.master.copier.names_of = lambda _: []
        items = await send(world, 20)
        await trio.sleep(3)
        assert (server.master.copier.copied, pending(server)) == (0, 20)
        server.master.copier.names_of = lambda _: ["billing"]
        async with receiver(world, "billing") as billing:
            await until_all_came(items, billing)
