"""`delaywheel dev`: all that a service needs, in one terminal, and nothing is left of it."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from delay_client import BlockingClient
from tests.processes.real_processes import until

pytestmark = pytest.mark.process


@pytest.mark.parametrize("ends", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_dev_prints_what_is_sent_and_leaves_no_process(
    tmp_path: Path, ends: signal.Signals
) -> None:
    meta, listen, http = _free_address(), _free_address(), _free_address()
    words = ("--data", tmp_path / "dev", "--meta", meta, "--listen", listen, "--http", http)
    path = tmp_path / "said"
    with path.open("w+") as said:
        dev = subprocess.Popen(
            [sys.executable, "-m", "delaywheel", "dev", *words, "--print", "hello*"],
            stdout=said,
            stderr=said,
            text=True,
        )
        try:
            assert until(lambda: "Ctrl-C" in path.read_text(), seconds=60), path.read_text()
            assert {meta, listen, http} <= set(path.read_text().split())
            with BlockingClient(meta=meta) as client:
                client.send("hello.you", "it works", delay=0.5)
            came = "hello.you 'it works'"
            assert until(lambda: came in path.read_text(), seconds=30), path.read_text()
            sending = [sys.executable, "-m", "delaywheel", "send", "--meta", meta]
            subprocess.check_call([*sending, "--subject", "hello.me", "--level", "1", "by level"])
            came = "hello.me 'by level'"
            assert until(lambda: came in path.read_text(), seconds=30), path.read_text()
            asked = [sys.executable, "-m", "delaywheel", "status", "--server", http]
            assert "takes and delivers messages" in subprocess.check_output(asked, text=True)
            # It has made these directories itself.
            logs = [log.read_text() for log in (tmp_path / "dev").glob("*.log")]
            assert len(logs) == 2
            assert not [log for log in logs if "others may use the data directory" in log]
        finally:
            dev.send_signal(ends)
            assert dev.wait(30) == 0, path.read_text()
    lines = Path("/proc").glob("[0-9]*/cmdline")
    assert not [line for line in lines if os.fsencode(tmp_path) in _read(line)]


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
