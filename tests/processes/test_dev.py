"""`delaywheel dev`: all that a service needs, in one terminal, and nothing is left of it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from delay_client import BlockingClient
from delaywheel.servers.dev import dev as command
from tests.processes.real_processes import until

pytestmark = pytest.mark.process


@pytest.mark.parametrize("ends", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_dev_prints_what_is_sent_and_leaves_no_process(
    tmp_path: Path, ends: signal.Signals
) -> None:
    meta, listen, http, gateway = (_free_address() for _ in range(4))
    words = ("--meta", meta, "--listen", listen, "--http", http, "--gateway", gateway)
    path = tmp_path / "said"
    with path.open("w+") as said:
        dev = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "delaywheel",
                "dev",
                "--data",
                tmp_path / "dev",
                *words,
                "--print",
                "hello*",
            ],
            stdout=said,
            stderr=said,
            text=True,
        )
        try:
            assert until(lambda: "Ctrl-C" in path.read_text(), seconds=60), path.read_text()
            assert {meta, listen, http, gateway} <= set(path.read_text().split())
            with BlockingClient(meta=meta) as client:
                client.send("hello.you", "it works", delay=0.5)
            came = "hello.you 'it works'"
            assert until(lambda: came in path.read_text(), seconds=30), path.read_text()
            sending = [sys.executable, "-m", "delaywheel", "send", "--meta", meta]
            subprocess.check_call([*sending, "--subject", "hello.me", "--level", "1", "by level"])
            came = "hello.me 'by level'"
            assert until(lambda: came in path.read_text(), seconds=30), path.read_text()
            sent = urllib.request.Request(f"http://{gateway}/v1/messages/hello.http", b"by HTTP")
            with urllib.request.urlopen(sent, timeout=30) as answer:  # noqa: S310
                assert answer.status == 202
            came = "hello.http 'by HTTP'"
            assert until(lambda: came in path.read_text(), seconds=30), path.read_text()
            asked = [sys.executable, "-m", "delaywheel", "status", "--server", http]
            assert "takes and delivers messages" in subprocess.check_output(asked, text=True)
            # It has made these directories itself.
            logs = [log.read_text() for log in (tmp_path / "dev").glob("*.log")]
            assert len(logs) == 3
            assert not [log for log in logs if "others may use the data directory" in log]
        finally:
            dev.send_signal(ends)
            assert dev.wait(30) == 0, path.read_text()
    lines = Path("/proc").glob("[0-9]*/cmdline")
    assert not [line for line in lines if os.fsencode(tmp_path) in _read(line)]


def test_without_its_libraries_there_is_a_line_in_the_place_of_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = []

    @contextlib.contextmanager
    def start(command: str, *_: str, log_path: Path) -> Iterator[None]:
        started.append((command, log_path.name))
        yield

    monkeypatch.setattr("delaywheel.servers.dev._process", start)
    monkeypatch.setattr("anyio.run", lambda *_: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("storage.disk.disk.make_private_directory", lambda *_, **__: "")
    servers = [("meta-server", "meta.log"), ("delay-server", "delay.log")]
    for is_there, wanted in ((True, [*servers, ("gateway", "gateway.log")]), (False, servers)):
        if not is_there:
            monkeypatch.setitem(sys.modules, "uvloop", None)
        started.clear()
        assert command.callback is not None
        command.callback(
            data=tmp_path, meta="m:1", listen="l:1", http="h:1", gateway="g:1", subjects=()
        )
        assert started == wanted
        said = capsys.readouterr().out
        assert ("extra `gateway`" in said) is not is_there
        assert ("g:1" in said) is is_there


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
