"""An operator pauses at the meta server: real nodes apply it, whoever is killed meanwhile."""

import contextlib
import json
import time
from pathlib import Path

import pytest

from delaywheel.shared.failures import ExitCode
from tests.ports import closed_port
from tests.processes.real_processes import (
    Producer,
    RecordingBroker,
    delaywheel,
    make_item,
    until,
    wall_ms,
)
from tests.processes.test_nodes import Cluster

pytestmark = pytest.mark.process


def command(*words: str) -> tuple[int, str]:
    """Run `delaywheel`; return its exit code and what it said."""
    found = delaywheel(*words)
    return found.returncode, found.stdout + found.stderr


def send(port: int, *names: str) -> None:
    with Producer(port) as producer:
        items = [make_item(name, wall_ms(), subject=f"{name[0]}.s") for name in names]
        assert producer.send(items) == {}


@pytest.mark.long
def test_a_pause_at_the_meta_server_survives_kill_9_and_its_absence_and_ends_at_once(
    tmp_path: Path,
) -> None:
    with RecordingBroker() as broker:
        (tmp_path / "meta").mkdir()
        cluster = Cluster(tmp_path, broker)
        meta_at = ("--meta", f"127.0.0.1:{cluster.meta_http}")
        port, patient = closed_port(), ("--set", "meta.controls_seconds_max=5")
        with cluster.meta() as meta:
            meta.wait_ready()
            code, said = command("pause", *meta_at, "--subject", "p.*")
            assert (code, "no delay server has registered" in said) == (ExitCode.USAGE, True)
            with cluster.node("n1", *patient, port=port) as node:
                node.process.wait_ready()
                code, said = command("pause", *meta_at, "--subject", "p.*")
                assert (code, said) == (
                    0,
                    "subject p.*: paused\nversion 1: 1 of 1 nodes apply it\n",
                )
                send(node.process.port, "p1", "o1")
                assert until(lambda: broker.ids == ["o1"], seconds=10)
                code, said = command("weight", *meta_at, "--group", "g1", "--weight", "3")
                assert code == 0
                assert said.startswith("group g1: weight 3\n")
                # The node has it in its settings, of which the meta server does not know.
                assert "the meta server knows no broker group g1 at present" in said
                assert "version 2: 1 of 1" in said
                assert node.process.status()["brokers"]["g1"]["weight"] == 3
                node.process.kill()
            code, said = command("limit", *meta_at, "--group", "g9", "--rate", "5")
            # It is not known to be dead yet, and has not taken it.
            assert (code, "0 of 1 nodes apply it" in said) == (ExitCode.REFUSED, True)
            meta.kill()
        with cluster.node("n1", *patient, port=port) as node:
            time.sleep(2)
            assert broker.ids == ["o1"]
            with cluster.meta() as meta:
                meta.wait_ready()
                node.process.wait_ready()
                time.sleep(1)
                assert broker.ids == ["o1"]
                code, said = command("explain", "--server", node.process.http, "--subject", "p.s")
                assert (code, "reason" in said, "paused" in said) == (0, True, True)
                code, said = command("topology", *meta_at, "--json")
                assert code == 0
                [delay_group] = json.loads(said)["delay_groups"]
                assert delay_group["controls_version"] == 3
                assert delay_group["nodes"][0]["controls_version"] == 3
                lag = delay_group["nodes"][0]["lag"]
                # What is paused counts as late once its minute has passed, and not before.
                assert lag.pop("late") in {0, 1}
                # There are two messages, a fact, and a record for each start.
                counts = {"pending": 1, "replay_lag": 0, "last_sequence": 5}
                assert {name: lag.pop(name) for name in counts} == counts
                assert set(lag.pop("lateness_ms")) == {"p50", "p99", "max"}
                assert lag == {"ready": True, "unrouted": {}}
                began = time.monotonic()
                code, said = command("resume", *meta_at, "--subject", "p.*")
                assert (code, said.startswith("subject p.*: open\nversion 4: 1 of 1")) == (0, True)
                assert until(lambda: broker.ids == ["o1", "p1"], seconds=1)
                assert time.monotonic() - began < 5
                code, said = command("controls", *meta_at)
                assert (code, "weight 3" in said, "version 4" in said) == (0, True, True)
                assert command("pause", *meta_at, "--cluster", "x", "--subject", "a")[0] == 7
                code, said = command("drain", *meta_at, "--group", "g1")
                paused = "group g1 is paused and nothing is in flight to it from 1 node\n"
                assert (code, said) == (0, paused)
                assert node.process.status()["brokers"]["g1"]["paused"] == 1
                assert command("resume", *meta_at, "--group", "g1")[0] == 0
                assert node.process.status()["brokers"]["g1"]["paused"] == 0
                code, said = command("drain", *meta_at)
                assert (code, "at the node itself: give --server" in said) == (ExitCode.USAGE, True)
                code, said = command("controls", "--follow", "--server", node.process.http)
                assert (code, "version 6" in said) == (0, True)


@pytest.mark.long
def test_a_node_that_only_waits_hears_of_a_pause_and_its_death_fails_no_command(
    tmp_path: Path,
) -> None:
    with RecordingBroker() as broker:
        (tmp_path / "meta").mkdir()
        cluster = Cluster(tmp_path, broker)
        meta_at = ("--meta", f"127.0.0.1:{cluster.meta_http}")
        with cluster.meta() as meta:
            meta.wait_ready()
            with contextlib.ExitStack() as held:
                # The first of a group is its master.
                first = held.enter_context(cluster.node("n1", "--node-id", "n1"))
                first.process.wait_ready()
                second = held.enter_context(cluster.node("n2", "--node-id", "n2"))
                assert until(lambda: second.membership().get("role") == "slave", seconds=20)
                assert command("pause", *meta_at, "--subject", "p.*") == (
                    0,
                    "subject p.*: paused\nversion 1: 2 of 2 nodes apply it\n",
                )
                second.process.kill()
                code, said = command("weight", *meta_at, "--group", "g1", "--weight", "3")
                assert (code, "version 2: 1 of 1 nodes apply it\n" in said) == (0, True)
                assert "it delivers nothing and need not apply it yet: n2 of default: " in said
                code, said = command("drain", *meta_at, "--group", "g1")
                paused = "group g1 is paused and nothing is in flight to it from 1 node\n"
                assert (code, said) == (0, paused)
                # The one that delivers counts as before.
                first.process.kill()
                code, said = command("resume", *meta_at, "--subject", "p.*")
                assert (code, "0 of 1 nodes apply it" in said) == (ExitCode.REFUSED, True)
