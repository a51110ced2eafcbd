"""The processes of the demo: delaywheel's commands, as anybody runs them."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

COMMAND_SECONDS_MAX: Final = 180.0
"""Spark takes seconds to start, and half a minute on a busy machine."""


class NotReadyError(Exception):
    """A process did not start, or a command failed; says which, and what it wrote."""


def free_address() -> str:
    """Return a loopback address where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def now_ms() -> int:
    """Return the wall ms."""
    return round(time.time() * 1000)


@dataclass(frozen=True, slots=True)
class DelayGroup:
    """Which nodes of a group of delay servers are what."""

    master: str
    """The one that accepts and delivers; empty if there is none."""
    in_sync: frozenset[str]
    """Those that have every acknowledged message."""


@dataclass(frozen=True, slots=True)
class Running:
    """A child; it is ready, if it gets ready at all."""

    child: subprocess.Popen[str]
    ready: str
    """Its ready line, which says where it listens; empty of a slave, which has none."""

    async def kill(self) -> None:
        """Send it SIGKILL; return when it is gone."""
        self.child.kill()
        await trio.to_thread.run_sync(self.child.wait)


@contextmanager
def process(arguments: tuple[str, ...], log: Path, *, gets_ready: bool = True) -> Iterator[Running]:
    """Run a delaywheel command and wait for its ready line, if there is one; stop it at the end."""
    with log.open("a", encoding="utf-8") as errors:
        begin = errors.tell()
        child = subprocess.Popen(
            [sys.executable, "-m", "delaywheel", *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        assert child.stdout is not None
        line = child.stdout.readline() if gets_ready else ""
        if gets_ready and not line.startswith("ready"):
            said = log.read_bytes()[begin:].decode(errors="replace")
            raise NotReadyError(f"`delaywheel {arguments[0]}` did not get ready:\n{said}")
        yield Running(child, line)
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(timeout=10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        if child.stdout is not None:
            child.stdout.close()


def run_command(arguments: tuple[str, ...]) -> str:
    """Run a delaywheel command to its end; return what it says, or raise NotReadyError."""
    words = " ".join(("delaywheel", *arguments))
    try:
        found = subprocess.run(
            [sys.executable, "-m", "delaywheel", *arguments],
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NotReadyError(f"`{words}` took more than {COMMAND_SECONDS_MAX:g} s") from error
    if found.returncode:
        raise NotReadyError(f"`{words}` failed:\n{found.stdout}{found.stderr}")
    return found.stdout


def delay_group(meta: str, name: str) -> DelayGroup:
    """Return a group of delay servers as the meta server knows it; raise NotReadyError."""
    try:
        topology = f"http://{meta}/api/v1/topology"
        with urllib.request.urlopen(topology, timeout=COMMAND_SECONDS_MAX) as answer:
            groups = json.load(answer)["delay_groups"]
    except OSError as error:
        raise NotReadyError(f"the meta server at {meta} does not answer: {error}") from error
    for group in groups:
        if group["name"] == name:
            return DelayGroup(group["master"] or "", frozenset(group["in_sync"]))
    return DelayGroup("", frozenset())


def http_address(ready: str) -> str:
    """Return what a ready line says of the HTTP port."""
    return next(word for word in ready.split() if word.startswith("http=")).removeprefix("http=")
