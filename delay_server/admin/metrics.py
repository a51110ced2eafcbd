"""Prometheus metrics of a delay server, read from `numbers.py` at each scrape."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from delay_server.admin.copies import Other, others_of
from delay_server.admin.numbers import (
    NUMBERS,
    NUMBERS_OF_GROUP,
    NUMBERS_OF_NODE,
    NUMBERS_OF_OTHER,
    NUMBERS_OF_PROCESS,
    NUMBERS_OF_REGISTRATION,
    NUMBERS_OF_REPLICATION,
    Family,
    Histogram,
    Number,
)
from delay_server.admin.parts import Observed
from delay_server.node import Node
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
        yield _node_info(observed.node)
        yield from _metrics(NUMBERS_OF_NODE, observed.node)
        if observed.node.replica is not None:
            yield from _metrics(NUMBERS_OF_REPLICATION, observed.node)
            yield from _of_others(others_of(observed.node))
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


def _node_info(node: Node) -> Metric:
    """Return the family that says which node this is, and of which group."""
    identity = node.store.identity
    info = GaugeMetricFamily(
        "delaywheel_node_info", "The node and its group.", labels=["cluster", "group", "node"]
    )
    info.add_metric([identity.cluster, identity.group, identity.node_id], 1)
    return info


def _of_others(others: Sequence[Other]) -> Iterator[Metric]:
    """Yield the numbers of each other node of the group."""
    by_name = {other.node: other for other in others}
    yield from _of_each(NUMBERS_OF_OTHER, by_name, prefix="replica", label="node")


def _of_each(
    rows: Iterable[Number[Any]], sources: Mapping[str, object], *, prefix: str, label: str
) -> Iterator[Metric]:
    """Yield each number as a family with one value for each source."""
    for row in rows:
        family = _TYPES[row.kind](f"delaywheel_{prefix}_{row.name}", row.text, labels=[label])
        for name, source in sources.items():
            if (value := row.value(source)) is not None:
                family.add_metric([name], float(value))
        yield family


def _of_groups(groups: Sequence[GroupStatus]) -> Iterator[Metric]:
    """Yield the numbers of each broker group, and the state of its circuit."""
    by_name = {group.name: group for group in groups}
    yield from _of_each(NUMBERS_OF_GROUP, by_name, prefix="sender", label="target")
    circuits = GaugeMetricFamily(
        "delaywheel_sender_circuit",
        "1 for the state of its circuit: closed, open, half-open.",
        labels=["target", "state"],
    )
    for group in groups:
        for state in CircuitState:
            circuits.add_metric([group.name, state.value], group.circuit is state)
    yield circuits
