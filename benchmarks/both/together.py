"""Ingest and delivery at once, at a set rate and in a steady state.

A producer keeps to a rate (pacer.py), and every message is due 2 s after it is sent: so from then
on as many are delivered each second, to one broker group, as are accepted. Steady is what comes
from the fourth second on, until the producer ends. Memory of the broker: some 650 bytes a message
at the end, when what came is decoded.
"""

import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks.both.pacer import PER_REQUEST
from benchmarks.burst import ITEM_BYTES_MAX, SLACK_BYTES
from benchmarks.processes import Collector, DelayServer, Pacer, delivering
from delay_server.distribution import Distribution

_SECONDS_MIN: Final = 6
_RAMP_S: Final = 3
"""From the start until deliveries are steady."""
_DRAINED_S: Final = 60.0
_DURABLE_S: Final = 1.5
"""In which outcomes become durable, with nothing to be delivered any more."""
_AGE_BUCKET: Final = re.compile(
    r'^\w+_fact_age_seconds_bucket\{.*?le="(.+?)".*?\} (\S+)', re.MULTILINE
)
_COMMITS: Final = re.compile(r"^delaywheel_fsync_seconds_count (\S+)", re.MULTILINE)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sample:
    """What GET /metrics said at a time."""

    second: int
    """Wall clock."""
    bounds: tuple[float, ...]
    """Upper ends of the buckets of the age of facts, in seconds; none if it is not measured."""
    counts: Floats
    """Facts up to each of these ends, since the server's start; the last counts all."""
    commits: float
    """Group commits of the message_log, since the server's start."""
    cpu_seconds: float
    """Of the server, since its start."""


def sampled(server: DelayServer) -> Sample:
    """Return what the metrics say now."""
    text = server.metrics()
    buckets = [(float(end), float(count)) for end, count in _AGE_BUCKET.findall(text)]
    found = _COMMITS.search(text)
    return Sample(
        int(time.time()),
        tuple(end for end, _ in buckets[:-1]),
        np.array([count for _, count in buckets]),
        float(found[1]) if found else 0.0,
        server.cpu_seconds(),
    )


def ages(before: Sample, after: Sample) -> Distribution:
    """Return the ages of the facts that became durable between two samples, in seconds."""
    between = Distribution(after.bounds)
    if len(after.counts):
        between.counts = np.diff(after.counts - before.counts, prepend=0).astype(np.int64)
    return between


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """What was measured of one rate."""

    rate: int
    seconds: int
    told: dict[str, Any]
    """By the pacer."""
    planned: Floats
    """When each request was to be sent, in seconds from the start."""
    answered: Floats
    """When each was answered."""
    samples: list[Sample]
    """The first before the start, then one a second."""
    found: dict[str, Any]
    """By the collector."""

    @property
    def messages(self) -> int:
        """Messages that were accepted."""
        requests: int = len(self.planned) - self.told["refused"]
        return requests * PER_REQUEST

    @property
    def accepted_a_second(self) -> float:
        """Messages accepted, by the time until the last answer if that came late."""
        return self.messages / max(float(self.answered.max()), self.seconds)

    def figures(self) -> Iterator[tuple[str, object]]:
        """Yield them."""
        answer_ms = (self.answered - self.planned) * 1000
        p50, p99, most = np.quantile(answer_ms, (0.5, 0.99, 1.0))
        found, messages = self.found, max(self.messages, 1)
        steady, cpu, commits = self._while_steady()
        of_others = (self.told["cpu_seconds"], found["cpu_seconds"])
        yield (
            f"{self.rate:,} messages/s for {self.seconds} s, due 2 s later",
            f"{self.accepted_a_second:,.0f} accepted/s",
        )
        yield "  delivered, while steady", f"{steady:,.0f} messages/s"
        yield "  answers, ms", f"p50 {p50:.1f}, p99 {p99:.1f}, at the most {most:.1f}"
        yield "  lateness, ms", found["lateness_ms"]
        yield "  server CPU", f"{cpu * 1e6:.2f} us a message, while steady"
        yield (
            "  CPU of producer, broker",
            ", ".join(f"{cpu / messages * 1e6:.2f} us" for cpu in of_others),
        )
        yield "  age of outcomes when durable, ms", self._told_ages()
        yield "  group commits of the message_log", f"{commits:.0f}/s, while steady"
        yield "  refused", f"{self.told['refused'] * PER_REQUEST:,} messages"
        yield (
            "  accepted, received, distinct, early",
            [self.messages, *(found[name] for name in ("received", "distinct", "early"))],
        )

    def _while_steady(self) -> tuple[float, float, float]:
        """Return messages delivered a second, CPU seconds for each, and commits a second."""
        start = self.told["start_ms"] // 1000
        within = [
            sample for sample in self.samples if _RAMP_S <= sample.second - start <= self.seconds
        ]
        first, last = within[0], within[-1]
        delivered = self._delivered()[first.second - start : last.second - start]
        return (
            float(delivered.mean()),
            (last.cpu_seconds - first.cpu_seconds) / max(float(delivered.sum()), 1.0),
            (last.commits - first.commits) / len(delivered),
        )

    def _told_ages(self) -> str:
        whole = ages(self.samples[0], self.samples[-1])
        shares = [whole.quantile(share) for share in (0.5, 0.99, 1.0)]
        p50, p99, most = (None if age is None else f"{age * 1000:g}" for age in shares)
        if most is None:
            return "not measured"
        return f"up to: p50 {p50}, p99 {p99}, at the most {most}"

    def _delivered(self) -> Floats:
        """Return how many messages came to the broker in each second."""
        start = self.told["start_ms"] // 1000
        by_second = {int(at) - start: n for at, n in self.found["received_by_second"].items()}
        return np.array([float(by_second.get(second, 0)) for second in range(self.seconds)])


def measure(
    directory: Path,
    scale: float,
    *,
    rate: int,
    seconds: int,
    begin: Callable[[Path, Sequence[int]], DelayServer] = delivering,
) -> Together:
    """Measure one rate, in messages a second, for so many seconds, of a server that is begun."""
    seconds = max(int(seconds * scale), _SECONDS_MIN)
    where = directory / f"together-{rate}"
    where.mkdir()
    size = rate * seconds * ITEM_BYTES_MAX + SLACK_BYTES
    collector = Collector(where, groups=1, size=size)
    server = begin(where, collector.ports)
    pacer = Pacer(where, server.port, rate=rate, seconds=seconds)
    samples = [sampled(server)]
    _watch(server, samples, lambda: pacer.is_running)
    told, (planned, answered) = pacer.record()
    until = time.time() + _DRAINED_S
    _watch(server, samples, lambda: server.status()["pending"] > 0 and time.time() < until)
    until = time.time() + _DURABLE_S
    _watch(server, samples, lambda: time.time() < until)
    server.stop()
    together = Together(
        rate=rate,
        seconds=seconds,
        told=told,
        planned=planned,
        answered=answered,
        samples=samples,
        found=collector.summary(),
    )
    shutil.rmtree(where)
    return together


def _watch(server: DelayServer, samples: list[Sample], goes_on: Callable[[], bool]) -> None:
    """Take a sample at each full second as long as this goes on."""
    while goes_on():
        time.sleep(1 - time.time() % 1)
        samples.append(sampled(server))
