"""A delay server process, and a broker's, on a clock that runs faster than the machine's."""

import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final, Self

import msgspec

from storage.disk.disk import DirectoryDisk
from storage.readers.manifest import Manifest, read_manifest
from tests.crash.campaign_round import Life, settings_of
from tests.crash.launcher import Orders
from tests.crash.life_clock import LifeClock
from tests.ports import closed_port
from tests.processes.real_processes import ROOT, wall_ms

CHECKPOINT_MS: Final = 400
_READY_S: Final = 30.0
_STOP_S: Final = 20.0
_LOOK_S: Final = 0.2
_BEFORE_MS: Final = 2 * 86_400_000
"""So long before the present the clock begins: it runs ahead of the machine's."""


class Node:
    """One data directory and the lives of the server on it; with a broker that records."""

    def __init__(self, directory: Path, rate: int) -> None:
        """rate: how much faster the clock of server and broker runs."""
        self.directory = directory
        self.data = directory / "data"
        self.rate = rate
        begin_ms = (wall_ms() - _BEFORE_MS) // 3_600_000 * 3_600_000
        self.clock = LifeClock(1, time.monotonic_ns(), begin_ms, rate)
        self.address = f"127.0.0.1:{closed_port()}"
        self.log = directory / "server.log"
        self._clock_path = directory / "clock"
        self._record = directory / "deliveries"
        self._read_to = 0
        self.received: Counter[str] = Counter()
        """Deliveries by message id, as of the last `read`."""
        self.early = 0
        self._crcs: dict[str, int] = {}
        """CRC-32 of the bytes of each message when it first came."""
        self._life: Life | None = None
        self._broker: subprocess.Popen[bytes] | None = None
        self._broker_port = 0

    def __enter__(self) -> Self:
        self.clock.save(self._clock_path)
        self._record.touch()
        self._broker = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.crash.recording_broker"),
                *(str(self._clock_path), str(self._record)),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._broker.stdout is not None
        self._broker_port = int(self._broker.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        if self._life is not None:
            self._life.kill()
        assert self._broker is not None
        assert self._broker.stdin is not None
        assert self._broker.stdout is not None
        self._broker.stdin.close()
        self._broker.wait(5)
        self._broker.stdout.close()

    def start(self, **more: object) -> None:
        """Start the server, with further settings; return when it is ready."""
        orders = self.directory / "orders.json"
        orders.write_bytes(
            msgspec.json.encode(
                Orders(clock=str(self._clock_path), report=str(self.directory / "report"))
            )
        )
        command = [
            *(sys.executable, "-m", "tests.crash.launcher", str(orders), "delay-server"),
            *("--data", str(self.data), "--listen", self.address, "--http", "127.0.0.1:0"),
            *("--broker", f"g1=127.0.0.1:{self._broker_port}"),
        ]
        for name, value in (settings_of(self.rate, CHECKPOINT_MS) | more).items():
            command += ["--set", f"{name}={value}"]
        self._life = Life(command, {}, self.log)
        assert self._life.wait_ready(_READY_S), self.log.read_text()[-3000:]

    def kill(self) -> None:
        """End it by SIGKILL."""
        assert self._life is not None
        self._life.kill()
        self._life = None

    def stop(self) -> None:
        """End it by SIGTERM."""
        assert self._life is not None
        self._life.process.send_signal(signal.SIGTERM)
        code = self._life.wait(_STOP_S)
        assert code == 0, f"exit code {code}: {self.log.read_text()[-3000:]}"
        self._life.kill()
        self._life = None

    # -- what became of it -------------------------------------------------------------------

    def read(self) -> None:
        """Take over new deliveries."""
        with self._record.open("rb") as record:
            record.seek(self._read_to)
            new = record.read()
        new = new[: new.rfind(b"\n") + 1]
        self._read_to += len(new)
        for line in new.decode().splitlines():
            _, _, at_ms, due_ms, crc, crc_ok, message_id = line.split(" ", 6)
            assert crc_ok == "1", message_id
            # Byte for byte, however often and by whomever it was sent.
            assert self._crcs.setdefault(message_id, int(crc)) == int(crc), message_id
            self.early += int(at_ms) < int(due_ms)
            self.received[message_id] += 1

    def until_received(self, wanted: Counter[str], *, seconds: float) -> None:
        """Wait until each message was delivered so many times at least."""
        deadline = time.monotonic() + seconds
        while True:
            self.read()
            if not wanted - self.received:
                return
            assert time.monotonic() < deadline, f"{(wanted - self.received).total()} not delivered"
            time.sleep(_LOOK_S)

    def until_sealed(self, rows: int, *, seconds: float) -> Manifest:
        """Wait until so many rows at least are sealed and none is not; return the manifest."""
        deadline = time.monotonic() + seconds
        while True:
            manifest = self.manifest()
            sealed = sum(one.rows for one in manifest.sealed)
            if sealed >= rows and not any(one.rows for one in manifest.segments):
                return manifest
            assert time.monotonic() < deadline, f"{sealed} rows are sealed, not {rows}"
            time.sleep(_LOOK_S)

    def manifest(self) -> Manifest:
        """Return what the directory commits now."""
        return read_manifest(DirectoryDisk(self.data), now_ms=wall_ms())
