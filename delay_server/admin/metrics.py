"""Every number that a delay server shows, made into a Prometheus family when somebody asks.

    family                          GET /status
    replay_lag                      replay_lag
    undelivered{place}              undelivered: {place}
    sender_queued{target}           brokers: {target: {queued}}
    replica_drops{node}             replicas: {node: {drops}}

GET /metrics has all of them, with `delaywheel_` before the name, and `_total` behind a counter's.
GET /status has quantiles in place of histograms, and the group's record in place of what is
registered. A name without a unit counts messages, or what it names.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import trio
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from delay_protocol.nodes.registration import NodeRole
from delay_server.admin.copies import Other, faults_of, others_of
from delay_server.admin.explain import counts
from delay_server.admin.parts import Observed, Parts
from delay_server.distribution import Distribution
from delay_server.mastership import Mastership
from delay_server.membership.registration import Registration
from delay_server.node import Node
from delay_transport.http.metric_families import (
    Exposition,
    build_info,
    counter,
    counters,
    gauge,
    gauges,
    listener_families,
)
from sender.groups.group_status import GroupState, GroupStatus


def take(observed: Observed) -> Exposition:
    """Read everything now. To be called by the loop, which is what changes the counters."""
    return Exposition(_collect(observed))


def _collect(observed: Observed) -> Iterator[Metric]:
    yield build_info()
    if observed.node is not None:
        yield _node_info(observed.node)
    if observed.registration is not None:
        yield from _of_registration(observed.registration)
    if observed.parts is not None:
        yield from _distributions(observed.parts)
    yield from numbers(observed)


def numbers(observed: Observed) -> Iterator[Metric]:
    """Yield the numbers that the status has too."""
    node, parts = observed.node, observed.parts
    yield from _of_process(observed)
    if observed.listener is not None:
        yield from listener_families(observed.listener)
    if node is not None:
        yield from _of_node(node)
        yield from _of_disk(node)
        if node.replica is not None:
            yield from _of_replication(node)
            yield from _of_others(others_of(node))
    if parts is not None:
        yield from _of_master(parts)
        yield from _of_waiting(parts)
        yield from _of_groups(parts.master.sender.status())
        yield from _of_receivers(parts.master)


def _node_info(node: Node) -> Metric:
    """Return the family that says which node this is, and of which group."""
    identity = node.store.identity
    info = GaugeMetricFamily(
        "delaywheel_node_info", "The node and its group.", labels=["cluster", "group", "node"]
    )
    info.add_metric([identity.cluster, identity.group, identity.node_id], 1)
    return info


def _of_registration(registration: Registration) -> Iterator[Metric]:
    permission = registration.permission
    yield gauge(
        "meta_away_seconds",
        "Seconds for which no meta server has answered.",
        registration.away_ms / 1000,
    )
    roles = {role.value: permission is not None and permission.role is role for role in NodeRole}
    yield gauges("role", "1 for the role that the node has.", "role", roles)
    if permission is not None:
        record = permission.record
        yield gauge("in_sync", "Size of the group's in-sync set.", len(record.in_sync))
        yield gauge("min_isr", "Size below which the in-sync set never gets.", record.min_isr)
    yield gauge("replicas", "Nodes of the group that are registered.", len(registration.members))
    yield gauge(
        "clock_ahead_seconds",
        "By how much the wall clock is ahead of the meta server's, beyond what a delay explains.",
        registration.clock_ahead_ms / 1000,
    )


def _distributions(parts: Parts) -> Iterator[Metric]:
    yield _histogram(
        "fsync_seconds",
        "Duration of the write and fsync of a group commit.",
        parts.master.committer.seconds,
    )
    yield _histogram(
        "delivery_lateness_seconds",
        "Time from the due time to the broker's confirmation.",
        parts.lateness.all,
    )
    yield _histogram(
        "fact_age_seconds",
        "Time from an outcome until it is durable; a crash in between delivers again.",
        parts.master.fact_recorder.ages,
    )


def _histogram(name: str, text: str, values: Distribution) -> Metric:
    family = HistogramMetricFamily(f"delaywheel_{name}", text)
    family.add_metric([], buckets=values.buckets(), sum_value=values.sum)
    return family


def _of_process(observed: Observed) -> Iterator[Metric]:
    ingest = observed.ingest
    refused = {code.lower(): count for code, count in sorted(ingest.counts.refused.items())}
    yield counter("accepted", "Messages accepted: they are durable.", ingest.counts.accepted)
    yield counter(
        "duplicates",
        "Messages confirmed and not kept again: they were sent before.",
        ingest.counts.duplicates,
    )
    yield counters("refused", "Messages refused, by item code.", "reason", refused)
    yield counter(
        "requests_expired",
        "Requests that waited for admission for too long and were answered 51.",
        ingest.counts.expired,
    )
    yield gauge("requests_held", "Requests that wait for admission.", ingest.held_requests)
    yield gauge(
        "clock_held",
        "1 while the clock is not trusted, so that nothing is delivered.",
        observed.duty.clock_held,
    )


def _of_node(node: Node) -> Iterator[Metric]:
    store, schedule = node.store, node.store.schedule
    # Read while other threads write: what is filed may be newer than what is committed.
    unfiled = max(0, store.message_log.next_sequence - 1 - schedule.last_filed)
    yield gauge(
        "replay_lag", "Records, facts included, that are committed and not yet filed.", unfiled
    )
    yield gauge(
        "replay_lag_bytes",
        "Bytes that are committed and not yet filed.",
        node.filer.backlog_bytes,
    )
    yield gauge("pending", "Messages without an outcome.", schedule.pending)
    yield gauge(
        "subjects_bytes",
        "Bytes of memory that the names of subjects take.",
        schedule.subjects.bytes_held,
    )
    if (controls_sync := node.controls_sync) is not None:
        yield gauge(
            "controls_kept",
            "1 while the node keeps other controls than those of its meta server.",
            bool(controls_sync.keeps or controls_sync.trouble),
        )


def _of_disk(node: Node) -> Iterator[Metric]:
    yield gauge(
        "damaged",
        "Damaged places found since the start, or since all was copied anew.",
        node.damages.count,
    )
    yield gauge(
        "disk_full",
        "1 while messages are refused because free disk is at its floor.",
        node.upkeep.disk_is_full,
    )
    if (budget := node.budget).total:
        yield gauge("disk_free_bytes", "Free bytes of the file system.", budget.free)
        yield gauge(
            "disk_owed_bytes", "Bytes that accepted messages will still take on disk.", budget.owed
        )
        yield gauge(
            "disk_floor_bytes", "Free bytes below which messages are refused.", budget.floor
        )


def _of_replication(node: Node) -> Iterator[Metric]:
    leading, copy = node.leading, None if node.replica is None else node.replica.snapshot
    yield gauge(
        "replication_outcomes_uncommitted",
        "Outcomes that are durable here and not committed: a takeover would send again.",
        0 if leading is None else leading.master.outcomes.uncommitted,
    )
    yield gauge(
        "replication_snapshot_seconds",
        "Time since the copy of a snapshot began that is under way here; 0 if none is.",
        0 if copy is None else round(trio.current_time() - copy.began_at, 3),
    )
    yield counters(
        "replication_faults",
        "Requests to follow refused, slaves that said what cannot be, batches not appended.",
        "kind",
        faults_of(node),
    )


def _of_others(others: Sequence[Other]) -> Iterator[Metric]:
    """Yield the numbers of each other node of the group."""
    yield gauges(
        "replica_in_sync",
        "1 while its disk is in the group's in-sync set.",
        "node",
        {other.node: other.is_in_sync for other in others},
    )
    yield gauges(
        "replica_lag_seconds",
        "Time since the end of the log was where it has got to.",
        "node",
        {other.node: other.lag_s for other in others},
    )
    yield gauges(
        "replica_filing_lag_seconds",
        "Time since the commit was where its filing has got to.",
        "node",
        {other.node: other.filing_lag_s for other in others},
    )
    yield gauges(
        "replica_drops",
        "Times that it was dropped from the in-sync set in the last ten minutes.",
        "node",
        {other.node: other.drops for other in others},
    )
    yield gauges(
        "replica_clock_ahead_seconds",
        "By how much its wall clock is ahead of the master's, beyond what a delay explains.",
        "node",
        {other.node: other.clock_ahead_s for other in others},
    )


def _of_master(parts: Parts) -> Iterator[Metric]:
    master = parts.master
    outcomes = list(master.fact_recorder.outcomes.items())
    yield counters(
        "dispatched",
        "Messages with an outcome, by outcome.",
        "outcome",
        {outcome.name.lower(): count for outcome, count in outcomes},
    )
    yield gauge("late", "Messages that are due and not yet confirmed.", master.late_now)
    yield gauges("undelivered", "Messages without an outcome, by place.", "place", counts(parts))
    yield gauge("held_entries", "Index entries in the wheel and the sender.", master.loader.held)
    yield gauge(
        "controls_paused",
        "Rules that pause a subject, some subjects or a broker group.",
        sum(rule.paused for rule in master.outlet.applied.subjects.values())
        + sum(rule.paused for rule in master.outlet.applied.groups.values()),
    )


def _of_waiting(parts: Parts) -> Iterator[Metric]:
    lanes, letters, targets = parts.master.lanes, parts.master.dead_letters, parts.master.targets
    yield gauge(
        "lanes_waiting", "Subjects whose backlog waits on disk.", lanes.parked.waiting_count
    )
    if targets.routes is not None:
        yield gauge(
            "unrouted_subjects", "Subjects that wait for a route.", lanes.unrouted(0).subjects
        )
        yield gauge(
            "unrouted_subjects_max",
            "Limit of the subjects that wait for a route.",
            lanes.parked.unrouted_max,
        )
    if targets.new_subjects is not None:
        yield counter(
            "subjects_put_off",
            "First messages of new subjects put off.",
            targets.new_subjects.put_off_count,
        )
    yield gauge("dead_pending", "Dead letters, neither requeued nor dropped.", letters.pending)
    oldest_ms = letters.oldest_ms
    age_ms = 0 if oldest_ms is None else max(parts.pacer.now_ms() - oldest_ms, 0)
    yield gauge("dead_oldest_seconds", "Age of the oldest dead letter.", age_ms / 1000)


def _of_receivers(master: Mastership) -> Iterator[Metric]:
    """Yield the numbers of each name of receivers."""
    names = [group for group in master.sender.status() if group.is_attached]
    waiting = master.waiting_by_group() if names else Counter[str]()
    yield gauges(
        "receiver_waiting",
        "Due messages that wait for receivers of the name, in memory and on disk.",
        "target",
        {group.name: waiting[group.name] for group in names},
    )
    yield counters(
        "receiver_later",
        "Messages that receivers of the name had come again later.",
        "target",
        {group.name: group.counts.later for group in names},
    )


def _of_groups(groups: Sequence[GroupStatus]) -> Iterator[Metric]:
    """Yield the numbers of each group of brokers or receivers."""
    yield gauges(
        "sender_up",
        "1 while the group is connected and its circuit is closed.",
        "target",
        {group.name: group.is_trusted for group in groups},
    )
    yield gauges(
        "sender_fenced",
        "1 if the group fences this node: it knows a newer epoch.",
        "target",
        {group.name: group.state is GroupState.FENCED for group in groups},
    )
    yield gauges(
        "sender_queued",
        "Messages that wait for the group.",
        "target",
        {group.name: group.queued for group in groups},
    )
    yield gauges(
        "sender_in_flight",
        "Messages sent to the group and not answered.",
        "target",
        {group.name: group.in_flight for group in groups},
    )
    yield gauges(
        "sender_answer_seconds",
        "Recent time to an answer.",
        "target",
        {group.name: round(group.answer_s, 6) for group in groups},
    )
    yield counters(
        "sender_delivered",
        "Messages that the group took.",
        "target",
        {group.name: group.counts.delivered for group in groups},
    )
    yield counters(
        "sender_refused",
        "Messages that the group refused.",
        "target",
        {group.name: group.counts.refused for group in groups},
    )
    yield counters(
        "sender_possible_duplicates",
        "Messages retried that the group may have taken.",
        "target",
        {group.name: group.counts.possible_duplicates for group in groups},
    )
