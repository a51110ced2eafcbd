"""What a delay server counts, as Prometheus metrics.

Nothing is counted twice: the parts keep plain counters, and this reads them when it is asked. Only
distributions are kept here, as arrays of bucket counts that take a whole batch at a time.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from delay_protocol.nodes.registration import NodeRole
from delay_server.admin.explain import counts
from delay_server.lanes.routes import SubjectRoutes
from delay_server.membership.registration import Registration
from delay_server.sending.lateness import Distribution
from delay_transport.http.metric_families import (
    Exposition,
    counter,
    gauge,
    installed_version,
    listener_families,
)
from sender.health.circuit import CircuitState

if TYPE_CHECKING:
    from delay_server.server import DelayServer

SUBJECTS_SHOWN_MAX = 50
"""Subjects that get a label of their own in `pending`; the others are added up as `other`."""


class ServerMetrics:
    """Reads a DelayServer's counters into metric families."""

    def __init__(self, server: "DelayServer") -> None:
        self._server = server

    def take(self) -> Exposition:
        """Read everything now. To be called by the loop, which is what changes the counters."""
        return Exposition(self._collect())

    def _collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("delaywheel_build_info", "Version.", labels=["version"])
        info.add_metric([installed_version()], 1)
        yield info
        yield from self._intake()
        if self._server.registration is not None:
            yield from _membership(self._server.registration)
        if self._server.is_master:
            yield from self._storage()
            yield from self._delivery()
            yield from self._dead_letters()

    def _intake(self) -> Iterator[Metric]:
        server = self._server
        taken = server.ingest.counts
        yield counter("messages_accepted", "Messages made durable.", taken.accepted)
        yield counter("accepted_bytes", "Bytes of those messages.", taken.accepted_bytes)
        refused = CounterMetricFamily(
            "delaywheel_messages_refused", "Messages refused, by item code.", labels=["reason"]
        )
        for reason, count in sorted(taken.refused.items()):
            refused.add_metric([reason.lower()], count)
        yield refused
        yield counter("requests", "SEND_MESSAGE requests.", taken.requests)
        yield counter("requests_indivisible", "Requests answered 51.", taken.indivisible)
        yield counter("requests_expired", "Requests held in vain.", taken.expired)
        yield gauge("requests_held", "Requests waiting to be taken.", server.ingest.held_requests)
        if server.listener is not None:
            yield from listener_families(server.listener)

    def _storage(self) -> Iterator[Metric]:
        server = self._server
        store, node = server.node.store, server.node
        yield counter(
            "commits", "Group commits of the message_log.", server.master.committing.commits
        )
        yield _histogram("fsync_seconds", "Write and fsync of a commit.", server.commit_seconds)
        # Read while other threads write: what is filed may be newer than what is committed.
        lag = max(0, store.message_log.next_sequence - 1 - store.schedule.last_filed)
        yield gauge("replay_lag_messages", "Committed and not filed yet.", lag)
        yield gauge("replay_lag_bytes", "Bytes of those.", node.filer.backlog_bytes)
        yield gauge("gathered_bytes", "Filed, waiting to be written.", store.schedule.pile_bytes)
        yield counter("checkpoints", "Checkpoints written.", server.node.checkpoints.written)
        yield counter("segments_sealed", "Segments sealed.", store.sealed)
        yield gauge("segments", "Unsealed segments.", len(store.schedule.segments))
        yield gauge("sealed_segments", "Sealed segments on disk.", len(store.seals_log.live))
        yield gauge("retired_files", "Files to be deleted soon.", store.retention.retired)
        yield counter("files_deleted", "Files deleted.", store.retention.files_deleted)
        first = store.message_log.first_sequence
        yield gauge("first_sequence", "The message_log is kept from it on.", first)
        yield gauge("unreadable_files", "Being tried again.", len(store.schedule.unread))
        failures = server.master.loader.read_failures + server.master.rereading.failures
        yield counter("read_failures", "Tries at reading in vain.", failures)
        yield gauge("unread_messages", "Due, to be read again.", server.master.rereading.count)
        yield gauge("damaged", "Damaged places found.", server.damages.count)
        yield gauge("undeliverable_messages", "Due and damaged.", server.master.undeliverable)
        yield gauge("disk_free_bytes", "Free disk.", server.node.budget.free)
        yield gauge(
            "disk_owed_bytes", "To be written for what was accepted.", server.node.budget.owed
        )
        yield gauge("disk_floor_bytes", "To stay free beyond it.", server.node.budget.floor)
        yield gauge("disk_bytes", "Size of the disk.", server.node.budget.total)
        yield gauge("disk_full", "1 while messages are refused.", int(server.node.disk_is_full))
        yield gauge("clock_held", "1 while the clock is not trusted.", int(server.clock_held))

    def _dead_letters(self) -> Iterator[Metric]:
        server, letters = self._server, self._server.master.dead_letters
        yield gauge("dead_letters", "Given up, neither requeued nor dropped.", letters.pending)
        now_ms = server.runtime.clock.now_ms()
        oldest_ms = now_ms if letters.oldest_ms is None else letters.oldest_ms
        age_s = max(now_ms - oldest_ms, 0) / 1000 if letters.pending else 0
        yield gauge("dead_letters_oldest_seconds", "How old the first of them is.", age_s)
        yield gauge(
            "dead_letters_max", "With so many nothing is given up.", letters.config.pending_max
        )
        yield gauge("burying_messages", "Given up, not recorded yet.", server.master.burying.count)
        yield counter("dead_letters_requeued", "Sent once more by request.", letters.requeued)
        yield counter("dead_letters_dropped", "Dropped by request.", letters.dropped)

    def _delivery(self) -> Iterator[Metric]:
        server = self._server
        yield gauge("scheduled_messages", "Without an outcome.", server.node.store.schedule.pending)
        yield gauge("wheel_entries", "Index entries in the wheel.", len(server.master.wheel))
        yield gauge("held_entries", "Index entries in wheel and sender.", server.master.loader.held)
        yield counter(
            "wheel_evicted", "Entries put back on disk for room.", server.master.loader.evicted
        )
        yield counter("slices_loaded", "Slices of segments loaded.", server.master.loader.slices)
        yield gauge("lanes_waiting", "Subjects waiting on disk.", server.master.lanes.waiting_count)
        if server.master.routes is not None:
            yield from self._routes(server.master.routes)
        yield from self._controls()
        yield counter("lanes_opened", "Times a subject had to wait.", server.master.draining.opened)
        yield counter(
            "lane_messages", "Messages brought from there.", server.master.draining.drained
        )
        yield counter("lane_dropped", "Entries dropped, read again.", server.master.lanes.dropped)
        subjects = server.node.store.schedule.subjects
        yield gauge("subjects", "Subjects with a name in memory.", len(subjects))
        yield gauge("subjects_bytes", "What these names count.", subjects.bytes_held)
        yield gauge("late_messages", "Due and not delivered.", server.master.late_now)
        pending = GaugeMetricFamily(
            "delaywheel_wheel_messages", "In the wheel, by subject.", labels=["subject"]
        )
        for subject, count in top_subjects(server):
            pending.add_metric([subject], count)
        yield pending
        outcomes = CounterMetricFamily(
            "delaywheel_messages_dispatched", "Messages crossed off.", labels=["outcome"]
        )
        for outcome, count in list(server.master.crossing_off.outcomes.items()):
            outcomes.add_metric([outcome.name.lower()], count)
        yield outcomes
        yield _histogram("delivery_lateness_seconds", "From due to confirmed.", server.lateness.all)
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for name, kind, text in _SENDER_METRICS:
            families[name] = kind(f"delaywheel_sender_{name}", text, labels=["target"])
        circuits = GaugeMetricFamily(
            "delaywheel_sender_circuit",
            "1 for the state of its circuit: closed, open, half-open.",
            labels=["target", "state"],
        )
        for target, values in server.master.sender_numbers().items():
            for name, family in families.items():
                family.add_metric([target], float(values[name] or 0))
            for state in CircuitState:
                circuits.add_metric([target, state.value], values["circuit"] == state.value)
        yield from families.values()
        yield circuits

    def _controls(self) -> Iterator[Metric]:
        """Yield where messages are that are undelivered, and what an operator has to do with it."""
        server = self._server
        reasons = GaugeMetricFamily(
            "delaywheel_undelivered_messages", "Without an outcome, by place.", labels=["place"]
        )
        for reason, count in counts(server).items():
            reasons.add_metric([reason], count)
        yield reasons
        controls = server.master.operator.applied
        paused = server.master.lanes.paused(0)
        yield gauge("paused_subjects", "Of which messages wait.", paused.subjects)
        rules = sum(rule.paused for rule in controls.subjects.values())
        yield gauge("paused_rules", "Rules that pause subjects.", rules)
        groups = sum(rule.paused for rule in controls.groups.values())
        yield gauge("paused_groups", "Broker groups that are paused.", groups)
        yield gauge("limits", "Rules that limit subjects.", len(server.master.gates.rates))
        yield gauge(
            "metered_messages", "Held in memory for their rate.", server.master.meters.count
        )
        yield counter("metered", "Messages that passed a limit.", server.master.meters.passed)
        yield gauge("controls_version", "Counted up by changes.", controls.version)
        if (following := server.node.following) is not None:
            yield counter("controls_taken", "Told by a meta server and taken.", following.taken)
            kept = int(bool(following.keeps or following.trouble))
            yield gauge("controls_kept", "1 while others hold than a meta server tells.", kept)

    def _routes(self, routes: SubjectRoutes) -> Iterator[Metric]:
        server, asked = self._server, routes.session.counts
        unrouted = server.master.lanes.unrouted(0)
        yield gauge("unrouted_subjects", "Waiting for a route.", unrouted.subjects)
        places = server.master.lanes.unrouted_max
        yield gauge("unrouted_subjects_max", "So many may at a time.", places)
        if (new := server.master.new_subjects) is not None:
            yield counter("subjects_put_off", "New subjects to come again.", new.put_off_count)
        messages = unrouted.messages + unrouted.forgotten
        yield gauge("unrouted_messages", "Due, on disk, without a route.", messages)
        now_ms = server.runtime.clock.now_ms()
        oldest_ms = now_ms if unrouted.oldest_due_ms is None else unrouted.oldest_due_ms
        late_s = max(now_ms - oldest_ms, 0) / 1000
        yield gauge("unrouted_oldest_seconds", "How late the first of them is.", late_s)
        connected = (
            server.master.meta_routes is not None and server.master.meta_routes.peer is not None
        )
        yield gauge("routes_connected", "1 while a meta server is asked.", int(connected))
        yield gauge("routed_subjects", "Subjects asked for.", len(routes.session))
        yield gauge("routes", "Different sets of broker groups.", routes.routes)
        yield counter("route_changes", "Routes that came, changed, went.", routes.counts.changes)
        yield counter("route_questions", "Questions for a route.", asked.questions)
        yield counter("route_pushes", "Changes told unasked.", asked.pushes)
        yield counter("route_refusals", "Questions refused.", asked.refusals)


