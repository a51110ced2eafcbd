"""Dead letters of a real server, through the command, over kills."""

import json
from pathlib import Path
from typing import Any

import pytest

from delaywheel.shared.failures import ExitCode
from tests.processes.real_processes import (
    Producer,
    RecordingBroker,
    ServerProcess,
    delaywheel,
    make_item,
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
