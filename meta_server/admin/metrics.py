"""Prometheus metrics of a meta server."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from delay_protocol.meta.requests import BrokerState
from delay_transport.http.metric_families import (
    Exposition,
    counter,
    gauge,
    installed_version,
    listener_families,
)

if TYPE_CHECKING:
    from meta_server.server import MetaServer

GROUPS_SHOWN_MAX = 200
"""Broker groups that get labels of their own; of further ones only the number in a state shows."""


def take(server: "MetaServer") -> Exposition:
    """Read everything now. To be called by the loop, which is what changes the counters."""
    return Exposition(_collect(server))


def _collect(server: "MetaServer") -> Iterator[Metric]:
    info = GaugeMetricFamily("delaywheel_build_info", "Version.", labels=["version"])
    info.add_metric([installed_version()], 1)
    yield info
    if server.listener is not None:
        yield from listener_families(server.listener)
    if server.ready.is_set():
        yield from _requests(server)
        yield from _known(server)
        yield from _store(server)


def _labelled(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"delaywheel_meta_{name}", text, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([value.lower()], count)
    return family


def _requests(server: "MetaServer") -> Iterator[Metric]:
    handlers, pushing = server.handlers, server.pushing
    yield _labelled("requests", "Requests.", "command", handlers.requests)
    yield _labelled("requests_refused", "Refusals.", "command", handlers.refusals.by_command)
    credentials = server.credentials
    yield counter("meta_nodes_authenticated", "Proved the secret.", credentials.authenticated)
    yield counter("meta_nodes_unauthenticated", "Did not.", credentials.unauthenticated)
    administration = server.administration
    yield _labelled("admin_changes", "Changes by administrators.", "action", administration.changes)
    yield _labelled("admin_denied", "Turned away.", "reason", administration.gate.denied)
    yield gauge("meta_admin_requests", "Worked on now.", administration.busy)
    yield gauge("meta_requests_waiting", "Waiting for the store.", server.committing.waiting)
    yield gauge("meta_subscriptions", "Routes kept up to date.", pushing.subscriptions)
    yield counter("meta_subscriptions_unkept", "One too many.", pushing.counts.unkept)
    yield counter("meta_pushes", "Routes pushed.", pushing.counts.pushes)
    yield counter("meta_push_rounds", "Looks at all subscriptions.", pushing.counts.rounds)
    yield counter("meta_pushes_delayed", "Clients not ready for one.", pushing.counts.delayed)
    yield counter("meta_controls_told", "Controls told to delay servers.", server.telling.told)


def _known(server: "MetaServer") -> Iterator[Metric]:
    registry = server.registry
    yield gauge("meta_subjects", "Subjects.", len(registry.subjects))
    yield gauge("meta_routes", "Routes of single subjects.", len(registry.routes))
    yield gauge("meta_clients", "Clients remembered.", len(registry.clients))
    yield counter("meta_clients_unkept", "Clients not remembered.", server.clients.unkept)
    yield counter("meta_group_moves", "Groups that came from elsewhere.", server.handlers.moves)
    waiting = len(server.handlers.waiting.all(server.now()))
    yield gauge("meta_groups_waiting", "Groups that an operator has to let in.", waiting)
    yield gauge("meta_delay_nodes", "Delay nodes.", len(registry.nodes))
    states = Counter(BrokerState(group.state).name for group in registry.groups.values())
    family = GaugeMetricFamily("delaywheel_meta_groups", "Groups, by state.", labels=["state"])
    for state in BrokerState:
        family.add_metric([state.name.lower()], states[state.name])
    yield family
    up = GaugeMetricFamily(
        "delaywheel_meta_group_up", "1 unless the group is NRW.", labels=["group", "kind"]
    )
    for name in sorted(registry.groups)[:GROUPS_SHOWN_MAX]:
        group = registry.groups[name]
        up.add_metric([name, group.kind.name.lower()], int(group.state is not BrokerState.NRW))
    yield up
    epochs = GaugeMetricFamily("delaywheel_meta_epoch", "Epoch.", labels=["group"])
    for name in sorted(registry.delay_groups)[:GROUPS_SHOWN_MAX]:
        epochs.add_metric([name], registry.delay_groups[name].record.epoch)
    yield epochs
    versions = GaugeMetricFamily(
        "delaywheel_meta_controls_version", "Counted up by changes.", labels=["cluster"]
    )
    for cluster in sorted(registry.controls)[:GROUPS_SHOWN_MAX]:
        versions.add_metric([cluster], registry.controls[cluster].version)
    yield versions
    behind = sum(bool(server.telling.note_of(key)) for key in registry.nodes)
    yield gauge("meta_controls_nodes_behind", "Nodes that go by other controls.", behind)


def _store(server: "MetaServer") -> Iterator[Metric]:
    committing = server.committing
    yield counter("meta_commits", "Commits of the store.", committing.commits)
    yield counter("meta_changes", "Changes in them.", committing.changes)
    yield counter("meta_store_failures", "Failures of the store.", committing.failures)
    yield counter("meta_store_conflicts", "Commits somebody was before.", committing.conflicts)
    yield gauge("meta_store_up", "1 unless the store failed.", int(not committing.is_stale))
    entries = GaugeMetricFamily(
        "delaywheel_meta_audit_entries", "Entries of the audit at the last look.", labels=["of"]
    )
    entries.add_metric(["administration"], server.audit.counts.asked)
    entries.add_metric(["nodes"], server.audit.counts.by_node)
    yield entries
    yield counter("meta_audit_forgotten", "Old entries forgotten.", server.audit.forgotten)
    yield counter("meta_stalls", "Times the process was not running.", server.stalls)
