"""What is counted is shown under names that stay."""

from meta_server.admin.metrics import take
from meta_server.server import MetaServer
from tests.kit.operator import Operator
from tests.meta_server.meta_rig import World, broker, node

NAMES = """
    meta_nodes_authenticated_total meta_nodes_unauthenticated_total
    build_info connections connections_refused_total connection_faults_total held_bytes
    connections_closed_total meta_requests_total meta_requests_refused_total meta_requests_waiting
    meta_subscriptions meta_subscriptions_unkept_total meta_pushes_total meta_push_rounds_total
    meta_controls_version meta_controls_nodes_behind
    meta_pushes_delayed_total meta_subjects meta_routes
    meta_elections_total
    meta_groups_set_back
    meta_delay_nodes meta_groups meta_group_up meta_epoch meta_commits_total meta_changes_total
    meta_store_failures_total meta_store_conflicts_total meta_store_up meta_stalls_total
    meta_admin_changes_total meta_admin_denied_total meta_admin_requests
    meta_groups_waiting
    meta_prefix_routes meta_load_seconds
"""


def samples(text: bytes) -> dict[str, float]:
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in text.decode().splitlines()
        if not line.startswith("#")
    }


async def test_everything_is_shown_and_counted(world: World, server: MetaServer) -> None:
    peer = await world.registered(node())
    await peer.broker(broker())
    await peer.register("a.b")
    await peer.register("a b")
    operator = Operator(server)
    await operator.change_group("g1", weight=1)
    await operator.change_rule("c1", "groups", group="g1", weight=3)
    await operator.ask("GET", "/api/v1/broker", headers={"host": "evil.example"})
    found = samples(take(server.observe()).render())
    bare = {name.partition("{")[0].removeprefix("delaywheel_") for name in found}
    assert bare - {name for name in bare if name.endswith("_created")} == {
        name for name in NAMES.split() if name != "connections_closed_total"
    }
    for name, value in (
        ("meta_subjects", 1),
        ("meta_store_up", 1),
        ('meta_groups{state="rw"}', 1),
        ('meta_groups{state="nrw"}', 1),
        ('meta_group_up{group="d1",kind="delay"}', 0),
        ('meta_epoch{group="d1"}', 1),
        ('meta_elections_total{group="d1",reason="silent"}', 0),
        ('meta_controls_version{cluster="c1"}', 1),
        ("meta_controls_nodes_behind", 1),
        ('meta_admin_changes_total{action="broker-group.change"}', 1),
        ('meta_admin_denied_total{reason="host"}', 1),
        ('meta_requests_total{command="client_register"}', 2),
        ('meta_requests_refused_total{command="client_register"}', 1),
    ):
        assert found[f"delaywheel_{name}"] == value
