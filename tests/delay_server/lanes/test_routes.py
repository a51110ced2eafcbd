"""Messages go where the meta server says; without a route they wait on disk and delay nobody."""

import random
from collections import Counter
from itertools import chain

import numpy as np
import pytest
import structlog
import trio

from delay_protocol.meta.requests import (
    BrokerGroupInfo,
    BrokerState,
    ClientRegisterReply,
    ClientType,
    OnlineState,
)
from delay_protocol.meta.session import MetaSession, MetaSessionConfig
from delay_server.admin.status import status_of
from delay_server.holding.wheel import WheelConfig
from delay_server.lanes.lanes import Lanes
from delay_server.lanes.routes import SubjectRoutes
from delay_server.lanes.subject_rules import LaneRules
from delay_server.settings.config import RoutesConfig
from sender.groups.connection import End
from sender.groups.taking import PatternSet, Takers
from sender.settings.config import SenderConfig
from storage.batch.entries import ENTRY
from tests.delay_server.lanes.left_on_disk import LeftOnDisk
from tests.delay_server.route_rig import FIRST_BROKER_PORT, RouteWorld, routed_config
from tests.delay_server.server_rig import HOST, MINUTE_MS, PORT, all_sealed, make_item, until


async def test_a_group_at_the_nodes_own_address_gets_nothing_and_others_all() -> None:
    world = RouteWorld(groups=2)
    broker = world.meta.masters["g0"]
    world.meta.masters["g0"] = f"{HOST}:{PORT}"
    world.meta.routes.update({"a": ("g0", "g1"), "b": ("g0",)})
    with structlog.testing.capture_logs() as log:
        async with world.routing() as (server, _):
            items = [make_item(f"{s}{n}", world.now_ms, subject=s) for s in "ab" for n in range(9)]
            await world.keep(*items)
            await until(lambda: world.brokers[1].taken == {f"a{n}" for n in range(9)})
            await trio.sleep(3)
            assert server.ingest.counts.accepted == len(items)
            assert dict(status_of(server.observe())["dispatched"]) == {"delivered": 9}
            (line,) = [one for one in log if one["log_level"] == "error"]
            assert "this delay server itself" in line["reason"]
            world.meta.masters["g0"] = broker
            await world.meta.push("a", "b")
            await until(lambda: world.taken == len(items))


async def test_each_subject_goes_to_a_group_of_its_own_route_and_to_no_other() -> None:
    world = RouteWorld(groups=4)
    routes = {"a": ("g0",), "b": ("g1",), "c": ("g0", "g1"), "d": ("g2",)}
    world.meta.routes.update(routes)
    async with world.routing() as (server, _):
        due_ms = world.now_ms + 2000
        items = [make_item(f"{s}{n}", due_ms + n, subject=s) for s in "abcd" for n in range(500)]
        await world.keep(*items)
        await until(lambda: world.taken == len(items))
        assert world.brokers[0].subjects == {"a", "c"}
        assert world.brokers[1].subjects == {"b", "c"}
        assert world.brokers[2].subjects == {"d"}
        # Nobody is routed to it, so it is not connected either.
        assert not world.brokers[3].requests
        assert {s.name for s in server.master.sender.status()} == {"g0", "g1", "g2"}
        assert {s.source for s in server.master.sender.status()} == {"meta server"}
        assert status_of(server.observe())["unrouted_subjects"] == 0
        await all_sealed(server)
    assert set(Counter(world.ids()).values()) == {1}


