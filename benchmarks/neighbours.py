"""What a good producer keeps of its throughput beside bad neighbours, and what memory they cost.

Each kind of bad peer floods a server for as long as a good producer sends its load; before and
after it the same load is sent without them, and the mean of the two is what the ratio refers to.
The bad peers run at the lowest priority, so that it is the server they take time from, not the
processor: on two cores the flood itself would otherwise be what is measured.
"""

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.load import build_load, send_load
from benchmarks.processes import DelayServer, Receiver

NUMBERS = {
    "idle": 4000,
    "slow": 1000,
    "stuck": 64,
    "garbage": 100,
    "truncated": 100,
    "endless": 16,
    "unknown": 16,
    "deaf": 64,
    "invalid": 16,
    "many": 50,
}
_HOUR_MS = 3_600_000


class Peak:
    """The largest resident set seen while it runs."""

    def __init__(self, server: DelayServer) -> None:
        self.mib = 0.0
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            self.mib = max(self.mib, self._server.memory_mib())

    def end(self) -> float:
        """Stop watching; return the peak in MiB."""
        self._stop.set()
        self._thread.join()
        return self.mib


@contextmanager
def bad_peers(server: DelayServer, kind: str, count: int) -> Iterator[dict[str, int]]:
    """Run bad peers; what they counted is in the dict at the end."""
    counts: dict[str, int] = {}
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bad_peers", *map(str, server.address), kind, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.nice(19),  # noqa: PLW1509 (single-threaded here)
    )
    assert child.stdout is not None
    if child.stdout.readline() != "ready\n":
        raise SystemExit(f"no bad peers of kind {kind}")
    try:
        yield counts
    finally:
        rest, _ = child.communicate("", timeout=30)
        counts |= json.loads(rest)


def throughput(server: DelayServer, messages: int) -> float:
    """Send a load; return messages a second until the last was acknowledged."""
    load = build_load(
        messages, per_request=20, due_from_ms=int(time.time() * 1000) + _HOUR_MS, spread_ms=_HOUR_MS
    )
    seconds = send_load(server.address, load, connections=2)
    while server.status()["replay_lag"]:
        time.sleep(0.05)
    return load.messages / seconds


def measure(directory: Path, scale: float) -> Iterator[tuple[str, str]]:
    """Yield a name and a figure each."""
    messages = int(1_500_000 * scale)
    for kind, count in NUMBERS.items():
        where = directory / kind
        where.mkdir()
        receiver = Receiver(where)
        server = DelayServer(where, broker_port=receiver.port)
        throughput(server, messages // 4)
        alone = [throughput(server, messages)]
        before = server.memory_mib()
        peak = Peak(server)
        with bad_peers(server, kind, count) as counts:
            beside = throughput(server, messages)
        highest = peak.end()
        alone.append(throughput(server, messages))
        share = beside / statistics.mean(alone)
        figure = (
            f"{beside:,.0f} messages/s, {share:.0%} of {statistics.mean(alone):,.0f}; "
            f"memory {before:.0f} -> {highest:.0f} MiB; {dict(counts)}"
        )
        yield f"beside {count:,} {kind}", figure
        server.stop()
        receiver.stop()
