"""Of many who wait those are looked at for whom something has changed; the others in turn."""

import math

from delay_server.lanes.agenda import Agenda


def looks_at(*everyone: int) -> Agenda:
    return Agenda(lambda: everyone)


def test_who_is_wanted_soon_is_due_at_once_and_once() -> None:
    looks = looks_at()
    assert looks.next_at(1.0) == math.inf
    for key in (7, 3, 7):
        looks.soon(key)
    assert looks.next_at(1.0) == 1.0
    assert looks.due(1.0) == [7, 3]
    assert (looks.due(1.0), looks.next_at(1.0)) == ([], math.inf)


def test_who_is_planned_is_due_at_the_earliest_time_and_once() -> None:
    looks = looks_at()
    for key, at in ((1, 5.0), (2, 4.0), (1, 3.0), (1, 6.0)):
        looks.at(key, at)
    assert (looks.due(2.0), looks.next_at(2.0)) == ([], 3.0)
    assert (looks.due(3.0), looks.next_at(3.0)) == ([1], 4.0)
    looks.soon(2)
    assert looks.due(9.0) == [2]
    assert (looks.due(9.0), looks.next_at(9.0)) == ([], math.inf)
    looks.at(1, 8.0)
    assert looks.next_at(9.0) == 9.0
    assert looks.due(9.0) == [1]


def test_all_are_due_in_turn_a_few_at_a_time_and_again_if_it_was_asked_for_meanwhile() -> None:
    looks = looks_at(*range(80))
    looks.all_in_turn()
    first = looks.due(1.0)
    assert (0 < len(first) < 40, looks.next_at(1.4)) == (True, 1.4)
    looks.all_in_turn()
    rest = [looks.due(1.5 + n) for n in range(2)]
    assert [*first, *rest[0], *rest[1]] == list(range(80))
    again = [looks.due(5.0 + n) for n in range(4)]
    assert [key for keys in again for key in keys] == list(range(80))
    assert looks.next_at(10.0) == math.inf


def test_in_one_go_few_are_due_and_none_is_passed_over_for_ever() -> None:
    looks = looks_at()
    for key in range(1000):
        looks.soon(key)
        looks.at(1000 + key, 1.0)
    seen: list[int] = []
    for _ in range(20):
        due = looks.due(2.0)
        assert len(due) <= 200
        # Those that come back go behind all others.
        for key in due:
            looks.soon(key)
        seen += due
    assert set(seen) == set(range(2000))
