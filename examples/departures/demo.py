"""The demo: a day of boarding calls in a minute, two processes killed on the way, and an account.

Everything is a process of its own and talks through sockets: a meta server, two loopback real-time
brokers, each the master of a broker group, a delay server, and this program, the producer and
accountant. Whoever needs anybody is told the address of the meta server and no other: the brokers
and the delay server register there, the delay server and the producer find the others there, and
there the groups get their weights, 3:1, by `delaywheel weight`.

    0    the day begins                 all is well
    1/5  the delay server is killed     and started again after a second
    9/20 broker group heavy is killed   light takes everything; heavy is started again after 1/8
    1    the last message is due        the account

Both by SIGKILL. Exit code 0 only if nothing acknowledged was lost, nothing was early, and both
groups got about their share before and after.
"""

import argparse
import csv
import datetime as dt
import json
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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio
from rich.console import Console
from rich.live import Live
from rich.table import Table

from delay_client import Client, ClientConfig, OutgoingMessage, Receipt
from examples.departures.account import RETURN_MS, Account, Outage, Phase, Reception, quantile

DATA: Final = Path(__file__).parent / "departures-2013-11-27.csv"

WEIGHTS: Final = {"heavy": 3, "light": 1}
TAKEN_DOWN: Final = "heavy"
"""The harder case: the other one must take four times its share at once, and then give it back."""

SERVER_KILLED_AT: Final = 0.2
GROUP_KILLED_AT: Final = 0.45
GROUP_DOWN_FOR: Final = 0.125
"""Moments and duration as parts of the played day."""

SERVER_DOWN_SECONDS: Final = 1.0

SPEED_MAX: Final = 2000.0
"""Beyond it too little of the day is left when the group has its share again, on a busy machine on
which it takes seconds to start a process."""

READY_SECONDS_MAX: Final = 30.0
"""For what was started to be known to the meta server."""

LOOK_SECONDS: Final = 0.2

COMMAND_SECONDS_MAX: Final = 60.0

SETTLE_SECONDS_MAX: Final = 30.0
LINE_SECONDS: Final = 5.0
"""Between two lines of progress where there is no terminal."""

LEAD_HOURS: Final = (2.0, 8.0)
"""A boarding call is asked for this many hours of the played day ahead."""


class NotReadyError(Exception):
    """A process did not start, or a command failed; says which, and what it wrote."""


@dataclass(frozen=True, slots=True)
class Call:
    """One boarding call of the played day."""

    message_id: str
    flight: str
    origin: str
    destination: str
    scheduled: str
    due_ms: int
    """After the begin of the played day, as `send_ms`."""
    send_ms: int


def read_calls(path: Path, *, speed: float, chance: random.Random) -> list[Call]:
    """Return the calls of the day, played so much faster than it was, in the order of sending."""
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
                due_ms=round(due_s * 1000),
                send_ms=round(max(due_s - lead_s, 0) * 1000),
            )
        )
    return sorted(calls, key=lambda call: call.send_ms)


