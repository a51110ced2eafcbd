"""Everybody in a campaign: a meta server, three nodes, brokers, receivers and producers.

Each is a process at a place of its own. Those that die are started again by whoever killed them,
on the same directory and at the same address.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

from tests.crash.disk_layer import DiskLayer
from tests.failover_campaign.network import Loopback, Place
from tests.processes.real_processes import ROOT, ServerProcess

GROUP: Final = "d1"
NODES: Final = ("n1", "n2", "n3")
BROKERS: Final = ("g1", "g2")
PRODUCERS: Final = (("asyncio", 0.4), ("trio", 0.4), ("blocking", 0.2))
"""How each one sends, and its part of all messages."""
IN_SYNC_S: Final = 60.0
STOP_S: Final = 30.0
_ASK_S: Final = 2.0
_LEFT_BYTES: Final = 64 * 1024
"""On a disk that is full."""


class StuckError(Exception):
    """Something did not come about in its time; says what."""


class Node:
    """A delay server's directory, and the process on it, if there is one."""

    def __init__(
        self, place: Place, folder: Path, options: tuple[str, ...], *, library: Path | None
    ) -> None:
        """Describe it. `library` is tests/crash/disk_journal.c, if there is a compiler for it."""
        self.place = place
        self.data = folder / "disk" / "files" / "data"
        self.switch = folder / "fsync"
        """Fails and holds fsyncs, with `.eio` and `.hang` behind it."""
        self._root = self.data.parent
        self._ballast = folder / "disk" / "ballast"
        self._library = library
        self._layer: DiskLayer | None = None
        """Writes down what the processes do to their disk, if power is to be cut."""
        self._journals: list[Path] = []
        """Of lives that have ended and are not replayed."""
        self._folder = folder
        self._options = options
        self._process: ServerProcess | None = None

    @property
    def name(self) -> str:
        """Return its name."""
        return self.place.name

    @property
    def pid(self) -> int | None:
        """Return the process, if it lives."""
        process = self._process
        return process.process.pid if process and process.process.poll() is None else None

    def start(self) -> None:
        """Start a process; it is not waited for."""
        assert self.pid is None
        self._process = ServerProcess(
            self.data,
            options=self._options,
            wrapper=self.place.wrapper,
            environment=self._environment(),
            log=self._folder / "server.log",
        )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it lives."""
        if self.pid is not None:
            assert self._process is not None
            self._process.process.send_signal(number)

    def wait(self, seconds: float) -> int | None:
        """Wait for its end; return the exit code, or None if it goes on."""
        assert self._process is not None
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """End it by SIGKILL, if it lives."""
        if self._process is not None:
            self._process.kill()

    def fill_disk(self) -> None:
        """Leave hardly a byte on its disk."""
        with self._ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(self._root).free - _LEFT_BYTES)

    def free_disk(self) -> None:
        """Give it its room back."""
        self._ballast.unlink()

    def write_journal(self) -> None:
        """Write down what its processes do to its disk, from the first one on."""
        assert self._library is not None
        self._layer = DiskLayer(self._library, self._root)

    def cut_power(self, seed: int) -> None:
        """End it by SIGKILL, and take from its disk what was not durable."""
        self.kill()
        layer, journal = self._layer, self._journal
        assert layer is not None
        self._keep_journal()
        for kept in self._journals:
            kept.rename(journal)
            layer.replay()
        self._journals.clear()
        layer.cut_power(random.Random(seed))
        layer.restore()

    @property
    def _journal(self) -> Path:
        return self._root.with_name(f"{self._root.name}.journal")

    def _keep_journal(self) -> None:
        if self._journal.exists():
            kept = self._journal.with_suffix(f".{len(self._journals)}")
            self._journals.append(self._journal.rename(kept))

    def _environment(self) -> dict[str, str]:
        if self._library is None:
            return {}
        fault = f"switch {self.switch}"
        if self._layer is not None:
            self._keep_journal()
            return self._layer.environment(fault)
        # Faults alone: nobody reads the journal.
        return {
            "LD_PRELOAD": str(self._library),
            "DISK_JOURNAL_ROOT": str(self._root),
            "DISK_JOURNAL_FILE": "/dev/null",
            "DISK_JOURNAL_FAULT": fault,
        }


class Site:
    """All processes of a round; to be used as a context, which ends them."""

    def __init__(
        self,
        folder: Path,
        network: Loopback,
        *,
        rate: float,
        library: Path | None,
        cuts_power: bool,
    ) -> None:
        self.network = network
        self.nodes: dict[str, Node] = {}
        self.folder = folder
        self._rate = rate
        self._library = library
        self._cuts_power = cuts_power
        self._token = ""
        self._meta_place = network.place("meta")
        self._meta: ServerProcess | None = None
        self._stack = contextlib.ExitStack()
        self._producers: list[subprocess.Popen[bytes]] = []
        self._receivers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # What there is.

    @property
    def meta_http(self) -> str:
        """Return where the meta server is asked."""
        return self._meta_place.address("http")

    def record(self) -> dict[str, Any]:
        """Return what the meta server says of the group; as good as nothing while it is away."""
        with contextlib.suppress(OSError, ValueError):
            found = self._ask(self.meta_http, "/api/v1/topology")["delay_groups"]
            for group in found:
                if group["name"] == GROUP:
                    return dict(group)
        return {"in_sync": [], "master": None, "epoch": 0}

    def status(self, node: Node) -> dict[str, Any]:
        """Return what a node says of itself; nothing while it is away."""
        try:
            return self._ask(node.place.address("http"), "/status")
        except (OSError, ValueError):
            return {}

    def _ask(self, address: str, path: str) -> dict[str, Any]:
        shown = {"Authorization": f"Bearer {self._token}"}
        request = urllib.request.Request(f"http://{address}{path}", headers=shown)
        with urllib.request.urlopen(request, timeout=_ASK_S) as answer:  # noqa: S310
            found: dict[str, Any] = json.load(answer)
            return found

    def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until something holds; return whether it does."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def until_in_sync(self, *names: str, seconds: float = IN_SYNC_S) -> None:
        """Wait until just these are in sync; raise StuckError."""
        if not self.until(lambda: sorted(self.record()["in_sync"]) == sorted(names), seconds):
            raise StuckError(f"not in sync after {seconds:g} s: {names} of {self.record()}")

    def admin(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `delaywheel admin`."""
        return subprocess.run(
            [
                *(sys.executable, "-m", "delaywheel", "admin", "--meta", self.meta_http),
                *("--token-file", str(self.folder / "token"), *arguments),
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    # Who comes and goes.

    def start_meta(self) -> None:
        """Start the meta server; return when it is ready."""
        place = self._meta_place
        (self.folder / "meta").mkdir(exist_ok=True)
        self._meta = ServerProcess(
            self.folder / "meta" / "data",
            command="meta-server",
            options=(
                *("--listen", place.address("listen"), "--http", place.address("http")),
                *("--tokens", str(self.folder / "tokens.json")),
                *("--set", "registration.groups=open"),
            ),
            wrapper=place.wrapper,
        ).wait_ready()

    def kill_meta(self) -> None:
        """End the meta server by SIGKILL."""
        if self._meta is not None:
            self._meta.kill()

    def _start_producers(self) -> None:
        """Let producers send."""
        place = self.network.place("producers")
        for how, part in PRODUCERS:
            record = str(self.folder / f"sent-{how}")
            rate = str(self._rate * part)
            self._producers.append(
                self._client("sending", place, how, how, self.meta_http, record, rate)
            )

    def stop_producers(self) -> None:
        """Let producers end: everything that they sent has its outcome then."""
        self._end(self._producers)

    def stop_receivers(self) -> None:
        """Let receivers end."""
        self._end(self._receivers)

    def records(self, prefix: str) -> list[Path]:
        """Return the files in which somebody wrote down what he saw."""
        return sorted(self.folder.glob(f"{prefix}-*"))

    def begin(self, *, min_isr: int = 2) -> None:
        """Start everybody; return when all nodes are in sync and messages are sent."""
        self._make_token()
        self._stack.callback(self.kill_meta)
        self.start_meta()
        brokers = self.network.place("brokers")
        for name in BROKERS:
            self._broker(name, brokers)
        receivers = self.network.place("receivers")
        for backend in ("asyncio", "trio"):
            record = str(self.folder / f"received-{backend}")
            self._receivers.append(
                self._client("receiving", receivers, backend, self.meta_http, record)
            )
        for name in NODES:
            node = self._node(name)
            self._stack.callback(node.kill)
            node.start()
            self.until_in_sync(*self.nodes)
        done = self.admin("min-isr", GROUP, str(min_isr))
        if done.returncode:
            raise StuckError(f"min ISR is not set: {done.stderr}")
        self._start_producers()

    def _node(self, name: str) -> Node:
        folder = self.folder / name
        place = self.network.place(name)
        options: tuple[str, ...] = (
            *("--listen", place.address("listen"), "--http", place.address("http")),
            *("--meta", self.meta_http, "--group", GROUP, "--node-id", name),
        )
        if place.wrapper:
            options += ("--set", f"admin.token_file={self.folder / 'tokens.json'}")
        self.network.disk(folder / "disk")
        node = Node(place, folder, options, library=self._library)
        node.data.parent.mkdir()
        if self._cuts_power:
            node.write_journal()
        self.nodes[name] = node
        return node

    def _make_token(self) -> None:
        made = subprocess.run(
            [
                *(sys.executable, "-m", "delaywheel", "admin", "token", "add", "campaign"),
                *("--role", "admin", "--file", str(self.folder / "tokens.json")),
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        self._token = made.stdout.strip()
        (self.folder / "token").write_text(self._token + "\n", encoding="ascii")
        (self.folder / "token").chmod(0o600)

    def _broker(self, name: str, place: Place) -> None:
        self._spawn(
            name,
            *(*place.wrapper, sys.executable, "-m", "delaywheel", "broker", "--quiet"),
            *("--listen", place.address(name), "--meta", self.meta_http, "--group", name),
            *("--record", str(self.folder / f"delivered-{name}")),
        )

    def _client(self, module: str, place: Place, *arguments: str) -> subprocess.Popen[bytes]:
        name = f"{module}-{arguments[0]}"
        program = f"tests.failover_campaign.{module}"
        return self._spawn(name, *place.wrapper, sys.executable, "-m", program, *arguments)

    def _spawn(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        self._stack.callback(self._kill, child)
        return child

    def _kill(self, child: subprocess.Popen[bytes]) -> None:
        child.kill()
        child.wait(STOP_S)

    def _end(self, children: list[subprocess.Popen[bytes]]) -> None:
        for child in children:
            child.send_signal(signal.SIGTERM)
        for child in children:
            try:
                child.wait(STOP_S)
            except subprocess.TimeoutExpired:
                raise StuckError(f"{child.args!r} does not end on SIGTERM") from None
