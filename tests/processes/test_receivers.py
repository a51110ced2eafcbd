"""Promise: though receivers and a delay server are killed, messages are handled, none early."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from delay_client import BlockingClient, OutgoingMessage, Receipt, ReceiverConfig
from delay_protocol.receivers.attaching import UNSETTLED_REASON, UNSETTLED_TRIES
from tests.processes.real_processes import (
    ROOT,
    RecordingBroker,
    ServerProcess,
    delaywheel,
    meta_server,
    server,
    until,
)
from tests.processes.test_nodes import Cluster
from tests.processes.test_replicas import GROUP, QUICK_TIMEOUT, Group

pytestmark = pytest.mark.process

CREDIT = 64 + ReceiverConfig().concurrency
"""What its handlers have, and what waits for them."""
UNSETTLED_S = 2.0
"""Longest from the end of a handler to the answer that its message is done with, on a busy machine:
receivers gather what they are done with for some milliseconds."""
AT_WORK_S = 1.0
"""Longest that a handler takes, which is a millisecond, on such a machine."""


@dataclass(frozen=True, slots=True)
class Handled:
    """A message that a handler is done with."""

    message_id: str
    attempt: int
    lateness_s: float
    at_s: float
    receiver: int
    """The number of its process."""


@dataclass(frozen=True, slots=True)
class Killed:
    """When a receiver was killed, or the delay server."""

    from_s: float
    until_s: float
    receiver: int | None
    """The number of its process; None for the delay server."""

    def explains(self, first: Handled, second: Handled) -> bool:
        """Say whether a message was at work or unsettled at this kill, and came again for it."""
        is_its = self.receiver in {None, first.receiver}
        was_unsettled = self.from_s - UNSETTLED_S <= first.at_s <= self.until_s + AT_WORK_S
        return is_its and was_unsettled and self.from_s <= second.at_s


class Receivers:
    """Receivers of one name, one after another and beside each other."""

    def __init__(self, meta: ServerProcess, folder: Path, name: str) -> None:
        self._meta = meta
        self._name = name
        self._folder = folder
        self.processes: list[subprocess.Popen[str]] = []
        self.killed: list[Killed] = []
        self._handled: list[Handled] = []
        self._read: Counter[int] = Counter()
        """Bytes that were read of what each has written."""

    def start(self) -> None:
        number = len(self.processes)
        backend = ("asyncio", "trio")[number % 2]
        program = ("-m", "tests.processes.receiving_process", backend)
        self.processes.append(
            subprocess.Popen(
                [sys.executable, *program, self._name, self._meta.http, str(self._path(number))],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
        )

    def kill(self, number: int) -> None:
        """End one by SIGKILL."""
        with self.killing(number):
            self.processes[number].kill()
            self.processes[number].wait()

    @contextlib.contextmanager
    def killing(self, number: int | None) -> Iterator[None]:
        """Note that one is killed meanwhile, or the delay server."""
        began_s = time.time()
        yield
        self.killed.append(Killed(began_s, time.time(), number))

    def stop(self, number: int) -> tuple[int, int]:
        """End one in good order; return how many verdicts it dropped, and connections it closed."""
        process = self.processes[number]
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        dropped, garbage = map(int, said.split())
        return dropped, garbage

    def handled(self) -> list[Handled]:
        """Return all that handlers are done with; those of each process in their order."""
        for number in range(len(self.processes)):
            path = self._path(number)
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self._read[number])
                data = file.read()
            # The last line may be half written, for ever if its process was killed.
            data = data[: data.rfind(b"\n") + 1]
            self._read[number] += len(data)
            for line in data.decode().splitlines():
                name, attempt, lateness, at = line.split()
                one = Handled(name, int(attempt), float(lateness), float(at), number)
                self._handled.append(one)
        return self._handled

    def ids(self) -> set[str]:
        """Return the ids of all that handlers are done with."""
        return {one.message_id for one in self.handled()}

    def _path(self, number: int) -> Path:
        return self._folder / f"seen-{self._name}-{number}"


@contextlib.contextmanager
def receivers(meta: ServerProcess, folder: Path, name: str = "r") -> Iterator[Receivers]:
    """Run receivers; whatever happens, they are gone afterwards."""
    running = Receivers(meta, folder, name)
    try:
        yield running
    finally:
        for process in running.processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("count", "per_s", "kills"),
    [(2000, 400, 2), pytest.param(50_000, 1000, 16, marks=pytest.mark.long)],
)
def test_no_message_is_lost_or_early_though_receivers_and_the_server_are_killed(
    tmp_path: Path, count: int, per_s: int, kills: int
) -> None:
    """In turns a receiver is killed and the delay server, all the time that messages are due."""
    for name in ("meta", "d"):
        (tmp_path / name).mkdir()
    with contextlib.ExitStack() as stack:
        meta = stack.enter_context(meta_server(tmp_path / "meta" / "data")).wait_ready()
        options: tuple[str, ...] = ("--meta", meta.http)
        node = stack.enter_context(server(tmp_path / "d" / "data", options=options)).wait_ready()
        # Elsewhere it would have to wait until the meta server takes the first one for gone.
        options += ("--listen", f"127.0.0.1:{node.port}")
        some = stack.enter_context(receivers(meta, tmp_path))
        some.start()
        some.start()
        client = stack.enter_context(BlockingClient(meta=meta.http))
        outcomes = client.send_many(
            OutgoingMessage(f"r.{number % 5}", f"{number:05}", 2.0 + number / per_s)
            for number in range(count)
        )
        sent = {outcome.message_id for outcome in outcomes if isinstance(outcome, Receipt)}
        assert len(sent) == count

        def until_handled(least: int) -> None:
            assert until(lambda: len(some.ids()) >= least, seconds=60), (len(some.ids()), least)

        for number in range(kills):
            until_handled(count * (number + 1) // (kills + 3))
            if number % 2 == 0:
                some.kill(number // 2)
                some.start()
            else:
                with some.killing(None):
                    node.kill()
                node = stack.enter_context(server(tmp_path / "d" / "data", options=options))
                node.wait_ready()
        until_handled(count * (kills + 1) // (kills + 3))
        oldest, newest = range(len(some.processes))[-2:]
        some.stop(oldest)
        until_handled(count)
        assert some.stop(newest)[1] == 0

        handled = some.handled()
        assert min(one.lateness_s for one in handled) >= 0
        assert {one.message_id for one in handled} == sent
        assert sum(one.attempt > 1 for one in handled) >= count // 100
        check_copies(handled, some.killed)


def check_copies(handled: list[Handled], killed: list[Killed], *, receivers: int = 2) -> None:
    """See that what was handled twice was unsettled at a kill, and no more than the credit."""
    by_id: dict[str, list[Handled]] = {}
    for one in sorted(handled, key=lambda one: one.at_s):
        by_id.setdefault(one.message_id, []).append(one)
    copies: Counter[Killed] = Counter()
    for times in by_id.values():
        for first, second in pairwise(times):
            kill = next((kill for kill in killed if kill.explains(first, second)), None)
            assert kill is not None, (first, second, killed)
            copies[kill] += 1
    print(f"handled again: {[copies[kill] for kill in killed]}")  # noqa: T201 (for -rP)
    for kill, count in copies.items():
        assert count <= CREDIT * (receivers if kill.receiver is None else 1)


@pytest.mark.long
def test_a_message_that_kills_its_receivers_is_a_dead_letter_and_the_others_are_handled(
    tmp_path: Path,
) -> None:
    for name in ("meta", "d"):
        (tmp_path / name).mkdir()
    with contextlib.ExitStack() as stack:
        meta = stack.enter_context(meta_server(tmp_path / "meta" / "data")).wait_ready()
        options = ("--meta", meta.http, "--set", "sender.retry_base_s=0.01")
        node = stack.enter_context(server(tmp_path / "d" / "data", options=options)).wait_ready()
        some = stack.enter_context(receivers(meta, tmp_path))
        client = stack.enter_context(BlockingClient(meta=meta.http, app_code="shop"))
        bodies = [f"{number:05}" for number in range(1, 60)]
        bodies.insert(20, "kill")
        outcomes = list(client.send_many(OutgoingMessage("r.1", body, 0) for body in bodies))
        ids = [outcome.message_id for outcome in outcomes if isinstance(outcome, Receipt)]
        for number in range(UNSETTLED_TRIES):
            some.start()
            assert some.processes[number].wait(60) == -signal.SIGKILL
        some.start()
        assert until(lambda: some.ids() == {*ids[:20], *ids[21:]}, seconds=60)
        code, body = node.get("/dead")
        assert (code, [one["message_id"] for one in json.loads(body)["items"]]) == (200, [ids[20]])
        (letter,) = json.loads(body)["items"]
        code, body = node.get(f"/dead/{letter['sequence']}")
        letter = json.loads(body)
        assert (code, letter["attempt"], letter["app_code"]) == (200, UNSETTLED_TRIES, "shop")
        assert letter["first_due_ms"] == letter["due_ms"]
        assert letter["refusals"][-1]["said"] == UNSETTLED_REASON
        some.stop(UNSETTLED_TRIES)


@pytest.mark.long
def test_receivers_follow_a_handover_and_the_death_of_a_master(tmp_path: Path) -> None:
    """Three nodes in sync; each message that was acknowledged is handled, none early."""
    for name in ("meta", "n1", "n2", "n3"):
        (tmp_path / name).mkdir()
    with contextlib.ExitStack() as stack:
        quick = ("--set", "registration.node_timeout_ms=2000")
        meta = stack.enter_context(meta_server(tmp_path / "meta" / "data", options=quick))
        meta.wait_ready()

        def shown() -> dict[str, Any]:
            code, body = meta.get("/api/v1/delay-group/d1")
            group: dict[str, Any] = json.loads(body)
            return group if code == 200 else {"in_sync": [], "master": None}

        nodes: dict[str, ServerProcess] = {}
        for number in (1, 2, 3):
            options = (
                *("--meta", meta.http, "--group", "d1", "--node-id", f"n{number}"),
                *("--set", "meta.reconnect_seconds_max=0.5"),
            )
            data = tmp_path / f"n{number}" / "data"
            nodes[f"n{number}"] = stack.enter_context(server(data, options=options))
            assert until(lambda: len(shown()["in_sync"]) == len(nodes), seconds=30), shown()
        some = stack.enter_context(receivers(meta, tmp_path))
        some.start()
        some.start()
        client = stack.enter_context(BlockingClient(meta=meta.http))

        def send(first: int) -> set[str]:
            outcomes = client.send_many(
                OutgoingMessage(f"r.{number % 5}", f"{number:05}", (number - first) / 100)
                for number in range(first, first + 1000)
            )
            assert all(isinstance(outcome, Receipt) for outcome in outcomes)
            return {outcome.message_id for outcome in outcomes if isinstance(outcome, Receipt)}

        def admin(*words: str) -> None:
            done = delaywheel("admin", "--meta", meta.http, *words)
            assert done.returncode == 0, done.stderr

        sent = send(0)
        assert until(lambda: len(some.ids()) > 300, seconds=30)
        admin("handover", "d1")
        assert until(lambda: shown()["master"] in {"n2", "n3"}, seconds=30), shown()
        assert until(lambda: sent <= some.ids(), seconds=60), len(sent - some.ids())
        sent |= send(1000)
        assert until(lambda: len(some.ids()) > 1300, seconds=30)
        nodes[shown()["master"]].kill()
        admin("elect", "d1", "--wait")
        assert until(lambda: sent <= some.ids(), seconds=60), (len(sent - some.ids()), shown())
        assert min(one.lateness_s for one in some.handled()) >= 0
        assert some.ids() == sent


@pytest.mark.long
@pytest.mark.parametrize(
    ("count", "per_s", "has_slaves"), [(2000, 800, False), (20_000, 1000, True)]
)
def test_each_of_two_names_gets_all_though_receivers_and_masters_are_killed(
    tmp_path: Path, count: int, per_s: int, *, has_slaves: bool
) -> None:
    """Two names of three receivers each; a master is killed while it delivers, one as it copies.

    A slave takes over where there are some, else the master is started again.
    """
    (tmp_path / "meta").mkdir()
    with RecordingBroker() as broker, contextlib.ExitStack() as stack:
        cluster = Cluster(tmp_path, broker)
        cluster.broker_port = None
        meta = stack.enter_context(cluster.meta(*QUICK_TIMEOUT)).wait_ready()
        group = Group(cluster, meta, stack)
        nodes = group.start_three() if has_slaves else {"n1": group.start("n1")}
        group.until_in_sync(*nodes)
        names = [stack.enter_context(receivers(meta, tmp_path, name)) for name in ("one", "other")]
        for some in names:
            for _ in range(3):
                some.start()
        assert until(lambda: len(meta.topology()["receivers"]) == len(names), seconds=30)
        client = stack.enter_context(BlockingClient(meta=meta.http))

        def send(first: int) -> set[str]:
            outcomes = list(
                client.send_many(
                    OutgoingMessage("r.1", f"{number:05}", 2.0 + (number - first) / per_s)
                    for number in range(first, first + count // 2)
                )
            )
            assert all(isinstance(outcome, Receipt) for outcome in outcomes)
            return {outcome.message_id for outcome in outcomes if isinstance(outcome, Receipt)}

        def until_handled(least: int) -> None:
            def all_handled() -> bool:
                return all(len(some.ids()) >= least for some in names)

            assert until(all_handled, seconds=60), ([len(some.ids()) for some in names], least)

        def kill_receivers(*numbers: int) -> None:
            for some, number in zip(names, numbers, strict=True):
                some.kill(number)
                some.start()

        def kill_master() -> None:
            master = group.shown()["master"]
            with contextlib.ExitStack() as killing:
                for some in names:
                    killing.enter_context(some.killing(None))
                nodes[master].process.kill()
                if has_slaves:
                    group.admin("elect", GROUP, "--wait")
                    group.until_master(*(set(nodes) - {master}))
            nodes[master] = group.start(master)
            group.until_in_sync(*nodes)

        sent = send(0)
        until_handled(count // 10)
        kill_receivers(0, 1)
        until_handled(count // 5)
        kill_master()
        until_handled(count // 2)
        sent |= send(count // 2)
        # What was acknowledged last is being copied.
        kill_master()
        until_handled(count * 2 // 3)
        kill_receivers(2, 2)
        until_handled(count)

        assert len(sent) == count
        for some in names:
            handled = some.handled()
            assert {one.message_id for one in handled} == sent
            assert min(one.lateness_s for one in handled) >= 0
            check_copies(handled, some.killed, receivers=3)
