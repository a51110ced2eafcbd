"""The demo: a day of boarding calls in a minute, two processes killed on the way, and an account.

Everything is a process of its own and talks through sockets: a meta server, two loopback real-time
brokers, each the master of a broker group, three delay servers of one group, and this program, the
producer and accountant. Whoever needs anybody is told the address of the meta server and no other:
brokers and delay servers register there, delay servers and the producer find the others there, and
there the broker groups get their weights, 3:1, by `delaywheel weight`.

    0     the day begins                 one delay server is the master, two copy what it keeps
    0.18  broker group heavy is killed   light takes everything; heavy is started again after 1/8
    0.5   an operator hands over         `delaywheel admin handover`
    0.62  the master is killed           the group elects another one by itself; when there is one,
                                         the killed one is started again
    1     the last message is due        the account

Both by SIGKILL. In the end all three delay servers are killed, each directory is read alone, and
Spark reconciles all three (processes of this machine do where there is no Java for it). Exit code 0
only if nothing acknowledged was lost or is missing in a directory, nothing was early, both broker
groups got about their share before and after, and the directories reconcile.
"""

import argparse
import csv
import datetime as dt
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio
from rich.console import Console
from rich.live import Live
from rich.table import Table

from delay_client import Client, ClientConfig, OutgoingMessage, Receipt
from examples.departures.account import NODES, Account, Reception, quantile
from examples.departures.processes import (
    DelayGroup,
    NotReadyError,
    Running,
    delay_group,
    free_address,
    http_address,
    now_ms,
    process,
    run_command,
)
from examples.departures.tables import print_account
from spark_tools.files.java import why_no_java

DATA: Final = Path(__file__).parent / "departures-2013-11-27.csv"
PAGE: Final = Path(__file__).parents[2] / "build" / "departures.html"
"""The page of the reconciliation; it is kept, other than logs and data."""

WEIGHTS: Final = {"heavy": 3, "light": 1}
TAKEN_DOWN: Final = "heavy"
"""The harder case: the other one must take four times its share at once, and then give it back."""

GROUP_KILLED_AT: Final = 0.18
GROUP_DOWN_FOR: Final = 0.125
HANDED_OVER_AT: Final = 0.5
MASTER_KILLED_AT: Final = 0.62
"""Moments and duration as parts of the played day."""

DELAY_GROUP: Final = "delay"
NODE_NAMES: Final = tuple(f"n{number + 1}" for number in range(NODES))

SPEED_MAX: Final = 1600.0
"""Beyond it too little of the day is left in which all is well: a lease lasts as long at any speed,
and on a busy machine it takes seconds to start a process."""

READY_SECONDS_MAX: Final = 30.0
"""For what was started to be known to the meta server."""

LOOK_SECONDS: Final = 0.2

SETTLE_SECONDS_MAX: Final = 30.0
LINE_SECONDS: Final = 5.0
"""Between two lines of progress where there is no terminal."""

