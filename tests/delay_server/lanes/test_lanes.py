"""A subject gets a lane when more than a little of it is held, and waits beyond its share."""

import random
from collections import Counter

import numpy as np
import numpy.typing as npt

from delay_server.lanes.lanes import NO_ROUTE, Lanes
from storage.batch.entries import ENTRY, Entries
from tests.delay_server.lanes.left_on_disk import LeftOnDisk
from tests.seeds import each_seed

ROOM = 1000


class Made(Lanes):
    """Lanes, and what they left on disk."""

    def __init__(
        self, *, lane_entries_min: int = 2000, lanes_max: int = 256, unrouted_max: int = 100_000
    ) -> None:
        self.left = LeftOnDisk()
        super().__init__(
            on_disk=self.left,
            lane_entries_min=lane_entries_min,
            lanes_max=lanes_max,
            unrouted_max=unrouted_max,
        )


def entries_of(*subjects: int, first: int = 1) -> Entries:
    entries = np.zeros(len(subjects), ENTRY)
    entries["sequence"] = np.arange(first, first + len(subjects))
    entries["subject"] = subjects
    return entries


def admit(lanes: Lanes, *subjects: int, room: int = ROOM) -> list[tuple[int, list[int]]]:
    """Return the lane and the sequences of each offer."""
    offers = lanes.admit(entries_of(*subjects), room)
    return [(lane, entries["sequence"].tolist()) for lane, entries in offers]


def test_a_subject_is_held_while_the_sender_has_some_of_it_or_it_has_a_lane() -> None:
    lanes = Made(lane_entries_min=2)
    admit(lanes, 5, 7, 7, 7, 900)
    assert np.flatnonzero(lanes.holds_subjects(0, 2000)).tolist() == [5, 7, 900]
    assert np.flatnonzero(lanes.holds_subjects(6, 2)).tolist() == [1]
    assert not lanes.holds_subjects(5000, 10).any()
    lanes.settled(entries_of(5, 7, 7, 7, 900))
    assert np.flatnonzero(lanes.holds_subjects(0, 2000)).tolist() == [7]


def test_subjects_of_which_little_is_held_share_lane_0() -> None:
    lanes = Made(lane_entries_min=3)
    assert admit(lanes, 5, 900, 5, 7) == [(0, [1, 2, 3, 4])]
    assert [lanes.held(subject) for subject in (5, 7, 900, 10_000)] == [2, 1, 1, 0]


def test_a_subject_of_which_more_is_held_gets_a_lane_and_the_others_keep_their_order() -> None:
    lanes = Made(lane_entries_min=2)
    assert admit(lanes, 5, 6, 5, 5, 7) == [(0, [2, 5]), (1, [1, 3, 4])]
    assert admit(lanes, 5, 6) == [(0, [2]), (1, [1])]
    assert not lanes.parked.waiting


def test_what_exceeds_half_of_the_free_room_is_dropped_and_the_subject_waits() -> None:
    lanes = Made(lane_entries_min=2)
    assert admit(lanes, *[5] * 10, 6, room=21) == [(0, [11]), (1, [1, 2, 3, 4, 5])]
    assert lanes.parked.waiting == {5}
    assert lanes.held(5) == 5
    assert lanes.backlog.left_of(5) == 5
    # From now on nothing of it passes, whatever room there is.
    assert admit(lanes, 5, 6, 5) == [(0, [2])]
    assert lanes.keep(entries_of(5, 6, 5, 7))["subject"].tolist() == [6, 7]
    assert lanes.left.lane_of == {5: 1}
    assert lanes.left.given_back == [6, 7, 8, 9, 10, 1, 3, 1, 3]
    assert lanes.close(1) == [5]
    assert lanes.left.lane_of == {}
    assert lanes.keep(entries_of(5, 6))["subject"].tolist() == [5, 6]
    assert admit(lanes, 5) == [(1, [1])]


def test_a_subject_with_little_never_waits_however_full_the_sender_is() -> None:
    lanes = Made(lane_entries_min=4)
    assert admit(lanes, 5, 5, 5, 5, room=4) == [(0, [1, 2, 3, 4])]
    assert admit(lanes, 5, room=1) == []
    assert lanes.parked.waiting == {5}


def test_of_lanes_for_which_somebody_waits_it_is_told_once_that_less_is_held() -> None:
    lanes = Made(lane_entries_min=2)
    admit(lanes, *[6] * 5)
    lanes.settled(entries_of(6))
    assert lanes.parked.take_eased() == []
    admit(lanes, *[5] * 10, room=8)
    waits, other = lanes.number(5), lanes.number(6)
    assert (lanes.parked.take_eased(), lanes.parked.take_eased()) == ([waits], [])
    lanes.settled(entries_of(6))
    assert other
    assert lanes.parked.take_eased() == []
    lanes.settled(entries_of(5, 6, 5))
    assert (lanes.parked.take_eased(), lanes.parked.take_eased()) == ([waits], [])


