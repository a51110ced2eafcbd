"""What a delay server counts, as Prometheus metrics.

Nothing is counted twice: the parts keep plain counters, and this reads them when it is asked. Only
distributions are kept here, as arrays of bucket counts that take a whole batch at a time.
"""

from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from delay_server.server import DelayServer

SUBJECTS_SHOWN_MAX = 50
"""Subjects that get a label of their own in `pending`; the others are added up as `other`."""

LATENESS_BUCKETS_S = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600, 86400,
)  # fmt: skip
FSYNC_BUCKETS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 2, 10)


class Distribution:
    """A histogram with fixed bounds that observes many values at once."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = np.array(bounds)
        self.counts: npt.NDArray[np.int64] = np.zeros(len(bounds) + 1, np.int64)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[int(np.searchsorted(self.bounds, value, side="left"))] += 1
        self.sum += value

    def observe_all(self, values: npt.NDArray[np.float64]) -> None:
        """Count many values."""
        places = np.searchsorted(self.bounds, values, side="left")
        self.counts += np.bincount(places, minlength=len(self.counts))
        self.sum += float(values.sum())

    @property
    def total(self) -> int:
        """How many values were counted."""
        return int(self.counts.sum())

    def quantile(self, share: float) -> float | None:
        """Return the upper bound of the bucket in which this share of the values is reached."""
        total = self.total
        if not total:
            return None
        place = int(np.searchsorted(np.cumsum(self.counts), share * total, side="left"))
        return float(self.bounds[min(place, len(self.bounds) - 1)])

    def buckets(self) -> list[tuple[str, float]]:
        """Return cumulative counts as Prometheus wants them."""
        cumulative = np.cumsum(self.counts).tolist()
        names = [*(f"{bound:g}" for bound in self.bounds.tolist()), "+Inf"]
        return [(name, float(count)) for name, count in zip(names, cumulative, strict=True)]


class Exposition(Collector):
    """Metric families as they were at one moment, and their text."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def render(self) -> bytes:
        """Return the text. Takes milliseconds and touches nothing else: for a thread."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def describe(self) -> Iterable[Metric]:
        """Describe nothing ahead: families depend on what is open."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return all families."""
        return self._families


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
        if self._server.ready.is_set():
            yield from self._storage()
            yield from self._delivery()

    def _intake(self) -> Iterator[Metric]:
        server = self._server
        counts = server.ingest.counts
        yield _counter("messages_accepted", "Messages made durable.", counts.accepted)
        yield _counter("accepted_bytes", "Bytes of those messages.", counts.accepted_bytes)
        refused = CounterMetricFamily(
            "delaywheel_messages_refused", "Messages refused, by item code.", labels=["reason"]
        )
        for reason, count in sorted(counts.refused.items()):
            refused.add_metric([reason.lower()], count)
        yield refused
        yield _counter("requests", "SEND_MESSAGE requests.", counts.requests)
        yield _counter("requests_indivisible", "Requests answered 51.", counts.indivisible)
        yield _counter("requests_expired", "Requests held in vain.", counts.expired)
        yield _gauge("requests_held", "Requests waiting to be taken.", server.ingest.held_requests)
        if server.listener is not None:
            connections = server.listener.counts
            yield _gauge("connections", "Open connections.", server.listener.open_connections)
            yield _counter("connections_accepted", "Connections.", connections.accepted)
            yield _counter("connections_refused", "One too many.", connections.refused)
            yield _counter("connection_faults", "Faults of peers.", connections.faults)
            yield _counter("connection_pauses", "Stops of reading.", connections.pauses)
            yield _counter("received_bytes", "Bytes from producers.", connections.received_bytes)
            yield _gauge("held_bytes", "Held for connections.", server.listener.held_bytes)
            closed = CounterMetricFamily(
                "delaywheel_connections_closed", "Connections closed.", labels=["reason"]
            )
            for why, count in list(connections.closed.items()):
                closed.add_metric([why.name.lower()], count)
            yield closed

    def _storage(self) -> Iterator[Metric]:
        server = self._server
        store, filing = server.store, server.filing
        yield _counter("commits", "Group commits of the message_log.", server.committing.commits)
        yield _histogram("fsync_seconds", "Write and fsync of a commit.", server.commit_seconds)
        # Read while other threads write: what is filed may be newer than what is committed.
        lag = max(0, store.message_log.next_sequence - 1 - store.schedule.last_filed)
        yield _gauge("replay_lag_messages", "Committed and not filed yet.", lag)
        yield _gauge("replay_lag_bytes", "Bytes of those.", filing.backlog_bytes)
        yield _gauge("gathered_bytes", "Filed, waiting to be written.", store.schedule.pile_bytes)
        yield _counter("checkpoints", "Checkpoints written.", filing.checkpoints)
        yield _counter("segments_sealed", "Segments sealed.", store.sealed)
        yield _gauge("segments", "Unsealed segments.", len(store.schedule.segments))
        yield _gauge("sealed_segments", "Sealed segments on disk.", len(store.seals_log.live))
        yield _gauge("retired_files", "Files to be deleted soon.", store.retention.retired)
        yield _counter("files_deleted", "Files deleted.", store.retention.files_deleted)
        first = store.message_log.first_sequence
        yield _gauge("first_sequence", "The message_log is kept from it on.", first)
        yield _gauge("damaged", "Damaged places found.", server.damage_count)
        yield _gauge("undeliverable_messages", "Due and damaged.", server.undeliverable)
        yield _gauge("disk_free_bytes", "Free disk.", server.budget.free)
        yield _gauge("disk_owed_bytes", "To be written for what was accepted.", server.budget.owed)
        yield _gauge("disk_floor_bytes", "To stay free beyond it.", server.budget.floor)
        yield _gauge("disk_bytes", "Size of the disk.", server.budget.total)
        yield _gauge("disk_full", "1 while messages are refused.", int(server.ingest.disk_full))
        yield _gauge("clock_held", "1 while the clock is not trusted.", int(server.clock_held))

    def _delivery(self) -> Iterator[Metric]:
        server = self._server
        yield _gauge("scheduled_messages", "Without an outcome.", server.store.schedule.pending)
        yield _gauge("wheel_entries", "Index entries in the wheel.", len(server.wheel))
        yield _gauge("held_entries", "Index entries in wheel and sender.", server.filing.held)
        yield _counter("wheel_evicted", "Entries put back on disk for room.", server.filing.evicted)
        yield _counter("slices_loaded", "Slices of segments loaded.", server.filing.slices)
        yield _gauge("lanes_waiting", "Subjects waiting on disk.", len(server.lanes.waiting))
        yield _counter("lanes_opened", "Times a subject had to wait.", server.draining.opened)
        yield _counter("lane_messages", "Messages brought from there.", server.draining.drained)
        yield _counter("lane_dropped", "Entries dropped, read again.", server.lanes.dropped)
        subjects = server.store.schedule.subjects
        yield _gauge("subjects", "Subjects with a name in memory.", len(subjects))
        yield _gauge("subjects_bytes", "What these names count.", subjects.bytes_held)
        yield _gauge("late_messages", "Due and not delivered.", server.late_now)
        pending = GaugeMetricFamily(
            "delaywheel_wheel_messages", "In the wheel, by subject.", labels=["subject"]
        )
        for subject, count in top_subjects(server):
            pending.add_metric([subject], count)
        yield pending
        outcomes = CounterMetricFamily(
            "delaywheel_messages_dispatched", "Messages crossed off.", labels=["outcome"]
        )
        for outcome, count in list(server.crossing_off.outcomes.items()):
            outcomes.add_metric([outcome.name.lower()], count)
        yield outcomes
        yield _histogram(
            "delivery_lateness_seconds", "From due to confirmed.", server.lateness_seconds
        )
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for name, kind, text in _SENDER_METRICS:
            families[name] = kind(f"delaywheel_sender_{name}", text, labels=["target"])
        for target, values in server.sender_numbers().items():
            for name, family in families.items():
                family.add_metric([target], float(values.get(name, 0)))
        yield from families.values()


