"""One round: a data directory, the lives and deaths of the servers on it, and the reckoning.

After every restart the server must still know of everything that is owed, and what was due while it
was dead must come. At the end of the round the clock is set past the last due time: everything
acknowledged must have been delivered, and `delaywheel log verify` must find nothing.
"""

import contextlib
import http.client
import os
import random
import selectors
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from delaywheel.shared.failures import ExitCode
from tests.crash.disk_layer import Counts, DiskLayer
from tests.crash.launcher import Orders
from tests.crash.ledger import Death, Ledger
from tests.crash.life_clock import LifeClock
from tests.crash.plan import CYCLES_PER_ROUND, EIO, RATES, START_UP, STOPPED, UNDER_LOAD, Cycle
from tests.crash.points import POINTS
from tests.crash.producers import LoadingProducer
from tests.crash.stall_watch import StallWatch
from tests.ports import closed_port
from tests.processes.real_processes import READY, ROOT

_BEGIN_MS: Final = 1_795_262_400_000
"""The wall clock at the start of a round: 2026-11-21 12:00 UTC."""
_READY_S: Final = 30.0
_STOP_S: Final = 15.0
_OWED_S: Final = 15.0
"""For what was due before a start to be delivered after it."""
_ALL_S: Final = 60.0
"""For everything, at the end of a round."""
_GRACE_S: Final = 1.0
"""Beyond its time, for a point in the code to be reached."""
_VIOLATIONS_MAX: Final = 10


@dataclass(slots=True)
class Outcome:
    """What a round, or a whole campaign, came to."""

    cycles: int = 0
    reached: Counter[str] = field(default_factory=Counter)
    """Deaths by point."""
    missed: Counter[str] = field(default_factory=Counter)
    """Lives in which the point was not reached; they were killed under load."""
    cuts: int = 0
    acknowledged: int = 0
    refused: int = 0
    delivered: int = 0
    lost: int = 0
    early: int = 0
    twice: int = 0
    oldest_twice_s: float = 0.0
    window_s: float = 0.0
    """The longest that was allowed for that."""
    slowest_sync_s: float = 0.0
    ready_s: list[float] = field(default_factory=list)
    """Per life that got ready, seconds from the start of its process."""
    recovery_s: list[float] = field(default_factory=list)
    """Of these, what the server spent on its data directory."""
    tally: Counter[str] = field(default_factory=Counter)
    """What power cuts did."""
    violations: list[str] = field(default_factory=list)

    def add(self, other: "Outcome") -> None:
        """Add up."""
        self.cycles += other.cycles
        self.reached += other.reached
        self.missed += other.missed
        self.cuts += other.cuts
        self.acknowledged += other.acknowledged
        self.refused += other.refused
        self.delivered += other.delivered
        self.lost += other.lost
        self.early += other.early
        self.twice += other.twice
        self.oldest_twice_s = max(self.oldest_twice_s, other.oldest_twice_s)
        self.window_s = max(self.window_s, other.window_s)
        self.slowest_sync_s = max(self.slowest_sync_s, other.slowest_sync_s)
        self.ready_s += other.ready_s
        self.recovery_s += other.recovery_s
        self.tally += other.tally
        self.violations += other.violations


