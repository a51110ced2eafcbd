"""Real delay servers of one group and a real meta server: the procedures of operators.

A producer sends all the time, to whoever is the master; whatever was acknowledged to it comes, and
each disk in sync has it.
"""

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import pytest

from delay_client import BlockingClient, DelaywheelError
from delaywheel.shared.failures import ExitCode
from storage.disk.disk import DirectoryDisk
from storage.state.identity import read_identity
from tests.kit.dumped import messages_in
from tests.ports import closed_port
from tests.processes.real_processes import (
    Producer,
    RecordingBroker,
    ServerProcess,
    delaywheel,
    make_item,
    until,
    wall_ms,
)
from tests.processes.test_nodes import Cluster, Node, epochs_in

pytestmark = pytest.mark.process

GROUP = "d1"
IN_SYNC_S = 30.0
"""Seconds in which a node starts, registers, catches up and is recorded, on a busy machine."""
ELECTED_S = 30.0
STOPPED_S = 5.0
"""Seconds within which a master stops that hands over first, on a busy machine…"""
PAUSE_S = 1.0
"""… and for which no message is answered meanwhile."""
DELIVERED_S = 15.0
CATCH_UP_BYTES_MAX = 128 * 1024 * 1024
"""What a slave takes while it copies and files a long log, beside what it takes when idle."""
QUICK_TIMEOUT = ("--set", "registration.node_timeout_ms=2000")


class Group:
    """A meta server, and nodes of one group that are started, killed and started again."""

    def __init__(self, cluster: Cluster, meta: ServerProcess, stack: contextlib.ExitStack) -> None:
        self.cluster = cluster
        self._meta = meta
        self._stack = stack
        self._places: dict[str, tuple[int, int]] = {}

    def start(self, name: str, *, folder: str = "") -> Node:
        """Start a node; its ports and, unless told otherwise, its directory are those of before."""
        port, http = self._places.setdefault(name, (closed_port(), closed_port()))
        return self._stack.enter_context(
            self.cluster.node(
                *(folder or name, "--node-id", name, "--group", GROUP),
                port=port,
                http=http,
            )
        )

    def start_three(self) -> dict[str, Node]:
        """Start three nodes, of which n1 is the master; return when they are in sync."""
        nodes = {}
        for number in (1, 2, 3):
            nodes[f"n{number}"] = self.start(f"n{number}")
            self.until_in_sync(*nodes)
        assert self.shown()["master"] == "n1"
        return nodes

    def shown(self) -> dict[str, Any]:
        """Return what the meta server says of the group; empty if it knows none."""
        groups = [one for one in self._meta.topology()["delay_groups"] if one["name"] == GROUP]
        found: dict[str, Any] = groups[0] if groups else {"in_sync": [], "master": None}
        return found

    def until_in_sync(self, *names: str) -> None:
        """Wait until just these are in sync."""
        is_so = until(lambda: sorted(self.shown()["in_sync"]) == sorted(names), seconds=IN_SYNC_S)
        assert is_so, (names, self.shown())

    def until_master(self, *names: str) -> str:
        """Wait until one of these is the master, and return which one."""
        assert until(lambda: self.shown()["master"] in names, seconds=ELECTED_S), self.shown()
        found: str = self.shown()["master"]
        return found

    def admin(self, *arguments: str) -> tuple[int, str, str]:
        """Run `delaywheel admin`; return exit code, what it prints, and its errors."""
        where = ("admin", "--meta", f"127.0.0.1:{self.cluster.meta_http}")
        done = delaywheel(*where, *arguments)
        return done.returncode, done.stdout, done.stderr


class Steady:
    """Sends messages one after another, by the meta server, in a thread of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self._meta = f"127.0.0.1:{cluster.meta_http}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: list[str] = []
        self.failed: list[str] = []
        self.longest_s = 0.0
        """The longest time from one answer to the next."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Send no more."""
        self._stop.set()
        self._thread.join(40)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with BlockingClient(meta=self._meta) as client:
            number, answered_at = 0, time.monotonic()
            while not self._stop.wait(0.02):
                number += 1
                # Some are due soon, and some when whoever took them is not the master any more.
                delay = timedelta(seconds=number % 5)
                try:
                    receipt = client.send("a.b", delay=delay, message_id=f"m{number}", timeout=30)
                except DelaywheelError as error:
                    self.failed.append(f"m{number}: {error}")
                else:
                    self.acknowledged.append(receipt.message_id)
                    last, answered_at = answered_at, time.monotonic()
                    self.longest_s = max(self.longest_s, answered_at - last)

    def until_more(self, count: int = 20) -> None:
        """Wait until so many more messages were acknowledged."""
        wanted = len(self.acknowledged) + count
        assert until(lambda: len(self.acknowledged) >= wanted, seconds=ELECTED_S), self.failed


