"""An operator pauses and limits subjects: nothing is lost or stuck, and nobody else is delayed."""

import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
import trio

from delay_protocol.nodes.controls import Controls, GroupControl, SubjectControl
from delay_server.controls.controls_store import AuditEntry
from delay_server.holding.wheel import WheelConfig
from delay_server.server import DelayServer
from delay_server.settings.config import DelayServerConfig, RoutesConfig, StorageConfig
from sender.settings.config import SenderConfig
from tests.delay_server.route_rig import RouteWorld, routed_config
from tests.delay_server.server_rig import World, all_sealed, make_config, make_item, until
from tests.seeds import each_seed

REQUEST_ITEMS = 500
PAUSED = SubjectControl(paused=True)


def entry(_before: Controls, after: Controls) -> AuditEntry:
    return AuditEntry(at_ms=1, who="test", peer="", action="set", target="", version=after.version)


async def change(server: DelayServer, plan: Callable[[Controls], Controls]) -> None:
    await server.master.outlet.change(plan, entry)


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
        await set_rule(server, "p", SubjectControl(rate_per_s=1000))
        began = trio.current_time()
        left = 5000 - len([i for i in world.broker.ids if i[0] == "p"])
        await until(lambda: len(world.broker.deliveries) == 10_000)
        assert left / 1000 - 0.5 < trio.current_time() - began < left / 1000 + 2
        await all_sealed(server)
    assert set(Counter(world.broker.ids).values()) == {1}