@pytest.mark.parametrize(
    "address",
    ["x..y:5", "x" * 30_000 + ":5", "a\0b:5", "nonsense", "h:99999"],
    ids=range(5),
)
async def test_a_group_at_no_address_is_one_that_cannot_be_reached_and_says_why(
    address: str,
) -> None:
    world = RouteWorld(groups=2)
    world.meta.masters["g1"] = address
    world.meta.routes.update({"odd": ("g1",), "both": ("g0", "g1"), "well": ("g0",)})
    async with world.routing() as (server, _):
        due_ms = world.now_ms + 1000
        subjects = ("odd", "both", "well")
        items = [make_item(f"{s}{n}", due_ms + n, subject=s) for s in subjects for n in range(50)]
        await world.keep(*items)
        await until(lambda: world.taken == 100)
        assert world.brokers[0].subjects == {"both", "well"}
        await trio.sleep(5)
        [odd] = [group for group in server.master.sender.status() if group.name == "g1"]
        assert odd.counts.ends[End.UNREACHABLE] >= 1
        assert odd.last_end.startswith("unreachable: cannot connect to")
        assert any(why in odd.last_end for why in ("is not a", "is neither", "is missing"))
        assert len(odd.address) < 300
        # An operator puts it right.
        world.meta.masters["g1"] = f"{HOST}:{FIRST_BROKER_PORT + 1}"
        await world.meta.push("odd", "both")
        await until(lambda: world.taken == len(items))
        assert world.brokers[1].subjects == {"odd"}
    assert set(Counter(world.ids()).values()) == {1}


async def test_a_group_whose_name_cannot_be_written_down_is_none() -> None:
    world = RouteWorld(groups=1)
    name = "g" * 256
    world.meta.masters[name] = world.meta.masters["g0"]
    world.meta.routes.update({"long": (name,), "both": ("g0", name)})
    async with world.routing() as (server, _):
        due_ms = world.now_ms + 1000
        await world.keep(*[make_item(s, due_ms, subject=s) for s in ("long", "both")])
        await until(lambda: world.ids() == ["both"])
        assert [group.name for group in server.master.sender.status()] == ["g0"]
        await until(lambda: status_of(server.observe())["unrouted_subjects"] == 1)


async def test_a_route_is_asked_for_when_messages_come_near_so_the_first_is_on_time() -> None:
    world = RouteWorld()
    due_ms = world.now_ms + 10 * MINUTE_MS
    async with world.routing():
        await world.keep(*[make_item("m", due_ms)])
    world.meta.asked.clear()
    world.meta.routes_asked_at.clear()
    async with world.routing() as (server, _):
        await trio.sleep(60)
        assert not world.meta.asked
        await until(lambda: world.ids() == ["m"], seconds=700)
        (delivery,) = world.brokers[0].deliveries
        assert delivery.at_ms - due_ms < 100
        asked_at = world.meta.routes_asked_at[0]
        assert trio.current_time() - asked_at > 60
        assert server.master.lanes.parked.opened == 0


async def test_a_subject_without_a_route_waits_on_disk_visible_and_is_sent_in_order() -> None:
    world = RouteWorld()
    world.meta.routes["nowhere"] = ()
    async with world.routing() as (server, _):
        due_ms = world.now_ms + 1000
        waiting = [make_item(f"w{n}", due_ms + n, subject="nowhere") for n in range(3000)]
        await world.keep(*waiting)
        await world.keep(*[make_item(f"o{n}", due_ms + n) for n in range(3000)])
        await until(lambda: world.taken == 3000)
        late = [d.at_ms - d.due_ms for d in world.brokers[0].deliveries]
        assert max(late) < 200
        await trio.sleep(5)
        assert server.master.sender.unsent().total == 0
        assert len(server.master.wheel) == 0
        assert status_of(server.observe())["unrouted_subjects"] == 1
        status = status_of(server.observe())["unrouted"]
        assert (status["messages"], status["oldest_due_ms"]) == (3000, due_ms)
        assert status["examples"] == ["nowhere: no broker group takes its messages"]
        assert status_of(server.observe())["pending"] == 3000
        await world.meta.reroute("nowhere", "g1")
        await world.keep(*[make_item("new", world.now_ms + 3000, subject="nowhere")])
        await until(lambda: len(world.brokers[1].deliveries) == 3001)
        assert world.brokers[1].ids == [*(f"w{n}" for n in range(3000)), "new"]
        assert world.brokers[1].deliveries[-1].at_ms - world.brokers[1].deliveries[-1].due_ms < 1500
        assert status_of(server.observe())["unrouted_subjects"] == 0
        await all_sealed(server)
        await until(lambda: not server.master.lanes.parked.anyone_waits, seconds=400)
        assert not len(server.master.handout.lanes)
    assert set(Counter(world.ids()).values()) == {1}


