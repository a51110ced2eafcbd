"""Servers answer, and end, while nobody reads what they write: their pipe is full at the start."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from delaywheel.shared.failures import ExitCode
from tests.ports import closed_port
from tests.processes.real_processes import ROOT, STOP_S, until

pytestmark = pytest.mark.process

_LIVEZ = b"GET /livez HTTP/1.0\r\n\r\n"


@pytest.fixture
def full_pipe() -> Iterator[int]:
    """Return the end for writing of a pipe that has no room and is not read."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"-" * 4096)
    os.set_blocking(writer, True)
    yield writer
    os.close(reader)
    os.close(writer)


@contextlib.contextmanager
def running(command: str, *options: str, output: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "delaywheel", command, *options],
        cwd=ROOT,
        stdout=output,
        stderr=output,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def answer(port: int, request: bytes) -> bytes:
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), timeout=2) as peer,
    ):
        peer.sendall(request)
        return peer.recv(1000)
    return b""


@pytest.mark.parametrize("command", ["delay-server", "meta-server"])
def test_a_server_whose_output_nobody_reads_answers_and_stops(
    tmp_path: Path, full_pipe: int, command: str
) -> None:
    port = closed_port()
    options = ["--data", str(tmp_path), "--listen", "127.0.0.1:0", "--http", f"127.0.0.1:{port}"]
    if command == "delay-server":
        options += ["--meta", f"127.0.0.1:{closed_port()}"]
    with running(command, *options, output=full_pipe) as process:
        assert until(lambda: b" 200 " in answer(port, _LIVEZ), seconds=20)
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S) == 0


def test_a_broker_whose_output_nobody_reads_accepts_and_stops(full_pipe: int) -> None:
    port = closed_port()
    with running("broker", "--listen", f"127.0.0.1:{port}", output=full_pipe) as process:
        assert until(lambda: _accepts(port), seconds=20)
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S) == 0


def test_a_server_that_cannot_start_ends_though_nobody_reads_why(
    tmp_path: Path, full_pipe: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        own = f"127.0.0.1:{taken.getsockname()[1]}"
        options = ("--data", str(tmp_path), "--listen", own, "--http", "127.0.0.1:0")
        with running("meta-server", *options, output=full_pipe) as process:
            assert process.wait(20) == ExitCode.NETWORK


def _accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2):
        return True
    return False
