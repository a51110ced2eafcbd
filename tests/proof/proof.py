"""The proof, step by step: real departures through a real server that is killed in the middle.

    played       everything that was acknowledged is delivered, and reconciles to nothing wrong
    taken out    exactly what was taken out of the logs by hand is found: lost, or missing
    repaired     it is sent again, by a repair that is killed in the middle, and delivered again
    reconciled   with the audit of the repair nothing is wrong

Every step asserts what it must have come to. Who is believed: the broker's own record of what it
was given, and the producer's receipts; reconciling is told of neither.
"""

import datetime as dt
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import anyio
import anyio.to_thread
import pyarrow.parquet as pq

from delay_client import Client, ClientConfig, OutgoingMessage, Receipt
from spark_tools.repaired.repair_audit import read_audit
from storage.batch.batches import Damage
from storage.disk.disk import DirectoryDisk
from storage.readers.arrow import ArrowReader, Kind
from storage.readers.manifest import Manifest
from tests.processes.real_processes import ROOT
from tests.proof.departures import Call
from tests.proof.node import Node
from tests.proof.taking_out import take_out

_TICK_S: Final = 0.05
_DOWN_S: Final = 0.5
"""For so long the server is dead."""
_COMMAND_S: Final = 300.0


@dataclass(slots=True)
class Figures:
    """What a proof came to."""

    accepted: int = 0
    """Rows: a message whose answer the kill has swallowed was sent twice."""
    resent: int = 0
    delivered_twice: int = 0
    lost: int = 0
    missing: int = 0
    sent_before_kill: int = 0
    """Messages that had an answer in the audit when the repair was killed."""
    sent_twice: int = 0
    """Others that had been delivered by then, and were sent once more."""
    segments: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def shown(self) -> dict[str, str]:
        """Return names and values for people."""
        counts = {
            "rows accepted": self.accepted,
            "of them sent twice by the client": self.resent,
            "sealed segments": self.segments,
            "delivered twice": self.delivered_twice,
            "taken out: lost": self.lost,
            "taken out: missing": self.missing,
            "answered when the repair was killed": self.sent_before_kill,
            "others sent once more": self.sent_twice,
        }
        times = {f"seconds: {name}": f"{seconds:.1f}" for name, seconds in self.seconds.items()}
        return {name: f"{count:,}" for name, count in counts.items()} | times