def check_all(group: Group, steady: Steady, disks: list[Path]) -> None:
    """Stop the producer; what was acknowledged comes, and each of the disks has it."""
    steady.stop()
    assert steady.failed == []
    acknowledged, broker = set(steady.acknowledged), group.cluster.broker
    assert until(lambda: acknowledged <= set(broker.ids), seconds=DELIVERED_S), sorted(
        acknowledged - set(broker.ids)
    )
    assert all(delivery.crc_ok for delivery in broker.deliveries)
    assert not [one for one in broker.deliveries if one.at_ms < one.due_ms]
    for disk in disks:
        missing = acknowledged - set(messages_in(disk))
        assert not missing, (disk, sorted(missing))


def storage_of(data: Path) -> UUID | None:
    """Return the uuid of a data directory; None while it has none."""
    found = read_identity(DirectoryDisk(data))
    return None if found is None else found.storage_uuid


@contextlib.contextmanager
def new_group(folder: Path) -> Iterator[Group]:
    """Run a meta server that misses a node soon, and what a group starts."""
    (folder / "meta").mkdir()
    with RecordingBroker() as broker, contextlib.ExitStack() as stack:
        cluster = Cluster(folder, broker)
        meta = stack.enter_context(cluster.meta(*QUICK_TIMEOUT))
        meta.wait_ready()
        yield Group(cluster, meta, stack)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with new_group(tmp_path) as found:
        yield found


@pytest.mark.long
def test_a_sole_node_becomes_three(group: Group) -> None:
    first = group.start("n1")
    first.process.wait_ready()
    with Steady(group.cluster) as steady:
        steady.until_more()
        second = group.start("n2")
        group.until_in_sync("n1", "n2")
        third = group.start("n3")
        group.until_in_sync("n1", "n2", "n3")
        steady.until_more()
        check_all(group, steady, [first.data, second.data, third.data])
    assert group.shown()["master"] == "n1"
    assert epochs_in(third.data) == epochs_in(second.data) == epochs_in(first.data) == [1]


def test_a_killed_master_is_succeeded_when_it_is_started_again(group: Group) -> None:
    nodes = group.start_three()
    with Steady(group.cluster) as steady:
        steady.until_more()
        nodes["n1"].process.kill()
        before = group.shown()["epoch"]
        # Nobody is told anything: the start of the dead master's disk is enough.
        group.start("n1")
        assert until(lambda: group.shown()["epoch"] > before, seconds=ELECTED_S)
        assert group.until_master(*nodes)
        group.until_in_sync(*nodes)
        steady.until_more()
        check_all(group, steady, [node.data for node in nodes.values()])


@pytest.mark.long
def test_a_slave_that_was_killed_has_what_it_acknowledged_and_takes_over(group: Group) -> None:
    nodes = group.start_three()
    with Steady(group.cluster) as steady:
        steady.until_more()
        for node in nodes.values():
            node.process.kill()
        # The others never come back.
        again = group.start("n2")
        code, _, errors = group.admin("elect", GROUP, "--wait")
        assert code == 0, errors
        assert group.until_master("n2")
        group.until_in_sync("n2")
        steady.until_more()
        check_all(group, steady, [again.data])


@pytest.mark.long
def test_a_slave_with_damaged_records_copies_all_anew_and_takes_over(group: Group) -> None:
    nodes = group.start_three()
    with Steady(group.cluster) as steady:
        steady.until_more(100)
        nodes["n3"].process.kill()
        data = nodes["n3"].data
        before = storage_of(data)
        log = max((data / "message_log").glob("*.log"))
        bytes_of_log = bytearray(log.read_bytes())
        for place in range(200, len(bytes_of_log), 97):
            bytes_of_log[place] ^= 8
        log.write_bytes(bytes_of_log)
        group.start("n3")
        assert until(lambda: storage_of(data) not in {None, before}, seconds=IN_SYNC_S)
        group.until_in_sync(*nodes)
        assert until(lambda: not (data / "damaged" / "identity").exists(), seconds=IN_SYNC_S)
        code, _, errors = group.admin("handover", GROUP, "--to", "n3")
        assert code == 0, errors
        steady.until_more()
        check_all(group, steady, [])


@pytest.mark.long
def test_a_rolling_restart_of_three_loses_nothing(group: Group) -> None:
    nodes = group.start_three()
    with Steady(group.cluster) as steady:
        # The slaves first; the master hands over when its turn comes.
        for name in ("n2", "n3", "n1"):
            nodes[name].process.terminate()
            nodes[name] = group.start(name)
            group.until_in_sync(*nodes)
            steady.until_more()
        assert group.until_master("n2", "n3")
        check_all(group, steady, [node.data for node in nodes.values()])
    assert epochs_in(nodes["n1"].data) == [1, 2]
    ids = group.cluster.broker.ids
    assert len(ids) == len(set(ids))
    for node in nodes.values():
        assert '"level":"error"' not in node.process.log()


