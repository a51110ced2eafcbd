"""A gateway process, and a caller of it."""

import contextlib
import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.processes.real_processes import READY_S, ROOT


class Said(NamedTuple):
    """An answer."""

    code: int
    headers: dict[str, str]
    json: Any


class Gateway(NamedTuple):
    """A gateway that takes requests."""

    address: str
    process: "subprocess.Popen[str]"
    log_path: Path

    def ask(self, method: str, target: str, body: bytes | None = None, **headers: str) -> Said:
        """Return the answer; `_` in names of headers stands for `-`."""
        host, _, port = self.address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, target, body=body, headers=named)
            with connection.getresponse() as answer:
                found = {name.lower(): value for name, value in answer.getheaders()}
                return Said(answer.status, found, json.loads(answer.read() or b"null"))
        finally:
            connection.close()


@contextlib.contextmanager
def gateway(folder: Path, meta_http: int) -> Iterator[Gateway]:
    """Run a gateway; whatever happens, it is gone afterwards."""
    log_path = folder / "gateway.log"
    words = ("--meta", f"127.0.0.1:{meta_http}", "--listen", "127.0.0.1:0")
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "delaywheel", "gateway", *words],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    watchdog = threading.Timer(READY_S, process.kill)
    watchdog.start()
    try:
        line = process.stdout.readline()
        watchdog.cancel()
        assert line.startswith("ready "), (line, log_path.read_text())
        yield Gateway(line.split()[1], process, log_path)
    finally:
        watchdog.cancel()
        process.kill()
        process.wait(10)
        process.stdout.close()
