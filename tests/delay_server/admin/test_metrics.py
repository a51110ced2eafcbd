"""What is counted is shown under names that stay, and distributions count whole batches exactly."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol.nodes.registration import Master, NodeRole
from delay_server.admin.metrics import take
from delay_server.admin.numbers import (
    NUMBERS,
    NUMBERS_OF_NODE,
    NUMBERS_OF_PROCESS,
    NUMBERS_OF_REGISTRATION,
    NUMBERS_OF_REPLICATION,
    SUBJECTS_SHOWN_MAX,
    Number,
    top_subjects,
)
from delay_server.admin.status import status_of
from delay_server.distribution import Distribution
from delay_server.sending.lateness import LATENESS_BUCKETS_S
from delay_server.server import DelayServer, serve
from meta_server.admin.numbers import NUMBERS as META_NUMBERS
from sender.health.circuit import CircuitState
from tests.delay_server.dead_rig import bury
from tests.delay_server.meta_stub import FakeMeta, meta_config
from tests.delay_server.route_rig import RouteWorld
from tests.delay_server.server_rig import (
    BROKER_PORT,
    HOST,
    World,
    make_config,
    make_item,
    until,
)

VALUES = st.lists(
    st.floats(0, 200_000, allow_nan=False) | st.sampled_from(LATENESS_BUCKETS_S), max_size=50
)

NAMES = """
    unreadable_files read_failures_total unread_messages demotions_total controls_group_rules
    last_sequence recovery_seconds
    build_info node_info accepted_total accepted_bytes_total refused_total requests_total
    requests_indivisible_total requests_expired_total requests_held connections
    receivers_settled_total receivers_unknown_total receivers_attached_total receivers_refused_total
    connections_accepted_total connections_refused_total connection_faults_total
    connection_pauses_total received_bytes_total held_bytes
    connections_closed_total commits_total fsync_seconds replay_lag replay_lag_bytes
    gathered_bytes checkpoints_total segments_sealed_total segments damaged
    copies_anew_total disk_free_bytes disk_owed_bytes disk_floor_bytes
    segments_sealed_on_disk retired_files files_deleted_total first_sequence
    disk_bytes disk_full clock_held pending wheel_entries late wheel_messages
    held_entries wheel_evicted_total slices_loaded_total lanes_waiting lanes_opened_total
    lane_messages_total lane_dropped_total subjects subjects_bytes
    undeliverable dispatched_total delivery_lateness_seconds fact_age_seconds
    sender_tries_total sender_retries_total sender_possible_duplicates_total
    sender_in_flight sender_queued sender_failures sender_up sender_fenced
    sender_circuit sender_circuit_openings_total sender_weight sender_effective_weight sender_slow
    sender_answer_seconds sender_window_requests sender_paused
    sender_rate_limit sender_delivered_total sender_known_total sender_refused_total
    sender_queue_items_max
    dead_being_recorded dead_pending dead_dropped_total dead_max
    dead_oldest_seconds dead_requeued_total
    undelivered paused_subjects controls_paused_rules controls_paused_groups
    controls_version
"""


ROUTES = """
    unrouted_subjects unrouted_subjects_max unrouted_messages unrouted_oldest_seconds
    subjects_put_off_total routes_connected routes_subjects routes_distinct routes_changes_total
    routes_questions_total routes_answers_total routes_pushes_total routes_refusals_total
