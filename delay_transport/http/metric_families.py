"""Prometheus metrics as values: families made from plain counters when somebody asks.

Nothing is counted twice: the parts of a process keep plain counters, and these are read into
families.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from delay_transport.connections.listener import Server


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


def build_info() -> Metric:
    """Return the family that names the installed version."""
    info = GaugeMetricFamily("delaywheel_build_info", "Version.", labels=["version"])
    info.add_metric([installed_version()], 1)
    return info


def counter(name: str, text: str, value: float) -> Metric:
    """Return a family of one number that only grows."""
    return CounterMetricFamily(f"delaywheel_{name}", text, value=value)


def gauge(name: str, text: str, value: float) -> Metric:
    """Return a family of one number as it is now."""
    return GaugeMetricFamily(f"delaywheel_{name}", text, value=value)


def counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """Return a family of one number for each value of a label, which only grow."""
    return _filled(CounterMetricFamily(f"delaywheel_{name}", text, labels=[label]), values)


def gauges(name: str, text: str, label: str, values: Mapping[str, float | None]) -> Metric:
    """Return a family of one number for each value of a label, as they are now, if there is any."""
    return _filled(GaugeMetricFamily(f"delaywheel_{name}", text, labels=[label]), values)


def _filled(
    family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[str, float | None]
) -> Metric:
    for of, value in values.items():
        if value is not None:
            family.add_metric([of], value)
    return family


def values_of(families: Iterable[Metric], *, prefix: str) -> dict[str, Any]:
    """Return numbers by name, as a status has them: what has a label is a dict by its value."""
    found: dict[str, Any] = {}
    for family in families:
        name = family.name.removeprefix(prefix)
        for sample in family.samples:
            for of in sample.labels.values():
                found.setdefault(name, {})[of] = sample.value
            if not sample.labels:
                found[name] = sample.value
    return found


def listener_families(listener: Server) -> Iterator[Metric]:
    """Yield what is counted of the connections of a listener."""
    counts = listener.counts
    yield gauge("connections", "Open connections.", listener.open_connections)
    yield counter("connections_refused", "Connections refused at a cap.", counts.refused)
    yield counter("connection_faults", "Requests and frames that were refused.", counts.faults)
    yield gauge("held_bytes", "Bytes held for connections.", listener.held_bytes)
    closed = {why.name.lower(): count for why, count in list(counts.closed.items())}
    yield counters("connections_closed", "Connections closed, by reason.", "reason", closed)


@functools.cache
def installed_version() -> str:
    """Return the version of the installed package; looked up once, since that reads directories."""
    try:
        return version("delaywheel")
    except PackageNotFoundError:
        return "unknown"
