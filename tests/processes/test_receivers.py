"""Promise: though receivers and a delay server are killed, messages are handled, none early."""

import contextlib
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from delay_client import BlockingClient, OutgoingMessage, Receipt
from tests.ports import closed_port
from tests.processes.real_processes import ROOT, ServerProcess, meta_server, server, until

pytestmark = pytest.mark.process

COUNT = 2000


class Receivers:
    """Receivers of one name, one after another and beside each other."""

    def __init__(self, meta: ServerProcess, folder: Path) -> None:
        self._meta = meta
        self._folder = folder
        self.processes: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        number = len(self.processes)
        backend = ("asyncio", "trio")[number % 2]
        program = ("-m", "tests.processes.receiving_process", backend)
        self.processes.append(
            subprocess.Popen(
                [sys.executable, *program, self._meta.http, str(self._path(number))],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
        )

    def stop(self, number: int) -> tuple[int, int]:
        """End one in good order; return how many verdicts it dropped, and connections it closed."""
        process = self.processes[number]
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        dropped, garbage = map(int, said.split())
        return dropped, garbage

    def lines(self) -> Iterator[tuple[str, int, float]]:
        """Yield id, attempt and lateness of all that handlers are done with."""
        for number in range(len(self.processes)):
            path = self._path(number)
            for line in path.read_text().splitlines(keepends=True) if path.exists() else []:
                # The last line of one that was killed may be cut.
                if line.endswith("\n"):
                    name, attempt, lateness = line.split()
                    yield name, int(attempt), float(lateness)

    def _path(self, number: int) -> Path:
        return self._folder / f"seen-{number}"


@contextlib.contextmanager
def receivers(meta: ServerProcess, folder: Path) -> Iterator[Receivers]:
    """Run receivers; whatever happens, they are gone afterwards."""
    running = Receivers(meta, folder)
    try:
        yield running
    finally:
        for process in running.processes:
            process.kill()
            process.communicate()


def test_no_message_is_lost_or_early_though_receivers_and_the_server_are_killed(
    tmp_path: Path,
) -> None:
    for name in ("meta", "d"):
        (tmp_path / name).mkdir()
    with contextlib.ExitStack() as stack:
        meta = stack.enter_context(meta_server(tmp_path / "meta" / "data")).wait_ready()
        options: tuple[str, ...] = ("--meta", meta.http)
        first = stack.enter_context(server(tmp_path / "d" / "data", options=options)).wait_ready()
        some = stack.enter_context(receivers(meta, tmp_path))
        some.start()
        some.start()
        client = stack.enter_context(BlockingClient(meta=meta.http))
        outcomes = client.send_many(
            OutgoingMessage(f"r.{number % 5}", f"{number:05}", 2.0 + number / 400)
            for number in range(COUNT)
        )
        sent = {outcome.message_id for outcome in outcomes if isinstance(outcome, Receipt)}
        assert len(sent) == COUNT

        def handled() -> int:
            return len({name for name, _, _ in some.lines()})

        assert until(lambda: handled() > 200, seconds=30)
        some.processes[0].kill()
        some.start()
        assert until(lambda: handled() > 600, seconds=30)
        first.kill()
        # Elsewhere it would have to wait until the meta server takes the first one for gone.
        options += ("--listen", f"127.0.0.1:{first.port}")
        stack.enter_context(server(tmp_path / "d" / "data", options=options)).wait_ready()
        assert until(lambda: handled() > 1400, seconds=60)
        some.stop(1)
        some.start()
        assert until(lambda: handled() == COUNT, seconds=60)
        assert some.stop(2)[1] == some.stop(3)[1] == 0

        lines = list(some.lines())
        assert min(lateness for _, _, lateness in lines) >= 0
        assert {name for name, _, _ in lines} == sent
        # What was at work or unsettled when something was killed: of two kills, at most the credit.
        copies = sum(Counter(name for name, _, _ in lines).values()) - COUNT
        assert copies < 200
        assert sum(attempt > 1 for _, attempt, _ in lines) >= COUNT // 100


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
            groups: list[dict[str, Any]] = meta.status()["delay_groups"]
            return groups[0] if groups else {"in_sync": [], "master": None}

        nodes: dict[str, ServerProcess] = {}
        for number in (1, 2, 3):
            options = (
                *("--meta", meta.http, "--group", "d1", "--node-id", f"n{number}"),
                *("--set", f"replication.listen=127.0.0.1:{closed_port()}"),
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

        def handled() -> set[str]:
            return {name for name, _, _ in some.lines()}

        def admin(*words: str) -> None:
            words = ("admin", "--meta", meta.http, "delay-group", *words)
            done = subprocess.run(
                [sys.executable, "-m", "delaywheel", *words],
                cwd=ROOT, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr

        sent = send(0)
        assert until(lambda: len(handled()) > 300, seconds=30)
        admin("handover", "d1")
        assert until(lambda: shown()["master"] in {"n2", "n3"}, seconds=30), shown()
        assert until(lambda: sent <= handled(), seconds=60), len(sent - handled())
        sent |= send(1000)
        assert until(lambda: len(handled()) > 1300, seconds=30)
        nodes[shown()["master"]].kill()
        admin("elect", "d1", "--wait")
        assert until(lambda: sent <= handled(), seconds=60), (len(sent - handled()), shown())
        assert min(lateness for _, _, lateness in some.lines()) >= 0
        assert handled() == sent