class Life:
    """One server process."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.began = time.monotonic()
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=os.environ | environment,
                stdout=subprocess.PIPE,
                stderr=out,
            )
        self.http = ""
        self.ready_s: float | None = None

    def wait_ready(self, seconds: float) -> bool:
        """Wait for the ready line; False if the process died or the time is over."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(max(seconds, 0)):
                return False
        match = READY.fullmatch(self.process.stdout.readline().decode())
        if match is None:
            return False
        self.ready_s = time.monotonic() - self.began
        self.http = match[3]
        return True

    def status(self) -> dict[str, Any] | None:
        """Ask for the status; None if the server is gone."""
        with (
            contextlib.suppress(OSError, http.client.HTTPException),
            urllib.request.urlopen(f"http://{self.http}/status", timeout=5) as answer,
        ):
            return msgspec.json.decode(answer.read(), type=dict[str, Any])
        return None

    def wait(self, seconds: float) -> int | None:
        """Wait for the end; return the exit code, None if there was none in time."""
        try:
            return self.process.wait(max(seconds, 0))
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """End it by SIGKILL and clean up; harmless if it is over."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Round:
    """Runs the cycles of one round in a directory of its own."""

    def __init__(
        self,
        directory: Path,
        *,
        name: str,
        library: Path | None,
        broken: str | None = None,
        tell: Callable[[str], None] = print,
    ) -> None:
        self.outcome = Outcome()
        self._name = name
        self._broken = broken
        self._tell = tell
        self._directory = directory
        self._disk = directory / "disk"
        self._data = self._disk / "data"
        self._disk.mkdir(parents=True)
        self._layer = DiskLayer(library, self._disk) if library else None
        self._clock_path = directory / "clock"
        self._orders_path = directory / "orders.json"
        self._report_path = directory / "hit"
        self._log_path = directory / "server.log"
        self._ledger = Ledger(record=directory / "deliveries")
        self._ledger.record.touch()
        self._clock = LifeClock(0, time.monotonic_ns(), _BEGIN_MS, 1)
        self._stalls = StallWatch(directory / "stall")
        self._broker_port = 0

    # -- the course of a round ---------------------------------------------------------------

    def run(self, cycles: list[Cycle]) -> Outcome:
        """Run all cycles and the reckoning, or up to the first violation."""
        self._clock.save(self._clock_path)
        with self._broker(), self._stalls:
            for cycle in cycles:
                self._cycle(cycle)
                self.outcome.cycles += 1
                if self.outcome.violations:
                    break
            else:
                self._reckon(random.Random(cycles[-1].seed if cycles else 0))
        self.outcome.acknowledged = len(self._ledger.acknowledged)
        self.outcome.delivered = len(self._ledger.first)
        self.outcome.early = self._ledger.early
        self.outcome.twice = self._ledger.twice
        self.outcome.oldest_twice_s = self._ledger.oldest_twice_s
        if self._layer is not None:
            self.outcome.tally = self._layer.tally
        return self.outcome

    @contextlib.contextmanager
    def _broker(self) -> Iterator[None]:
        broker = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.crash.recording_broker"),
                *(str(self._clock_path), str(self._ledger.record)),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert broker.stdin is not None
        assert broker.stdout is not None
        try:
            self._broker_port = int(broker.stdout.readline())
            yield
        finally:
            broker.stdin.close()
            broker.wait(5)
            broker.stdout.close()

    def _cycle(self, cycle: Cycle) -> None:
        owed = self._ledger.undelivered()
        acknowledged = len(self._ledger.acknowledged)
        twice = self._ledger.twice
        life, port = self._start(cycle)
        producers = [
            LoadingProducer(
                f"{cycle.round}.{cycle.number}.{at}", port, self._clock, self._ledger, cycle.seed
            )
            for at in range(cycle.producers)
        ]
        try:
            point, code = self._live(life, cycle, owed)
        finally:
            life.kill()
            died_ns = time.monotonic_ns()
            for producer in producers:
                producer.stop()
                self.outcome.refused += producer.refused
        if code is not None and not self._expected(code, cycle):
            self._violated(f"the server ended by itself with exit code {code}:\n{self._log_tail()}")
        # A server that was stopped well made durable all that it was told.
        ends_ns = [died_ns] if code != 0 else []
        counts = self._settle_disk(
            cut=cycle.cuts_power, killed=code != 0, chance=random.Random(cycle.seed)
        )
        ends_ns += counts.failed_ns
        unfinished_s = ((died_ns - began_ns) / 1e9 for began_ns in counts.under_way_ns.values())
        window_s = self._stalls.take_window_s(max(counts.slowest_sync_s, *unfinished_s, 0.0))
        self.outcome.window_s = max(self.outcome.window_s, window_s)
        self._ledger.deaths += [Death(at_ns, window_s) for at_ns in ends_ns]
        self._read()
        ready = "not ready" if life.ready_s is None else f"ready after {life.ready_s:.2f} s"
        self._tell(
            f"{self._name} cycle {cycle.number}: {point}; clock x{cycle.rate}, set by "
            f"{cycle.jump}; {ready}, {len(self._ledger.acknowledged) - acknowledged} acknowledged, "
            f"{self._ledger.twice - twice} twice"
            + (f"; {cycle.fault}" if cycle.fault else "")
            + ("; power cut" if self._layer and cycle.cuts_power else "")
        )

    def _expected(self, code: int, cycle: Cycle) -> bool:
        if code == -signal.SIGKILL:
            return self._report_path.exists()
        if code == ExitCode.DISK:
            return cycle.fault is not None
        return code == 0 and cycle.point in {STOPPED, "clean stop"}

    # -- one life ----------------------------------------------------------------------------

    def _start(self, cycle: Cycle) -> tuple[Life, int]:
        now_ns = time.monotonic_ns()
        self._clock = LifeClock(
            self._clock.life + 1, now_ns, cycle.wall_ms(self._clock.at(now_ns)), cycle.rate
        )
        return self._start_life(
            Orders(
                clock=str(self._clock_path),
                point=cycle.point if cycle.point in POINTS else None,
                event=cycle.event,
                stage=cycle.stage,
                report=str(self._report_path),
                broken=self._broken,
            ),
            checkpoint_ms=cycle.checkpoint_ms,
            fault=cycle.fault,
        )

    def _start_life(
        self, orders: Orders, *, checkpoint_ms: int, fault: str | None
    ) -> tuple[Life, int]:
        self._clock.save(self._clock_path)
        self._orders_path.write_bytes(msgspec.json.encode(orders))
        self._report_path.unlink(missing_ok=True)
        port = closed_port()
        command = [
            *(sys.executable, "-m", "tests.crash.launcher", str(self._orders_path)),
            *("delay-server", "--data", str(self._data), "--listen", f"127.0.0.1:{port}"),
            *("--http", "127.0.0.1:0", "--broker", f"g1=127.0.0.1:{self._broker_port}"),
        ]
        for name, value in settings_of(self._clock.rate, checkpoint_ms).items():
            command += ["--set", f"{name}={value}"]
        environment = self._layer.environment(fault) if self._layer else {}
        return Life(command, environment, self._log_path), port

    def _live(self, life: Life, cycle: Cycle, owed: set[str]) -> tuple[str, int | None]:
        """Let a life come to its end; return where, and its exit code if it ended by itself."""
        point = cycle.point
        if point == START_UP:
            life.wait_ready(cycle.after_s)
            code = life.wait(life.began + cycle.after_s - time.monotonic())
            self._count(START_UP, reached=True)
            return START_UP, code
        if not life.wait_ready(_READY_S):
            code = life.wait(_GRACE_S)
            if code is None:
                self._violated(f"not ready within {_READY_S:g} s:\n{self._log_tail()}")
            return self._told(cycle, code), code
        ready_at = time.monotonic()
        self._check_memory(life, owed)
        if point in {UNDER_LOAD, STOPPED} and not self.outcome.violations:
            self._check_owed(life, owed)
        left = ready_at + cycle.after_s - time.monotonic()
        if point in {STOPPED, "clean stop"}:
            if life.wait(left) is None:
                life.process.send_signal(signal.SIGTERM)
            code = life.wait(_STOP_S)
            if code is None:
                self._violated(f"did not stop within {_STOP_S:g} s:\n{self._log_tail()}")
        else:
            code = life.wait(left + (0 if point == UNDER_LOAD else _GRACE_S))
        return self._told(cycle, code), code

    def _told(self, cycle: Cycle, code: int | None) -> str:
        """Count where a life ended, and describe it."""
        point = cycle.point
        if point in {UNDER_LOAD, STOPPED}:
            self._count(point, reached=True)
            return point
        hit = self._report_path.read_text() if self._report_path.exists() else ""
        if point == EIO and code == ExitCode.DISK:
            hit = cycle.fault or ""
        self._count(point, reached=bool(hit))
        return f"{point}, at {hit}" if hit else f"{point}, not reached"

    def _count(self, point: str, *, reached: bool) -> None:
        (self.outcome.reached if reached else self.outcome.missed)[point] += 1

    def _check_memory(self, life: Life, owed: set[str]) -> None:
        """The server must know of all that was owed before, and of no damage."""
        assert life.ready_s is not None
        self.outcome.ready_s.append(life.ready_s)
        status = life.status()
        if status is None:
            return
        self._read()
        # What was delivered by now may be crossed off or not; the rest must be pending.
        missing = len(owed - self._ledger.first.keys()) - status["pending"]
        if missing > 0:
            self._lost(missing, f"after a restart only {status['pending']} are pending")
        if status["damaged"]:
            self._violated(f"damage: {status['damages']}")
        self.outcome.recovery_s.append(status["recovery_seconds"] / self._clock.rate)

    def _check_owed(self, life: Life, owed: set[str]) -> None:
        """What was due before this start must come soon."""
        now_ms = self._clock.now_ms()
        due = {name for name in owed if self._ledger.sent[name].due_ms <= now_ms}
        self._wait_for(lambda: not due - self._ledger.first.keys(), _OWED_S)
        late = due - self._ledger.first.keys()
        if late and life.process.poll() is None:
            self._lost(len(late), f"due before the start and not there {_OWED_S:g} s after it")

    def _wait_for(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self._read()
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.05)
            self._read()

    def _settle_disk(self, *, cut: bool, killed: bool, chance: random.Random) -> Counts:
        """Make the disk what the next life finds; return what was done to it."""
        layer = self._layer
        if layer is None:
            return Counts()
        counts = layer.replay()
        self.outcome.slowest_sync_s = max(self.outcome.slowest_sync_s, counts.slowest_sync_s)
        different = layer.differences()
        # Killed in the middle of an operation, nobody heard of its end: a file, or a rename's two.
        if len(different) > (2 if killed else 0):
            self._violated(f"the layer missed what was done to {different}")
        if cut:
            self.outcome.cuts += 1
            layer.cut_power(chance)
        layer.restore()
        return counts

    # -- the reckoning -----------------------------------------------------------------------

    def _reckon(self, chance: random.Random) -> None:
        last_ms = max((sent.due_ms for sent in self._ledger.sent.values()), default=0)
        life = self._undisturbed(max(last_ms, self._clock.now_ms()))
        if life.wait_ready(_READY_S):
            self._check_memory(life, self._ledger.undelivered())
            self._wait_for(lambda: not self._ledger.undelivered(), _ALL_S)
            self._wait_for(lambda: (life.status() or {}).get("pending") == 0, _STOP_S)
        self._stop(life)
        if missing := self._ledger.undelivered():
            self._lost(len(missing), f"never delivered, for example {min(missing)}")
        self._settle_disk(cut=True, killed=False, chance=chance)
        self._verify()
        # Nothing is left, and nothing comes again, though the power failed after the stop.
        life = self._undisturbed(self._clock.now_ms())
        if life.wait_ready(_READY_S) and (status := life.status()) is not None:
            if status["pending"]:
                self._violated(f"{status['pending']} are pending though all were delivered")
            time.sleep(0.2)
        self._stop(life)
        self._settle_disk(cut=False, killed=False, chance=chance)
        self._verify()

    def _undisturbed(self, wall_ms: int) -> Life:
        rate = max(RATES)
        self._clock = LifeClock(self._clock.life + 1, time.monotonic_ns(), wall_ms, rate)
        orders = Orders(
            clock=str(self._clock_path), report=str(self._report_path), broken=self._broken
        )
        return self._start_life(orders, checkpoint_ms=300, fault=None)[0]

    def _stop(self, life: Life) -> None:
        life.process.send_signal(signal.SIGTERM)
        code = life.wait(_STOP_S)
        life.kill()
        if code != 0:
            self._violated(f"did not stop well ({code}):\n{self._log_tail()}")
        self._read()

    def _verify(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "delaywheel", "log", "verify", str(self._data)],
            cwd=ROOT,
            capture_output=True,
            check=False,
        )
        if done.returncode:
            damaged = [
                line for line in done.stdout.decode().splitlines() if '"damage":[]' not in line
            ]
            self._violated(f"log verify: {done.stderr.decode()} {damaged[:5]}")

    # -- violations --------------------------------------------------------------------------

    def _read(self) -> None:
        for violation in self._ledger.read():
            self._violated(violation)

    def _lost(self, count: int, text: str) -> None:
        self.outcome.lost += count
        self._violated(f"lost: {count} of {len(self._ledger.acknowledged)}; {text}")

    def _violated(self, text: str) -> None:
        if len(self.outcome.violations) < _VIOLATIONS_MAX:
            self.outcome.violations.append(f"{self._name} life {self._clock.life}: {text}")

    def _log_tail(self) -> str:
        return self._log_path.read_text(errors="replace")[-1500:]


def settings_of(rate: int, checkpoint_ms: int) -> dict[str, str]:
    """Return settings with which everything happens often, and takes as long as by a plain clock.

    Milliseconds and seconds are those of the life's clock.
    """
    seconds = {
        "sender.connect_timeout_s": 5,
        "sender.request_timeout_s": 5,
        "sender.heartbeat_s": 15,
        "sender.retry_base_s": 0.1,
        "sender.reconnect_base_s": 0.1,
        "sender.reconnect_max_s": 2,
        "sender.quick_s": 0.02,
        "sender.usual_s_max": 0.1,
        "sender.slow_s": 0.25,
        "sender.queue_s": 0.1,
        "listener.frame_seconds_max": 10,
        "listener.frame_grace_seconds": 5,
        "listener.idle_seconds_max": 150,
        "listener.send_seconds_max": 10,
        "listener.drain_seconds_max": 4,
        "listener.linger_seconds_max": 1,
    }
    milliseconds = {
        "node.stop_ms_max": 4000,
        "admission.hold_ms": 4000,
        "storage.fact_sync_ms_max": 20,
        "storage.checkpoint_interval_ms": checkpoint_ms,
        "storage.retired_grace_ms": 700,
    }
    return {
        **{name: str(float(value * rate)) for name, value in seconds.items()},
        **{name: str(value * rate) for name, value in milliseconds.items()},
        "storage.minute_horizon_minutes": "2",
        "storage.hour_horizon_minutes": "62",
        "storage.gather_bytes_max": "65536",
        "storage.message_log_file_bytes_max": str(192 * 1024),
        "storage.disk_free_bytes_min": "0",
        "wheel.load_ahead_ms": "60000",
    }


def cycles_of_round(number: int, cycles: int) -> int:
    """Return how many of `cycles` in all belong to a round."""
    return max(0, min(CYCLES_PER_ROUND, cycles - number * CYCLES_PER_ROUND))