class Proof:
    """One run of it, in a directory of its own."""

    def __init__(self, node: Node, calls: Sequence[Call], *, seed: int) -> None:
        self._node = node
        self._calls = calls
        self._chance = random.Random(seed)
        self._directory = node.directory
        self._acknowledged: dict[str, Receipt] = {}
        self._wanted: Counter[str] = Counter()
        """How often each message must have been delivered at least."""
        self._lost: dict[int, str] = {}
        """What is taken out, by sequence."""
        self._missing: dict[int, str] = {}
        self._audit = node.directory / "repairs.jsonl"
        self._details = node.directory / "details"
        self.figures = Figures()

    # -- played ------------------------------------------------------------------------------

    def play(self) -> None:
        """Have all calls sent and delivered; the server is killed in the middle."""
        began = time.monotonic()
        self._node.start()
        anyio.run(self._play)
        assert self._acknowledged.keys() == {call.message_id for call in self._calls}
        self._wanted = Counter(dict.fromkeys(self._acknowledged, 1))
        self._node.until_received(self._wanted, seconds=60)
        self.figures.segments = len(self._node.until_sealed(len(self._calls), seconds=60).sealed)
        self._node.stop()
        assert self._node.early == 0
        assert self._node.received.keys() == self._wanted.keys()
        self.figures.delivered_twice = sum(count - 1 for count in self._node.received.values())
        self.figures.seconds["play"] = time.monotonic() - began

    async def _play(self) -> None:
        node = self._node
        begin_ms = node.clock.now_ms()
        lasts_s = max(call.due_ms for call in self._calls) / 1000 / node.rate
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._kill_in_the_middle, lasts_s / 2)
            async with Client([node.address], config=ClientConfig(timeout_s=60)) as client:
                rest = list(reversed(self._calls))
                while rest:
                    now_ms = node.clock.now_ms() - begin_ms
                    some = []
                    while rest and rest[-1].send_ms <= now_ms:
                        some.append(_message(rest.pop(), begin_ms))
                    for outcome in await client.send_many(some):
                        assert isinstance(outcome, Receipt), outcome
                        self._acknowledged[outcome.message_id] = outcome
                    await anyio.sleep(_TICK_S)

    async def _kill_in_the_middle(self, after_s: float) -> None:
        await anyio.sleep(after_s)
        await anyio.to_thread.run_sync(self._node.kill)
        await anyio.sleep(_DOWN_S)
        await anyio.to_thread.run_sync(self._node.start)

    # -- reconciled --------------------------------------------------------------------------

    def reconcile(self, name: str, *options: str, code: int) -> dict[str, Any]:
        """Reconcile; return the result. It must end with this code."""
        began = time.monotonic()
        output = self._directory / f"{name}.json"
        self._command(
            *(
                "reconcile",
                "--engine",
                "local",
                "--root",
                str(self._node.data),
                "--output",
                str(output),
            ),
            *("--page", str(output.with_suffix(".html")), *options),
            code=code,
        )
        self.figures.seconds[name] = time.monotonic() - began
        result: dict[str, Any] = json.loads(output.read_bytes())
        assert result["exit_code"] == code
        assert result["complete"]
        return result

    def check_clean(self) -> None:
        """Nothing is wrong with what was played."""
        [group] = self.reconcile("played", code=0)["groups"]
        states = group["states"]
        assert states["delivered"] == group["accepted"] == group["facts"]
        assert group["log"]["records"] == group["accepted"]
        assert group["early"] == 0
        self.figures.accepted = group["accepted"]
        self.figures.resent = group["accepted"] - len(self._acknowledged)

    # -- taken out ---------------------------------------------------------------------------

    def take_out(self, *, lost: int, missing: int) -> None:
        """Take so many out, and find exactly these."""
        ids = self._ids(self._node.manifest())
        chosen = self._chance.sample(sorted(ids), lost + missing)
        self._lost = {sequence: ids[sequence] for sequence in chosen[:lost]}
        self._missing = {sequence: ids[sequence] for sequence in chosen[lost:]}
        take_out(self._node.data, facts=self._lost, messages=self._missing)
        result = self.reconcile("taken-out", "--details", str(self._details), code=1)
        found = {name: count for name, count in result["findings"].items() if count}
        assert found == {"lost": lost, "missing": missing}, found
        rows = pq.read_table(self._details / "findings.parquet").to_pylist()
        named = {
            kind: {row["sequence"]: row["message_id"] for row in rows if row["class"] == kind}
            for kind in ("lost", "missing")
        }
        assert named == {"lost": self._lost, "missing": self._missing}
        self.figures.lost, self.figures.missing = lost, missing

    def _ids(self, manifest: Manifest) -> dict[int, str]:
        """Return the message ids of all sealed rows."""
        disk = DirectoryDisk(self._node.data)
        columns = ["sequence", "message_id"]
        ids: dict[int, str] = {}
        for one in manifest.sealed:
            reader = ArrowReader(disk, UUID(manifest.log_uuid), Kind.SCHEDULE, columns)
            for table in reader.rows(one.file, length=one.length):
                assert not isinstance(table, Damage)
                ids |= dict(zip(*(table[name].to_pylist() for name in columns), strict=True))
        return ids

    # -- repaired ----------------------------------------------------------------------------

    def repair(self, *, rate: int) -> None:
        """Send what was lost again, killed in the middle and resumed; have it delivered again."""
        began = time.monotonic()
        count = len(self._lost) + len(self._missing)
        said = self._repair(code=0)
        assert f"{count:,} messages to send" in said
        assert "nothing was sent" in said
        assert not self._audit.exists()
        # What it accepted minutes ago it would know, and not keep once more.
        self._node.start(**{"duplicates.window_ms": 0})
        self._kill_a_repair(rate, count)
        said = self._repair(*self._to(), "--rate", "100000", code=0)
        again = self._repair(*self._to(), code=0)
        assert "0 messages to send" in again
        assert f"left out: {count:,}" in again
        accepted = Counter(
            line.message_id
            for line in read_audit(self._audit)
            if line is not None and line.result == "accepted"
        )
        ids = {*self._lost.values(), *self._missing.values()}
        assert accepted.keys() == ids
        assert accepted.total() == count
        before = Counter(self._node.received)
        wanted = before + Counter([*self._lost.values(), *self._missing.values()])
        self._node.until_received(wanted, seconds=60)
        time.sleep(1.0)
        self._node.read()
        self.figures.sent_twice = (self._node.received - wanted).total()
        assert self.figures.sent_twice <= 500
        self._node.stop()
        self.figures.seconds["repair"] = time.monotonic() - began

    def _to(self) -> tuple[str, ...]:
        return "--server", self._node.address, "--audit", str(self._audit), "--send"

    def _repair(self, *options: str, code: int) -> str:
        return self._command(*self._repair_words(), *options, code=code)

    def _repair_words(self) -> tuple[str, ...]:
        root = str(self._node.data)
        return "repair", "--engine", "local", "--root", root, "--missing"

    def _kill_a_repair(self, rate: int, count: int) -> None:
        """Start a repair, and send it SIGKILL when about half of it is acknowledged."""
        process = subprocess.Popen(
            [*_DELAYWHEEL, *self._repair_words(), *self._to(), "--rate", str(rate)],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + 60
            while self._answers() < count // 2:
                assert process.poll() is None, "it was not killed: choose a lower rate"
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            process.kill()
        assert process.wait() == -signal.SIGKILL
        self.figures.sent_before_kill = self._answers()
        assert 0 < self.figures.sent_before_kill < count
        # As if the machine had died in the middle of a line.
        with self._audit.open("ab") as audit:
            audit.write(b'{"at_ms":17000000')

    def _answers(self) -> int:
        return len(list(read_audit(self._audit))) if self._audit.exists() else 0

    def check_repaired(self) -> None:
        """With the audit nothing is wrong."""
        lost, missing = len(self._lost), len(self._missing)
        options = ("--repairs", str(self._audit), "--final", "--grace-ms", "0")
        [group] = self.reconcile("repaired", *options, code=0)["groups"]
        states = group["states"]
        assert states["repaired"] == lost
        assert group["log"]["repaired"] == missing
        assert states["delivered"] + lost == group["accepted"]
        assert group["accepted"] >= self.figures.accepted + lost
        assert group["repairs"]["not_found"] == group["repairs"]["not_lost"] == 0

    def check_unrepaired(self) -> None:
        """Without the audit, what was taken out is still lost."""
        lost, missing = len(self._lost), len(self._missing)
        result = self.reconcile("unrepaired", "--final", "--grace-ms", "0", code=1)
        found = {name: count for name, count in result["findings"].items() if count}
        assert found == {"lost": lost, "missing": missing}

    def _command(self, *words: str, code: int) -> str:
        done = subprocess.run(
            [*_DELAYWHEEL, *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout


def _message(call: Call, begin_ms: int) -> OutgoingMessage:
    due = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(milliseconds=begin_ms + call.due_ms)
    return OutgoingMessage(call.subject, call.body, at=due, message_id=call.message_id)


_DELAYWHEEL: Final = (sys.executable, "-m", "delaywheel", "spark")
