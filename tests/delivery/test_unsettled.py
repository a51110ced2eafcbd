"""Promise: a message that ends its receivers becomes a dead letter, and takes no others with it."""

from collections import Counter

import numpy as np
import pytest
import trio

from delay_protocol.messages.items import decode_item
from delay_protocol.receivers.attaching import UNSETTLED_REASON, UNSETTLED_TRIES
from delay_protocol.receivers.delivering import Delivered, Settled, Verdict
from delay_server.admin.dead_view import shown_letter
from delay_server.server import DelayServer
from sender.queues.parcels import NOBODY, first_try, joined
from sender.settings.config import SenderConfig
from tests.delay_server.receiving.test_receivers import (
    NAME,
    attached_to,
    pending,
    serving,
)
from tests.delay_server.server_rig import World, make_item, until
from tests.receiver_peer import ReceiverPeer, later_item

QUICK = SenderConfig(retry_base_s=0.01)


def name_of(one: Delivered) -> str:
    return decode_item(one.item).message_id


class Service:
    """Instances of a service that a message may end, each started again."""

    def __init__(self, world: World, *poison: str, handler_s: float = 0.05) -> None:
        self._world = world
        self._poison = poison
        self._handler_s = handler_s
        self.died: Counter[str] = Counter()
        """Messages that ended an instance, by id, with how often."""
        self.lost: Counter[str] = Counter()
        """The others that an instance had when it ended."""
        self.done: list[str] = []

    async def run_one(self) -> None:
        """Be an instance, again and again: it handles one message after another."""
        while True:
            async with attached_to(self._world) as peer:
                await self._attend(peer)
            await trio.sleep(0.5)

    async def _attend(self, peer: ReceiverPeer) -> None:
        begun = 0
        while True:
            while begun == len(peer.delivered):  # noqa: ASYNC110 (it has no event for that)
                await trio.sleep(0.01)
            _, one = peer.delivered[begun]
            begun += 1
            await trio.sleep(self._handler_s)
            if name_of(one) in self._poison:
                self.died[name_of(one)] += 1
                settled = set(self.done)
                self.lost.update(one for one in peer.ids if one not in settled)
                self.lost.subtract([name_of(one)])
                return
            await peer.done([one.sequence])
            self.done.append(name_of(one))


async def letters_of(server: DelayServer) -> dict[str, dict[str, object]]:
    """Return what is shown of each dead letter, by message id."""
    letters = server.master.dead_letters
    await letters.until_read()
    shown = await letters.read(
        letters.listed(), lambda row, item: shown_letter(row, item, is_whole=True)
    )
    return {str(one["message_id"]): one for one in shown}


@pytest.mark.parametrize("instances", [1, 3])
async def test_what_ends_its_receivers_is_a_dead_letter_and_others_are_each_handled(
    instances: int,
) -> None:
    world = World()
    service = Service(world, "m5", "m20")
    names = [f"m{n}" for n in range(30)]
    async with serving(world, sender=QUICK) as server, trio.open_nursery() as nursery:
        await world.keep(*(make_item(name, world.now_ms + 500) for name in names))
        for _ in range(instances):
            nursery.start_soon(service.run_one)
        dead = server.master.dead_letters
        await until(lambda: len({*service.done}) == 28 and dead.pending == 2, seconds=600)
        letters = await letters_of(server)
        nursery.cancel_scope.cancel()
    # Once or twice the other one may have ended its receiver.
    assert UNSETTLED_TRIES - 2 <= service.died["m5"] <= UNSETTLED_TRIES
    assert UNSETTLED_TRIES - 2 <= service.died["m20"] <= UNSETTLED_TRIES
    assert sorted({*service.done, *service.died}) == sorted(names)
    # Two that did not go alone yet, for each.
    assert max(service.lost.values()) <= 4
    assert set(letters) == {"m5", "m20"}
    for letter in letters.values():
        assert letter["attempt"] == letter["tries"] == UNSETTLED_TRIES
        assert letter["refused"] == UNSETTLED_TRIES
        assert letter["group"] == NAME
        refusals = letter["refusals"]
        assert isinstance(refusals, list)
        assert {one["said"] for one in refusals} == {UNSETTLED_REASON}


