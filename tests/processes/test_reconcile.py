"""A running server is reconciled at any moment, and owes nothing once all was due."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.processes.real_processes import (
    Producer,
    RecordingBroker,
    delaywheel,
    make_item,
    server,
    wall_ms,
)

pytestmark = pytest.mark.process
OPTIONS = (
    "--set",
    "storage.checkpoint_interval_ms=400",
    "--set",
    "storage.message_log_file_bytes_max=1048576",
)
MESSAGES = 4000


def reconcile(output: Path, *options: str) -> dict[str, Any]:
    """Run the command; return what it wrote."""
    done = delaywheel("spark", "reconcile", "--engine", "local", "--output", str(output), *options)
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(output.read_bytes())
    assert result["verdict"] == "clean"
    assert result["complete"]
    return result


@pytest.mark.long
def test_a_running_server_has_no_findings_and_at_the_end_nothing_is_lost(tmp_path: Path) -> None:
    data, output = tmp_path / "data", tmp_path / "result.json"
    manifest, pinned = tmp_path / "manifest.json", tmp_path / "pinned.json"
    accepted = []
    with (
        RecordingBroker() as broker,
        server(data, broker_port=broker.port, options=OPTIONS) as node,
    ):
        node.wait_ready()
        with Producer(node.port) as producer:
            for begin in range(0, MESSAGES, 500):
                # Those before the manifest are due when it is long read, on a busy machine too.
                now_ms = wall_ms() + 15_000 * (begin == MESSAGES // 2)
                items = [
                    make_item(f"m{n}", now_ms + 200 + n % 40 * 100, subject=f"s{n % 3}")
                    for n in range(begin, begin + 500)
                ]
                assert producer.send(items) == {}
                [group] = reconcile(output, "--root", str(data))["groups"]
                states = group["states"]
                assert states["delivered"] + states["waiting"] == group["accepted"]
                assert group["accepted"] >= begin + 500
                accepted.append(group["accepted"])
                if begin == MESSAGES // 2:
                    done = delaywheel("log", "manifest", str(data), "--output", str(manifest))
                    assert done.returncode == 0, done.stderr
                    [group] = reconcile(pinned, "--manifest", f"{manifest}={data}")["groups"]
                    assert group["accepted"] == begin + 500
                    assert group["states"]["waiting"]
        until = time.monotonic() + 30
        while len(broker.deliveries) < MESSAGES:
            assert time.monotonic() < until, "not delivered"
            time.sleep(0.05)
        assert node.terminate() < 15
    [group] = reconcile(output, "--root", str(data), "--final", "--grace-ms", "0")["groups"]
    assert group["states"]["delivered"] == group["accepted"] == MESSAGES
    assert group["fact_classes"]["first"] == group["facts"] == MESSAGES
    assert group["early"] == group["log"]["missing"] == group["log"]["unlogged"] == 0
    assert group["log"]["records"] == MESSAGES
    assert accepted[-1] == MESSAGES
    # What was pinned half way is what it was, whatever the server has done since.
    reconcile(output, "--manifest", f"{manifest}={data}")
    assert output.read_bytes() == pinned.read_bytes()
