"""Rates with no, one and two slaves in sync, and what each message costs each node."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks import burst
from benchmarks.both import together
from benchmarks.load import build_load, send_load
from benchmarks.processes import DelayServer, Pacer, Receiver, delivering
from benchmarks.replicas.group import Group

Figures = Iterator[tuple[str, object]]

_HOUR_MS: Final = 3_600_000
_FILED_S: Final = 4
"""Seconds in which slaves file what was acknowledged."""


class Measured:
    """The servers that measurements begin: one alone, or the master of a group in sync."""

    def __init__(self, slaves: int) -> None:
        self._slaves = slaves
        self.group: Group | None = None

    def begin(self, directory: Path, ports: Sequence[int]) -> DelayServer:
        """Begin a server that delivers to these ports."""
        if not self._slaves:
            return delivering(directory, ports)
        self.group = Group(directory / "group", self._slaves + 1, broker_ports=ports)
        return self.group.master

    def end(self) -> None:
        """End what a measurement has left."""
        if self.group is not None:
            self.group.kill()


def _named(slaves: int) -> str:
    return f"{slaves} slave" + "s" * (slaves != 1)


def _listed(figures: Sequence[float]) -> str:
    return ", ".join(f"{one:.2f}" for one in figures)


def ingest(directory: Path, scale: float) -> Figures:
    """Measure ingest of one node, and with one and two slaves in sync, in turns."""
    messages = int(1_000_000 * scale)
    for turn in range(3):
        alone_rate = alone_cpu = 0.0
        for slaves in range(3):
            with Group(directory / f"ingest-{turn}-{slaves}", slaves + 1) as group:
                load = build_load(
                    messages,
                    per_request=20,
                    due_from_ms=int(time.time() * 1000) + _HOUR_MS,
                    spread_ms=_HOUR_MS,
                )
                time.sleep(2)
                cpu, written = np.array(group.cpu_seconds()), np.array(group.written_bytes())
                began = time.perf_counter()
                seconds = send_load(group.master.address, load, connections=2)
                time.sleep(_FILED_S)
                cpu = (np.array(group.cpu_seconds()) - cpu) / messages * 1e6
                written = np.array(group.written_bytes()) - written
                disk = written.sum() / (time.perf_counter() - began) / 1e6
            alone_rate = alone_rate or messages / seconds
            alone_cpu = alone_cpu or float(cpu.sum())
            yield (
                f"ingest, {_named(slaves)}",
                f"{messages / seconds:,.0f}/s = {messages / seconds / alone_rate:.2f} of one node",
            )
            yield (
                "  CPU us a message",
                f"{_listed(cpu)}: {cpu.sum() / alone_cpu:.2f} times one node's"
                + (f", a slave {cpu[1:].mean() / cpu[0]:.2f} of the master's" if slaves else ""),
            )
            yield (
                "  bytes written a message",
                f"{_listed(written / messages)}; {disk:.0f} MB/s in all",
            )


def answers(directory: Path, scale: float) -> Figures:
    """Measure answers at two rates with no, one and two slaves in sync."""
    seconds = max(int(20 * scale), 5)
    for rate in (1000, 50_000):
        for slaves in range(3):
            place = directory / f"answers-{rate}-{slaves}"
            with Group(place, slaves + 1) as group:
                cpu = np.array(group.cpu_seconds())
                pacer = Pacer(place, group.master.port, rate=rate, seconds=seconds)
                told, times = pacer.record()
                cpu = (np.array(group.cpu_seconds()) - cpu) / (rate * seconds) * 1e6
            p50, p99, most = np.percentile((times[1] - times[0]) * 1000, [50, 99, 100])
            yield (
                f"answers at {rate:,}/s, {_named(slaves)}",
                f"p50 {p50:.1f}, p99 {p99:.1f}, at the most {most:.1f} ms",
            )
            yield "  refused; CPU us a message", f"{told['refused']}; {_listed(cpu)}"


def both(directory: Path, scale: float) -> Figures:
    """Measure 100,000 messages a second in and out, with two slaves in sync."""
    measured = Measured(2)
    try:
        found = together.measure(directory, scale, rate=100_000, seconds=30, begin=measured.begin)
    finally:
        measured.end()
    yield "both at once, 2 slaves", ""
    yield from found.figures()


def bursts(directory: Path, scale: float) -> Figures:
    """Measure 500,000 messages due in half a second: one node, and with two slaves in sync."""
    for turn in range(2):
        for slaves in (0, 2):
            measured = Measured(slaves)
            place = directory / f"burst-{turn}-{slaves}"
            place.mkdir()
            try:
                yield f"a burst, {_named(slaves)}", ""
                yield from burst.measure(place, scale / 2, groups=1, begin=measured.begin)
            finally:
                measured.end()


def lateness(directory: Path, scale: float) -> Figures:
    """Measure lateness at 1,000 messages a second: one node, and with two slaves in sync."""
    seconds = max(int(30 * scale), 5)
    for slaves in (0, 2):
        measured = Measured(slaves)
        place = directory / f"lateness-{slaves}"
        place.mkdir()
        receiver = Receiver(place)
        try:
            server = measured.begin(place, [receiver.port])
            send_second_by_second(server.address, seconds)
            time.sleep(4)
            server.stop()
        finally:
            measured.end()
        counted = receiver.summary()
        yield f"lateness at 1,000 messages/s, {_named(slaves)}, ms", counted["lateness_ms"]
        yield "  received, early", f"{counted['received']:,}, {counted['early']}"


def send_second_by_second(address: tuple[str, int], seconds: int) -> None:
    """Send 1,000 messages each second that are due within the second after next."""
    for _ in range(seconds):
        began = time.perf_counter()
        due_ms = int(time.time() * 1000) + 2000
        load = build_load(1000, per_request=20, due_from_ms=due_ms, spread_ms=1000)
        send_load(address, load)
        time.sleep(max(1 - (time.perf_counter() - began), 0))