_SENDER_METRICS = (
    ("tries", CounterMetricFamily, "Requests sent to a broker group."),
    ("retries", CounterMetricFamily, "Messages sent again to any group after this one failed."),
    ("possible_duplicates", CounterMetricFamily, "Messages sent again that it may have got."),
    ("in_flight", GaugeMetricFamily, "Messages sent to it and not answered."),
    ("queued", GaugeMetricFamily, "Messages that wait for it."),
    ("failures", GaugeMetricFamily, "Failures in a row; 0 while it delivers."),
    ("up", GaugeMetricFamily, "1 while it is connected and takes messages."),
)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"delaywheel_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"delaywheel_{name}", text, value=value)


def _histogram(name: str, text: str, values: Distribution) -> Metric:
    family = HistogramMetricFamily(f"delaywheel_{name}", text)
    family.add_metric([], buckets=values.buckets(), sum_value=values.sum)
    return family


def top_subjects(server: "DelayServer") -> list[tuple[str, int]]:
    """Return what is in the wheel by subject, most first, the rest as `other`."""
    names = server.store.schedule.subjects.names
    top, rest = server.wheel.top_subjects(SUBJECTS_SHOWN_MAX)
    shown = [(names[number].decode(errors="replace"), count) for number, count in top]
    return [*shown, ("other", rest)] if rest else shown


def installed_version() -> str:
    """Return the version of the installed package."""
    try:
        return version("delaywheel")
    except PackageNotFoundError:
        return "unknown"
