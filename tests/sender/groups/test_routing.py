"""A choice never overfills a group, keeps to the weights to a batch, and spares who is not well."""

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sender.groups.routing import LATER, LaneView, Weighted
from sender.queues.parcels import NOBODY
from tests.sender.broker_rig import ENTRY


class View(LaneView):
    """A group as the choice sees it."""

    def __init__(
        self, room: int, weight: float = 1.0, is_well: bool = True, beside: int | None = None
    ) -> None:
        super().__init__("g", room, is_well, room if beside is None else min(room, beside), weight)


def named(*groups: View) -> list[View]:
    for number, group in enumerate(groups):
        group.name = f"g{number}"
    return list(groups)


def choose(count: int, *groups: View, avoid: int = NOBODY, batch_items: int = 10) -> list[int]:
    named(*groups)
    routing = Weighted(batch_items=batch_items)
    choices = routing.choose(np.zeros(count, ENTRY), avoid=avoid, groups=groups)
    found: list[int] = choices.tolist()
    return found


def shares(routing: Weighted, groups: Sequence[View], counts: Sequence[int]) -> Counter[int]:
    """Choose for so many entries each time; return what each group got."""
    got: Counter[int] = Counter()
    for count in counts:
        got.update(routing.choose(np.zeros(count, ENTRY), avoid=NOBODY, groups=groups).tolist())
    return got


def test_equal_groups_take_turns_batch_by_batch() -> None:
    choices = choose(60, View(99), View(99), View(99))
    assert [choices[start : start + 10] for start in range(0, 60, 10)] == [
        [group] * 10 for group in (0, 1, 2, 0, 1, 2)
    ]


def test_equal_groups_take_turns_however_lanes_with_others_come_in_between() -> None:
    routing = Weighted(batch_items=10)
    entry = np.zeros(1, ENTRY)
    first, second, third = named(View(99), View(99), View(99))
    found: Counter[str] = Counter()
    for _ in range(100):
        routing.choose(entry, avoid=NOBODY, groups=[third])
        both = [first, second]
        found[both[routing.choose(entry, avoid=NOBODY, groups=both)[0]].name] += 1
    assert found == {"g0": 50, "g1": 50}


def test_a_heavy_group_does_not_get_all_its_turns_in_a_row() -> None:
    routing = Weighted(batch_items=1)
    views = named(View(99, weight=5), View(99), View(99))
    choices = routing.choose(np.zeros(14, ENTRY), avoid=NOBODY, groups=views).tolist()
    assert choices == [0, 0, 1, 0, 2, 0, 0] * 2


@given(
    st.lists(st.floats(0.1, 50), min_size=1, max_size=6),
    st.lists(st.integers(1, 700), min_size=1, max_size=60),
    st.integers(1, 300),
)
def test_shares_are_those_of_the_weights_to_a_batch_however_many_come_at_a_time(
    weights: list[float], counts: list[int], batch_items: int
) -> None:
    views = named(*(View(10_000, weight=weight) for weight in weights))
    got = shares(Weighted(batch_items=batch_items), views, counts)
    for number, weight in enumerate(weights):
        due = sum(counts) * weight / sum(weights)
        # What a group has to its credit is less than a batch of each other one, in two accounts.
        assert abs(got[number] - due) <= 2 * batch_items * len(weights)
    assert got[LATER] == 0


BATCH = 1024
LOT = 2048
"""So many the sender has groups chosen for in one step: a burst comes in lots of these."""

BURSTS = st.lists(
    st.one_of(
        st.integers(1, 10_000),
        # A multiple of a lot, or slightly more, ends in the middle of a burst, so to speak.
        st.builds(lambda lots, more: lots * LOT + more, st.integers(1, 4), st.integers(0, 40)),
    ),
    min_size=1,
    max_size=12,
)


def lots_of(burst: int) -> list[int]:
    """Return the lots in which a burst is given out."""
    return [min(LOT, burst - start) for start in range(0, burst, LOT)]


@given(st.lists(st.floats(1, 50), min_size=2, max_size=6), BURSTS)
@settings(deadline=None)
@example([3.0, 1.0], [2048])
@example([1.0, 1.0, 1.0, 1.0], [2048, 6144])
@example([4.0, 2.0, 1.0, 1.0], [4200])
def test_whatever_comes_at_a_time_what_comes_next_is_shared_at_once(
    weights: list[float], bursts: list[int]
) -> None:
    views = named(*(View(10_000, weight=weight) for weight in weights))
    routing = Weighted(batch_items=BATCH)
    for burst in bursts:
        shares(routing, views, lots_of(burst))
    got = shares(routing, views, [1] * 500)
    for number, weight in enumerate(weights):
        # Whole batches for one group would be made up for by hundreds for others.
        assert abs(got[number] - 500 * weight / sum(weights)) <= 2 * 16 * len(weights)


