"""Configurations of all kinds are drawn, each one that a server accepts."""

import dataclasses
from collections import Counter
from itertools import pairwise

from tests.simulation.configuration import (
    BROKER_ADDRESSES,
    SmallConfig,
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


def test_files_are_small_enough_to_be_closed_in_most_seeds() -> None:
    sizes = [config.storage.message_log_file_bytes_max for config in DRAWN]
    assert 0.5 < share([size <= 1 << 14 for size in sizes]) < 0.9


def test_two_draws_differ_in_most_settings() -> None:
    def settings(config: SmallConfig) -> dict[str, object]:
        return {
            f"{section}.{field.name}": getattr(part, field.name)
            for section, part in (
                ("storage", config.storage),
                ("wheel", config.wheel),
                ("sender", config.sender),
            )
            for field in dataclasses.fields(part)
        }

    changed: Counter[str] = Counter()
    for one, other in pairwise(DRAWN):
        before, after = settings(one), settings(other)
        changed.update(name for name in before if before[name] != after[name])
    for name in (
        "storage.minute_horizon_minutes",
        "storage.hour_horizon_minutes",
        "storage.gather_bytes_max",
        "storage.open_files_max",
        "storage.checkpoint_interval_ms",
        "storage.retired_grace_ms",
        "wheel.load_ahead_ms",
        "wheel.slot_ms",
        "sender.batch_items",
        "sender.in_flight_requests_max",
    ):
        assert changed[name] > 30, name


def test_a_group_that_is_not_given_is_not_there() -> None:
    there = {name: BROKER_ADDRESSES[name] for name in ("g1", "g3")}
    config = draw_configuration(
        derive(1, "configuration"), brokers=there, weights={"g1": 3.0, "g3": 0.1}
    )
    groups = config.broker_groups()
    assert [(group.name, group.weight) for group in groups] == [("g1", 3.0), ("g3", 0.1)]


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
