"""What a good producer keeps of its throughput beside bad neighbours, and what memory they cost.

`python -m benchmarks neighbours` measures all kinds,
`python -m benchmarks.hostile.neighbours KIND …` some.

Each kind of bad peer floods for as long as a good producer sends its load, and three times over:

    sharing    not the server but a process that accepts and reads as little as can be: what the
               flood takes by using the same machine, whatever the server does
    other      the server, from another address than the producer's
    same       the server, from the producer's own address, as behind one NAT or on one host

Each is a share of what the same server takes alone, measured before and after these three. The
bad peers and the process of the first run at the lowest priority: on two cores the flood itself
would otherwise be what is measured. Medians of some rounds. `newcomers` connect one after the
other during the flood from the producer's address: how often they were refused before their first
answer, and how long that took.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.load import Load, build_load, connect, send_load
from benchmarks.processes import DelayServer, Receiver, Sink

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
_ROUNDS = 3
_NEWCOMERS = 20
_SOURCES = {"sharing": "127.0.0.3", "other": "127.0.0.2", "same": "127.0.0.1"}
"""Where the bad peers of each measurement connect from."""


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
def bad_peers(
    address: tuple[str, int], kind: str, count: int, source: str
) -> Iterator[dict[str, int]]:
    """Run bad peers; what they counted is in the dict at the end."""
    counts: dict[str, int] = {}
    command = [sys.executable, "-m", "benchmarks.hostile.peers"]
    child = subprocess.Popen(
        [*command, *map(str, address), kind, str(count), source],
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
        rest, _ = child.communicate("", timeout=120)
        counts |= json.loads(rest)


def throughput(server: DelayServer, load: Load) -> float:
    """Send a load; return messages a second until the last was acknowledged."""
    seconds = send_load(server.address, load, connections=2)
    while server.status()["replay_lag"]:
        time.sleep(0.05)
    return load.messages / seconds


@dataclass
class Newcomers:
    """What good producers met that connected during a flood."""

    refusals: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def come(self, server: DelayServer, load: Load) -> None:
        """Let some connect and have one request answered."""
        for request in load.frames[:_NEWCOMERS]:
            began = time.perf_counter()
            stream, refusals = connect(server.address, request)
            self.seconds.append(time.perf_counter() - began)
            self.refusals.append(refusals)
            stream.close()

    def __str__(self) -> str:
        """Tell of it."""
        return (
            f"newcomers refused {sum(self.refusals)} times of "
            f"{len(self.refusals) + sum(self.refusals)}, in after "
            f"{statistics.median(self.seconds) * 1000:.0f} ms (max {max(self.seconds):.2f} s)"
        )


class Rounds:
    """The measurements of one kind."""

    def __init__(self, directory: Path, kind: str, scale: float) -> None:
        self._kind = kind
        self._load = build_load(
            int(1_500_000 * scale),
            per_request=20,
            due_from_ms=int(time.time() * 1000) + _HOUR_MS,
            spread_ms=_HOUR_MS,
        )
        self._receiver = Receiver(directory)
        self._sink = Sink(directory)
        self._server = DelayServer(directory, broker_port=self._receiver.port)
        self._newcomers = {source: Newcomers() for source in _SOURCES.values()}
        self._shares: dict[str, list[float]] = {name: [] for name in _SOURCES}
        self._counts: dict[str, dict[str, int]] = {}

    def measure(self, rounds: int) -> Iterator[tuple[str, str]]:
        """Yield a name and a figure each."""
        throughput(self._server, self._load)
        all_alone = [throughput(self._server, self._load)]
        before = self._server.memory_mib()
        peak = Peak(self._server)
        for _ in range(rounds):
            beside = {name: self._beside(name) for name in _SOURCES}
            all_alone.append(throughput(self._server, self._load))
            alone = statistics.mean(all_alone[-2:])
            for name, figure in beside.items():
                self._shares[name].append(figure / alone)
        highest = peak.end()
        count = NUMBERS[self._kind]
        alone = statistics.median(all_alone)
        yield (
            f"beside {count:,} {self._kind}",
            f"alone {alone:,.0f} messages/s; memory {before:.0f} -> {highest:.0f} MiB",
        )
        for name, shares in self._shares.items():
            every = ", ".join(f"{share:.0%}" for share in shares)
            told = f"{statistics.median(shares):.0%} ({every}); {self._counts[name]}"
            if name != "sharing":
                told += f"; {self._newcomers[_SOURCES[name]]}"
            yield f"  {name}", told
        for process in (self._server, self._sink, self._receiver):
            process.kill()

    def _beside(self, name: str) -> float:
        address = self._sink.address if name == "sharing" else self._server.address
        source = _SOURCES[name]
        with bad_peers(address, self._kind, NUMBERS[self._kind], source) as counts:
            figure = throughput(self._server, self._load)
            if name != "sharing":
                self._newcomers[source].come(self._server, self._load)
        self._counts[name] = counts
        return figure


def measure(
    directory: Path, scale: float, kinds: Sequence[str] = (), rounds: int = _ROUNDS
) -> Iterator[tuple[str, str]]:
    """Yield a name and a figure each, of all kinds or some."""
    for kind in kinds or NUMBERS:
        where = directory / kind
        where.mkdir()
        yield from Rounds(where, kind, scale).measure(rounds)
        # 11 GB of messages for each kind: all of them would come to the disk's floor.
        shutil.rmtree(where)


def main() -> None:
    """Measure the kinds that are named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="+", choices=NUMBERS)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="of which the median counts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="delaywheel-bench-") as directory:
        where = Path(directory)
        for name, value in measure(where, options.scale, options.kinds, options.rounds):
            print(f"{name:<28} {value}", flush=True)


if __name__ == "__main__":
    main()