async def test_a_meta_server_that_is_away_leaves_known_routes_and_others_wait_for_it() -> None:
    world = RouteWorld()
    async with world.routing() as (server, nursery):
        await world.keep(*[make_item("m0", world.now_ms + 1000, subject="known")])
        await until(lambda: world.ids() == ["m0"])
        world.meta.kill()
        await world.keep(
            *[
                make_item("m1", world.now_ms + 1000, subject="known"),
                make_item("m2", world.now_ms + 1000, subject="new"),
            ],
        )
        await trio.sleep(20)
        assert world.ids() == ["m0", "m1"]
        assert status_of(server.observe())["unrouted"]["examples"] == [
            "new: the meta server has not answered yet"
        ]
        assert status_of(server.observe())["routes"]["meta_server"] is None
        await nursery.start(lambda task_status: world.meta.run(task_status=task_status))
        await until(lambda: world.ids() == ["m0", "m1", "m2"], seconds=30)
        assert status_of(server.observe())["routes"]["meta_server"] == "127.0.0.1:20880"


async def test_after_a_restart_everything_waits_until_a_meta_server_answers() -> None:
    world = RouteWorld()
    world.meta.rest = ()
    count = 2000
    async with world.routing() as (server, _):
        due_ms = world.now_ms + 1000
        await world.keep(
            *[make_item(f"m{n}", due_ms + n, subject=f"s{n % 50}") for n in range(count)]
        )
        await trio.sleep(10)
        assert status_of(server.observe())["unrouted_subjects"] == 50
    # Hours later: what is old, and for nobody, is all there still.
    world.clock.step(5 * 60 * MINUTE_MS)
    world.meta.rest = None
    async with world.routing() as (server, _):
        await trio.sleep(600)
        assert status_of(server.observe())["unrouted"]["messages"] == count
        world.meta.rest = ("g0",)
        await until(lambda: world.taken == count)
        await all_sealed(server)
    assert set(Counter(world.ids()).values()) == {1}


async def test_soon_after_a_restart_messages_are_on_time_though_the_first_waited_for_routes() -> (
    None
):
    world = RouteWorld(groups=2)
    world.meta.routes.update({"s0": ("g1",), "s1": ("g0", "g1")})
    first_ms, count = world.now_ms + 100 * MINUTE_MS, 1500
    async with world.routing() as (server, _):
        items = [make_item(f"m{n}", first_ms + 20 * n, subject=f"s{n % 5}") for n in range(count)]
        await world.keep(*items)
    world.clock.step(first_ms + 2000 - world.now_ms)
    async with world.routing() as (server, _):
        started_ms = world.now_ms
        await trio.sleep(2)
        # They come as if nothing had been: nothing is dropped, and read again, when it is due.
        assert not server.master.lanes.parked.waiting
        assert not len(server.master.handout.lanes)
        assert len(server.master.wheel) > 1000
        opened = server.master.lanes.parked.opened
        assert opened
        await until(lambda: world.taken == count, seconds=120)
        assert server.master.lanes.parked.opened == opened
        await all_sealed(server)
    assert set(Counter(world.ids()).values()) == {1}
    late = [
        d.at_ms - d.due_ms
        for broker in world.brokers
        for d in broker.deliveries
        if d.due_ms > started_ms + 1000
    ]
    assert len(late) > 1200
    assert min(late) >= 0
    assert max(late) <= 20


async def test_a_subject_that_is_new_is_on_time_again_soon_after_its_first_message() -> None:
    world = RouteWorld()
    world.meta.route_after_s = 0.05
    async with world.routing() as (server, _):
        due_ms = world.now_ms
        await world.keep(*[make_item(f"m{n}", due_ms + 100 * n) for n in range(600)])
        await until(lambda: world.taken == 600, seconds=100)
        assert server.master.lanes.parked.opened == 1
    assert world.ids() == [f"m{n}" for n in range(600)]
    late = [d.at_ms - d.due_ms for d in world.brokers[0].deliveries]
    assert min(late) >= 0
    assert max(late[20:]) <= 20


