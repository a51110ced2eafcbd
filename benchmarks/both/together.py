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
from benchmarks.pictures import Chart, Colour
from benchmarks.processes import Collector, DelayServer, Pacer, delivering
from delay_server.distribution import Distribution

RISING: Final = range(100_000, 600_000, 25_000)
"""Messages a second that are tried, one after another, until one does not hold."""
_HELD_SHARE: Final = 0.98
"""Of the rate asked for, what is accepted at the least where the rate holds."""
_HELD_LATE_MS: Final = 1000
"""The p99 of lateness, at the most, where the rate holds."""
_SECONDS_MIN: Final = 6
_RAMP_S: Final = 3
"""From the start until deliveries are steady."""
_AFTER_S: Final = 4
"""Seconds after the last request that a picture shows."""
_DRAINED_S: Final = 60.0
_DURABLE_S: Final = 1.5
"""In which outcomes become durable, with nothing to be delivered any more."""
_PICTURES: Final = Path(__file__).parents[2] / "build"
_COLOUR: Final[Colour] = (70, 110, 180)
_AGE_BUCKET: Final = re.compile(
    r'^\w+_fact_age_seconds_bucket\{.*?le="(.+?)".*?\} (\S+)', re.MULTILINE
)
_COMMITS: Final = re.compile(r"^delaywheel_commits_total (\S+)", re.MULTILINE)

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

    @property
    def has_held(self) -> bool:
        """Whether the rate was accepted, and delivered without delay."""
        return (
            self.accepted_a_second >= _HELD_SHARE * self.rate
            and self.found["distinct"] == self.messages
            and self.found["lateness_ms"]["p99"] <= _HELD_LATE_MS
        )

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
        delivered = self.delivered()[first.second - start : last.second - start]
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

    # -- by the second, from the start on ---------------------------------------------------

    @property
    def _steps(self) -> int:
        return self.seconds + _AFTER_S

    def accepted(self) -> Floats:
        """Return how many messages were answered in each second."""
        numbers = np.bincount(self.answered.astype(np.int64), minlength=self._steps)
        return numbers[: self._steps].astype(np.float64) * PER_REQUEST

    def delivered(self) -> Floats:
        """Return how many messages came to the broker in each second."""
        start = self.told["start_ms"] // 1000
        by_second = {int(at) - start: n for at, n in self.found["received_by_second"].items()}
        return np.array([float(by_second.get(second, 0)) for second in range(self._steps)])

    def answer_ms(self) -> Floats:
        """Return the p99 of the answers, by the second for which the requests were planned."""
        planned_for = self.planned.astype(np.int64)
        late_ms = (self.answered - self.planned) * 1000
        p99 = np.zeros(self._steps)
        for second in range(self.seconds):
            p99[second] = np.quantile(late_ms[planned_for == second], 0.99)
        return p99

    def age_ms(self) -> Floats:
        """Return the p99 of the age of facts, by the second in which they became durable."""
        start = self.told["start_ms"] // 1000
        p99 = np.zeros(self._steps)
        for before, after in zip(self.samples, self.samples[1:], strict=False):
            if 0 <= before.second - start < self._steps:
                p99[before.second - start] = (ages(before, after).quantile(0.99) or 0.0) * 1000
        return p99

    def picture(self) -> Chart:
        """Return the picture of all this over time; a dotted line where the producer ended."""
        chart = Chart(900, 4)
        is_measured = bool(self.samples[-1].bounds)
        panels = (
            ("messages accepted a second", self.accepted()),
            ("messages delivered a second", self.delivered()),
            ("p99 of answers, ms from the planned time", self.answer_ms()),
            (
                "p99 of the age of outcomes when durable, ms"
                + ("" if is_measured else ", not measured"),
                self.age_ms(),
            ),
        )
        for number, (title, values) in enumerate(panels):
            most = max(float(values.max()) * 1.05, 1.0)
            chart.title(number, f"{title}: 0 to {most:,.0f} in {self._steps} s")
            chart.lines(number, values[:, np.newaxis], [_COLOUR], most)
            chart.rule(number, self.seconds / self._steps)
        return chart


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


def draw(together: Together, of: str = "") -> str:
    """Write the picture of a measurement, of what its name begins with; return where it is."""
    _PICTURES.mkdir(exist_ok=True)
    path = _PICTURES / f"{of}both-{together.rate}.png"
    together.picture().write(path)
    return str(path.relative_to(_PICTURES.parent))


def told(directory: Path, scale: float, *, rate: int, seconds: int) -> Iterator[tuple[str, object]]:
    """Measure one rate; yield its figures."""
    together = measure(directory, scale, rate=rate, seconds=seconds)
    yield from together.figures()
    yield "  over time", draw(together)


def highest(directory: Path, scale: float) -> Iterator[tuple[str, object]]:
    """Measure rising rates, 60 s each; yield the figures of each, and the last that held."""
    held = "none"
    for rate in RISING:
        together = measure(directory, scale, rate=rate, seconds=60)
        yield from together.figures()
        yield "  over time", draw(together)
        if not together.has_held:
            break
        held = f"{rate:,} messages/s"
    yield "the highest rate that held", held