"""
"""Of a node that asks a meta server where messages go."""


def parsed(text: bytes) -> dict[str, float]:
    """Return the samples of an exposition by name and labels."""
    lines = [line for line in text.decode().splitlines() if line and line[0] != "#"]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def shown(text: bytes) -> set[str]:
    """Return the names of the families, without the prefix."""
    found = set()
    for line in text.decode().splitlines():
        if line.startswith("# TYPE "):
            found.add(line.split()[2].removeprefix("delaywheel_"))
    return found


@given(VALUES)
def test_values_counted_one_by_one_or_all_at_once_make_the_same_distribution(
    values: list[float],
) -> None:
    one, all_at_once = Distribution(LATENESS_BUCKETS_S), Distribution(LATENESS_BUCKETS_S)
    for value in values:
        one.observe(value)
    all_at_once.observe_all(np.array(values, np.float64))
    assert one.counts.tolist() == all_at_once.counts.tolist()
    assert one.sum == pytest.approx(all_at_once.sum)
    assert one.total == len(values)


@given(VALUES)
def test_a_bucket_holds_what_is_at_most_its_bound(values: list[float]) -> None:
    distribution = Distribution(LATENESS_BUCKETS_S)
    distribution.observe_all(np.array(values, np.float64))
    buckets = dict(distribution.buckets())
    for bound in LATENESS_BUCKETS_S:
        assert buckets[f"{bound:g}"] == sum(value <= bound for value in values)
    assert buckets["+Inf"] == len(values)


def test_a_quantile_is_the_bound_below_which_that_share_lies() -> None:
    distribution = Distribution((1, 2, 5))
    assert distribution.quantile(0.5) is None
    for value in (0.5, 1.5, 1.5, 4):
        distribution.observe(value)
    assert distribution.quantile(0.25) == 1
    assert distribution.quantile(0.5) == 2
    assert distribution.quantile(0.75) == 2
    assert distribution.quantile(0.99) == 5
    distribution.observe(100)
    assert distribution.quantile(1) == 5


async def test_before_it_is_ready_a_server_shows_what_it_has() -> None:
    server = World().server(make_config())
    names = shown(take(server.observe()).render())
    assert "build_info" in names
    assert "accepted_total" in names
    assert "commits_total" not in names


MEMBERSHIP = """
    meta_connected meta_away_seconds meta_answers_total meta_failures_total role accepts epoch
    in_sync min_isr replicas controls_taken_total controls_kept clock_ahead_seconds
"""

REPLICATION = """
    replication_committed replication_outcomes_uncommitted replication_faults_total
    replication_snapshot_seconds replication_unfit
    replica_in_sync replica_lag replica_lag_seconds replica_filing_lag_seconds replica_drops
    replica_clock_ahead_seconds
