"""The protocol under its schedule: seeds, and stories that seeds tell too rarely."""

from collections import Counter
from collections.abc import Callable

import pytest

from meta_server.groups.elections import GroupState
from tests.seeds import each_seed, first_of, seeds_of_the_day
from tests.simulation.schedule.group import Group, Story, run_schedule
from tests.simulation.schedule.node import Node

CALM = Story(seconds=60, has_faults=False, has_operator=False)


@seeds_of_the_day(15)
def test_no_promise_is_broken_in_a_group_of_three(seed: int) -> None:
    assert run_schedule(seed).violations == []


@each_seed(8, quick=3)
@pytest.mark.parametrize("world", ["schedule-2", "schedule-5", "schedule-min1", "schedule-aimed"])
def test_no_promise_is_broken_in_other_groups(world: str, seed: int) -> None:
    assert run_schedule(seed, world).violations == []


@pytest.mark.long
@each_seed(2)
def test_no_promise_is_broken_in_a_busy_group(seed: int) -> None:
    assert run_schedule(seed, "schedule-busy").violations == []


def test_a_seed_is_the_same_story_each_time() -> None:
    one, other = run_schedule(7), run_schedule(7)
    assert one.counts == other.counts
    assert one.faults == other.faults


def test_what_the_schedule_has_comes_to_pass() -> None:
    faults: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for seed in range(12):
        result = run_schedule(seed)
        faults += result.faults
        counts += result.counts
    assert {
        "death",
        "death inside fsync",
        "full disk",
        "meta death",
        "partition",
        "power cut",
        "reset",
        "slow disk",
        "slow filing",
        "standstill",
        "wiped disk",
    } == set(faults)
    seen = ("election", "handover", "handover to itself", "min_isr changed", "cut", "snapshot")
    assert min(counts[what] for what in (*seen, "an unfit master asked")) > 0
    assert counts["acknowledged"] > 3000


class Calm:
    """A group in which nothing goes wrong but what the test does."""

    def __init__(self, seed: int, story: Story = CALM) -> None:
        self.group = Group(seed, story)
        self.events = self.group.events
        self.events.at(0.5, self.group._produce)

    def run(self, seconds: float) -> None:
        """Go on for a while."""
        self.events.run(self.events.now + seconds)

    def until_master(self) -> str:
        """Wait for a master that accepts; return its name."""
        for _ in range(200):
            self.run(0.1)
            for node in self.group.nodes.values():
                if node.is_up and node.master is not None and node.accepts:
                    return node.name
        raise AssertionError("nobody becomes the master")


@pytest.mark.parametrize(
    ("seed", "rate"), first_of([(s, r) for s in (5, 9) for r in (1000, 200, 3000)], 1)
)
def test_slaves_join_a_busy_sole_master_within_five_seconds(rate: int, seed: int) -> None:
    calm = Calm(seed, Story(seconds=60, rate=rate, min_isr=1, has_faults=False))
    group = calm.group
    for name in "bc":
        group.nodes[name].die()
        group.nodes[name].wipe()
    group.meta._store(
        group.meta.record.__class__(
            epoch=1,
            version=2,
            master=None,
            in_sync={"a": group.nodes["a"].storage},
            min_isr=1,
            phase=group.meta.record.phase,
        )
    )
    assert calm.until_master() == "a"
    calm.run(10)
    assert set(group.meta.record.in_sync) == {"a"}
    for name in "bc":
        group.nodes[name].restart()
    calm.run(5)
    assert set(group.meta.record.in_sync) == {"a", "b", "c"}
    before = len(group.acked)
    calm.run(5)
    assert len(group.acked) - before > 5 * rate * 0.8


def test_a_disk_that_hangs_is_dropped_and_the_group_goes_on() -> None:
    calm = Calm(3)
    master = calm.until_master()
    calm.run(3)
    hung = next(name for name in calm.group.nodes if name != master)
    calm.group.nodes[hung].free_at = calm.events.now + 100
    calm.run(3)
    assert set(calm.group.meta.record.in_sync) == set(calm.group.nodes) - {hung}
    before = len(calm.group.acked)
    calm.run(5)
    assert len(calm.group.acked) - before > 20


def test_the_survivor_of_two_appends_no_messages_and_delivers_what_it_has() -> None:
    calm = Calm(4, Story(seconds=60, replicas=2, has_faults=False, has_operator=False))
    group = calm.group
    master = group.nodes[calm.until_master()]
    calm.run(5)
    other = next(node for node in group.nodes.values() if node is not master)
    other.die()
    calm.run(3)
    end, acked = master.end, len(group.acked)
    calm.run(60)
    assert len(group.acked) == acked
    assert not any(isinstance(value, int) for _, value in master.log[end - master.base :])
    other.restart()
    calm.run(5)
    assert len(group.acked) > acked
    assert max(group.deliveries.values()) == 1


