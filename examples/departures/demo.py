"""The demo: a day of boarding calls in a minute, with a SIGKILL in the middle, and an account.

Everything is a process of its own and talks through sockets: a meta server, a loopback real-time
broker, a delay server, and this program, the producer and accountant. All find each other through
the meta server, whose address is the only one that anybody is given. Exit code 0 only if nothing
acknowledged was lost and nothing was early.
"""

import argparse
import csv
import datetime as dt
import json
import math
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio
from rich.console import Console
from rich.live import Live
from rich.table import Table

from delay_client import Client, ClientConfig, OutgoingMessage, Receipt

DATA = Path(__file__).parent / "departures-2013-11-27.csv"
DOWN_SECONDS = 1.0
SETTLE_SECONDS_MAX = 30.0
LINE_SECONDS = 5.0
"""Between two lines of progress where there is no terminal."""
LEAD_HOURS = (2.0, 8.0)
"""A boarding call is asked for this many hours of the played day ahead."""


@dataclass(frozen=True, slots=True)
class Call:
    """One boarding call of the played day."""

    message_id: str
    flight: str
    origin: str
    destination: str
    scheduled: str
    due_ms: int
    send_ms: int


@dataclass(slots=True)
class Account:
    """What the producer and the broker saw."""

    sent: int = 0
    acknowledged: dict[str, int] = field(default_factory=dict)
    """Due time by message id."""
    failed: list[str] = field(default_factory=list)
    received: Counter[str] = field(default_factory=Counter)
    lateness_ms: list[int] = field(default_factory=list)
    early: int = 0
    downtime_ms: int = 0
    crashed: bool = False

    @property
    def lost(self) -> list[str]:
        """Acknowledged and never received."""
        return [name for name in self.acknowledged if name not in self.received]

    @property
    def twice(self) -> int:
        """Receptions beyond the first."""
        return sum(count - 1 for count in self.received.values())


def read_calls(path: Path, *, speed: float, start_ms: int, chance: random.Random) -> list[Call]:
    """Return the calls of the day, played from `start_ms` on, in the order they are sent."""
    with path.open(newline="", encoding="utf-8") as file:
        flights = list(csv.DictReader(file))
    times = [dt.datetime.fromisoformat(row["scheduled_departure"]) for row in flights]
    begin = min(times) - dt.timedelta(hours=LEAD_HOURS[0])
    calls = []
    for row, scheduled in zip(flights, times, strict=True):
        due_s = (scheduled - begin).total_seconds() / speed
        lead_s = chance.uniform(*LEAD_HOURS) * 3600 / speed
        calls.append(
            Call(
                message_id=f"{row['flight']}-{row['origin']}-{scheduled:%Y%m%dT%H%M}",
                flight=row["flight"],
                origin=row["origin"],
                destination=row["destination"],
                scheduled=row["scheduled_departure"],
                due_ms=start_ms + round(due_s * 1000),
                send_ms=start_ms + round(max(due_s - lead_s, 0) * 1000),
            )
        )
    return sorted(calls, key=lambda call: call.send_ms)


