"""Real delay servers and a real meta server: roles, epochs and refusals outlive every process."""

import contextlib
import json
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from delaywheel.shared.failures import ExitCode
from tests.ports import closed_port
from tests.processes.real_processes import (
    STOP_S,
    Producer,
    RecordingBroker,
    ServerProcess,
    delaywheel,
    make_item,
    meta_server,
    server,
    until,
    wall_ms,
)

pytestmark = pytest.mark.process


class Cluster:
    """Where everybody is; ports stay the same from life to life."""

    def __init__(self, folder: Path, broker: RecordingBroker) -> None:
        self.folder = folder
        self.broker = broker
        self.broker_port: int | None = broker.port
        """Where nodes deliver; None where the meta server says it."""
        self.meta_http = closed_port()
        self.meta_port = closed_port()

    def meta(self, *options: str) -> contextlib.AbstractContextManager[ServerProcess]:
        """Run the meta server, which is not ready yet."""
        where = ("--listen", f"127.0.0.1:{self.meta_port}", "--http", f"127.0.0.1:{self.meta_http}")
        return meta_server(self.folder / "meta" / "data", options=(*where, *options))

    @contextlib.contextmanager
    def node(self, name: str, *options: str, port: int = 0, http: int = 0) -> Iterator["Node"]:
        """Run a delay server, which is not ready yet."""
        data = self.folder / name / "data"
        data.parent.mkdir(exist_ok=True)
        http = http or closed_port()
        where = ("--listen", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{http}")
        meta = ("--meta", f"127.0.0.1:{self.meta_http}")
        options = (*where, *meta, "--set", "meta.reconnect_seconds_max=0.5", *options)
        with server(data, broker_port=self.broker_port, options=options) as process:
            process.http = f"127.0.0.1:{http}"
            yield Node(process, data)


class Node:
    """A delay server that registers, and its directory."""

    def __init__(self, process: ServerProcess, data: Path) -> None:
        self.process = process
        self.data = data

    def membership(self) -> dict[str, Any]:
        """Return what it is in its group; nothing while that is not known."""
        try:
            found: dict[str, Any] = self.process.status().get("meta", {})
        except OSError:
            return {}
        return found

    def failing(self) -> list[str]:
        """Return why it does not take and deliver messages."""
        code, body = self.process.get("/readyz")
        failing: list[str] = json.loads(body)["failing"]
        assert (code == 503) == bool(failing)
        return failing


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "meta").mkdir()
    with RecordingBroker() as broker:
        yield Cluster(tmp_path, broker)


def epochs_in(data: Path) -> list[int]:
    """Return the epoch of each EPOCH_START in a log that has no fault."""
    verified = delaywheel("log", "verify", str(data))
    assert verified.returncode == 0, verified.stdout + verified.stderr
    dumped = delaywheel("log", "dump", str(data))
    assert dumped.returncode == 0, dumped.stderr
    records = [json.loads(line) for line in dumped.stdout.splitlines()]
    return [one["epoch"] for one in records if one.get("kind") == "EPOCH_START"]


def group_state(meta: ServerProcess, group: str) -> str | None:
    """Return the state in which clients see a group."""
    groups = meta.topology()["broker_groups"]
    found: str | None = next((one["state"] for one in groups if one["name"] == group), None)
    return found


def test_a_restarted_node_keeps_its_role_and_begins_an_epoch(cluster: Cluster) -> None:
    port = closed_port()
    with cluster.meta() as meta:
        meta.wait_ready()
        for life in range(1, 6):
            with cluster.node("n1", "--node-id", "n1", "--group", "d1", port=port) as node:
                node.process.wait_ready()
                status = node.process.status()
                assert (status["epoch"], status["incarnation"]) == (life, life)
                assert status["meta"]["role"] == "master"
                assert until(lambda: group_state(meta, "d1") == "RW", seconds=2)
                with Producer(node.process.port) as producer:
                    assert producer.send([make_item(f"m{life}", wall_ms() + 3_600_000)]) == {}
                if life % 2:
                    node.process.kill()
                    assert group_state(meta, "d1") == "RW"
                else:
                    node.process.terminate()
                    assert group_state(meta, "d1") == "NRW"
    assert epochs_in(cluster.folder / "n1" / "data") == [1, 2, 3, 4, 5]


def test_a_newer_start_elsewhere_fences_off_the_one_before(cluster: Cluster) -> None:
    """A stopped process wakes up after its directory was moved and started on another machine."""
    quick = ("--set", "registration.node_timeout_ms=1000")
    with cluster.meta(*quick) as meta:
        meta.wait_ready()
        with cluster.node("n1", "--node-id", "n1") as old:
            old.process.wait_ready()
            moved = cluster.folder / "moved" / "data"
            moved.parent.mkdir()
            shutil.copytree(old.data, moved)
            old.process.process.send_signal(signal.SIGSTOP)
            time.sleep(1.5)
            with cluster.node("moved") as new:
                new.process.wait_ready()
                assert new.membership()["epoch"] == 2
                old.process.process.send_signal(signal.SIGCONT)
                assert old.process.wait(20) == ExitCode.DATA_DIRECTORY
                # It may have opened its directory again, when it heard of the other master.
                sentence = old.process.sentence()
                assert "after this one" in sentence or "with the same incarnation" in sentence
                assert new.failing() == []
    assert epochs_in(moved) == [1, 2]


