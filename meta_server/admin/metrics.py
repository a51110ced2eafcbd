"""Prometheus metrics of a meta server."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from delay_transport.http.metric_families import (
    Exposition,
    build_info,
    listener_families,
)
from meta_server.admin.numbers import NUMBERS, NUMBERS_OF_ROWS, Family, Number
from meta_server.admin.parts import Observed, Parts

_TYPES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}


def take(observed: Observed) -> Exposition:
    """Read everything now. To be called by the loop, which is what changes the counters."""
    return Exposition(_collect(observed))


def _collect(observed: Observed) -> Iterator[Metric]:
    yield build_info()
    if observed.listener is not None:
        yield from listener_families(observed.listener)
    if observed.parts is not None:
        for number in (*NUMBERS, *NUMBERS_OF_ROWS):
            yield _metric(number, observed.parts)


def _metric(number: Number | Family, parts: Parts) -> Metric:
    kind, name = _TYPES[number.kind], f"delaywheel_meta_{number.name}"
    if isinstance(number, Number):
        metric: Metric = kind(name, number.text, value=number.value(parts))
        return metric
    family: CounterMetricFamily | GaugeMetricFamily = kind(name, number.text, labels=number.labels)
    # Words of ours are in small letters here; names that operators gave stay as they are.
    is_ours = number not in NUMBERS_OF_ROWS
    for labels, value in number.values(parts).items():
        family.add_metric([label.lower() if is_ours else label for label in labels], value)
    return family