_SENDER_METRICS = (
    ("tries", CounterMetricFamily, "Requests sent to a broker group."),
    ("retries", CounterMetricFamily, "Messages sent again to any group after this one failed."),
    ("possible_duplicates", CounterMetricFamily, "Messages sent again that it may have got."),
    ("in_flight", GaugeMetricFamily, "Messages sent to it and not answered."),
    ("queued", GaugeMetricFamily, "Messages that wait for it."),
    ("failures", GaugeMetricFamily, "Failures in a row; 0 while it delivers."),
    ("up", GaugeMetricFamily, "1 while it is connected and its circuit is closed."),
    ("fenced", GaugeMetricFamily, "1 if it refuses the epoch of this node, for good."),
    ("circuit_openings", CounterMetricFamily, "Times it was given up."),
    ("weight", GaugeMetricFamily, "As configured."),
    ("effective_weight", GaugeMetricFamily, "By which it has its share now; 0 if it has none."),
    ("slow", GaugeMetricFamily, "1 while its answers take too long to wait for beside others."),
    ("answer_seconds", GaugeMetricFamily, "Time that an answer takes, of late."),
    ("window_requests", GaugeMetricFamily, "Requests that may be unanswered."),
    ("paused", GaugeMetricFamily, "1 while an operator has paused it."),
    ("rate_limit", GaugeMetricFamily, "Messages a second that it may get; 0 is no limit."),
)