LEAD_HOURS: Final = (2.0, 8.0)
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
        self._places = {name: free_address() for name in NODE_NAMES}
        self._nodes: dict[str, Running] = {}
        self._meta = ""
        """The HTTP address of the meta server; the system chooses it."""
        self.start_ms = 0
        """When the played day began."""
        self._day_s = max(call.due_ms for call in calls) / 1000
        self._processes = ExitStack()

    async def run(self) -> None:
        """Run all processes and the producer until everything is delivered; raise NotReadyError."""
        with self._processes:
            self._console.print("starting a meta server, two brokers and three delay servers")
            meta = await self._start(
                "meta-server", "--data", str(self._directory / "meta"),
                "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
            )  # fmt: skip
            self._meta = http_address(meta.ready)
            brokers = {name: await self._start_broker(name) for name in WEIGHTS}
            # The first one registers as the master; the others copy what it has.
            for name in NODE_NAMES:
                await self._start_server(name, gets_ready=name == NODE_NAMES[0])
            await self._until_registered()
            await self._set_weights()
            await self._until_in_sync()
            self.start_ms = now_ms()
            with Live(self._table(), console=self._console, refresh_per_second=4) as live:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._take_down, brokers[TAKEN_DOWN])
                    nursery.start_soon(self._show, live)
                    async with trio.open_nursery() as day:
                        day.start_soon(self._change_masters)
                        await self._produce()
                        await self._settle()
                    nursery.cancel_scope.cancel()
                live.update(self._table())
            await self._until_in_sync()
            await self._verify()
            await self._reconcile()

    async def _start(self, *arguments: str, log: str = "", gets_ready: bool = True) -> Running:
        """Run a delaywheel command until the end; return when it is ready, if it gets ready."""
        path = self._directory / f"{log or arguments[0]}.log"
        started = process(arguments, path, gets_ready=gets_ready)
        # In a thread: while one process starts, all else goes on.
        return await trio.to_thread.run_sync(self._processes.enter_context, started)

    async def _start_broker(self, name: str) -> Running:
        group = self._groups[name]
        return await self._start(
            "broker", "--listen", group.address, "--meta", self._meta, "--group", name,
            "--record", str(group.record), "--quiet", log=name,
        )  # fmt: skip

    async def _start_server(self, name: str, *, gets_ready: bool = False) -> None:
        """Start a delay server; a slave does not get ready, since it neither accepts nor sends."""
        self._nodes[name] = await self._start(
            "delay-server", "--data", str(self._data_of(name)), "--listen", self._places[name],
            "--http", "127.0.0.1:0", "--meta", self._meta, "--group", DELAY_GROUP,
            "--node-id", name, log=name, gets_ready=gets_ready,
        )  # fmt: skip

    def _data_of(self, name: str) -> Path:
        return self._directory / name

    async def _command(self, *arguments: str) -> str:
        return await trio.to_thread.run_sync(run_command, arguments)

    async def _until_registered(self) -> None:
        """Wait until the meta server knows both broker groups; raise NotReadyError."""
        with trio.move_on_after(READY_SECONDS_MAX):
            while True:
                said = await self._command(
                    "admin", "--meta", self._meta, "get", "broker-group", "--json"
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

    async def _group(self) -> DelayGroup:
        return await trio.to_thread.run_sync(delay_group, self._meta, DELAY_GROUP)

    async def _until_in_sync(self) -> None:
        """Wait until all delay servers have every acknowledged message; raise NotReadyError."""
        with trio.move_on_after(READY_SECONDS_MAX):
            while True:
                if (await self._group()).in_sync == set(NODE_NAMES):
                    return
                await trio.sleep(LOOK_SECONDS)
        logs = (self._directory / f"{name}.log" for name in NODE_NAMES)
        raise NotReadyError(
            f"not all delay servers were in sync within {READY_SECONDS_MAX:g} s:\n"
            + "".join(log.read_text(errors="replace") for log in logs)
        )

    async def _until_elected(self, dead: str) -> str:
        """Wait until the group has another master, as it elects by itself; return which."""
        with trio.fail_after(READY_SECONDS_MAX):
            while True:
                if (found := (await self._group()).master) not in {"", dead}:
                    return found
                await trio.sleep(LOOK_SECONDS)

    async def _change_masters(self) -> None:
        """Ask the master to hand over; later kill the next one, and bring it back."""
        await self._sleep_until(HANDED_OVER_AT)
        account, admin = self.account, ("admin", "--meta", self._meta)
        before = (await self._group()).master
        account.handover.begun_ms = self._note(f"an operator has {before} hand over")
        await self._command(*admin, "handover", DELAY_GROUP)
        master = (await self._group()).master
        account.handover.ended_ms = self._note(f"{master} is the master")

        await self._sleep_until(MASTER_KILLED_AT)
        await self._nodes[master].kill()
        killed_ms = self._note(f"{master}, the master, killed (SIGKILL)")
        account.takeover.begun_ms = account.node_outage.killed_ms = killed_ms
        account.takeover.ended_ms = self._note(f"{await self._until_elected(master)} is elected")

        account.node_outage.started_ms = self._note(f"{master} started again")
        await self._start_server(master)
        await self._until_in_sync()
        account.node_outage.ready_ms = self._note(f"{master} back in sync")

    async def _take_down(self, broker: Running) -> None:
        """Kill the broker of a group and start it again, once."""
        await self._sleep_until(GROUP_KILLED_AT)
        outage = self.account.group_outage
        await broker.kill()
        outage.killed_ms = self._note(f"broker group {TAKEN_DOWN} killed (SIGKILL)")
        await self._sleep_until(GROUP_KILLED_AT + GROUP_DOWN_FOR)
        outage.started_ms = now_ms()
        await self._start_broker(TAKEN_DOWN)
        away_s = (now_ms() - outage.killed_ms) / 1000
        outage.ready_ms = self._note(f"broker group {TAKEN_DOWN} back after {away_s:.1f} s")

    async def _verify(self) -> None:
        """Kill all delay servers, and read what each of their directories has."""
        for node in self._nodes.values():
            await node.kill()
        for name in NODE_NAMES:
            log = self._data_of(name) / "message_log"
            said = await self._command("log", "dump", str(log))
            batches = [json.loads(line) for line in said.splitlines()]
            self.account.disks[name] = {
                message_id
                for batch in batches
                if batch.get("kind") == "MESSAGE"
                for message_id in batch["message_ids"]
            }

    async def _reconcile(self) -> None:
        """Prove from the three directories what became of every message, and make the page."""
        no_java = await trio.to_thread.run_sync(why_no_java, os.environ)
        engine = "spark" if no_java is None else "local"
        lines = [
            "",
            *filter(None, [no_java]),
            f"reconciling the three directories: --engine {engine}",
        ]
        self._console.print(*lines, sep="\n", soft_wrap=True, markup=False)
        roots = [word for name in NODE_NAMES for word in ("--root", str(self._data_of(name)))]
        PAGE.parent.mkdir(exist_ok=True)
        try:
            # Nothing runs any more, so what has no outcome by now is lost.
            said = await self._command(
                *("spark", "reconcile", "--engine", engine, "--final", "--grace-ms", "0"),
                *("--page", str(PAGE), *roots),
            )
        except NotReadyError as error:
            self.account.reconciliation = str(error)
        else:
            self.account.is_reconciled = True
            self.account.reconciliation = f"{said}the page: {PAGE}"

    async def _sleep_until(self, part: float) -> None:
        """Sleep until so much of the day has been played."""
        await trio.sleep(max(self.start_ms / 1000 + part * self._day_s - time.time(), 0))

    async def _produce(self) -> None:
        config = ClientConfig(timeout_s=30.0)
        async with Client(meta=self._meta, config=config) as client, trio.open_nursery() as nursery:
            for call in self._calls:
                wait_s = (self.start_ms + call.send_ms) / 1000 - time.time()
                if wait_s > 0:
                    await trio.sleep(wait_s)
                nursery.start_soon(self._send, client, call)

    async def _send(self, client: Client, call: Call) -> None:
        self.account.sent += 1
        due_ms = self.start_ms + call.due_ms
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
            self.account.answered_ms.append(now_ms())
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
        moment_s = (now_ms() - self.start_ms) / 1000
        self._console.print(f"{moment_s:5.1f} s  {line}", soft_wrap=True, markup=False)

    def _note(self, what: str) -> int:
        """Say what has happened, and enter it in the time line; return when that was."""
        moment_ms = now_ms()
        self.account.time_line.append((moment_ms, what))
        self._say(what)
        return moment_ms

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
        kept = print_account(demo.account, console, start_ms=demo.start_ms)
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