async def test_from_the_third_delivery_on_it_is_with_a_receiver_that_has_nothing_else() -> None:
    world = World()
    async with serving(world, sender=QUICK) as server:
        await world.keep(make_item("poison", world.now_ms))
        await leave_with(world, 2)
        async with attached_to(world, items=1) as peer, attached_to(world) as busy:
            await world.keep(*(make_item(f"m{n}", world.now_ms) for n in range(10)))
            await until(lambda: len(peer.delivered) + len(busy.delivered) >= 10, seconds=5)
            both = (peer, busy)
            [(one, other)] = [(a, b) for a, b in (both, both[::-1]) if "poison" in a.ids]
            assert one.ids == ["poison"], "it went to the one that held nothing"
            assert "poison" not in other.ids
            await world.keep(*(make_item(f"n{n}", world.now_ms) for n in range(10)))
            await until(lambda: {f"n{n}" for n in range(10)} <= set(other.ids))
            assert one.ids == ["poison"], "nothing goes beside it"
            await one.done(one.sequences)
            await one.flow(100)
            await world.keep(*(make_item(f"o{n}", world.now_ms) for n in range(40)))
            await until(lambda: len(one.ids) > 1)
        assert "poison" not in await letters_of(server)


async def leave_with(world: World, times: int) -> None:
    """Let a receiver get the only message, and end; then another one."""
    for _ in range(times):
        async with attached_to(world) as peer:
            await until(peer.delivered.__len__, seconds=60)


@pytest.mark.parametrize("verdict", [Verdict.RELEASE, Verdict.LATER])
async def test_a_release_is_no_verdict_and_a_later_begins_the_count_anew(verdict: Verdict) -> None:
    world = World()
    async with serving(world, sender=QUICK) as server:
        await world.keep(make_item("m", world.now_ms))
        await leave_with(world, UNSETTLED_TRIES - 1)
        async with attached_to(world) as peer:
            await until(peer.delivered.__len__, seconds=60)
            ((_, one),) = peer.delivered
            rest = later_item(one.item, world.now_ms + 10) if verdict is Verdict.LATER else b""
            await peer.settle([Settled(one.sequence, verdict, rest)])
            await until(lambda: len(peer.delivered) == 2, seconds=60)
        await trio.sleep(5)
        assert len(await letters_of(server)) == (verdict is Verdict.RELEASE)


async def test_a_restart_begins_the_count_anew() -> None:
    world = World()
    for _ in range(2):
        async with serving(world, sender=QUICK) as server:
            if server.node.store.message_log.next_sequence < 3:
                await world.keep(make_item("m", world.now_ms))
            await leave_with(world, UNSETTLED_TRIES - 1)
            await trio.sleep(5)
            assert await letters_of(server) == {}
            assert pending(server) == 1


async def test_what_brokers_did_not_take_does_not_count() -> None:
    """A message may wait for a broker for hours, and its subject then go to receivers."""
    world = World()
    async with serving(world, sender=QUICK) as server:
        await world.keep(make_item("m", world.now_ms))
        sender = server.master.sender
        await until(lambda: sender.unsent().total == 1)
        (entries,) = sender.withdraw(0, lambda found: np.ones(len(found), np.bool_))
        batch = joined([first_try(entries)])
        batch.tries[:] = 1000
        sender.retry(batch, avoid=NOBODY)
        await leave_with(world, UNSETTLED_TRIES - 1)
        assert await letters_of(server) == {}


async def test_operators_set_how_many_receivers_it_may_end() -> None:
    world = World()
    async with serving(world) as server:
        await world.keep(make_item("m", world.now_ms))
        for _ in range(3):
            async with attached_to(world, unsettled_tries=3) as peer:
                await until(peer.delivered.__len__)
        await until(lambda: pending(server) == 0)
        assert set(await letters_of(server)) == {"m"}
