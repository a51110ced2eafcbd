"""A group of delay servers as processes on one machine: what copies cost, beside one node alone.

Every figure has beside it the CPU of each process for each message. Producer, broker and all nodes
share the machine, so a rate with copies is as much of one node's as the cores are left for.
"""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.load import build_load, send_load
from benchmarks.processes import MetaServer, Pacer, Process, free_port

GROUP: Final = "delay0"
NAMES: Final = ("n0", "n1", "n2")
IN_SYNC_S: Final = 60.0
"""Seconds in which all nodes have to be in sync, and agreed on who is the master."""
_HOUR_MS: Final = 3_600_000


class Replica(Process):
    """One node of the group; it is not waited for."""

    def __init__(self, directory: Path, name: str, *, meta_port: int, broker_port: int) -> None:
        self.name = name
        self.port = free_port()
        self.http_port = free_port()
        self._log = (directory / f"{name}.log").open("a")
        self.data = directory / name
        self.child = subprocess.Popen(
            [
                sys.executable, "-m", "delaywheel", "delay-server",
                "--data", str(self.data),
                "--listen", f"127.0.0.1:{self.port}",
                "--http", f"127.0.0.1:{self.http_port}",
                "--meta", f"127.0.0.1:{meta_port}",
                "--group", GROUP, "--node-id", name,
                "--broker", f"bench0=127.0.0.1:{broker_port}",
                "--set", f"replication.listen=127.0.0.1:{free_port()}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            text=True,
        )  # fmt: skip

    @property
    def address(self) -> tuple[str, int]:
        """Where it takes messages."""
        return "127.0.0.1", self.port

    def written_bytes(self) -> int:
        """Return what the process has had written to disk."""
        for line in Path(f"/proc/{self.child.pid}/io").read_text().splitlines():
            if line.startswith("write_bytes"):
                return int(line.split()[1])
        return 0


class Cluster:
    """A meta server and some nodes; the first is the master."""

    def __init__(self, directory: Path, nodes: int, *, broker_port: int) -> None:
        directory.mkdir()
        self.meta = MetaServer(directory, directory / "meta")
        self.nodes: list[Replica] = []
        for name in NAMES[:nodes]:
            node = Replica(directory, name, meta_port=self.meta.http_port, broker_port=broker_port)
            self.nodes.append(node)
            self._until(lambda: len(self.nodes) <= len(self.record()["in_sync"]))

    @property
    def master(self) -> Replica:
        """The node that takes messages."""
        return self.nodes[0]

    def record(self) -> dict[str, Any]:
        """Return what the meta server says of the group; all of it empty if it knows none."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.meta.http_port}/status") as answer:
            status = json.load(answer)
        groups: list[dict[str, Any]] = [
            one for one in status["delay_groups"] if one["name"] == GROUP
        ]
        return groups[0] if groups else {"in_sync": []}

    def _until(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + IN_SYNC_S
        while not condition():
            if time.monotonic() > until:
                raise SystemExit(f"not in sync in time: {self.record()}")
            time.sleep(0.1)

    def cpu_seconds(self) -> list[float]:
        """Return the CPU of each node."""
        return [node.cpu_seconds() for node in self.nodes]

    def kill(self) -> None:
        """End all processes."""
        for process in (*self.nodes, self.meta):
            process.kill()


def ingest_rates(directory: Path, *, messages: int, turns: int) -> None:
    """Measure ingest of one node, and with one and two slaves in sync, in turns."""
    for turn in range(turns):
        alone = 0.0
        for nodes in (1, 2, 3):
            cluster = Cluster(directory / f"{turn}-{nodes}", nodes, broker_port=free_port())
            try:
                load = build_load(
                    messages,
                    per_request=20,
                    due_from_ms=int(time.time() * 1000) + _HOUR_MS,
                    spread_ms=_HOUR_MS,
                )
                time.sleep(2)
                before = cluster.cpu_seconds()
                written = [node.written_bytes() for node in cluster.nodes]
                seconds = send_load(cluster.master.address, load, connections=2)
                # What slaves still file is of these messages, too.
                time.sleep(4)
                cpu = [
                    (now - then) / messages * 1e6
                    for then, now in zip(before, cluster.cpu_seconds(), strict=True)
                ]
                wrote = [
                    (node.written_bytes() - then) / messages
                    for node, then in zip(cluster.nodes, written, strict=True)
                ]
            finally:
                cluster.kill()
            rate = messages / seconds
            alone = alone or rate
            print(
                f"  {nodes - 1} slaves: {rate:10,.0f}/s = {rate / alone:4.2f} of one node; CPU us "
                f"a message {', '.join(f'{one:.2f}' for one in cpu)}; bytes written a message "
                f"{', '.join(f'{one:.0f}' for one in wrote)}",
                flush=True,
            )


def answers(directory: Path, *, rate: int, seconds: int) -> None:
    """Measure answers at a rate with no, one and two slaves in sync."""
    for nodes in (1, 2, 3):
        place = directory / f"answers-{rate}-{nodes}"
        cluster = Cluster(place, nodes, broker_port=free_port())
        try:
            before = cluster.cpu_seconds()
            pacer = Pacer(place, cluster.master.port, rate=rate, seconds=seconds)
            told, times = pacer.record()
            cpu = [
                (now - then) / (rate * seconds) * 1e6
                for then, now in zip(before, cluster.cpu_seconds(), strict=True)
            ]
        finally:
            cluster.kill()
        took_ms = (times[1] - times[0]) * 1000
        p50, p99, most = np.percentile(took_ms, [50, 99, 100])
        print(
            f"  {rate:,}/s, {nodes - 1} slaves: answers p50 {p50:.1f}, p99 {p99:.1f}, max "
            f"{most:.1f} ms, refused {told['refused']}; CPU us a message "
            f"{', '.join(f'{one:.1f}' for one in cpu)}",
            flush=True,
        )