async def test_a_limited_prefix_leaves_at_its_rate_smoothly_and_delays_nobody() -> None:
    world = World()
    async with world.serving() as server:
        await set_rule(server, "slow.*", SubjectControl(rate_per_s=200))
        due_ms = world.now_ms + 1000
        slow = [make_item(f"s{n}", due_ms, subject=f"slow.{n % 3}") for n in range(3000)]
        await world.keep(*slow)
        fast = [make_item(f"f{n}", due_ms + 20 * n, subject="fast") for n in range(700)]
        await world.keep(*fast)
        await until(lambda: len(world.broker.deliveries) == 3700)
        of_slow = [d for d in world.broker.deliveries if d.message_id[0] == "s"]
        seconds = Counter((d.at_ms - due_ms) // 1000 for d in of_slow)
        burst = 0.1 * 200
        assert max(seconds.values()) <= 200 + 2 * burst
        assert min(seconds[n] for n in range(14)) >= 190
        assert (
            max(server.master.lanes.held_in(lane) for lane in server.master.lane_rules.narrow_lanes)
            <= 1000
        )
        late = [d.at_ms - d.due_ms for d in world.broker.deliveries if d.message_id[0] == "f"]
        assert max(late) < 200
        await all_sealed(server)
    assert set(Counter(world.broker.ids).values()) == {1}


@pytest.mark.parametrize("of_each", [4, 8])
async def test_each_delivery_looks_at_few_of_a_thousand_limits(
    of_each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 of each limit wait in memory; of 8 some wait on disk."""
    world = World()
    rules = {f"l{n}": SubjectControl(rate_per_s=1) for n in range(1000)}
    looks: Counter[str] = Counter()

    def count(owner: object, name: str) -> None:
        function = getattr(owner, name)

        def counted(*args: int) -> int:
            looks[name] += 1
            return int(function(*args))

        monkeypatch.setattr(owner, name, counted)

    async with world.serving() as server:
        await change(server, lambda c: Controls(version=c.version + 1, subjects=rules))
        due_ms = world.now_ms + 3000
        total = 1000 * of_each
        await world.keep(
            *[make_item(f"l{n}", due_ms, subject=f"l{n % 1000}") for n in range(total)]
        )
        free = [make_item(f"f{n}", due_ms + 1500 + 3 * n, subject="free") for n in range(300)]
        await world.keep(*free)
        await until(lambda: world.now_ms >= due_ms + 1400)
        assert server.master.lanes.parked.anyone_waits == (of_each == 8)
        before = len(world.broker.requests)
        # How much the sender has of a limit, and how much it may hold of a lane.
        count(server.master.sender, "queued_in")
        count(server.master.lanes, "share")
        await until(lambda: "f299" in world.broker.taken)
        requests = len(world.broker.requests) - before
        assert looks["queued_in"] <= 10 * requests
        assert looks["share"] <= 50 * requests
        late = [d.at_ms - d.due_ms for d in world.broker.deliveries if d.message_id[0] == "f"]
        assert max(late) < 100
        await change(server, lambda c: Controls(version=c.version + 1))
        await until(lambda: len(world.broker.deliveries) == total + 300)
    assert set(Counter(world.broker.ids).values()) == {1}


async def test_a_limit_survives_an_absence_of_the_broker_without_a_flood() -> None:
    world = World()
    async with world.serving(has_broker=False) as server, trio.open_nursery() as nursery:
        await set_rule(server, "s", SubjectControl(rate_per_s=50))
        due_ms = world.now_ms + 500
        await world.keep(*[make_item(f"m{n}", due_ms, subject="s") for n in range(1000)])
        await trio.sleep(60)
        await nursery.start(lambda task_status: world.broker.run(task_status=task_status))
        await until(lambda: len(world.broker.deliveries) == 1000)
        seconds = Counter(d.at_ms // 1000 for d in world.broker.deliveries)
        assert max(seconds.values()) <= 50 + 2 * 5
        nursery.cancel_scope.cancel()
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
        await set_rule(server, "s", SubjectControl(rate_per_s=10))
        due_ms = world.now_ms + 60_000
        await world.keep(
            *[make_item(f"{s}{n}", due_ms, subject=s) for n in range(50) for s in "ps"]
        )
    async with world.serving() as server:
        assert server.master.outlet.applied.version == 2
        await until(lambda: len(world.broker.deliveries) == 50, seconds=200)
        assert max(d.at_ms - d.due_ms for d in world.broker.deliveries) > 4000
        assert world.broker.subjects == {"s"}
        await set_rule(server, "p*", None)
        await until(lambda: len(world.broker.deliveries) == 100)
        await all_sealed(server)
    assert set(Counter(world.broker.ids).values()) == {1}


RULES: list[SubjectControl | None] = [
    None, None, SubjectControl(), PAUSED, PAUSED,
    SubjectControl(rate_per_s=5), SubjectControl(rate_per_s=500),
]  # fmt: skip


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
async def test_whatever_is_paused_and_limited_in_between_all_leaves_once_in_the_end(
    seed: int,
) -> None:
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
        assert (server.master.rate_limits.count, server.master.sender.unsent().total) == (0, 0)
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


async def test_a_dead_group_does_not_hold_what_has_the_same_limit_and_goes_to_another_one() -> None:
    world = RouteWorld(groups=2)
    world.meta.routes = {"order.a": ("g0",), "order.b": ("g1",)}
    async with world.routing(away=(0,)) as (server, nursery):
        await set_rule(server, "order.*", SubjectControl(rate_per_s=100))
        due_ms = world.now_ms + 2000
        items = [make_item(f"a{n}", due_ms + 10 * n, subject="order.a") for n in range(1000)]
        items += [make_item(f"b{n}", due_ms + 10 * n, subject="order.b") for n in range(1000)]
        await world.keep(*items)
        await trio.sleep(15)
        assert [len(broker.taken) for broker in world.brokers] == [0, 1000]
        await trio.sleep(600)
        began_ms = world.now_ms
        await nursery.start(lambda task_status: world.brokers[0].run(task_status=task_status))
        await until(lambda: world.taken == 2000)
        first = [d.at_ms for d in world.brokers[0].deliveries if d.at_ms < began_ms + 1000]
        assert len(first) <= 100 + 2 * 10 + 5, "no flood follows"


@pytest.mark.parametrize("routes", [2, 40])
async def test_a_paused_group_does_not_hold_others_that_have_the_same_limit(routes: int) -> None:
    """routes: as many subjects, each with a group of its own, and all groups but one are paused."""
    world = RouteWorld(groups=routes)
    world.meta.routes = {f"s{n}": (f"g{n}",) for n in range(routes)}
    async with world.routing() as (server, _):
        await set_rule(server, "*", SubjectControl(rate_per_s=1000))
        for number in range(1, routes):
            name = f"g{number}"
            await change(
                server,
                lambda c, name=name: c.with_group(name, GroupControl(paused=True)),  # type: ignore[misc]
            )
        due_ms = world.now_ms + 5000
        items = [
            make_item(f"{s}.{n}", due_ms, subject=f"s{s}")
            for s in range(routes)
            for n in range(50 if s else 2000)
        ]
        await world.keep(*items)
        assert world.now_ms < due_ms
        await until(lambda: len(world.brokers[0].taken) == 2000)
        assert 1700 < world.now_ms - due_ms < 3500
        assert world.taken == 2000
        await change(server, lambda c: Controls(version=c.version + 1, subjects=c.subjects))
        await until(lambda: world.taken == len(items))


def jumps_back(ids: list[str]) -> int:
    """Return how often one of p came before one that should have left before it."""
    numbers = [int(one[1:]) for one in ids if one[0] == "p"]
    return sum(after < before for before, after in pairwise(numbers))


@pytest.mark.parametrize("rule", [SubjectControl(rate_per_s=1000), PAUSED])
async def test_a_subject_that_is_limited_while_it_waits_leaves_in_order(
    rule: SubjectControl,
) -> None:
    world = World()
    world.broker.answer_after_s = 0.5
    config = make_config(sender=SenderConfig(batch_items=100, turn_items=100))
    async with world.serving(config) as server:
        due_ms = world.now_ms + 500
        await world.keep(*[make_item(f"p{n}", due_ms + n // 10, subject="p") for n in range(1500)])
        await until(lambda: len(world.broker.deliveries) >= 100)
        await set_rule(server, "p", rule)
        await until(lambda: not server.master.sender.in_flight)
        if rule.paused:
            await set_rule(server, "p", None)
        await until(lambda: len(world.broker.deliveries) == 1500)
        assert jumps_back(world.broker.ids) == 0


async def test_a_rule_for_others_leaves_the_order_of_a_limited_subject_as_it_was() -> None:
    world = World()
    world.broker.answer_after_s = 0.5
    config = make_config(sender=SenderConfig(batch_items=20, turn_items=20))
    async with world.serving(config) as server:
        await set_rule(server, "p", SubjectControl(rate_per_s=1000))
        due_ms = world.now_ms + 500
        await world.keep(*[make_item(f"p{n}", due_ms + n // 10, subject="p") for n in range(1500)])
        await until(lambda: len(world.broker.deliveries) >= 100)
        await set_rule(server, "unheard.of", PAUSED)
        await until(lambda: len(world.broker.deliveries) == 1500, seconds=600)
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