def free_address() -> str:
    """Return a loopback address where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def now_ms() -> int:
    """Return the wall ms."""
    return round(time.time() * 1000)


@dataclass(frozen=True, slots=True)
class Running:
    """A child that is ready."""

    child: subprocess.Popen[str]
    ready: str
    """Its ready line, which says where it listens."""

    async def kill(self) -> None:
        """Send it SIGKILL; return when it is gone."""
        self.child.kill()
        await trio.to_thread.run_sync(self.child.wait)


@contextmanager
def process(arguments: tuple[str, ...], log: Path) -> Iterator[Running]:
    """Run a delaywheel command and wait for its ready line; stop it at the end."""
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
        line = child.stdout.readline()
        if not line.startswith("ready"):
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


def http_address(ready: str) -> str:
    """Return what a ready line says of the HTTP port."""
    return next(word for word in ready.split() if word.startswith("http=")).removeprefix("http=")


@dataclass(slots=True)
class BrokerGroup:
    """A broker group: one process, and the file in which it writes down what it receives."""

    name: str
    record: Path
    address: str = field(default_factory=free_address)
    """Where it listens, also when it comes back: nobody is told, but a meta server lets a group
    that died move only when it has been silent for a while."""
    read_to: int = 0
    """Position in the record."""

    def new_receptions(self) -> Iterator[Reception]:
        """Yield what came since the last time."""
        if not self.record.exists():
            return
        with self.record.open(encoding="utf-8") as file:
            file.seek(self.read_to)
            while (line := file.readline()).endswith("\n"):
                self.read_to = file.tell()
                found = json.loads(line)
                yield Reception(
                    found["message_id"], self.name, found["due_ms"], found["received_ms"]
                )


class Demo:
    """Plays the day and keeps the account."""

    def __init__(
        self, *, directory: Path, calls: list[Call], speed: float, console: Console
    ) -> None:
        self.account = Account(weights=WEIGHTS, taken_down=TAKEN_DOWN)
        self._directory = directory
        self._calls = calls
        self._speed = speed
        self._console = console
        self._groups = {name: BrokerGroup(name, directory / f"{name}.jsonl") for name in WEIGHTS}
        # Kept across the restart: a node that lives elsewhere than it did is first a stranger.
        self._listen = free_address()
        self._meta = ""
        """The HTTP address of the meta server; the system chooses it."""
        self._start_ms = 0
        """When the played day began."""
        self._day_s = max(call.due_ms for call in calls) / 1000
        self._processes = ExitStack()

    async def run(self) -> None:
        """Run all processes and the producer until everything is delivered; raise NotReadyError."""
        with self._processes:
            self._console.print("starting a meta server, two broker groups and a delay server")
            meta = await self._start(
                "meta-server", "--data", str(self._directory / "meta"),
                "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
            )  # fmt: skip
            self._meta = http_address(meta.ready)
            brokers = {name: await self._start_broker(name) for name in WEIGHTS}
            server = await self._start_server()
            await self._until_registered()
            await self._set_weights()
            self._start_ms = now_ms()
            with Live(self._table(), console=self._console, refresh_per_second=4) as live:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._kill_server, server)
                    nursery.start_soon(self._take_down, brokers[TAKEN_DOWN])
                    nursery.start_soon(self._show, live)
                    await self._produce()
                    await self._settle()
                    nursery.cancel_scope.cancel()
                live.update(self._table())

    async def _start(self, *arguments: str, log: str = "") -> Running:
        """Run a delaywheel command until the end; return when it is ready."""
        path = self._directory / f"{log or arguments[0]}.log"
        # In a thread: while one process starts, all else goes on.
        return await trio.to_thread.run_sync(
            self._processes.enter_context, process(arguments, path)
        )

    async def _start_broker(self, name: str) -> Running:
        group = self._groups[name]
        return await self._start(
            "broker", "--listen", group.address, "--meta", self._meta, "--group", name,
            "--record", str(group.record), "--quiet", log=name,
        )  # fmt: skip

    async def _start_server(self) -> Running:
        return await self._start(
            "delay-server", "--data", str(self._directory / "data"), "--listen", self._listen,
            "--http", "127.0.0.1:0", "--meta", self._meta,
        )  # fmt: skip

    async def _command(self, *arguments: str) -> str:
        return await trio.to_thread.run_sync(run_command, arguments)

    async def _until_registered(self) -> None:
        """Wait until the meta server knows both broker groups; raise NotReadyError."""
        with trio.move_on_after(READY_SECONDS_MAX):
            while True:
                said = await self._command(
                    "admin", "--meta", self._meta, "broker-group", "list", "--json"
                )
                names = {json.loads(line)["name"] for line in said.splitlines()}
                if names >= WEIGHTS.keys():
                    return
                await trio.sleep(LOOK_SECONDS)
        raise NotReadyError(
            f"the broker groups did not register within {READY_SECONDS_MAX:g} s:\n"
            + "".join(
                (self._directory / f"{name}.log").read_text(errors="replace") for name in WEIGHTS
            )
        )

    async def _set_weights(self) -> None:
        """Say at the meta server what share each group is to have; the delay server follows."""
        for name, weight in WEIGHTS.items():
            said = await self._command(
                "weight", "--meta", self._meta, "--group", name, "--weight", str(weight)
            )
            self._console.print(said.strip().replace("\n", ", "), soft_wrap=True, markup=False)

    async def _kill_server(self, server: Running) -> None:
        """Kill the delay server and start it again, once."""
        await self._sleep_until(SERVER_KILLED_AT)
        self._say("delay server killed (SIGKILL)")
        outage = self.account.server_outage
        await server.kill()
        outage.killed_ms = now_ms()
        await trio.sleep(SERVER_DOWN_SECONDS)
        outage.started_ms = now_ms()
        await self._start_server()
        outage.ready_ms = now_ms()
        self._say(f"delay server back after {(outage.ready_ms - outage.killed_ms) / 1000:.1f} s")

    async def _take_down(self, broker: Running) -> None:
        """Kill the broker of a group and start it again, once."""
        await self._sleep_until(GROUP_KILLED_AT)
        self._say(f"broker group {TAKEN_DOWN} killed (SIGKILL)")
        outage = self.account.group_outage
        await broker.kill()
        outage.killed_ms = now_ms()
        await self._sleep_until(GROUP_KILLED_AT + GROUP_DOWN_FOR)
        outage.started_ms = now_ms()
        await self._start_broker(TAKEN_DOWN)
        outage.ready_ms = now_ms()
        away_s = (outage.ready_ms - outage.killed_ms) / 1000
        self._say(f"broker group {TAKEN_DOWN} back after {away_s:.1f} s")

    async def _sleep_until(self, part: float) -> None:
        """Sleep until so much of the day has been played."""
        await trio.sleep(max(self._start_ms / 1000 + part * self._day_s - time.time(), 0))

    async def _produce(self) -> None:
        config = ClientConfig(timeout_s=30.0)
        async with Client(meta=self._meta, config=config) as client, trio.open_nursery() as nursery:
            for call in self._calls:
                wait_s = (self._start_ms + call.send_ms) / 1000 - time.time()
                if wait_s > 0:
                    await trio.sleep(wait_s)
                nursery.start_soon(self._send, client, call)

    async def _send(self, client: Client, call: Call) -> None:
        self.account.sent += 1
        due_ms = self._start_ms + call.due_ms
        message = OutgoingMessage(
            subject=f"boarding.{call.origin}",
            body={
                "flight": call.flight,
                "destination": call.destination,
                "scheduled": call.scheduled,
            },
            at=dt.datetime.fromtimestamp(due_ms / 1000, dt.UTC),
            message_id=call.message_id,
        )
        (outcome,) = await client.send_many([message])
        if isinstance(outcome, Receipt):
            self.account.acknowledged[call.message_id] = due_ms
        else:
            self.account.failed.append(f"{call.message_id}: {outcome}")

    async def _settle(self) -> None:
        """Wait for what is still to come, for a bounded time."""
        await self._sleep_until(1.0)
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while self.account.lost and time.monotonic() < deadline:
            await trio.sleep(0.1)
            self._read_records()
        await trio.sleep(1.0)  # What is delivered twice would come now.
        self._read_records()

    async def _show(self, live: Live) -> None:
        """Show progress: a live table on a terminal, a line now and then elsewhere."""
        while True:
            self._read_records()
            live.update(self._table())
            if self._console.is_terminal:
                await trio.sleep(0.25)
            else:
                numbers = ", ".join(f"{name} {value}" for name, value in self._numbers().items())
                self._say(numbers)
                await trio.sleep(LINE_SECONDS)

    def _say(self, line: str) -> None:
        """Print a line with the moment of the played day."""
        moment_s = (now_ms() - self._start_ms) / 1000
        self._console.print(f"{moment_s:5.1f} s  {line}", soft_wrap=True)

    def _numbers(self) -> dict[str, str]:
        """Return what there is to see at this moment."""
        account, moment_ms = self.account, now_ms()
        due = sum(1 for when in account.acknowledged.values() if when <= moment_ms)
        last = [reception.lateness_ms for reception in account.receptions[-200:]]
        got = Counter(reception.group for reception in account.receptions)
        return {
            "accepted": str(len(account.acknowledged)),
            "due": str(due),
            "delivered": str(len(account.received)),
            **{f"to {group}": str(got[group]) for group in WEIGHTS},
            "lateness p50": f"{quantile(last, 0.5)} ms" if last else "-",
        }

    def _read_records(self) -> None:
        for group in self._groups.values():
            for reception in group.new_receptions():
                self.account.receive(reception)

    def _table(self) -> Table:
        table = Table(title=f"27 November 2013, {self._speed:g} times faster")
        numbers = self._numbers()
        for name in numbers:
            table.add_column(name, justify="right")
        table.add_row(*numbers.values())
        return table


def group_table(account: Account) -> Table:
    """Return what each broker group got."""
    table = Table(title="What each broker group got")
    table.add_column("")
    for group in account.weights:
        table.add_column(group, justify="right")
    table.add_row(
        "weight",
        *(f"{weight}  {account.deserved(group):6.1%}" for group, weight in account.weights.items()),
    )
    back_s = f"{RETURN_MS / 1000:g} s"
    words = {
        Phase.BEFORE: "before",
        Phase.RESTART: f"delay server down, and {back_s} on",
        Phase.DOWN: f"{account.taken_down} down",
        Phase.RETURN: f"{account.taken_down} started, and {back_s} on",
        Phase.AFTER: "after",
    }
    for phase, name in words.items():
        got = account.got(phase)
        total = max(sum(got.values()), 1)
        table.add_row(name, *(f"{count}  {count / total:6.1%}" for count in got.values()))
    table.add_section()
    table.add_row("distinct messages", *map(str, account.distinct().values()))
    table.add_row("delivered twice", *map(str, account.twice().values()))
    return table


def lasted(outage: Outage) -> str:
    """Return how long a process was away, for people."""
    return "never" if outage.lasted_ms is None else f"{outage.lasted_ms} ms"


def total_table(account: Account) -> Table:
    """Return what became of everything."""
    table = Table(title="Account", show_header=False)
    rows = {
        "sent": str(account.sent),
        "acknowledged": str(len(account.acknowledged)),
        "failed": str(len(account.failed)),
        "delivered": str(len(account.received)),
        "lost": str(len(account.lost)),
        "delivered twice": str(sum(account.twice().values())),
        "early": str(account.early),
        "delay server down (SIGKILL)": lasted(account.server_outage),
        f"broker group {account.taken_down} down (SIGKILL)": lasted(account.group_outage),
    }
    if lateness := account.lateness_ms():
        rows["lateness p50"] = f"{quantile(lateness, 0.5)} ms"
        rows["lateness p99"] = f"{quantile(lateness, 0.99)} ms"
        rows["lateness max"] = f"{max(lateness)} ms"
    if lateness := account.lateness_ms(Phase.DOWN):
        rows[f"lateness max while {account.taken_down} was down"] = f"{max(lateness)} ms"
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def print_account(account: Account, console: Console) -> bool:
    """Print the account; return whether the promises were kept."""
    console.print()
    console.print(group_table(account))
    console.print(total_table(account))
    faults = account.broken()
    for fault in faults:
        console.print(fault, markup=False, soft_wrap=True)
    console.print("PROMISES BROKEN" if faults else "all promises kept")
    return not faults


def speed(text: str) -> float:
    """Return a speed that leaves time for everything that is to happen; raise ArgumentTypeError."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= SPEED_MAX:
        raise argparse.ArgumentTypeError(f"must be above 0, and {SPEED_MAX:g} at the most")
    return found


def main() -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--speed", type=speed, default=1440.0, help="times faster than it was")
    parser.add_argument("--seed", type=int, default=2013, help="of the moments of sending")
    parser.add_argument("--keep", action="store_true", help="keep logs and data directory")
    options = parser.parse_args()
    console = Console()
    directory = Path(tempfile.mkdtemp(prefix="delaywheel-demo-"))
    calls = read_calls(DATA, speed=options.speed, chance=random.Random(options.seed))
    demo = Demo(directory=directory, calls=calls, speed=options.speed, console=console)
    code, keep = 1, True
    try:
        trio.run(demo.run)
        kept = print_account(demo.account, console)
        code, keep = (0, options.keep) if kept else (1, True)
    except* KeyboardInterrupt:
        code, keep = 130, options.keep
        console.print("\ninterrupted")
    except* NotReadyError as errors:
        # Ctrl-C ends the children too.
        if code == 1:
            console.print(f"\n{errors.exceptions[0]}", markup=False, soft_wrap=True)
    finally:
        if keep:
            console.print(f"logs and data are kept in {directory}", soft_wrap=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