async def test_a_group_with_another_address_is_reached_there() -> None:
    world = RouteWorld()
    async with world.routing() as (server, _):
        await world.keep(*[make_item("m0", world.now_ms + 1000)])
        await until(lambda: world.ids() == ["m0"])
        world.meta.masters["g0"] = world.meta.masters["g1"]
        await world.meta.push("a.b")
        await world.keep(*[make_item("m1", world.now_ms + 1000)])
        await until(lambda: world.brokers[1].ids == ["m1"])
        (status,) = server.master.sender.status()
        assert (status.name, status.address) == ("g0", world.meta.masters["g1"])
        assert status.failures == 0


async def test_subjects_of_a_dead_group_delay_nobody_however_many_they_are() -> None:
    """None of them is hot; together they are far more than the sender may hold."""
    world = RouteWorld(groups=3)
    subjects = [f"dead{n}" for n in range(300)]
    world.meta.routes.update(dict.fromkeys(subjects, ("g1",)))
    config = routed_config(
        wheel=WheelConfig(entries_max=4000, lane_entries_min=200),
        sender=SenderConfig(heartbeat_s=3600, batch_items=64, reconnect_max_s=5),
    )
    async with world.routing(config, away=(1,)) as (server, nursery):
        due_ms = world.now_ms + 5000
        count = 12_000
        dead = [make_item(f"d{n}", due_ms, subject=subjects[n % 300]) for n in range(count)]
        await world.keep(*dead)
        alive = [make_item(f"a{n}", due_ms + 1000 + 10 * n) for n in range(1000)]
        await world.keep(*alive)
        await until(lambda: len(world.brokers[0].deliveries) == 1000, seconds=100)
        late = [d.at_ms - d.due_ms for d in world.brokers[0].deliveries]
        assert max(late) < 1000
        assert server.master.sender.unsent().total <= 2000
        await nursery.start(lambda task_status: world.brokers[1].run(task_status=task_status))
        await until(lambda: len(world.brokers[1].deliveries) == count, seconds=200)
        await all_sealed(server)
    assert set(Counter(world.ids()).values()) == {1}


async def test_a_subject_that_is_not_used_is_forgotten_and_its_group_left() -> None:
    world = RouteWorld()
    config = routed_config(routes=RoutesConfig(unused_ms=10_000))
    async with world.routing(config) as (server, _):
        await world.keep(*[make_item("m0", world.now_ms + 1000)])
        await until(lambda: world.ids() == ["m0"])
        routes = server.master.targets.routes
        assert routes is not None
        await until(lambda: not len(routes.session), seconds=30)
        await until(lambda: not server.master.sender.status())
        await world.keep(*[make_item("m1", world.now_ms + 1000)])
        await until(lambda: world.ids() == ["m0", "m1"])
        assert world.brokers[0].deliveries[-1].at_ms - world.brokers[0].deliveries[-1].due_ms < 100


# Without a server: a hundred thousand subjects.


def reply(subject: str, *groups: str) -> ClientRegisterReply:
    return ClientRegisterReply(
        timestamp_ms=1,
        subject=subject,
        consumer_group="",
        online_state=OnlineState.ONLINE,
        client_type=ClientType.DELAY_SERVER,
        groups=tuple(
            BrokerGroupInfo(
                name=g,
                master="" if g.startswith("receivers") else f"{g}:20881",
                updated_ms=0,
                state=BrokerState.RW,
            )
            for g in groups
        ),
    )


class Bench:
    """Routes and lanes, and a session that is answered by hand."""

    def __init__(self) -> None:
        self.session = MetaSession(
            client_type=ClientType.DELAY_SERVER, client_id="", chance=random.Random(0)
        )
        self.names: list[bytes] = []
        self.told: list[set[int]] = []
        self.now = 0.0
        self.routes = SubjectRoutes(
            self.session,
            now=lambda: self.now,
            name_of=self.names.__getitem__,
            on_wanted=lambda: None,
        )
        self.routes.on_taken = lambda: None
        gates = LaneRules(name_of=self.names.__getitem__, routes=self.routes)
        self.lanes = Lanes(gates, on_disk=LeftOnDisk(), lane_entries_min=1000, lanes_max=256)
        gates.attach(self.lanes)
        self.lanes.on_changed = self.told.append
        self.session.connected(0.0)

    def subject(self, number: int) -> str:
        return self.names[number].decode()

    def answer(self, subject: str, *groups: str) -> None:
        changed = self.session.receive(reply(subject, *groups), 0.0)
        if changed is not None:
            self.routes.changed(changed)