def test_the_meta_server_away_for_ten_minutes_stops_nothing() -> None:
    calm = Calm(5, Story(seconds=700, has_faults=False, has_operator=False))
    calm.until_master()
    calm.run(5)
    calm.group.meta.die()
    calm.run(300)
    before = len(calm.group.acked), len(calm.group.deliveries)
    calm.run(300)
    after = len(calm.group.acked), len(calm.group.deliveries)
    assert min(after[0] - before[0], after[1] - before[1]) > 300 * 8 * 0.8


def test_a_master_that_stands_still_sends_nothing_when_another_one_was_elected() -> None:
    calm = Calm(6, Story(seconds=120, has_faults=False, has_operator=False))
    old = calm.group.nodes[calm.until_master()]
    calm.run(5)
    old.stand_still(12)
    calm.run(11)
    assert calm.group.nodes[calm.until_master()] is not old
    calm.run(20)
    assert calm.group.counts["two senders"] == 0
    assert old.name in calm.group.meta.record.in_sync


def times_until_master(fault: Callable[[Calm, Node], None]) -> list[float]:
    """Return for how long nobody may send after a fault, in twenty groups."""
    found = []
    for seed in range(20):
        calm = Calm(seed)
        node = calm.group.nodes[calm.until_master()]
        calm.run(5 + seed / 20)
        began = calm.events.now
        fault(calm, node)
        epoch = calm.group.meta.record.epoch
        while not any(
            one.is_up
            and one.master is not None
            and one.accepts
            and one.master.record.epoch > epoch
            and not one.master.why_not_send(one.local())
            for one in calm.group.nodes.values()
        ):
            calm.run(0.02)
        assert calm.group.counts["election"] == 1
        found.append(calm.events.now - began)
    return sorted(found)


def test_a_master_that_is_started_again_is_elected_without_waiting_for_promises() -> None:
    def fault(calm: Calm, node: Node) -> None:
        node.die()
        calm.events.after(0.1, node.restart)

    assert times_until_master(fault)[-1] < 1.0


def test_a_master_that_is_gone_is_replaced_within_five_seconds() -> None:
    def fault(_: Calm, node: Node) -> None:
        node.die()

    assert times_until_master(fault)[-1] < 5.0


def test_a_master_that_is_cut_off_is_replaced_within_five_seconds() -> None:
    def fault(calm: Calm, node: Node) -> None:
        others = [*calm.group.nodes, "meta"]
        calm.group.network.cut = {
            pair for one in others for pair in ((node.name, one), (one, node.name))
        }

    assert times_until_master(fault)[-1] < 5.0


def test_a_master_that_only_the_meta_server_does_not_hear_goes_on() -> None:
    calm = Calm(12, Story(seconds=120, has_faults=False, has_operator=False))
    name = calm.until_master()
    calm.run(5)
    calm.group.network.cut = {(name, "meta"), ("meta", name)}
    calm.run(60)
    assert calm.group.counts["election"] == 0
    assert calm.group.counts["a tick without sending"] == 0


def test_a_master_cut_off_from_its_slaves_alone_makes_room_and_stays_out() -> None:
    calm = Calm(13, Story(seconds=120, has_faults=False, has_operator=False))
    name = calm.until_master()
    calm.run(12)
    others = set(calm.group.nodes) - {name}
    calm.group.network.cut = {pair for one in others for pair in ((name, one), (one, name))}
    calm.run(8)
    assert calm.group.counts["election: blocked"] == 1
    assert set(calm.group.meta.record.in_sync) == others
    calm.run(20)
    assert calm.group.counts["election"] == 1


def test_a_handover_takes_a_moment_and_sends_twice_what_it_says() -> None:
    calm = Calm(9, Story(seconds=120, rate=50, has_faults=False, has_operator=False))
    group = calm.group
    node = group.nodes[calm.until_master()]
    calm.run(5)
    unanswered = 0
    for _ in range(5):
        target = next(name for name in sorted(group.nodes) if name != node.name)
        assert node.master is not None
        assert node.hand_over(target) == ""
        handover = node.master.handover
        calm.run(1.5)
        assert handover is not None
        unanswered += handover.unanswered or 0
        node = group.nodes[target]
        assert node.master is not None
        assert node.accepts
    assert group.counts["handover"] == 5
    calm.run(5)
    # What a broker has not answered within half a second may come twice, and is counted.
    assert sum(group.deliveries.values()) - len(group.deliveries) <= unanswered < 5


def test_min_isr_one_is_the_way_out_for_a_survivor() -> None:
    calm = Calm(10, Story(seconds=60, replicas=2, has_faults=False, has_operator=False))
    group = calm.group
    master = group.nodes[calm.until_master()]
    calm.run(5)
    next(node for node in group.nodes.values() if node is not master).die()
    calm.run(5)
    before = len(group.acked)
    group.meta.set_min_isr(1)
    calm.run(5)
    assert list(group.meta.record.in_sync) == [master.name]
    assert len(group.acked) > before


def test_a_state_is_made_for_each_life_of_a_meta_server() -> None:
    calm = Calm(11)
    calm.run(3)
    meta = calm.group.meta
    meta.die()
    meta.restart()
    assert meta.state == GroupState(meta.local())
