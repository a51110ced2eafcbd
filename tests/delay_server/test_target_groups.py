"""Receivers of one name with different patterns: each gets what its own take, in virtual time."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from unittest import mock

import numpy as np
import trio

from delay_protocol.messages.items import decode_item
from delay_protocol.receivers.attaching import AttachRefused
from delay_protocol.receivers.delivering import Settled, Verdict
from delay_server.admin.explain import explain_subject, find
from delay_server.server import DelayServer
from sender.groups.attached import SETS_MAX
from sender.groups.group_rules import GroupRule
from tests.delay_server.receiving.test_receivers import NAME, peer_of, serving
from tests.delay_server.route_rig import RouteWorld, routed_config
from tests.delay_server.server_rig import World, make_item, until
from tests.receiver_peer import ReceiverPeer

OLD, NEW = ("a.*",), ("a.*", "b.*", "b.*")


@asynccontextmanager
async def routed_to_receivers() -> AsyncIterator[tuple[RouteWorld, DelayServer]]:
    """Serve with a meta server that routes every subject to receivers of one name."""
    world = RouteWorld(1)
    world.meta.masters[NAME] = ""
    world.meta.rest = (NAME,)
    async with world.routing(routed_config()) as (server, _):
        yield world, server


@asynccontextmanager
async def taking(
    world: World, patterns: Sequence[str], *, items: int = 1000
) -> AsyncIterator[ReceiverPeer]:
    """Attach a receiver with these patterns; it takes so many messages at a time."""
    async with peer_of(world) as peer:
        await peer.begin(NAME, items, patterns=patterns)
        yield peer


async def send(world: World, subject: str, count: int, *, name: str = "m") -> None:
    """Have the server keep so many messages of a subject, due in half a second."""
    producer = await world.connect()
    items = [make_item(f"{name}{n}", world.now_ms + 500, subject=subject) for n in range(count)]
    assert await producer.send(*items) == {}


def subjects(peer: ReceiverPeer) -> set[str]:
    """Return the subjects of what a receiver got."""
    return {decode_item(one.item).subject for _, one in peer.delivered}


async def test_each_receiver_gets_only_what_the_patterns_take_that_it_brought() -> None:
    async with (
        routed_to_receivers() as (world, _),
        taking(world, OLD) as old,
        taking(world, NEW) as new,
        taking(world, ()) as every,
    ):
        retries = f"%RETRY%b.1%{NAME}"
        for subject in ("a.1", "b.1", "c", retries):
            await send(world, subject, 100, name=subject)
        await until(lambda: sum(len(one.delivered) for one in (old, new, every)) == 400)
        assert subjects(old) == {"a.1"}
        assert {"b.1", retries} <= subjects(new) <= {"a.1", "b.1", retries}
        assert "c" in subjects(every)


async def test_what_nobody_takes_waits_on_disk_alone_and_comes_once_it_is_taken() -> None:
    async with routed_to_receivers() as (world, server), taking(world, OLD) as old:
        await send(world, "b.1", 500)
        await until(lambda: server.master.lanes.unrouted(0).messages == 500)
        assert server.master.sender.unsent().total == 0
        about = await explain_subject(server.administered().parts(), "b.1")
        assert (about["reason"], about["receivers"]) == (
            "no_route",
            [f"no receiver that is attached to {NAME} takes it"],
        )
        await send(world, "a.1", 10, name="a")
        await until(lambda: len(old.delivered) == 10)
        async with taking(world, NEW, items=50) as new:
            await until(lambda: len(new.delivered) == 50)
            assert subjects(new) == {"b.1"}
            assert await new.done(new.sequences[:20]) == 0
            await until(lambda: len(new.delivered) == 70)
        # What it had, and what waited for it, is given back.
        await until(lambda: server.master.sender.unsent().total == len(old.sequences))
        assert server.master.lanes.unrouted(0).messages >= 480 - 100
        assert subjects(old) == {"a.1"}
        async with taking(world, ("b.1",)) as last:
            await until(lambda: len(last.delivered) == 480)
        assert server.master.sender.status()[0].queued == 0


async def test_a_name_with_nobody_attached_keeps_its_messages_for_the_next() -> None:
    async with routed_to_receivers() as (world, server):
        async with taking(world, OLD):
            await send(world, "a.1", 5)
        await send(world, "b.1", 5)
        await until(lambda: server.master.late_now == 10)
        async with taking(world, NEW) as new:
            await until(lambda: len(new.delivered) == 10)


def came(peer: ReceiverPeer, count: int) -> bool:
    """Return True if a receiver got so many messages."""
    return len(peer.delivered) == count


async def test_what_its_takers_do_not_settle_holds_up_no_other_subject() -> None:
    async with (
        routed_to_receivers() as (world, _),
        taking(world, ("b.*",), items=1) as stuck,
        taking(world, OLD, items=1) as old,
    ):
        await send(world, "b.1", 300)
        await until(lambda: stuck.delivered)
        for n in range(20):
            await send(world, "a.1", 1, name=f"a{n}-")
            await until(partial(came, old, n + 1), seconds=1)
            assert await old.done(old.sequences[-1:]) == 0
        assert len(stuck.delivered) == 1
        assert subjects(old) == {"a.1"}


async def test_what_waits_for_one_is_not_given_to_who_comes_and_does_not_take_it() -> None:
    async with routed_to_receivers() as (world, server), taking(world, NEW) as new:
        server.master.sender.set_group_rules({NAME: GroupRule(rate_per_s=10.0)})
        await send(world, "b.1", 100)
        await until(lambda: server.master.sender.status()[0].queued > 50)
        async with taking(world, OLD) as old:
            await until(lambda: len(new.delivered) == 100, seconds=20)
            assert not old.delivered


async def test_a_server_without_routes_takes_no_patterns() -> None:
    world = World()
    async with serving(world), peer_of(world) as peer:
        refused = await peer.attach(NAME, patterns=OLD)
        assert isinstance(refused, AttachRefused)
        assert refused.reason == "this server has no routes: attach without subjects"
        assert not refused.is_final


async def test_what_one_gives_back_goes_to_another_that_is_idle() -> None:
    async with (
        routed_to_receivers() as (world, _),
        taking(world, (), items=4) as first,
        taking(world, ()) as second,
    ):
        await send(world, "a", 64)
        await until(lambda: (len(first.delivered), len(second.delivered)) == (4, 60))
        # It was given less, and takes more now, but it has just given these back.
        await first.flow(1000)
        released = first.sequences[:3]
        assert await first.settle([Settled(n, Verdict.RELEASE) for n in released]) == 0
        await until(lambda: len(first.delivered) + len(second.delivered) == 67)
        assert second.sequences[-3:] == released


async def test_explain_says_which_receiver_has_a_message_and_since_when() -> None:
    async with routed_to_receivers() as (world, server), taking(world, OLD) as peer:
        await send(world, "a.1", 3)
        await until(lambda: len(peer.delivered) == 3)
        await trio.sleep(5)
        parts = server.administered().parts()
        (found,), _ = await find(parts, message_id=b"m1")
        assert found.held is not None
        holder, instance, since = found.held.holder.split(", ")
        assert holder.startswith("127.0.0.1:")
        assert instance == f"instance {(b'i' * 16).hex()}"
        came = np.datetime64(peer.delivered[0][0], "ms")
        assert since == f"since {came} UTC"
        about = await explain_subject(parts, "a.1")
        assert about["receivers"] == [f"3 with {found.held.holder}"]


async def test_a_set_beyond_the_limit_is_refused_with_a_sentence() -> None:
    async with routed_to_receivers() as (world, _), AsyncExitStack() as stack:
        for n in range(SETS_MAX):
            await stack.enter_async_context(taking(world, (f"a.{n}",)))
        await stack.enter_async_context(taking(world, ("a.1",)))
        peer = await stack.enter_async_context(peer_of(world))
        answer = await peer.attach(NAME, patterns=("b.*",))
        assert isinstance(answer, AttachRefused)
        assert not answer.is_final
        assert f"brought {SETS_MAX} different sets of subjects" in answer.reason


async def test_receivers_that_come_and_go_with_their_sets_change_routes_once_a_second() -> None:
    async with routed_to_receivers() as (world, server), taking(world, OLD):
        routes = server.master.targets.routes
        assert routes is not None
        with mock.patch.object(routes, "take_sets", wraps=routes.take_sets) as passes:
            for n in range(30):
                async with taking(world, (f"b.{n}",)):
                    await trio.sleep(0.1)
            assert 2 <= passes.call_count <= 4
            async with taking(world, ("b.1",)) as last:
                await send(world, "b.1", 1)
                await until(partial(came, last, 1))