def test_a_hundred_thousand_subjects_without_a_route_take_bytes_each_and_all_come_back() -> None:
    bench = Bench()
    count = 100_000
    bench.names += [b"subject.%d" % n for n in range(count)]
    for first in range(0, count, 2000):
        entries = np.zeros(2000 * 10, ENTRY)
        entries["subject"] = np.repeat(np.arange(first, first + 2000), 10)
        entries["due_ms"] = 7 + first
        assert bench.lanes.admit(entries, 1_000_000) == []
    unrouted = bench.lanes.unrouted(3)
    assert (unrouted.subjects, unrouted.messages, unrouted.oldest_due_ms) == (count, 10 * count, 7)
    assert len(unrouted.numbers) == 3
    assert not bench.lanes.parked.anyone_waits
    for number in range(count):
        bench.answer(bench.subject(number), f"g{number % 3}")
    assert bench.lanes.unrouted(0).subjects == 0
    assert len(bench.lanes.parked.waiting_in) == 3
    assert sorted(chain(*bench.lanes.parked.waiting_in.values())) == list(range(count))


def test_what_receivers_take_is_looked_up_once_for_a_subject_and_set_of_patterns() -> None:
    bench = Bench()
    count = 1000
    bench.names += [b"%s.%d" % ((b"a", b"b")[n % 2], n) for n in range(count)]
    numbers = np.arange(count, dtype=np.uint32)
    bench.routes.look(numbers)
    for number in range(count):
        bench.answer(bench.subject(number), "receivers")
    old, new, every = PatternSet(["a.*"]), PatternSet(["b.*", "a.*"]), PatternSet([])

    def take(*sets: PatternSet) -> list[dict[str, Takers]]:
        for _ in bench.routes.take_sets("receivers", sets):
            pass
        routes = bench.routes.look(numbers)
        found = [bench.routes.groups_of(bench.lanes.base + one) for one in routes[:2].tolist()]
        assert (routes[::2] == routes[0]).all()
        assert (routes[1::2] == routes[1]).all()
        return [dict(one) for one in found]

    everyone = {"receivers": None}
    assert take(old) == [everyone, {}]
    assert take(old, new) == [everyone, {"receivers": frozenset({new})}]
    assert take(new) == [everyone, everyone]
    assert take(old, every) == [everyone, {"receivers": frozenset({every})}]
    assert take() == [everyone, everyone]
    assert bench.routes.routes == 1


def test_a_subject_that_nobody_took_and_that_was_forgotten_is_looked_up_when_it_is_seen() -> None:
    bench = Bench()
    bench.names.append(b"b.1")
    zero = np.zeros(1, np.uint32)
    bench.routes.look(zero)
    bench.answer("b.1", "receivers")
    for _ in bench.routes.take_sets("receivers", [PatternSet(["a.*"])]):
        pass
    assert bench.routes.look(zero).tolist() == [0]
    for _ in bench.lanes.forget_numbers(np.zeros(1, np.bool_)):
        pass
    for _ in bench.routes.take_sets("receivers", [PatternSet(["b.*"])]):
        pass
    (route,) = bench.routes.look(zero).tolist()
    assert bench.routes.groups_of(bench.lanes.base + route) == {"receivers": None}


def test_what_receivers_took_is_forgotten_once_all_of_them_have_left() -> None:
    bench = Bench()
    gone, there = PatternSet(["a"]), PatternSet(["b"])
    gone.is_there = False
    for name, one in (("gone", gone), ("there", there)):
        for _ in bench.routes.take_sets(name, [gone, one]):
            pass
    for _ in bench.routes.round():
        pass
    assert list(bench.routes._sets) == ["there"]


