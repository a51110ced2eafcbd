"""Delay server, meta server and brokers as processes: they are told of the meta server alone.

Brokers are `delaywheel broker`, which register as QMQ's do.
"""

import contextlib
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.processes.real_processes import (
    ROOT,
    Producer,
    ServerProcess,
    make_item,
    meta_server,
    until,
    wall_ms,
)

pytestmark = pytest.mark.process

SUBJECTS = [f"order.{number}" for number in range(40)]


class BrokerProcess:
    """One life of a broker that registers and records."""

    def __init__(self, where: Path, group: str, meta: str, *, port: int = 0) -> None:
        self.record = where / f"{group}.jsonl"
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "delaywheel", "broker", "--quiet"),
                *("--listen", f"127.0.0.1:{port}", "--meta", meta, "--group", group),
                *("--record", str(self.record)),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        match = re.fullmatch(r"ready 127\.0\.0\.1:(\d+)\n", self.process.stdout.readline())
        assert match
        self.port = int(match[1])

    def received(self) -> list[tuple[str, str]]:
        """Return subject and id of all that came."""
        text = self.record.read_text() if self.record.exists() else ""
        # The last line may be on its way.
        lines = text[: text.rfind("\n") + 1].splitlines()
        rows = [msgspec.json.decode(line) for line in lines]
        return [(row["subject"], row["message_id"]) for row in rows]

    def end(self, how: signal.Signals) -> None:
        """End it by a signal."""
        self.process.send_signal(how)
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def broker(where: Path, group: str, meta: str, *, port: int = 0) -> Iterator[BrokerProcess]:
    """Run a broker; whatever happens, it is gone afterwards."""
    process = BrokerProcess(where, group, meta, port=port)
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.end(signal.SIGKILL)


@contextlib.contextmanager
def delay_server(data: Path, meta: str) -> Iterator[ServerProcess]:
    """Run a delay server that is told of the meta server only."""
    process = ServerProcess(data, options=("--set", f"meta.addresses={meta}"))
    try:
        yield process.wait_ready()
    finally:
        if process.process.poll() is None:
            process.kill()


def send(producer: Producer, name: str, due_ms: int, subjects: list[str]) -> set[tuple[str, str]]:
    """Send five messages to each subject; return subject and id of each."""
    sent = {(subject, f"{name}.{subject}.{n}") for subject in subjects for n in range(5)}
    items = [make_item(mid, due_ms, subject=subject) for subject, mid in sorted(sent)]
    assert producer.send(items) == {}
    return sent


@pytest.mark.long
def test_messages_find_brokers_that_come_move_and_die(tmp_path: Path) -> None:
    """One group for each subject: so each message has one place to go to."""
    options = ("--set", "routing.groups_per_subject=1")
    with contextlib.ExitStack() as stack:
        meta = stack.enter_context(meta_server(tmp_path / "meta", options=options)).wait_ready()
        one = stack.enter_context(delay_server(tmp_path / "data", meta.http))
        producer = stack.enter_context(Producer(one.port))
        # There is no broker at all: everything waits, and says so.
        sent = send(producer, "early", wall_ms() + 500, SUBJECTS)
        assert until(lambda: one.status()["unrouted"]["messages"] == len(sent), seconds=20)
        assert one.status()["unrouted_subjects"] == len(SUBJECTS)
        # Brokers register, and subjects are told where to go.
        first = stack.enter_context(broker(tmp_path, "g1", meta.http))
        assert until(lambda: set(first.received()) == sent, seconds=30)
        assert one.status()["unrouted_subjects"] == 0
        second = stack.enter_context(broker(tmp_path, "g2", meta.http))
        assert until(lambda: b'"g2"' in meta.get("/api/v1/topology")[1], seconds=10)
        # What is new is spread over both.
        others = [f"later.{number}" for number in range(40)]
        sent |= send(producer, "both", wall_ms() + 1000, others)
        both = [first, second]
        assert until(lambda: {row for b in both for row in b.received()} == sent, seconds=30)
        places = [{subject for subject, _ in b.received()} for b in both]
        assert places[0] & places[1] == set()
        assert len(places[1]) > 5
        brokers = one.status()["brokers"]
        assert brokers["g2"]["address"] == f"127.0.0.1:{second.port}"
        assert brokers["g2"]["source"] == "meta server"
        # It comes back elsewhere, and is found there by a push.
        second.end(signal.SIGTERM)
        moved = stack.enter_context(broker(tmp_path, "g2", meta.http))
        assert moved.port != second.port
        there = f"127.0.0.1:{moved.port}"
        assert until(
            lambda: one.status()["brokers"].get("g2", {}).get("address") == there, seconds=20
        )
        sent |= send(producer, "moved", wall_ms() + 500, sorted(places[1]))
        assert until(lambda: {row for b in both for row in b.received()} == sent, seconds=20)
        # Confirmed too, or the kill would have some of it sent again.
        assert until(lambda: one.status()["pending"] == 0, seconds=10)
        # It dies: its subjects wait, the others go on as if nothing was.
        moved.end(signal.SIGKILL)
        alive = send(producer, "alive", wall_ms() + 500, sorted(places[0]))
        dead = send(producer, "dead", wall_ms() + 500, sorted(places[1]))
        assert until(lambda: alive <= set(first.received()), seconds=10)
        back = stack.enter_context(broker(tmp_path, "g2", meta.http))
        assert until(lambda: dead <= set(back.received()), seconds=40)
        sent |= alive | dead
        rows = Counter(first.received() + back.received())
        assert rows.keys() == sent
        assert set(rows.values()) == {1}
        assert until(lambda: one.status()["pending"] == 0, seconds=10)
        # Without a meta server known routes stay; a restarted delay server waits for it.
        meta.kill()
        sent |= send(producer, "away", wall_ms() + 500, SUBJECTS)
        assert until(lambda: set(first.received() + back.received()) == sent, seconds=10)
        one.terminate()