def take(node: Node, *messages: str) -> None:
    """Have a node that is ready take messages that are due much later, and stop it."""
    node.process.wait_ready()
    with Producer(node.process.port) as producer:
        for message in messages:
            assert producer.send([make_item(message, wall_ms() + 3_600_000)]) == {}
    assert node.process.terminate() < STOP_S


@pytest.mark.long
def test_a_copy_that_is_started_in_the_place_of_its_original_never_shares_an_epoch(
    cluster: Cluster,
) -> None:
    """It was made while the original was stopped, so both are started for the second time."""
    port = closed_port()
    quick = ("--set", "registration.node_timeout_ms=1000")
    with cluster.meta(*quick) as meta:
        meta.wait_ready()
        with cluster.node("n1", "--node-id", "n1", port=port) as first:
            take(first, "a")
        copied = cluster.folder / "copy" / "data"
        copied.parent.mkdir()
        shutil.copytree(first.data, copied)
        with cluster.node("n1", port=port) as original:
            take(original, "b", "c")
        # The same incarnation, the same address, and a log of its own.
        with cluster.node("copy", port=port) as copy:
            assert copy.process.wait(20) == ExitCode.DATA_DIRECTORY
            assert "with the same incarnation, 2, by another start" in copy.process.sentence()
        # Started again it has a higher incarnation, and still lacks what the original took.
        with cluster.node("copy", port=port) as copy:
            assert copy.process.wait(20) == ExitCode.DATA_DIRECTORY
            assert "this directory is an older copy: n1 had record" in copy.process.log()
            assert "approve default n1 --lose-messages" in copy.process.log()
        assert epochs_in(copied) == [1]
        with cluster.node("n1", port=port) as original:
            original.process.wait_ready()
            assert original.process.status()["pending"] == 3
            assert original.process.terminate() < STOP_S
        assert epochs_in(original.data) == [1, 2, 3]

        # The original is lost: an operator gives up what only it had.
        admin = ("admin", "--meta", f"127.0.0.1:{cluster.meta_http}")
        older = ("approve", "default", "n1")
        assert until(lambda: "say that messages" in delaywheel(*admin, *older).stderr, seconds=15)
        assert delaywheel(*admin, *older, "--lose-messages").returncode == 0
        with cluster.node("copy", port=port) as copy:
            copy.process.wait_ready()
            status = copy.process.status()
            assert (status["epoch"], status["pending"]) == (4, 1)
            assert copy.process.terminate() < STOP_S
        shown = delaywheel(*admin, "get", "audit", "--action", "delay-node.approve", "--json")
        assert '"target":"default/n1"' in shown.stdout
        # It comes back after all, and is refused: its log and the copy's have parted.
        with cluster.node("n1", port=port) as late:
            assert late.process.wait(20) == ExitCode.DATA_DIRECTORY
        with cluster.node("n1", port=port) as late:
            assert late.process.wait(20) == ExitCode.DATA_DIRECTORY
            assert "it lacks that epoch" in late.process.log()
    assert epochs_in(copied) == [1, 4]
    assert epochs_in(late.data) == [1, 2, 3]


@pytest.mark.long
def test_only_who_has_the_secret_may_be_a_node(cluster: Cluster) -> None:
    secret = cluster.folder / "secret"
    secret.write_text("a secret that nobody else can guess")
    secret.chmod(0o600)
    port = closed_port()
    with cluster.meta("--set", f"registration.secret_file={secret}") as meta:
        meta.wait_ready()
        own = ("--set", f"meta.secret_file={secret}")
        with cluster.node("n1", "--node-id", "n1", *own, port=port) as node:
            node.process.wait_ready()
            assert node.membership()["authenticated"] is True
            with cluster.node("n2", "--node-id", "n2") as stranger:
                why = "delay servers have to prove the secret of this server"
                assert until(lambda: why in stranger.membership().get("trouble", ""), seconds=15)
                stranger.process.kill()
            status = meta.status()
            assert status["node_authentication"] == "required"
            assert status["nodes_unauthenticated"] >= 1
            groups = meta.topology()["delay_groups"]
            assert [one["nodes"][0]["node_id"] for one in groups] == ["n1"]
            for process in (meta, node.process):
                assert "nobody else can guess" not in process.log()
            assert node.process.terminate() < STOP_S
    secret.chmod(0o644)
    with cluster.node("n1", *own) as open_to_all:
        assert open_to_all.process.wait(20) == ExitCode.USAGE
        assert "users other than its owner and group may read" in open_to_all.process.sentence()
    with cluster.meta("--set", f"registration.secret_file={secret}") as meta:
        assert meta.wait(20) == ExitCode.USAGE
