"""A server that fails is spared, ever longer, and asked by probes until it works again."""

import random

from delay_client import ClientConfig
from delay_client.exchange.circuits import Circuit, pause_s

CONFIG = ClientConfig(backoff_min_s=1, backoff_max_s=4, probe_max_s=64, circuit_failures=3)


def test_it_opens_after_enough_failures_in_a_row_and_closes_with_a_success() -> None:
    chance = random.Random(1)
    circuit = Circuit(CONFIG)
    for _ in range(2):
        circuit.failed(0, chance)
    circuit.succeeded()
    for _ in range(2):
        circuit.failed(0, chance)
    assert not circuit.is_open
    circuit.failed(0, chance)
    is_open_before = circuit.is_open
    circuit.succeeded()
    assert (is_open_before, circuit.is_open) == (True, False)


def test_a_failure_that_leaves_no_doubt_opens_it_at_once() -> None:
    circuit = Circuit(CONFIG)
    circuit.failed(5, random.Random(1), for_sure=True)
    assert circuit.is_open
    assert 5.5 <= circuit.last_resort_at <= 6
    assert 5.5 <= circuit.probe_at <= 6


def test_pauses_grow_and_where_there_is_no_other_server_they_stay_short() -> None:
    chance = random.Random(1)
    circuit = Circuit(CONFIG)
    circuit.failed(0, chance, for_sure=True)
    for times in range(1, 200):
        circuit.failed(100, chance)
        assert min(4, 2**times) / 2 <= circuit.last_resort_at - 100 <= min(4, 2**times)
        assert min(64, 2**times) / 2 <= circuit.probe_at - 100 <= min(64, 2**times)


def test_pauses_are_jittered() -> None:
    chance = random.Random(1)
    assert len({pause_s(3, CONFIG, chance) for _ in range(20)}) == 20