def _membership(registration: Registration) -> Iterator[Metric]:
    """Yield what the node is in its group, and how it stands with the meta server."""
    yield gauge("meta_connected", "1 while a meta server answers.", int(bool(registration.meta)))
    yield gauge("meta_away_seconds", "For how long none does.", registration.away_ms / 1000)
    yield counter("meta_answers", "Records of the group told.", registration.answers)
    yield counter("meta_failures", "Times no meta server was of use.", registration.failures)
    standing = registration.standing
    roles = GaugeMetricFamily("delaywheel_role", "1 for what the node is.", labels=["role"])
    for role in NodeRole:
        is_it = standing is not None and standing.role is role
        roles.add_metric([role.value], int(is_it))
    yield roles
    yield gauge("accepts", "1 while the record lets it accept.", int(registration.accepts))
    if standing is not None:
        yield gauge("epoch", "Of the group.", standing.record.epoch)
        yield gauge("in_sync", "Disks with all messages.", len(standing.record.in_sync))


def _histogram(name: str, text: str, values: Distribution) -> Metric:
    family = HistogramMetricFamily(f"delaywheel_{name}", text)
    family.add_metric([], buckets=values.buckets(), sum_value=values.sum)
    return family


def top_subjects(server: "DelayServer") -> list[tuple[str, int]]:
    """Return what is in the wheel by subject, most first, the rest as `other`."""
    names = server.node.store.schedule.subjects.names
    top, rest = server.master.wheel.top_subjects(SUBJECTS_SHOWN_MAX)
    shown = [(names[number].decode(errors="replace"), count) for number, count in top]
    return [*shown, ("other", rest)] if rest else shown
