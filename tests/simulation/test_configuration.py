"""Configurations of all kinds are drawn, each one that a server accepts."""

from collections import Counter

from tests.simulation.configuration import (
    BROKER_ADDRESSES,
    draw_configuration,
    draw_groups,
    draw_weights,
)
from tests.simulation.determinism import derive

_EQUAL = dict.fromkeys(BROKER_ADDRESSES, 1.0)
DRAWN = [
    draw_configuration(derive(seed, "configuration"), brokers=BROKER_ADDRESSES, weights=_EQUAL)
    for seed in range(300)
]


def share(values: list[bool]) -> float:
    return sum(values) / len(values)


def test_small_bounds_are_drawn_for_a_share_of_the_seeds() -> None:
    for small in (
        [config.wheel.entries_max <= 200 for config in DRAWN],
        [config.wheel.lanes_max <= 2 for config in DRAWN],
        [config.storage.segments_keep_ms <= 7_200_000 for config in DRAWN],
        [config.storage.seals_keep_ms <= 7_200_000 for config in DRAWN],
        [config.storage.filing_bytes_max <= 5000 for config in DRAWN],
        [config.storage.subjects_bytes_max <= 3000 for config in DRAWN],
        [config.admission.pending_bytes_max == 1 for config in DRAWN],
        [config.sender.queue_items_max <= 2 for config in DRAWN],
        [config.sender.entries_max <= 30 for config in DRAWN],
        [config.listener.in_flight_requests_max <= 3 for config in DRAWN],
    ):
        assert 0.1 < share(small) < 0.4


def test_no_fewer_messages_may_be_held_than_asked_for() -> None:
    for seed in range(100):
        config = draw_configuration(
            derive(seed, "configuration"), brokers=BROKER_ADDRESSES, weights=_EQUAL, held_min=40
        )
        assert min(config.wheel.entries_max, config.sender.entries_max) >= 40


def test_worlds_have_one_to_four_groups_and_at_most_one_that_comes_and_goes() -> None:
    drawn = [draw_groups(derive(seed, "groups")) for seed in range(300)]
    counts = Counter(len(groups.addresses) for groups in drawn)
    assert set(counts) == {1, 2, 3, 4}
    assert min(counts.values()) >= 30
    assert all(groups.constant for groups in drawn)
    assert {len(groups.addresses) - len(groups.constant) for groups in drawn} == {0, 1}
    assert {len(draw_groups(derive(seed, "groups"), (3,)).addresses) for seed in range(9)} == {3}


def test_groups_weigh_the_same_or_up_to_a_thousand_times_as_much() -> None:
    drawn = [draw_weights(derive(seed, "weights"), ("g1", "g2")) for seed in range(200)]
    ratios = {round(weights["g1"] / weights["g2"], 3) for weights in drawn}
    assert {1.0, 1000.0, 0.001} <= ratios