def free_port() -> int:
    """Return a loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True, slots=True)
class Running:
    """A child that is ready."""

    child: subprocess.Popen[str]
    ready: str
    """Its ready line, which says where it listens."""


@contextmanager
def process(*arguments: str, log: Path) -> Iterator[Running]:
    """Run a delaywheel command and wait for its ready line; stop it at the end."""
    with log.open("a", encoding="utf-8") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "delaywheel", *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        if not line.startswith("ready"):
            raise SystemExit(
                f"`delaywheel {arguments[0]}` did not get ready, see {log}:\n{log.read_text()}"
            )
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


def http_address(ready: str) -> str:
    """Return what a ready line says of the HTTP port."""
    return next(word for word in ready.split() if word.startswith("http=")).removeprefix("http=")


class Demo:
    """Plays the day and keeps the account."""

    def __init__(
        self, *, directory: Path, calls: list[Call], speed: float, console: Console
    ) -> None:
        self.account = Account()
        self._directory = directory
        self._calls = calls
        self._speed = speed
        self._console = console
        self._record = directory / "received.jsonl"
        self._read_to = 0
        # Kept across the restart: a node that lives elsewhere than it did is first a stranger.
        self._listen = f"127.0.0.1:{free_port()}"
        self._meta = ""
        """The HTTP address of the meta server; the system chooses it."""
        self._note = ""

    async def run(self) -> None:
        """Run meta server, broker, delay server and producer until everything is delivered."""
        with ExitStack() as processes:
            meta = processes.enter_context(
                process(
                    "meta-server", "--data", str(self._directory / "meta"),
                    "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
                    log=self._directory / "meta-server.log",
                )
            )  # fmt: skip
            self._meta = http_address(meta.ready)
            processes.enter_context(
                process(
                    "broker", "--listen", "127.0.0.1:0", "--meta", self._meta,
                    "--record", str(self._record), "--quiet",
                    log=self._directory / "broker.log",
                )
            )  # fmt: skip
            live = processes.enter_context(
                Live(self._table(), console=self._console, refresh_per_second=4)
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_server)
                nursery.start_soon(self._show, live)
                await self._produce()
                await self._settle()
                nursery.cancel_scope.cancel()
            live.update(self._table())

    async def _keep_server(self) -> None:
        """Run the delay server, kill it half way through the day, start it again."""
        last_due_s = max(call.due_ms for call in self._calls) / 1000
        first_s = time.time()
        with self._server() as server:
            await trio.sleep((last_due_s - first_s) / 2)
            self._note = "SIGKILL!"
            server.child.kill()
            killed = time.monotonic()
            await trio.to_thread.run_sync(server.child.wait)
        await trio.sleep(DOWN_SECONDS)
        self._note = "starting again"
        with self._server():
            self.account.downtime_ms = round((time.monotonic() - killed) * 1000)
            self.account.crashed = True
            self._note = f"was down for {self.account.downtime_ms / 1000:.1f} s"
            await trio.sleep_forever()

    def _server(self) -> AbstractContextManager[Running]:
        return process(
            "delay-server", "--data", str(self._directory / "data"), "--listen", self._listen,
            "--meta", self._meta, "--http", "127.0.0.1:0",
            log=self._directory / "delay-server.log",
        )  # fmt: skip

    async def _produce(self) -> None:
        config = ClientConfig(timeout_s=30.0)
        async with Client(meta=self._meta, config=config) as client, trio.open_nursery() as nursery:
            for call in self._calls:
                wait_s = call.send_ms / 1000 - time.time()
                if wait_s > 0:
                    await trio.sleep(wait_s)
                nursery.start_soon(self._send, client, call)

    async def _send(self, client: Client, call: Call) -> None:
        self.account.sent += 1
        message = OutgoingMessage(
            subject=f"boarding.{call.origin}",
            body={
                "flight": call.flight,
                "destination": call.destination,
                "scheduled": call.scheduled,
            },
            at=dt.datetime.fromtimestamp(call.due_ms / 1000, dt.UTC),
            message_id=call.message_id,
        )
        (outcome,) = await client.send_many([message])
        if isinstance(outcome, Receipt):
            self.account.acknowledged[call.message_id] = call.due_ms
        else:
            self.account.failed.append(f"{call.message_id}: {outcome}")

    async def _settle(self) -> None:
        """Wait for what is still to come, for a bounded time."""
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        last_due_s = max(call.due_ms for call in self._calls) / 1000
        await trio.sleep(max(last_due_s - time.time(), 0))
        while self.account.lost and time.monotonic() < deadline:
            await trio.sleep(0.1)
            self._read_record()
        await trio.sleep(1.0)  # What is delivered twice would come now.
        self._read_record()

    async def _show(self, live: Live) -> None:
        """Show progress: a live table on a terminal, a line now and then elsewhere."""
        while True:
            self._read_record()
            live.update(self._table())
            if self._console.is_terminal:
                await trio.sleep(0.25)
            else:
                self._console.print(self._line())
                await trio.sleep(LINE_SECONDS)

    def _line(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self._numbers().items() if value)

    def _numbers(self) -> dict[str, str]:
        """Return what there is to see at this moment."""
        account, now_ms = self.account, time.time() * 1000
        due = sum(1 for when in account.acknowledged.values() if when <= now_ms)
        delivered = len(account.received)
        last = account.lateness_ms[-200:]
        return {
            "accepted": str(len(account.acknowledged)),
            "pending": str(len(account.acknowledged) - delivered),
            "due": str(due),
            "delivered": str(delivered),
            "lateness p50": f"{quantile(last, 0.5)} ms" if last else "",
            "delay server": self._note or "running",
        }

    def _read_record(self) -> None:
        if not self._record.exists():
            return
        with self._record.open(encoding="utf-8") as file:
            file.seek(self._read_to)
            while (line := file.readline()).endswith("\n"):
                self._read_to = file.tell()
                self._count(json.loads(line))

    def _count(self, record: dict[str, object]) -> None:
        lateness = int(str(record["received_ms"])) - int(str(record["due_ms"]))
        self.account.received[str(record["message_id"])] += 1
        self.account.lateness_ms.append(lateness)
        self.account.early += lateness < 0

    def _table(self) -> Table:
        table = Table(title=f"27 November 2013, {self._speed:g} times faster")
        numbers = self._numbers()
        for name in numbers:
            table.add_column(name, justify="right")
        table.add_row(*numbers.values())
        return table


def quantile(values: list[int], share: float) -> int:
    """Return the smallest value that at least this share of the values does not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def print_account(account: Account, console: Console) -> bool:
    """Print the account; return whether the promises were kept."""
    table = Table(title="Account", show_header=False)
    lateness = account.lateness_ms
    rows = {
        "sent": account.sent,
        "acknowledged": len(account.acknowledged),
        "failed": len(account.failed),
        "delivered": len(account.received),
        "lost": len(account.lost),
        "delivered twice": account.twice,
        "early": account.early,
        "delay server down (SIGKILL)": f"{account.downtime_ms} ms",
    }
    if lateness:
        rows["lateness p50"] = f"{quantile(lateness, 0.5)} ms"
        rows["lateness p99"] = f"{quantile(lateness, 0.99)} ms"
        rows["lateness max"] = f"{max(lateness)} ms"
    console.print()
    for name, value in rows.items():
        table.add_row(name, str(value))
    console.print(table)
    for line in account.failed[:10]:
        console.print(f"failed: {line}")
    for name in account.lost[:10]:
        console.print(f"lost: {name}")
    return not account.lost and not account.early and not account.failed and account.crashed


def main() -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--speed", type=float, default=1440.0, help="times faster than it was")
    parser.add_argument("--seed", type=int, default=2013, help="of the moments of sending")
    parser.add_argument("--keep", action="store_true", help="keep logs and data directory")
    options = parser.parse_args()
    console = Console()
    directory = Path(tempfile.mkdtemp(prefix="delaywheel-demo-"))
    start_ms = round(time.time() * 1000) + 1500
    chance = random.Random(options.seed)
    calls = read_calls(DATA, speed=options.speed, start_ms=start_ms, chance=chance)
    demo = Demo(directory=directory, calls=calls, speed=options.speed, console=console)
    try:
        trio.run(demo.run)
        kept = print_account(demo.account, console)
    finally:
        if options.keep:
            console.print(f"kept {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    console.print("all promises kept" if kept else "PROMISES BROKEN")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
