"""Processes under measurement: started, asked, killed, and what they cost."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_CPU_CLOCK = 2
"""Of Linux: user and system time of all threads, in ns."""
_DECODED_BYTES = 10_000_000
"""What the collector decodes in a second, at the least, when it is stopped."""


def free_port() -> int:
    """Return a loopback port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Process:
    """A child that prints a line beginning with `ready`."""

    def __init__(
        self, *arguments: str, log: Path, tree: Path | None = None, is_awaited: bool = True
    ) -> None:
        """Start `python -m ARGUMENTS`, of another checkout where `tree` is one."""
        self._log = log.open("a")
        began = time.perf_counter()
        self.child = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=tree,
            env=None if tree is None else os.environ | {"PYTHONPATH": str(tree)},
        )
        if not is_awaited:
            return
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        if not line.startswith("ready"):
            raise SystemExit(f"{arguments[0]} said {line!r}, not ready:\n{log.read_text()}")
        self.seconds_to_ready = time.perf_counter() - began

    def cpu_seconds(self) -> float:
        """Return user and system time so far, as clock_getcpuclockid(3) has it."""
        return time.clock_gettime((~self.child.pid << 3) | _CPU_CLOCK)

    def written_bytes(self) -> int:
        """Return what it has had written to disk."""
        for line in Path(f"/proc/{self.child.pid}/io").read_text().splitlines():
            if line.startswith("write_bytes"):
                return int(line.split()[1])
        return 0

    def memory_mib(self) -> float:
        """Return the resident set."""
        for line in Path(f"/proc/{self.child.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        return 0.0

    def give_way(self) -> None:
        """Let it run when others leave time, also where this process runs before all (chrt -r)."""
        os.sched_setscheduler(self.child.pid, os.SCHED_OTHER, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, self.child.pid, 19)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.child.kill()
        self.child.wait()

    def stop(self, timeout_s: float = 30.0) -> str:
        """Send SIGTERM; return what it still printed."""
        self.child.send_signal(signal.SIGTERM)
        rest, _ = self.child.communicate(timeout=timeout_s)
        self._log.close()
        return rest


class DelayServer(Process):
    """A delay server in a directory, delivering to one port, or to a group at each of several.

    Or to those that a meta server names, of which the HTTP port is `meta_port`. One that may be a
    slave is not awaited: it is ready only as a master.
    """

    def __init__(
        self,
        directory: Path,
        *,
        broker_port: int | Sequence[int] = (),
        meta_port: int | None = None,
        settings: tuple[str, ...] = (),
        tree: Path | None = None,
        node_id: str = "n0",
        is_awaited: bool = True,
    ) -> None:
        self.port = free_port()
        self._http = free_port()
        ports = [broker_port] if isinstance(broker_port, int) else broker_port
        extra = [part for setting in settings for part in ("--set", setting)]
        for number, port in enumerate(ports):
            extra += ["--broker", f"bench{number}=127.0.0.1:{port}"]
        if meta_port is not None:
            extra += ["--meta", f"127.0.0.1:{meta_port}", "--group", "delay0", "--node-id", node_id]
        super().__init__(
            "delaywheel", "delay-server",
            "--data", str(directory / "data"),
            "--listen", f"127.0.0.1:{self.port}",
            "--http", f"127.0.0.1:{self._http}",
            *extra,
            log=directory / "delay-server.log",
            tree=tree,
            is_awaited=is_awaited,
        )  # fmt: skip

    @property
    def address(self) -> tuple[str, int]:
        """Where it takes messages."""
        return "127.0.0.1", self.port

    def ask(self, path: str) -> bytes:
        """Return GET of a path."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._http}/{path}") as answer:
            found: bytes = answer.read()
            return found

    def status(self) -> dict[str, Any]:
        """Return GET /status."""
        status: dict[str, Any] = json.loads(self.ask("status"))
        return status

    def metrics(self) -> str:
        """Return GET /metrics."""
        return self.ask("metrics").decode()


def delivering(directory: Path, ports: Sequence[int]) -> DelayServer:
    """Begin a server that delivers to these ports of this machine, a broker group at each."""
    return DelayServer(directory, broker_port=ports)


class MetaServer(Process):
    """A meta server, with its data below a directory."""

    def __init__(self, directory: Path) -> None:
        self.http_port = free_port()
        super().__init__(
            "delaywheel", "meta-server",
            "--data", str(directory / "meta"),
            "--listen", f"127.0.0.1:{free_port()}",
            "--http", f"127.0.0.1:{self.http_port}",
            log=directory / "meta-server.log",
        )  # fmt: skip


class Receiver(Process):
    """The counting broker."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        super().__init__("benchmarks.receiver", str(self.port), log=directory / "receiver.log")

    def summary(self) -> dict[str, Any]:
        """Stop it and return what it counted."""
        summary: dict[str, Any] = json.loads(self.stop())
        return summary


class Collector(Process):
    """Several brokers in one process that do next to nothing while a burst runs."""

    def __init__(self, directory: Path, *, groups: int, size: int) -> None:
        self.ports = [free_port() for _ in range(groups)]
        self._decoded_s = 30 + size / _DECODED_BYTES
        arguments = [str(size), *map(str, self.ports)]
        super().__init__("benchmarks.collector", *arguments, log=directory / "collector.log")

    def summary(self) -> dict[str, Any]:
        """Stop it and return what it received."""
        summary: dict[str, Any] = json.loads(self.stop(self._decoded_s))
        return summary


class Pacer(Process):
    """A producer that keeps to a rate, from when it is built on."""

    def __init__(self, directory: Path, port: int, *, rate: int, seconds: int) -> None:
        self._answers = directory / "answers.npy"
        self._text = directory / "pacer.log"
        arguments = (str(port), str(rate), str(seconds), str(directory))
        super().__init__("benchmarks.both.pacer", *arguments, log=self._text)

    @property
    def is_running(self) -> bool:
        """Whether it has not yet got all answers."""
        return self.child.poll() is None

    def record(self) -> tuple[dict[str, Any], np.ndarray]:
        """Wait for its end; return what it told, and its planned times and answers."""
        rest, _ = self.child.communicate()
        self._log.close()
        if self.child.returncode:
            raise SystemExit(f"the pacer failed:\n{self._text.read_text()}")
        told: dict[str, Any] = json.loads(rest)
        answers: np.ndarray = np.load(self._answers)
        return told, answers
