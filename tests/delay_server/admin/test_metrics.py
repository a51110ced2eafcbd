"""What is counted is shown under names that stay, and distributions count whole batches exactly."""

import math
import re
from pathlib import Path
from typing import Final

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol.nodes.registration import Master, NodeRole
from delay_server.admin.metrics import take
from delay_server.admin.status import status_of
from delay_server.distribution import Distribution
from delay_server.sending.lateness import LATENESS_BUCKETS_S
from delay_server.server import DelayServer, serve
from tests.delay_server.dead_rig import bury
from tests.delay_server.meta_stub import FakeMeta, meta_config
from tests.delay_server.route_rig import RouteWorld
from tests.delay_server.server_rig import World, make_config, make_item, until
from tests.meta_server.admin.test_metrics import NAMES as META_NAMES

_ROOT: Final = Path(__file__).parents[3]

VALUES = st.lists(
    st.floats(0, 200_000, allow_nan=False) | st.sampled_from(LATENESS_BUCKETS_S), max_size=50
)


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


def figures_of(server: DelayServer) -> dict[str, float]:
    """Return the samples of a server without the prefix."""
    found = parsed(take(server.observe()).render())
    return {name.removeprefix("delaywheel_"): value for name, value in found.items()}


async def test_every_number_is_in_the_docs_and_what_an_alert_names_is_there() -> None:
    world = RouteWorld()
    async with world.routing() as (server, _):
        names = shown(take(server.observe()).render())
    assert len(names) <= 61
    metrics = (_ROOT / "docs" / "monitoring.md").read_text().partition("## Metrics")[2]
    assert set(re.findall(r"`delaywheel_(\w+)", metrics)) == names
    rules = (_ROOT / "deploy" / "alerts.yml").read_text()
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
    of_meta = set(META_NAMES.split())
    assert {name.removesuffix("_bucket") for name in set().union(*named)} <= names | of_meta


async def test_a_member_of_a_group_shows_what_it_is_and_whether_anybody_can_be_asked() -> None:
    world = World()
    async with FakeMeta(world).running() as meta, world.serving(meta_config()) as server:
        values = figures_of(server)
        roles = [values[f'role{{role="{role}"}}'] for role in ("master", "slave")]
        assert roles == [1, 0]
        assert (values["in_sync"], values["meta_away_seconds"]) == (1, 0)
        meta.kill()
        await trio.sleep(30)
        assert 28 < figures_of(server)["meta_away_seconds"] < 31


async def test_a_slave_shows_how_its_disk_is_and_nothing_of_a_master() -> None:
    world = World()
    async with FakeMeta(world, role=NodeRole.SLAVE).running() as meta:
        meta.changed(master=Master(node_id="other", incarnation=1))
        server = world.server(meta_config())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, server, trio.Event())
            await until(lambda: meta.nodes)
            await trio.sleep(1)
            values, status = figures_of(server), status_of(server.observe())
            assert values['role{role="slave"}'] == 1
            assert values["disk_free_bytes"] == status["disk_free_bytes"] > 0
            assert (values["disk_full"], values["pending"], values["replay_lag"]) == (0, 0, 0)
            assert "late" not in values
            assert "late" not in status
            nursery.cancel_scope.cancel()


async def test_the_numbers_of_real_traffic_are_the_same_in_the_status() -> None:
    world = World()
    async with world.serving() as server:
        producer = await world.connect()
        now_ms = world.now_ms
        items = [make_item(f"m{n}", now_ms + 100 * n, subject=f"s{n % 2}") for n in range(10)]
        bad = make_item("far", now_ms + 10 * 365 * 86_400_000)
        await producer.send(*items, bad)
        await producer.send(make_item("later", now_ms + 100_000, subject="s1"))
        await until(lambda: len(world.broker.deliveries) == 10)
        await trio.sleep(1)
        values, status = figures_of(server), status_of(server.observe())
        # Of messages, and of the facts about those that were delivered.
        assert values["fsync_seconds_count"] > 2
        assert values["delivery_lateness_seconds_count"] == 10
        assert values['delivery_lateness_seconds_bucket{le="0.01"}'] == 10
        assert values["fact_age_seconds_count"] == 10
        assert values['fact_age_seconds_bucket{le="0.04"}'] == 10
        for name, expected in (
            ("accepted_total", 11),
            ("requests_held", 0),
            ("connections", 1),
            ("replay_lag", 0),
            ("pending", 1),
            ("late", 0),
            ("disk_full", 0),
            ("clock_held", 0),
        ):
            assert (values[name], status[name.removesuffix("_total")]) == (expected, expected), name
        assert values['refused_total{reason="block"}'] == status["refused"]["block"] == 1
        assert values['undelivered{place="in_wheel"}'] == status["undelivered"]["in_wheel"] == 1
        assert values['dispatched_total{outcome="delivered"}'] == 10
        assert status["dispatched"] == {"delivered": 10}
        of_broker = values['sender_delivered_total{target="g1"}']
        assert of_broker == status["brokers"]["g1"]["delivered"] == 10
        assert values["disk_free_bytes"] > 0


async def test_a_broker_group_that_is_mute_is_shown_as_down_until_it_answers() -> None:
    world = World()
    async with world.serving() as server:
        producer = await world.connect()

        def is_up() -> float:
            return figures_of(server)['sender_up{target="g1"}']

        await until(is_up)
        world.broker.answer_after_s = math.inf
        await producer.send(make_item("m1", world.now_ms))
        await until(lambda: not is_up(), seconds=20)
        row = status_of(server.observe())["brokers"]["g1"]
        assert (row["up"], row["circuit"]) == (False, "open")
        assert figures_of(server)['sender_possible_duplicates_total{target="g1"}'] > 0
        world.broker.answer_after_s = 0.0
        await until(is_up, seconds=60)


async def test_a_dead_letter_counts_among_the_dead_until_it_is_settled() -> None:
    world = World()
    async with world.serving() as server:
        assert figures_of(server)["dead_pending"] == 0
        operator = await bury(world, server, "m1", "m2")
        assert figures_of(server)["dead_pending"] == 2
        rows = server.master.dead_letters.listed()
        await operator.ask("POST", "/dead/requeue", {"sequences": [rows[0].sequence]})
        await until(lambda: world.broker.ids == ["m1"])
        assert figures_of(server)["dead_pending"] == 1
