"""Promise: a batch goes to the least loaded server that may have it, and probes go to sick ones."""

import random

from delay_client import ClientConfig
from delay_client.exchange.balancing import choose_link
from delay_client.exchange.batches import Batch, BatchLink, Collection, Lane
from tests.delay_client.conftest import hello_reply

CONFIG = ClientConfig(
    requests_in_flight_max=3, circuit_failures=2, backoff_min_s=1, backoff_max_s=4, probe_max_s=30
)
CHANCE = random.Random(1)


def up(server: str) -> BatchLink:
    link = BatchLink(server, CONFIG)
    link.connect()
    link.connected(0)
    link.take_outgoing()
    assert list(link.answers(hello_reply(), 0)) == []
    assert link.has_room()
    return link


def new_batch(lane: Lane) -> Batch:
    batch = Batch(Collection(lambda: None), deadline=10, lane=lane)
    batch.add((b"item", "m", 2000, False), "s", 0)
    return batch


def choose(lane: Lane, batch: Batch | None = None, now: float = 0) -> str | None:
    link = choose_link(lane, batch or new_batch(lane), now)
    return None if link is None else link.server


def load(link: BatchLink, requests: int) -> None:
    for _ in range(requests):
        link.send(new_batch(Lane([link])), 0)


def test_of_equals_the_first_is_used_and_else_the_least_loaded() -> None:
    a, b = up("a:1"), up("b:1")
    lane = Lane([a, b])
    assert choose(lane) == "a:1"
    load(a, 1)
    assert choose(lane) == "b:1"
    load(b, 2)
    assert choose(lane) == "a:1"
    load(a, 2)
    load(b, 1)
    assert choose(lane) is None, "no room"


def test_a_failure_counts_as_load() -> None:
    a, b = up("a:1"), up("b:1")
    a.circuit.failed(0, CHANCE)
    assert choose(Lane([a, b])) == "b:1"


def test_the_server_that_failed_a_batch_gets_it_only_if_no_other_can() -> None:
    a, b = up("a:1"), up("b:1")
    lane = Lane([a, b])
    batch = new_batch(lane)
    batch.avoid = "a:1"
    load(b, 2)
    assert choose(lane, batch) == "b:1"
    load(b, 1)
    assert choose(lane, batch) == "a:1"


def test_what_is_held_for_a_group_goes_there() -> None:
    a, b = up("a:1"), up("b:1")
    lane = Lane([a, b])
    batch = new_batch(lane)
    batch.held_for = b.group
    load(b, 2)
    assert choose(lane, batch) == "b:1"


def test_an_open_circuit_gets_one_probe_when_it_is_due_and_no_batch_that_failed() -> None:
    a, b = up("a:1"), up("b:1")
    a.circuit.failed(0, CHANCE, for_sure=True)
    lane = Lane([a, b])
    assert choose(lane) == "b:1"
    due = a.circuit.probe_at
    assert choose(lane, now=due) == "a:1"
    tried = new_batch(lane)
    tried.attempts = 1
    assert choose(lane, tried, now=due) == "b:1"
    load(a, 1)
    assert choose(lane, now=due) == "b:1", "one at a time"


def test_where_all_circuits_are_open_a_probe_goes_out_soon() -> None:
    a, b = up("a:1"), up("b:1")
    lane = Lane([a, b])
    for link in (a, b):
        for _ in range(4):
            link.circuit.failed(0, CHANCE)
    batch = new_batch(lane)
    batch.attempts, batch.avoid = 1, "a:1"
    assert choose(lane, batch) is None
    assert choose(lane, batch, now=4) == "b:1"
    load(b, 1)
    assert choose(lane, batch, now=4) == "a:1"


def test_a_message_with_a_given_id_waits_for_its_home_while_there_is_hope() -> None:
    home, other = BatchLink("a:1", CONFIG), up("b:1")
    lane = Lane([home, other], home=home)
    assert choose(lane) is None
    home.connect()
    home.lost("refused", 0, CHANCE)
    assert choose(lane) == "b:1"
    assert home.is_missed, "so it is connected to again"
