"""An empty node that joins a full group, and nodes that rest."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.load import build_load, send_load
from benchmarks.processes import Pacer, Receiver
from benchmarks.replicas.group import Group

Figures = Iterator[tuple[str, object]]

_RATE: Final = 1000
"""Messages a second of the producer whose answers are measured meanwhile."""
_BEFORE_S: Final = 10
_WINDOW_S: Final = 610
"""So long a log is kept whatever its settings say (`storage.duplicate_window_ms`, a constant)."""
_YEAR_MS: Final = 365 * 24 * 3_600_000
_PART: Final = 500_000
"""Messages that are built at a time: all of them would fill this process's memory."""


def catch_up(directory: Path, scale: float) -> Figures:
    """Measure how long an empty node needs for 10,000,000 messages of the log."""
    yield from _join(directory / "catch-up", "the log", int(10_000_000 * scale), ())


def snapshot(directory: Path, scale: float) -> Figures:
    """Measure how long an empty node needs for 2,000,000 messages of a snapshot."""
    settings = ("storage.message_log_keep_ms=0", "storage.message_log_file_bytes_max=16777216")
    messages = int(2_000_000 * scale)
    yield from _join(directory / "snapshot", "a snapshot", messages, settings, rest_s=_WINDOW_S)


def _join(
    directory: Path, how: str, messages: int, settings: tuple[str, ...], *, rest_s: float = 0
) -> Figures:
    with Group(directory, 1, settings=settings) as group:
        master = group.master
        for first in range(0, messages, _PART):
            load = build_load(
                min(_PART, messages - first),
                per_request=100,
                due_from_ms=int(time.time() * 1000) + 3_600_000,
                spread_ms=_YEAR_MS,
                first_number=first,
                seed=first,
            )
            send_load(master.address, load, connections=2)
        group.until(lambda: master.status()["replay_lag"] == 0, 120)
        time.sleep(rest_s)
        seconds = _BEFORE_S + max(10, messages // 100_000)
        pacer = Pacer(directory, master.port, rate=_RATE, seconds=seconds)
        while pacer.is_running and not master.status()["pending"] > messages:
            time.sleep(0.05)
        time.sleep(_BEFORE_S)
        cpu = np.array([*group.cpu_seconds(), 0.0])
        began = time.time()
        node = group.start()
        group.until_in_sync(600)
        took = time.time() - began
        cpu = np.array(group.cpu_seconds()) - cpu
        written = node.written_bytes()
        log = (directory / "n1" / "delay-server.log").read_text()
        told, (planned, answered) = pacer.record()
    answer_ms = (answered - planned) * 1000
    at_s = planned + told["start_ms"] / 1000
    yield (
        f"{messages:,} messages from {how} until in sync",
        f"{took:.1f} s, {messages / took:,.0f} messages/s, {written / took / 1e6:.0f} MB/s written",
    )
    yield "  copied a snapshot", "copied a snapshot" in log
    yield "  CPU seconds of master, new node", ", ".join(f"{one:.1f}" for one in cpu)
    for name, is_then in (
        ("before", at_s < began),
        ("meanwhile", (at_s >= began) & (at_s < began + took)),
    ):
        p50, p99, most = np.percentile(answer_ms[is_then], [50, 99, 100])
        yield (
            f"  answers at {_RATE:,}/s {name}, ms",
            f"p50 {p50:.1f}, p99 {p99:.1f}, at the most {most:.1f}",
        )
    yield "  refused", told["refused"]


def idle(directory: Path, scale: float) -> Figures:
    """Measure what three nodes in sync cost that have nothing to do."""
    seconds = max(60 * scale, 5)
    receiver = Receiver(directory)
    with Group(directory / "idle", 3, broker_ports=[receiver.port]) as group:
        time.sleep(10)
        cpu = np.array(group.cpu_seconds())
        time.sleep(seconds)
        cpu = (np.array(group.cpu_seconds()) - cpu) / seconds
    receiver.stop()
    yield "three idle nodes, share of a core", ", ".join(f"{one:.2%}" for one in cpu)