def test_groups_and_routes_are_as_many_as_are_in_use() -> None:
    bench = Bench()
    chance = random.Random(1)
    bench.names += [b"s%d" % n for n in range(30)]
    bench.routes.look(np.arange(30, dtype=np.uint32))
    now: dict[str, tuple[str, ...]] = {}
    for _ in range(3000):
        subject = bench.subject(chance.randrange(30))
        groups = tuple(chance.sample([f"g{n}" for n in range(6)], chance.randrange(1, 4)))
        now[subject] = groups
        bench.answer(subject, *groups)
        in_use = {tuple(sorted(groups)) for groups in now.values()}
        assert bench.routes.routes == len(in_use)
        assert {target.name for target in bench.routes.targets()} == set(chain(*in_use))
        numbers = bench.routes.look(np.arange(30, dtype=np.uint32))
        for number, route in enumerate(numbers.tolist()):
            expected = dict.fromkeys(sorted(now.get(bench.subject(number), ())))
            assert bench.routes.groups_of(bench.lanes.base + route) == expected
        # Numbers of routes that are gone are given again.
        assert numbers.max() <= 30


def test_a_number_that_is_given_to_another_subject_leads_where_that_one_goes() -> None:
    bench = Bench()
    bench.names += [b"a", b"b"]
    bench.routes.look(np.array([0, 1], np.uint32))
    bench.answer("a", "g1")
    bench.answer("b", "g2")
    before = bench.routes.look(np.array([0, 1], np.uint32)).tolist()
    for _ in bench.lanes.forget_numbers(np.array([False, True])):
        pass
    bench.names[0] = b"c"
    assert bench.routes.look(np.array([0, 1], np.uint32)).tolist() == [0, before[1]]
    # Nothing of the old name reaches the new one, and the old one comes back under another number.
    bench.answer("a", "g3")
    assert bench.routes.look(np.array([0], np.uint32)).tolist() == [0]
    bench.names.append(b"a")
    (route,) = bench.routes.look(np.array([2], np.uint32)).tolist()
    assert bench.routes.groups_of(bench.lanes.base + route) == {"g3": None}


def test_the_lane_of_a_hot_subject_leads_where_its_route_leads_and_the_sender_hears_of_it() -> None:
    bench = Bench()
    bench.names.append(b"hot")
    bench.routes.look(np.array([0], np.uint32))
    bench.answer("hot", "g1")
    entries = np.zeros(1500, ENTRY)
    ((lane, _),) = bench.lanes.admit(entries, 1_000_000)
    assert lane == bench.lanes.number(0) > 0
    assert bench.routes.groups_of(lane) == {"g1": None}
    bench.told.clear()
    bench.answer("hot", "g2")
    assert bench.routes.groups_of(lane) == {"g2": None}
    # What it has queued for g1 is taken back by that.
    assert any(lane in lanes for lanes in bench.told)


def test_subjects_of_which_nothing_is_near_leave_most_places_to_those_that_are() -> None:
    bench = Bench()
    bench.session.config = MetaSessionConfig(subjects_max=40)
    bench.names += [b"far.%d" % n for n in range(100)]
    for name in bench.names:
        bench.routes.expect(name)
    assert len(bench.session) == 10
    # Those that come near need no place of this kind any more.
    bench.routes.look(np.arange(5, dtype=np.uint32))
    for name in bench.names:
        bench.routes.expect(name)
    assert len(bench.session) == 15
    bench.routes.look(np.arange(100, dtype=np.uint32))
    assert len(bench.session) == 40


def test_places_that_come_free_are_for_those_that_waited_longest_and_not_for_who_comes() -> None:
    bench = Bench()
    bench.session.config = MetaSessionConfig(subjects_max=2, unused_s=100)
    bench.names += [b"s%d" % n for n in range(7)]
    bench.routes.look(np.array([0, 1], np.uint32))
    entries = np.zeros(4, ENTRY)
    entries["subject"], entries["due_ms"] = [2, 3, 4, 5], [40, 30, 20, 10]
    assert bench.lanes.admit(entries, 1_000_000) == []
    for now in (0.0, 200.0):
        bench.now = now
        for _ in bench.routes.round():
            pass
        bench.routes.look(np.array([6], np.uint32))
        kept = [name for name in bench.names if bench.routes.is_kept(name)]
        assert kept == ([b"s4", b"s5"] if now else [b"s0", b"s1"])
