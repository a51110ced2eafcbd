"""Dead letters of a real server, through the command, over kills."""

import contextlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from delay_client import BlockingClient, IllegalSubject
from delaywheel.shared.failures import ExitCode
from tests.processes.real_processes import (
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

QUICK = ("--set", "sender.refused_base_s=0.05")


def dead(node: ServerProcess, *words: str, code: int = 0) -> str:
    """Run `delaywheel dead`; return what it prints."""
    verb, *rest = words
    done = delaywheel("dead", verb, "--server", node.http, *rest)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def letters(node: ServerProcess, *words: str) -> list[dict[str, Any]]:
    """Return what `delaywheel dead list --json` prints."""
    found: list[dict[str, Any]] = json.loads(dead(node, "list", "--json", *words))["items"]
    return found


def pending(node: ServerProcess) -> int:
    """Return how many dead letters the server counts."""
    count: int = node.status()["dead_pending"]
    return count


@pytest.mark.long
def test_one_blocked_subject_over_kills_from_list_to_drop(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with RecordingBroker() as broker:
        broker.blocked = {"poison"}
        with server(data, broker_port=broker.port, options=QUICK) as node:
            node.wait_ready()
            with Producer(node.port) as producer:
                sent = {f"p{n}": make_item(f"p{n}", wall_ms(), subject="poison") for n in range(30)}
                assert producer.send(list(sent.values())) == {}
                fine = [make_item(f"f{n}", wall_ms()) for n in range(30)]
                assert producer.send(fine) == {}
            assert until(lambda: len(broker.ids) == 30, seconds=10)
            assert until(lambda: pending(node) == 30, seconds=20)
            node.kill()
        with server(data, broker_port=broker.port, options=QUICK) as node:
            node.wait_ready()
            rows = letters(node)
            assert sorted(row["message_id"] for row in rows) == sorted(sent)
            assert {row["code_name"] for row in rows} == {"subject_not_assigned"}
            assert {(row["group"], row["tries"]) for row in rows} == {("g1", 3)}
            first, second, third = (row["sequence"] for row in rows[:3])
            shown = json.loads(dead(node, "show", str(first), "--json", "--payload"))
            assert shown["attributes"] == {"k": "v"}
            assert len(shown["refusals"]) == 3
            table = dead(node, "list", "--group", "g1", "--limit", "2")
            assert "subject_not_assigned" in table
            assert "there are more: give --limit" in table
            assert "refusals" in dead(node, "show", str(first))
            assert dead(node, "list", "--subject", "other") == "no dead letters\n"

            broker.blocked = set()
            assert dead(node, "requeue", str(first), str(second)) == "2 requeued\n"
            assert until(lambda: len(broker.ids) == 32, seconds=10)
            sent_again = {delivery.message_id: delivery.data for delivery in broker.deliveries[30:]}
            assert sent_again == {row["message_id"]: sent[row["message_id"]] for row in rows[:2]}
            assert dead(node, "drop", str(third)) == "1 dropped\n"
            again = dead(node, "requeue", str(first), code=ExitCode.REFUSED)
            assert "settled before" in again
            node.kill()
        with server(data, broker_port=broker.port, options=QUICK) as node:
            node.wait_ready()
            assert pending(node) == 27
            some = [str(row["sequence"]) for row in letters(node)[:7]]
            assert dead(node, "drop", *some, "--yes") == "7 dropped\n"
            assert dead(node, "requeue", "--subject", "poison") == "20 requeued\n"
            assert until(lambda: len(broker.ids) == 52, seconds=10)
            assert pending(node) == 0
            code, metrics = node.get("/metrics")
            assert (code, b"delaywheel_dead_pending 0.0" in metrics) == (200, True)
            assert node.terminate() < 5
        assert len(broker.ids) == len(set(broker.ids)) == 52
    done = delaywheel("log", "verify", str(data))
    assert done.returncode == 0, done.stdout


@pytest.mark.long
def test_what_nobody_entered_is_dead_at_each_group_and_asked_for_at_the_meta_server(
    tmp_path: Path,
) -> None:
    for name in ("meta", "d1", "d2"):
        (tmp_path / name).mkdir()
    entered = ("--set", "registration.subjects=entered")
    with contextlib.ExitStack() as stack:
        meta = stack.enter_context(meta_server(tmp_path / "meta" / "data", options=entered))
        meta.wait_ready()
        nodes = {}
        for name in ("d1", "d2"):
            options = ("--meta", meta.http, "--group", name)
            data = tmp_path / name / "data"
            nodes[name] = stack.enter_context(server(data, options=options)).wait_ready()

        def run(*words: str, code: int = 0) -> str:
            done = delaywheel(*words, "--meta", meta.http)
            assert done.returncode == code, done.stderr
            return done.stdout + done.stderr

        def admin(*words: str) -> None:
            done = delaywheel("admin", "--meta", meta.http, *words)
            assert done.returncode == 0, done.stderr

        # A client is told at once; who sends to a node all the same is not, before that knows.
        client = stack.enter_context(BlockingClient(meta=meta.http))
        with pytest.raises(IllegalSubject, match="an operator has to enter it"):
            client.send("bill", delay=0, timeout=60)
        producers = {}
        for name, node in nodes.items():
            producers[name] = producer = stack.enter_context(Producer(node.port))
            assert producer.send([make_item(f"{name}-m", wall_ms(), subject="bill")]) == {}
            assert until(lambda node=node: pending(node) == 1, seconds=20)
            refused = producer.send([make_item("again", wall_ms(), subject="bill")]) or {}
            assert [code for code, _ in refused.values()] == [3]

        found = json.loads(run("dead", "list", "%DLQ%meta server", "--json"))
        places = {one["message_id"]: one for one in found["items"]}
        assert {one["code_name"] for one in places.values()} == {"subject_not_assigned"}
        named = {name: f"{name}/{places[f'{name}-m']['sequence']}" for name in nodes}
        assert [places[f"{name}-m"]["delay_group"] for name in nodes] == list(nodes)
        assert "d2-m" in run("dead", "show", named["d2"], "--json")

        admin("set", "subject", "bill")
        admin("read-only", "d1")
        assert until(
            lambda: (
                producers["d1"].send([make_item("x", wall_ms() + 9**9, subject="x")])
                == {b"x": (4, "BROKER_READ_ONLY: read-only by an operator")}
            ),
            seconds=5,
        )
        in_an_hour = datetime.now(UTC) + timedelta(hours=1)
        requeued = run("dead", "requeue", named["d1"], "--at", in_an_hour.isoformat())
        assert requeued == "1 requeued\n"
        assert pending(nodes["d1"]) == 0
        nodes["d1"].kill()
        shown = run("dead", "list", code=ExitCode.NETWORK)
        assert named["d2"] in shown
        assert "delay group d1: " in shown
        assert run("dead", "drop", named["d2"]) == "1 dropped\n"
