"""A choice never overfills a group, uses whoever has room, and spreads what it can."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sender.parcels import NOBODY
from sender.routing import LATER, LeastLoaded
from tests.sender.broker_rig import ENTRY


@dataclass
class View:
    """A group as a routing sees it."""

    room: int
    load: int = 0
    name: str = "g"


def named(*groups: View) -> list[View]:
    for number, group in enumerate(groups):
        group.name = f"g{number}"
    return list(groups)


def choose(count: int, *groups: View, avoid: int = NOBODY, batch_items: int = 10) -> list[int]:
    named(*groups)
    routing = LeastLoaded(batch_items=batch_items)
    choices = routing.choose(np.zeros(count, ENTRY), avoid=avoid, groups=groups)
    found: list[int] = choices.tolist()
    return found


def test_equal_groups_take_turns_batch_by_batch() -> None:
    assert choose(30, View(99), View(99), View(99)) == [0] * 10 + [1] * 10 + [2] * 10


def test_equal_groups_take_turns_over_several_choices_too() -> None:
    routing = LeastLoaded(batch_items=10)
    entry = np.zeros(1, ENTRY)
    views = named(View(99), View(99), View(99))
    chosen = [routing.choose(entry, avoid=NOBODY, groups=views).tolist()[0] for _ in range(6)]
    assert chosen == [0, 1, 2, 0, 1, 2]


def test_equal_groups_take_turns_however_lanes_with_others_come_in_between() -> None:
    routing = LeastLoaded(batch_items=10)
    entry = np.zeros(1, ENTRY)
    first, second, third = named(View(99), View(99), View(99))
    found: Counter[str] = Counter()
    for _ in range(100):
        routing.choose(entry, avoid=NOBODY, groups=[third])
        both = [first, second]
        found[both[routing.choose(entry, avoid=NOBODY, groups=both)[0]].name] += 1
    assert found == {"g0": 50, "g1": 50}


def test_the_least_loaded_is_filled_first() -> None:
    assert Counter(choose(40, View(99, load=30), View(99), batch_items=10)) == {1: 30, 0: 10}


def test_a_group_without_room_gets_nothing_however_little_it_has() -> None:
    assert set(choose(10, View(0), View(99, load=500))) == {1}


def test_what_no_group_can_take_is_for_later() -> None:
    assert choose(5, View(2), View(1)) == [0, 0, 1, LATER, LATER]
    assert choose(2, View(0)) == [LATER, LATER]


def test_the_group_to_avoid_is_the_last_resort() -> None:
    assert set(choose(10, View(99), View(99, load=500), avoid=0)) == {1}
    assert set(choose(10, View(99), View(0), avoid=0)) == {0}


@given(
    st.integers(0, 60),
    st.lists(st.builds(View, st.integers(0, 30), st.integers(0, 50)), min_size=1, max_size=5),
    st.integers(-1, 4),
    st.integers(1, 20),
)
def test_room_is_used_up_before_anything_is_for_later_and_never_exceeded(
    count: int, groups: list[View], avoid: int, batch_items: int
) -> None:
    choices = Counter(choose(count, *groups, avoid=avoid, batch_items=batch_items))
    for number, group in enumerate(groups):
        assert choices[number] <= group.room
    assert choices[LATER] == max(0, count - sum(group.room for group in groups))