@pytest.mark.long
def test_a_master_that_is_stopped_hands_over_first(group: Group) -> None:
    nodes = group.start_three()
    with Steady(group.cluster) as steady:
        steady.until_more()
        assert nodes["n1"].process.terminate() < STOPPED_S
        # It is not waited for: the others are the set, and answer at once.
        assert group.until_master("n2", "n3")
        assert sorted(group.shown()["in_sync"]) == ["n2", "n3"]
        steady.until_more()
        assert steady.longest_s < PAUSE_S
        group.start("n1")
        group.until_in_sync(*nodes)
        code, printed, _ = group.admin("get", "audit", "--action", "delay-group.handover", "--json")
        assert (code, "it is being stopped" in printed) == (0, True), printed
        check_all(group, steady, [node.data for node in nodes.values()])


@pytest.mark.long
def test_a_dead_slave_is_replaced_by_an_empty_directory_or_by_another_node(group: Group) -> None:
    nodes = group.start_three()
    with Steady(group.cluster) as steady:
        # A disk is lost, and a new one comes under the same name: the old one is silent.
        nodes["n3"].process.kill()
        shutil.rmtree(nodes["n3"].data)
        group.until_in_sync("n1", "n2")
        time.sleep(2.5)
        again = group.start("n3")
        group.until_in_sync(*nodes)
        steady.until_more()
        # A machine is lost, and another one comes under its own name.
        nodes["n2"].process.kill()
        other = group.start("n4")
        group.until_in_sync("n1", "n3", "n4")
        code, _, errors = group.admin("remove", "delay-node", GROUP, "n2")
        assert code == 0, errors
        assert [one["node_id"] for one in group.shown()["nodes"]] == ["n1", "n3", "n4"]
        steady.until_more()
        check_all(group, steady, [nodes["n1"].data, again.data, other.data])


@pytest.mark.long
def test_a_master_whose_disk_is_lost_is_replaced_by_an_empty_directory(group: Group) -> None:
    nodes = group.start_three()
    with Steady(group.cluster) as steady:
        steady.until_more()
        nodes["n1"].process.kill()
        shutil.rmtree(nodes["n1"].data)
        told = "n1 is in sync: stop it, and the master (n1) drops it within seconds"
        assert told in group.admin("remove", "delay-node", GROUP, "n1")[2]
        code, _, errors = group.admin("elect", GROUP, "--wait")
        # On a busy machine the group has elected one by itself before that is asked.
        assert code == 0 or "is the master, and may send" in errors, errors
        assert group.until_master("n2", "n3")
        again = group.start("n1")
        group.until_in_sync(*nodes)
        steady.until_more()
        check_all(group, steady, [again.data, nodes["n2"].data, nodes["n3"].data])


def test_a_slave_that_catches_up_takes_little_memory(group: Group) -> None:
    master = group.start("n1").process.wait_ready()
    idle = peak_bytes(master)
    due_ms = wall_ms() + 86_400_000
    with Producer(master.port) as producer:
        for number in range(400):
            ids = range(100 * number, 100 * number + 100)
            items = [make_item(f"m{one}", due_ms + one, value="x" * 4000) for one in ids]
            assert producer.send(items) == {}
    slave = group.start("n2").process
    group.until_in_sync("n1", "n2")
    assert peak_bytes(slave) - idle < CATCH_UP_BYTES_MAX


def peak_bytes(server: ServerProcess) -> int:
    """Return the most memory that a process has had."""
    status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="ascii")
    (line,) = (one for one in status.splitlines() if one.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


@pytest.mark.long
def test_a_living_master_is_replaced_by_another_node(group: Group) -> None:
    nodes = group.start_three()
    with Steady(group.cluster) as steady:
        fourth = group.start("n4")
        group.until_in_sync(*nodes, "n4")
        # No election while the master lives: it is asked to hand over.
        code, _, errors = group.admin("elect", GROUP, "--wait")
        assert (code, "n1 is the master, and may send" in errors) == (ExitCode.REFUSED, True)
        code, _, errors = group.admin("handover", GROUP, "--to", "n4")
        assert code == 0, errors
        assert group.until_master("n4")
        group.until_in_sync(*nodes, "n4")
        nodes["n1"].process.terminate()
        group.until_in_sync("n2", "n3", "n4")
        assert group.admin("remove", "delay-node", GROUP, "n1")[0] == 0
        steady.until_more()
        check_all(group, steady, [nodes["n2"].data, nodes["n3"].data, fourth.data])