@given(
    st.lists(st.floats(1, 50), min_size=2, max_size=4),
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 300) | st.integers(1, 10_000)),
        min_size=1,
        max_size=40,
    ),
    st.sets(st.integers(0, 3), min_size=1),
)
@settings(deadline=None)
def test_over_any_time_each_group_gets_its_share_to_a_few_batches_in_all_lanes_together(
    weights: list[float], offers: list[tuple[int, int]], others: set[int]
) -> None:
    """Of three lanes one has only some of the groups; the others' lots come in between."""
    views = named(*(View(10_000, weight=weight) for weight in weights))
    some = [view for number, view in enumerate(views) if number in others] or views
    routing = Weighted(batch_items=BATCH)
    # How much more than its share each has got, by the set of groups.
    ahead = {False: np.zeros(len(views)), True: np.zeros(len(some))}
    least = {is_some: more.copy() for is_some, more in ahead.items()}
    most = {is_some: more.copy() for is_some, more in ahead.items()}
    for lane, burst in offers:
        is_some = lane == 2 and some is not views
        groups = some if is_some else views
        weight = np.array([group.weight for group in groups])
        for lot in lots_of(burst):
            got = shares(routing, groups, [lot])
            came = np.array([got[number] for number in range(len(groups))])
            ahead[is_some] = ahead[is_some] + came - lot * weight / weight.sum()
            least[is_some] = np.minimum(least[is_some], ahead[is_some])
            most[is_some] = np.maximum(most[is_some], ahead[is_some])
    for is_some, groups in ((False, views), (True, some)):
        # What it is ahead by at two moments differs by what it got too much of in between.
        assert (most[is_some] - least[is_some]).max() <= 2 * BATCH * len(groups)


def test_a_group_that_had_no_room_has_nothing_to_catch_up_on() -> None:
    routing = Weighted(batch_items=10)
    full, free = named(View(0), View(99))
    assert shares(routing, [full, free], [50] * 100) == {1: 5000}
    full.room = full.room_beside = 99
    got = shares(routing, [full, free], [50])
    assert abs(got[0] - got[1]) <= 10


def test_where_no_other_group_is_well_the_group_to_avoid_is_the_last_resort() -> None:
    ill = View(99, is_well=False)
    assert set(choose(10, View(99), ill, avoid=0)) == {1}
    assert set(choose(10, View(99), View(0, is_well=False), avoid=0)) == {0}
    assert set(choose(10, View(99), avoid=0)) == {0}


@given(
    st.integers(0, 60),
    st.lists(
        st.builds(
            View,
            st.integers(0, 30),
            st.floats(0.01, 50),
            st.booleans(),
            st.none() | st.integers(0, 5),
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(-1, 4),
    st.integers(1, 20),
)
def test_room_is_used_up_before_anything_is_for_later_and_never_exceeded(
    count: int, groups: list[View], avoid: int, batch_items: int
) -> None:
    avoid = avoid if avoid < len(groups) else NOBODY
    choices = Counter(choose(count, *groups, avoid=avoid, batch_items=batch_items))
    anyone_is_well = any(group.is_well for group in groups)
    rooms = [group.room_beside if anyone_is_well else group.room for group in groups]
    if any(group.is_well for number, group in enumerate(groups) if number != avoid != NOBODY):
        rooms[avoid] = 0
    for number, room in enumerate(rooms):
        assert choices[number] <= room
    assert choices[LATER] == max(0, count - sum(rooms))


@given(st.randoms(use_true_random=False))
def test_whatever_comes_and_goes_no_group_that_has_room_starves(chance: random.Random) -> None:
    routing = Weighted(batch_items=8)
    views = named(*(View(10**6, weight=chance.choice([0.01, 1, 3])) for _ in range(4)))
    for _ in range(chance.randrange(60)):
        for view in views:
            view.room = view.room_beside = chance.choice([0, 10**6])
            view.weight = chance.choice([0.01, 1, 3])
        shares(routing, views, [chance.randrange(1, 40)])
    for view in views:
        view.room = view.room_beside = 10**6
        view.weight = 1.0
    got = shares(routing, views, [8] * 100)
    # 100 batches: each group gets its quarter, but for what others had to their credit.
    assert all(got[number] >= 8 * 10 for number in range(4)), got