"""
"""Of its part in a group (tests/failover/test_seen.py)."""


def figures_of(server: DelayServer) -> dict[str, float]:
    """Return the samples of a server without the prefix."""
    found = parsed(take(server.observe()).render())
    return {name.removeprefix("delaywheel_"): value for name, value in found.items()}


async def test_a_member_of_a_group_shows_what_it_is_and_whether_anybody_can_be_asked() -> None:
    world = World()
    async with FakeMeta(world).running() as meta, world.serving(meta_config()) as server:
        text = take(server.observe()).render()
        assert shown(text) == {*NAMES.split(), *MEMBERSHIP.split(), *REPLICATION.split()}
        values = figures_of(server)
        roles = [values[f'role{{role="{role}"}}'] for role in ("master", "slave")]
        assert roles == [1, 0]
        assert (values["accepts"], values["epoch"], values["in_sync"]) == (1, 1, 1)
        assert (values["meta_connected"], values["meta_away_seconds"]) == (1, 0)
        assert values["meta_answers_total"] == 2
        meta.kill()
        await trio.sleep(30)
        values = figures_of(server)
        assert (values["accepts"], values["meta_connected"]) == (1, 0)
        assert 28 < values["meta_away_seconds"] < 31
        assert values["meta_failures_total"] > 5


async def test_a_node_that_asks_for_routes_shows_how_many_wait_and_how_many_may() -> None:
    world = RouteWorld()
    async with world.routing() as (server, _):
        text = take(server.observe()).render()
        assert shown(text) == {
            *NAMES.split(),
            *MEMBERSHIP.split(),
            *REPLICATION.split(),
            *ROUTES.split(),
        }
        values = figures_of(server)
        assert values["unrouted_subjects_max"] == 100_000
        assert (values["unrouted_subjects"], values["subjects_put_off_total"]) == (0, 0)


async def test_a_slave_shows_that_it_accepts_nothing_and_how_its_disk_is() -> None:
    world = World()
    async with FakeMeta(world, role=NodeRole.SLAVE).running() as meta:
        meta.changed(master=Master(node_id="other", incarnation=1))
        server = world.server(meta_config())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, server, trio.Event())
            await until(lambda: meta.nodes)
            await trio.sleep(1)
            values, status = figures_of(server), status_of(server.observe())
            assert (values["accepts"], values['role{role="slave"}']) == (0, 1)
            assert values["disk_free_bytes"] == status["disk_free_bytes"] > 0
            assert (values["disk_full"], values["pending"], values["replay_lag"]) == (0, 0, 0)
            assert "commits_total" not in values
            assert "commits" not in status
            nursery.cancel_scope.cancel()


async def test_all_names_are_there_with_the_numbers_of_real_traffic() -> None:
    world = World()
    async with world.serving() as server:
        producer = await world.connect()
        now_ms = world.now_ms
        items = [make_item(f"m{n}", now_ms + 100 * n, subject=f"s{n % 2}") for n in range(10)]
        bad = make_item("far", now_ms + 10 * 365 * 86_400_000)
        await producer.send(*items, bad)
        await producer.send(make_item("later", now_ms + 100_000, subject="s1"))
        await producer.answer(await producer.post(b"zzz"))
        await until(lambda: len(world.broker.deliveries) == 10)
        await trio.sleep(1)
        text = take(server.observe()).render()
        assert shown(text) == set(NAMES.split())
        values = {name.removeprefix("delaywheel_"): value for name, value in parsed(text).items()}
        assert values["accepted_total"] == 11
        assert values['refused_total{reason="block"}'] == 1
        assert values["requests_total"] == 3
        assert values["requests_indivisible_total"] == 1
        assert values["connections"] == 1
        # Of messages, and of the facts about those that were delivered.
        assert values["commits_total"] == values["fsync_seconds_count"] > 2
        assert values["replay_lag"] == 0
        assert values["pending"] == 1
        assert values["wheel_entries"] == 1
        assert values['wheel_messages{subject="s1"}'] == 1
        assert 'wheel_messages{subject="s0"}' not in values
        assert values['dispatched_total{outcome="delivered"}'] == 10
        assert values["delivery_lateness_seconds_count"] == 10
        assert values["fact_age_seconds_count"] == 10
        assert values['fact_age_seconds_bucket{le="0.04"}'] == 10
        assert values['delivery_lateness_seconds_bucket{le="0.01"}'] == 10
        assert values['sender_tries_total{target="g1"}'] >= 1
        assert values["disk_free_bytes"] > 0
        assert values["disk_full"] == 0
        assert values["clock_held"] == 0
        assert values["accepted_bytes_total"] > sum(map(len, items))


async def test_the_circuit_and_the_weight_of_a_broker_group_are_shown_as_they_are() -> None:
    world = World()
    brokers = {"g1": f"{HOST}:{BROKER_PORT},weight=3"}
    async with world.serving(make_config(brokers=brokers)) as server:
        producer = await world.connect()

        def circuit() -> tuple[list[float], float, float, float]:
            values = figures_of(server)
            states = [
                values[f'sender_circuit{{state="{state}",target="g1"}}']
                for state in ("closed", "open", "half-open")
            ]
            opened, weight, effective = (
                values[f'sender_{name}{{target="g1"}}']
                for name in ("circuit_openings_total", "weight", "effective_weight")
            )
            return states, opened, weight, effective

        await until(lambda: circuit() == ([1, 0, 0], 0, 3, 3))
        world.broker.answer_after_s = math.inf
        await producer.send(make_item("m1", world.now_ms))
        seen = set()
        for _ in range(150):
            await trio.sleep(0.1)
            states, opened, weight, effective = circuit()
            (group,) = server.master.sender.status()
            assert sum(states) == 1
            assert opened == group.counts.changes[CircuitState.OPEN]
            assert weight == 3
            assert effective == round(group.effective_weight, 4)
            seen.add((group.circuit, *states))
        assert seen == {
            (CircuitState.CLOSED, 1, 0, 0),
            (CircuitState.OPEN, 0, 1, 0),
            (CircuitState.HALF_OPEN, 0, 0, 1),
        }
        openings = circuit()[1]
        assert openings >= 2
        world.broker.answer_after_s = 0.0
        await until(lambda: circuit()[0] == [1, 0, 0], seconds=60)
        assert circuit()[1] >= openings
        # It is led up to its weight again.
        assert circuit()[3] < 3
        await until(lambda: circuit()[3] == 3, seconds=60)


async def test_a_dead_letter_counts_among_the_dead_until_it_is_settled() -> None:
    world = World()
    async with world.serving() as server:
        assert figures_of(server)["dead_pending"] == 0
        operator = await bury(world, server, "m1", "m2")
        assert figures_of(server)["dead_pending"] == 2
        await operator.ask("POST", "/dead/requeue", {"filter": {"message_id": "m1"}, "max": 1})
        await until(lambda: world.broker.ids == ["m1"])
        assert figures_of(server)["dead_pending"] == 1


def test_every_metric_that_an_alert_names_is_there() -> None:
    rules = (Path(__file__).parents[3] / "deploy" / "alerts.yml").read_text()
    expressions = [text.partition("expr:")[2] for text in rules.split("- alert:")[1:]]
    assert len(expressions) > 10
    named = [set(re.findall(r"delaywheel_(\w+)", text)) for text in expressions]
    # Two ask only whether a server can be asked at all, one asks node_exporter.
    others = [text for text, names in zip(expressions, named, strict=True) if not names]
    assert [text.split("{")[0].split("(")[-1] for text in others] == [
        " up",
        " up",
        "node_filesystem_avail_bytes",
    ]
    names = {name.removesuffix("_bucket") for name in set().union(*named)}
    of_meta = {"meta_elections_total", *(f"meta_{number.name}" for number in META_NUMBERS)}
    texts = (NAMES, ROUTES, MEMBERSHIP, REPLICATION)
    assert names <= {name for text in texts for name in text.split()} | of_meta


def test_no_two_numbers_have_the_same_name() -> None:
    tables = (
        NUMBERS,
        NUMBERS_OF_NODE,
        NUMBERS_OF_PROCESS,
        NUMBERS_OF_REGISTRATION,
        NUMBERS_OF_REPLICATION,
    )
    names = [row.name.replace(".", "_") for table in tables for row in table]
    assert len(names) > 80
    assert len(set(names)) == len(names)


async def test_a_number_has_the_same_name_and_value_in_the_status_and_the_metrics() -> None:
    world = RouteWorld()
    async with world.routing() as (server, _):
        observed = server.observe()
        status, values = status_of(observed), parsed(take(observed).render())
        assert observed.node is not None
        compared = 0
        for row in (*NUMBERS_OF_PROCESS, *NUMBERS_OF_NODE, *NUMBERS):
            if not isinstance(row, Number):
                continue
            found: Any = status
            for part in row.name.split("."):
                found = found[part]
            ending = "_total" if row.kind == "counter" else ""
            assert values[f"delaywheel_{row.name.replace('.', '_')}{ending}"] == found, row.name
            compared += 1
        assert compared > 70
        for name, group in status["brokers"].items():
            assert values[f'delaywheel_sender_weight{{target="{name}"}}'] == group["weight"]


async def test_many_subjects_do_not_make_many_labels() -> None:
    world = World()
    async with world.serving() as server:
        producer = await world.connect()
        due_ms = world.now_ms + 60_000
        for number in range(SUBJECTS_SHOWN_MAX + 20):
            count = 3 if number == 7 else 1
            await producer.send(
                *(make_item(f"m{n}", due_ms, subject=f"s{number}") for n in range(count))
            )
        await until(lambda: len(server.master.wheel) == SUBJECTS_SHOWN_MAX + 22)
        subjects = top_subjects(server.administered().parts())
        assert next(iter(subjects.items())) == ("s7", 3)
        assert subjects["other"] == 20
        assert len(subjects) == SUBJECTS_SHOWN_MAX + 1
        assert sum(subjects.values()) == len(server.master.wheel)
