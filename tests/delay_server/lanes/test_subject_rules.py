"""An operator pauses subjects: nothing is lost or stuck, and nobody else is delayed."""

import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
import trio

from delay_protocol.nodes.controls import Controls, GroupControl, SubjectControl
from delay_server.holding.wheel import WheelConfig
from delay_server.server import DelayServer
from delay_server.settings.config import DelayServerConfig, RoutesConfig, StorageConfig
from sender.settings.config import SenderConfig
from tests.delay_server.route_rig import RouteWorld, routed_config
from tests.delay_server.server_rig import World, all_sealed, make_config, make_item, until
from tests.seeds import each_seed

REQUEST_ITEMS = 500
PAUSED = SubjectControl(paused=True)


async def change(server: DelayServer, plan: Callable[[Controls], Controls]) -> None:
    await server.node.have_controls(plan(server.master.outlet.applied))


async def set_rule(server: DelayServer, pattern: str, rule: SubjectControl | None) -> None:
    await change(server, lambda controls: controls.with_subject(pattern, rule))


async def test_a_paused_subject_waits_on_disk_and_leaves_oldest_first_when_it_is_resumed() -> None:
    world = World()
    async with world.serving() as server:
        await set_rule(server, "p", PAUSED)
        due_ms = world.now_ms + 1000
        await world.keep(*[make_item(f"p{n}", due_ms + n // 20, subject="p") for n in range(3000)])
        await world.keep(*[make_item(f"o{n}", due_ms + n // 20, subject="o") for n in range(3000)])
        await until(lambda: len(world.broker.deliveries) == 3000)
        late = [d.at_ms - d.due_ms for d in world.broker.deliveries]
        assert max(late) < 200
        await trio.sleep(5)
        assert world.broker.subjects == {"o"}
        assert (len(server.master.wheel), server.master.sender.unsent().total) == (0, 0)
        paused = server.master.lanes.paused(3)
        assert (paused.subjects, paused.messages, paused.oldest_due_ms) == (1, 3000, due_ms)
        assert server.master.lanes.unrouted(3).subjects == 0
        assert not server.master.lanes.parked.anyone_waits
        await set_rule(server, "p", None)
        late_ms = world.now_ms + 300
        await world.keep(*[make_item(f"n{n}", late_ms + n // 5, subject="o") for n in range(500)])
        await until(lambda: len(world.broker.deliveries) == 6500)
        of_p = [d.message_id for d in world.broker.deliveries if d.message_id[0] == "p"]
        assert of_p == [f"p{n}" for n in range(3000)]
        late = [d.at_ms - d.due_ms for d in world.broker.deliveries if d.message_id[0] == "n"]
        assert max(late) < 200
        await all_sealed(server)
        await until(lambda: not server.master.lanes.parked.anyone_waits, seconds=60)
        assert not len(server.master.handout.lanes)
        assert server.master.lanes.paused(3).subjects == 0
    assert set(Counter(world.broker.ids).values()) == {1}


async def test_when_a_pause_is_answered_nothing_is_sent_but_what_was_in_flight() -> None:
    world = World()
    world.broker.answer_after_s = 0.02
    config = make_config(sender=SenderConfig(heartbeat_s=3600, batch_items=16))
    async with world.serving(config) as server:
        due_ms = world.now_ms + 500
        items = [make_item(f"{s}{n}", due_ms, subject=s) for n in range(5000) for s in "po"]
        await world.keep(*items)
        await until(lambda: len(world.broker.deliveries) > 1000)
        await set_rule(server, "p", PAUSED)
        in_flight = server.master.sender.in_flight
        assert 0 < in_flight < 1000
        seen = len([i for i in world.broker.ids if i[0] == "p"])
        assert not server.master.sender.queued_in(server.master.lanes.base)
        await until(lambda: len([i for i in world.broker.ids if i[0] == "o"]) == 5000)
        await trio.sleep(3)
        assert len([i for i in world.broker.ids if i[0] == "p"]) <= seen + in_flight
        assert server.master.sender.unsent().total == 0
        await set_rule(server, "p", None)
        await until(lambda: len(world.broker.deliveries) == 10_000)
        await all_sealed(server)
    assert set(Counter(world.broker.ids).values()) == {1}


async def test_a_paused_group_leaves_the_others_all_and_takes_its_part_again() -> None:
    world = RouteWorld(groups=2)
    world.meta.rest = ("g0", "g1")
    world.meta.routes["only"] = ("g0",)
    async with world.routing() as (server, _):
        paused = GroupControl(paused=True)
        await world.keep(*[make_item("first", world.now_ms + 100)])
        await until(lambda: world.ids() == ["first"])
        await change(server, lambda controls: controls.with_group("g0", paused))
        before = len(world.brokers[0].deliveries)
        due_ms = world.now_ms + 1000
        both = [make_item(f"m{n}", due_ms + n // 20) for n in range(2000)]
        await world.keep(*both + [make_item(f"o{n}", due_ms, subject="only") for n in range(500)])
        await until(lambda: len(world.brokers[1].deliveries) >= 2000)
        assert len(world.brokers[0].deliveries) == before
        assert max(d.at_ms - d.due_ms for d in world.brokers[1].deliveries) < 300
        await change(server, lambda controls: controls.with_group("g0", None))
        await until(lambda: world.taken == 2501)
        await all_sealed(server)
    assert set(Counter(world.ids()).values()) == {1}


async def test_controls_hold_over_a_stop_and_a_start() -> None:
    world = World()
    async with world.serving() as server:
        await set_rule(server, "p*", PAUSED)
        await set_rule(server, "s", SubjectControl(paused=True))
        due_ms = world.now_ms + 60_000
        await world.keep(
            *[make_item(f"{s}{n}", due_ms, subject=s) for n in range(50) for s in "ps"]
        )
    async with world.serving() as server:
        assert server.master.outlet.applied.version == 2
        await trio.sleep(100)
        assert not world.broker.deliveries
        await set_rule(server, "s", None)
        await until(lambda: len(world.broker.deliveries) == 50)
        assert world.broker.subjects == {"s"}
        await set_rule(server, "p*", None)
        await until(lambda: len(world.broker.deliveries) == 100)
        await all_sealed(server)
    assert set(Counter(world.broker.ids).values()) == {1}


RULES: list[SubjectControl | None] = [None, None, SubjectControl(), PAUSED, PAUSED]


def small_sections(chance: random.Random) -> dict[str, object]:
    return {
        "wheel": WheelConfig(entries_max=2000, lane_entries_min=50, lanes_max=2),
        "sender": SenderConfig(heartbeat_s=3600, batch_items=16, reconnect_max_s=5),
        "storage": StorageConfig(disk_free_bytes_min=0, subjects_bytes_max=1 << 20),
        "routes": RoutesConfig(unused_ms=5000, subjects_max=chance.choice([10, 1000])),
    }


async def disturb(world: World, server: DelayServer, chance: random.Random) -> int:
    """Do something at random; return how many messages were sent."""
    subjects = [f"s{n}" for n in range(20)]
    action = chance.randrange(6)
    if action <= 2:
        some = chance.choices(subjects, k=chance.choice([1, 5, 20]))
        first_ms = world.now_ms + chance.choice([-60_000, 0, 3000, 100_000])
        count = chance.choice([1, 30, 400])
        number = chance.getrandbits(60)
        await world.keep(
            *[
                make_item(f"{number}.{n}", first_ms + n * 7, subject=chance.choice(some))
                for n in range(count)
            ],
        )
        return count
    if action == 3:
        pattern = chance.choice([*subjects, "s1*", "*", "s*"])
        await set_rule(server, pattern, chance.choice(RULES))
    elif action == 4:
        group = chance.choice(
            sorted(status.name for status in server.master.sender.status()) or ["g1"]
        )
        rule = chance.choice([None, GroupControl(paused=True), GroupControl(rate_per_s=300)])
        await change(server, lambda controls: controls.with_group(group, rule))
    else:
        await trio.sleep(chance.choice([0.003, 0.05, 1, 20]))
    return 0


async def open_all(server: DelayServer) -> None:
    await change(
        server, lambda controls: Controls(version=controls.version + 1, subjects={}, groups={})
    )


@each_seed(9, quick=1)
async def test_whatever_is_paused_in_between_all_leaves_once_in_the_end(seed: int) -> None:
    chance = random.Random(seed)
    world = World(seed=seed)
    world.broker.answer_after_s = chance.choice([0, 0.01])
    config: DelayServerConfig = make_config(**small_sections(chance))
    sent = 0
    async with world.serving(config) as server:
        for _ in range(80):
            sent += await disturb(world, server, chance)
        await open_all(server)
        await until(lambda: len(world.broker.taken) == sent, seconds=900)
        await all_sealed(server)
        await until(lambda: not server.master.lanes.parked.anyone_waits, seconds=400)
        assert not len(server.master.handout.lanes)
        assert not server.master.sender.unsent().total
        assert not server.master.lanes.holders().size
        assert not server.master.lanes._held_in.any()
    assert set(Counter(world.broker.ids).values()) == {1}


@each_seed(9, quick=1)
async def test_the_same_with_routes_that_come_go_and_change(seed: int) -> None:
    chance = random.Random(seed)
    world = RouteWorld(groups=3, seed=seed)
    world.meta.rest = chance.choice([(), ("g0",)])
    sent = 0
    async with world.routing(routed_config(**small_sections(chance))) as (server, _):
        for broker in world.brokers:
            broker.answer_after_s = chance.choice([0, 0.01])
        for _ in range(80):
            sent += await disturb(world, server, chance)
            if chance.random() < 0.2:
                for subject in [f"s{n}" for n in chance.sample(range(20), 10)]:
                    groups = chance.sample(sorted(world.meta.masters), chance.randrange(4))
                    await world.meta.reroute(subject, *groups)
        world.meta.rest = ("g2",)
        world.meta.routes.clear()
        await world.meta.push(*(f"s{n}" for n in range(20)))
        await open_all(server)
        await until(lambda: world.taken == sent, seconds=900)
        await all_sealed(server)
        assert not server.master.lanes._held_in.any()
    assert set(Counter(world.ids()).values()) == {1}


async def test_a_pause_that_empties_a_full_sender_has_all_others_go_on_at_once() -> None:
    world = World()
    config = make_config(sender=SenderConfig(entries_max=1000))
    # Nothing leaves: the only broker is not there.
    async with world.serving(config, has_broker=False) as server:
        due_ms = world.now_ms + 1000
        items = [make_item(f"p{n}", due_ms, subject=f"p.{n % 100}") for n in range(1000)]
        await world.keep(*items)
        await world.keep(
            *[make_item(f"o{n}", due_ms + 100, subject=f"o.{n % 100}") for n in range(500)]
        )
        await until(lambda: world.now_ms > due_ms + 2000)
        assert (server.master.has_room, len(server.master.wheel)) == (False, 500)
        await set_rule(server, "p.*", PAUSED)
        await until(lambda: not len(server.master.wheel), seconds=0.1)
        assert server.master.sender.unsent().total == 500


async def test_a_pause_that_empties_a_full_wheel_has_it_loaded_again_at_once() -> None:
    world = World()
    config = make_config(sender=SenderConfig(entries_max=1000), wheel=WheelConfig(entries_max=2000))
    async with world.serving(config, has_broker=False) as server:
        due_ms = world.now_ms + 1000
        items = [make_item(f"p{n}", due_ms, subject=f"p.{n % 100}") for n in range(1000)]
        await world.keep(*items)
        await until(lambda: server.master.sender.unsent().total == 1000)
        later_ms = world.now_ms + 240_000
        await world.keep(*[make_item(f"o{n}", later_ms, subject="o") for n in range(1000)])
        await until(lambda: world.now_ms > later_ms - 110_000, seconds=300)
        held = server.master.loader.held
        await set_rule(server, "p.*", PAUSED)
        await until(lambda: len(server.master.wheel) == 1000, seconds=1)
        assert held < 2000


def jumps_back(ids: list[str]) -> int:
    """Return how often one of p came before one that should have left before it."""
    numbers = [int(one[1:]) for one in ids if one[0] == "p"]
    return sum(after < before for before, after in pairwise(numbers))


async def test_a_subject_that_is_paused_while_it_waits_leaves_in_order() -> None:
    world = World()
    world.broker.answer_after_s = 0.5
    config = make_config(sender=SenderConfig(batch_items=100, turn_items=100))
    async with world.serving(config) as server:
        due_ms = world.now_ms + 500
        await world.keep(*[make_item(f"p{n}", due_ms + n // 10, subject="p") for n in range(1500)])
        await until(lambda: len(world.broker.deliveries) >= 100)
        await set_rule(server, "p", PAUSED)
        await until(lambda: not server.master.sender.in_flight)
        await set_rule(server, "p", None)
        await until(lambda: len(world.broker.deliveries) == 1500)
        assert jumps_back(world.broker.ids) == 0


@pytest.mark.parametrize("hot", [1, 50])
async def test_what_is_on_time_leaves_beside_a_backlog_in_which_a_subject_becomes_hot(
    hot: int,
) -> None:
    """hot: over so many subjects the same messages are spread."""
    world = World()
    world.broker.answer_after_s = 0.05
    config = make_config(
        sender=SenderConfig(batch_items=100, turn_items=50, slow_s=0.5, usual_s_max=0.4)
    )
    async with world.serving(config):
        due_ms = world.now_ms + 3000
        items = [
            make_item(f"b{n}", due_ms, subject=f"h{n % hot}" if n % 5 < 2 else f"s{n % 200}")
            for n in range(12_000)
        ]
        await world.keep(*items)
        fresh = [
            make_item(f"f{n}", due_ms + 1500 + 20 * n, subject=f"f{n % 10}") for n in range(100)
        ]
        await world.keep(*fresh)
        assert world.now_ms < due_ms
        await until(lambda: len(world.broker.deliveries) == 12_100)
        late = sorted(d.at_ms - d.due_ms for d in world.broker.deliveries if d.message_id[0] == "f")
        assert late[50] < 1000
