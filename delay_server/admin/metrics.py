"""Prometheus metrics of a delay server, read from `numbers.py` at each scrape."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from delay_server.admin.numbers import (
    NUMBERS,
    NUMBERS_OF_GROUP,
    NUMBERS_OF_NODE,
    NUMBERS_OF_PROCESS,
    NUMBERS_OF_REGISTRATION,
    Family,
    Histogram,
    Number,
)
from delay_server.admin.parts import Observed
from delay_transport.http.metric_families import (
    Exposition,
    build_info,
    listener_families,
)
from sender.groups.group_status import GroupStatus
from sender.health.circuit import CircuitState

_TYPES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}


def take(observed: Observed) -> Exposition:
    """Read everything now. To be called by the loop, which is what changes the counters."""
    return Exposition(_collect(observed))


def _collect(observed: Observed) -> Iterator[Metric]:
    yield build_info()
    yield from _metrics(NUMBERS_OF_PROCESS, observed)
    if observed.listener is not None:
        yield from listener_families(observed.listener)
    if observed.node is not None:
        yield from _metrics(NUMBERS_OF_NODE, observed.node)
    if observed.registration is not None:
        yield from _metrics(NUMBERS_OF_REGISTRATION, observed.registration)
    if observed.parts is not None:
        yield from _metrics(NUMBERS, observed.parts)
        yield from _of_groups(observed.parts.master.sender.status())


def _metrics(
    rows: Iterable[Number[Any] | Family[Any] | Histogram[Any]],
    source: object,
) -> Iterator[Metric]:
    for row in rows:
        name = f"delaywheel_{row.name.replace('.', '_')}"
        if isinstance(row, Histogram):
            values = row.values(source)
            histogram = HistogramMetricFamily(name, row.text)
            histogram.add_metric([], buckets=values.buckets(), sum_value=values.sum)
            yield histogram
        elif isinstance(row, Family):
            family = _TYPES[row.kind](name, row.text, labels=[row.label])
            for label, count in row.values(source).items():
                family.add_metric([label.lower() if row.label == "reason" else label], count)
            yield family
        elif (value := row.value(source)) is not None:
            yield _TYPES[row.kind](name, row.text, value=float(value))


def _of_groups(groups: Sequence[GroupStatus]) -> Iterator[Metric]:
    """Yield the numbers of each broker group, and the state of its circuit."""
    for row in NUMBERS_OF_GROUP:
        family = _TYPES[row.kind](f"delaywheel_sender_{row.name}", row.text, labels=["target"])
        for group in groups:
            if (value := row.value(group)) is not None:
                family.add_metric([group.name], float(value))
        yield family
    circuits = GaugeMetricFamily(
        "delaywheel_sender_circuit",
        "1 for the state of its circuit: closed, open, half-open.",
        labels=["target", "state"],
    )
    for group in groups:
        for state in CircuitState:
            circuits.add_metric([group.name, state.value], group.circuit is state)
    yield circuits