def test_beyond_the_last_lane_hot_subjects_are_treated_like_all_others() -> None:
    lanes = Made(lane_entries_min=1, lanes_max=1)
    assert admit(lanes, 5, 5) == [(1, [1, 2])]
    assert admit(lanes, *[6] * 50, room=20) == [(0, list(range(1, 51)))]
    assert not lanes.parked.waiting


def test_a_lane_is_given_to_the_next_when_nothing_of_its_subject_is_held() -> None:
    lanes = Made(lane_entries_min=1, lanes_max=1)
    admit(lanes, 5, 5)
    lanes.settled(entries_of(5))
    assert admit(lanes, 6, 6) == [(0, [1, 2])]
    lanes.settled(entries_of(5))
    assert admit(lanes, 6) == [(1, [1])]
    assert (lanes.number(5), lanes.number(6)) == (0, 1)


def test_a_lane_whose_subject_waits_is_not_given_away() -> None:
    lanes = Made(lane_entries_min=1, lanes_max=1)
    admit(lanes, 5, 5, 5, room=4)
    assert lanes.parked.waiting == {5}
    lanes.settled(entries_of(*[5] * lanes.held(5)))
    assert admit(lanes, 6, 6) == [(0, [1, 2])]
    assert lanes.number(5) == 1


def test_a_subject_that_is_paused_while_it_waits_comes_by_no_lane_until_it_may() -> None:
    lanes = Made(lane_entries_min=1, lanes_max=1)
    admit(lanes, 5, 5, 5, room=4)
    lane = lanes.number(5)
    assert (lanes.parked.waiting_in, lanes.left.lane_of) == ({lane: {5}}, {5: lane})
    lanes.route_changed(5, NO_ROUTE)
    lanes.withdrawn(entries_of(*[5] * lanes.held(5), first=100))
    assert (lanes.oldest_parked().tolist(), lanes.parked.waiting_in) == ([5], {})
    assert lanes.left.lane_of == {5: lanes.base}
    assert lanes.left.given_back[-1] >= 100
    lanes.route_changed(5, lanes.anywhere)
    [back] = lanes.parked.waiting_in
    assert (lanes.parked.waiting_in, lanes.left.lane_of) == ({back: {5}}, {5: back})


def test_a_subject_is_in_its_lane_before_anything_of_it_is_given_back() -> None:
    lanes = Made(lane_entries_min=2)
    order: list[str] = []
    give_back, assign = lanes.left.give_back, lanes.left.assign

    def noting_back(entries: Entries, *, is_forgotten: bool = False) -> None:
        order.append("back")
        give_back(entries, is_forgotten=is_forgotten)

    def noting_lane(subjects: npt.NDArray[np.intp], lane: int) -> None:
        order.append("lane")
        assign(subjects, lane)

    lanes.left.give_back, lanes.left.assign = noting_back, noting_lane  # type: ignore[method-assign]
    admit(lanes, *[5] * 10, room=10)
    assert order == ["lane", "back"]


def test_what_cannot_be_parked_is_forgotten_until_it_is_remembered() -> None:
    lanes = Made(unrouted_max=1)
    for subject in (5, 6, 7):
        admit(lanes, subject)
        lanes.route_changed(subject, NO_ROUTE)
        lanes.withdrawn(entries_of(subject, first=subject))
    assert lanes.oldest_parked().tolist() == [5]
    assert (lanes.left.given_back, lanes.left.forgotten, lanes.backlog.forgotten) == (
        [5],
        [6, 7],
        2,
    )
    assert lanes.left.lane_of == {5: lanes.base}
    lanes.remember()
    assert (lanes.left.remembered, lanes.backlog.forgotten) == (1, 0)


@each_seed(20)
def test_counts_are_those_of_a_plain_count_and_all_but_those_who_wait_are_offered(
    seed: int,
) -> None:
    chance = random.Random(seed)
    lanes = Made(lane_entries_min=chance.choice([1, 3, 10]), lanes_max=chance.choice([1, 3]))
    held: Counter[int] = Counter()
    for _ in range(200):
        subjects = [chance.choice([0, 0, 1, 2, 200]) for _ in range(chance.randint(1, 20))]
        room = max(60 - held.total(), len(subjects))
        entries = entries_of(*subjects)
        offers = lanes.admit(entries, room)
        offered = [row for _, part in offers for row in part.tolist()]
        assert len({row[0] for row in offered}) == len(offered)
        left = Counter(subjects) - Counter(row[5] for row in offered)
        assert left.keys() <= lanes.parked.waiting
        for number, part in offers:
            assert np.all(np.diff(part["sequence"]) > 0)
            assert number == 0 or {lanes.number(s) for s in part["subject"].tolist()} == {number}
        held.update(row[5] for row in offered)
        for subject in [s for s in list(held) if held[s] and chance.random() < 0.6]:
            count = chance.randint(1, held[subject])
            held[subject] -= count
            lanes.settled(entries_of(*[subject] * count))
        if lanes.parked.waiting_in and chance.random() < 0.5:
            lanes.close(min(lanes.parked.waiting_in))
        where = {s: lane for lane, found in lanes.parked.waiting_in.items() for s in found}
        assert lanes.left.lane_of == where
        assert all(lanes.held(subject) == held[subject] for subject in (0, 1, 2, 200))
