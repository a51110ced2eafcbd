"""Every number that a meta server shows, made into a Prometheus family when somebody asks.

GET /metrics   all of them, as delaywheel_meta_<name>, counters with _total
GET /status    those of `numbers` under the same names; it has rows in place of the others
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from delay_protocol.meta.requests import BrokerState
from delay_transport.http.metric_families import (
    Exposition,
    build_info,
    counter,
    counters,
    gauge,
    gauges,
    listener_families,
)
from meta_server.admin.parts import Observed, Parts

ELECTION_KINDS: Final = ("restarted", "silent", "blocked", "unfit")
"""Why: the master was started again, was not heard, could not send, or was to hand over."""


def take(observed: Observed) -> Exposition:
    """Read everything now. To be called by the loop, which is what changes the counters."""
    return Exposition(_collect(observed))


def _collect(observed: Observed) -> Iterator[Metric]:
    yield build_info()
    if observed.listener is not None:
        yield from listener_families(observed.listener)
    if observed.parts is not None:
        yield from numbers(observed.parts)
        yield from _of_rows(observed.parts)


def numbers(parts: Parts) -> Iterator[Metric]:
    """Yield the numbers that the status has too."""
    yield from _of_requests(parts)
    yield from _of_what_is_known(parts)
    yield from _of_store(parts)


def _of_requests(parts: Parts) -> Iterator[Metric]:
    dispatcher, credentials, access = parts.handlers.dispatcher, parts.credentials, parts.access
    refused = dispatcher.refusals
    yield counters("meta_requests", "Requests.", "command", _lower(dispatcher.requests))
    yield counters("meta_requests_refused", "Refusals.", "command", _lower(refused))
    yield counter("meta_nodes_authenticated", "Proved the secret.", credentials.authenticated)
    yield counter("meta_nodes_unauthenticated", "Did not.", credentials.unauthenticated)
    changed = _lower(parts.changes)
    yield counters("meta_admin_changes", "Changes by administrators.", "action", changed)
    yield counters("meta_admin_denied", "Turned away.", "reason", _lower(access.policy.denied))
    yield gauge("meta_admin_requests", "Worked on now.", access.busy)
    yield gauge("meta_requests_waiting", "Waiting for the store.", parts.committer.waiting)
    counts = parts.handlers.pusher.counts
    yield gauge("meta_subscriptions", "Routes kept up to date.", parts.handlers.sessions.uses)
    yield counter("meta_subscriptions_unkept", "One too many.", counts.unkept)
    yield counter("meta_pushes", "Routes pushed.", counts.pushes)
    yield counter("meta_push_rounds", "Looks at all subscriptions.", counts.rounds)
    yield counter("meta_pushes_delayed", "Clients not ready for one.", counts.delayed)


def _of_what_is_known(parts: Parts) -> Iterator[Metric]:
    registry, handlers = parts.registry, parts.handlers
    yield gauge("meta_subjects", "Subjects.", len(registry.subjects))
    yield gauge("meta_routes", "Routes of single subjects.", len(registry.routes))
    yield gauge("meta_prefix_routes", "Routes of prefixes.", len(registry.prefixes))
    yield gauge(
        "meta_groups_waiting",
        "Groups that an operator has to let in.",
        len(handlers.admission.waiting),
    )
    yield gauge(
        "meta_groups_set_back",
        "Delay groups whose newest record the store lacks, or may lack.",
        len(parts.set_backs.all_behind()),
    )
    yield gauge("meta_delay_nodes", "Delay nodes.", len(registry.nodes))
    yield gauge(
        "meta_controls_nodes_behind",
        "Nodes that go by other controls.",
        sum(bool(handlers.group_changes.controls_at(key)[1]) for key in registry.nodes),
    )


def _of_store(parts: Parts) -> Iterator[Metric]:
    committer = parts.committer
    yield gauge("meta_load_seconds", "Loading the store at the start.", parts.load_seconds)
    yield counter("meta_commits", "Commits of the store.", committer.commits)
    yield counter("meta_changes", "Changes in them.", committer.changes)
    yield counter("meta_store_failures", "Failures of the store.", committer.failures)
    yield counter("meta_store_conflicts", "Commits somebody was before.", committer.conflicts)
    yield gauge("meta_store_up", "1 unless the store failed.", not committer.is_stale)
    yield counter("meta_stalls", "Times the process was not running.", parts.silence.stalls)


def _of_rows(parts: Parts) -> Iterator[Metric]:
    """Yield the numbers of groups, of which the status has rows."""
    registry = parts.registry
    states = Counter(group.state for group in registry.groups.values())
    by_state = {BrokerState(state).name.lower(): states[state] for state in BrokerState}
    yield gauges("meta_groups", "Groups, by state.", "state", by_state)
    up = GaugeMetricFamily(
        "delaywheel_meta_group_up", "1 unless the group is NRW.", labels=["group", "kind"]
    )
    for name, group in sorted(registry.groups.items()):
        up.add_metric([name, group.kind.value], group.state is not BrokerState.NRW)
    yield up
    epochs = {name: group.record.epoch for name, group in sorted(registry.delay_groups.items())}
    yield gauges("meta_epoch", "Epoch.", "group", epochs)
    elections = CounterMetricFamily(
        "delaywheel_meta_elections",
        "Elections and handovers that no operator asked for.",
        labels=["group", "reason"],
    )
    for name in epochs:
        for kind in ELECTION_KINDS:
            elections.add_metric([name, kind], parts.handlers.group_changes.begun[name, kind])
    yield elections
    versions = {name: row.version for name, row in sorted(registry.controls.items())}
    yield gauges("meta_controls_version", "Counted up by changes.", "cluster", versions)


def _lower(counts: dict[str, int]) -> dict[str, int]:
    return {label.lower(): count for label, count in sorted(counts.items())}
