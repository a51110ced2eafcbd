"""An operator pauses a subject of a real node under load, and kills the node: it stays paused."""

import threading
import time
from collections import Counter
from pathlib import Path

import msgspec
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


def command(node: ServerProcess, *words: str) -> tuple[int, str]:
    """Run `delaywheel` against a node; return its exit code and what it said."""
    found = delaywheel(*words, "--server", f"http://{node.http}")
    return found.returncode, found.stdout + found.stderr


class Load:
    """Sends messages of two subjects that are due now, until it is stopped or the node is gone."""

    def __init__(self, port: int) -> None:
        self.acknowledged: list[str] = []
        self._port = port
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        number = 0
        try:
            with Producer(self._port) as producer:
                while not self._stop.is_set():
                    names = [f"{subject}{number}" for subject in ("p", "o")]
                    due_ms = wall_ms()
                    items = [make_item(name, due_ms, subject=f"{name[0]}.s") for name in names]
                    if producer.send(items) == {}:
                        self.acknowledged += names
                    number += 1
                    time.sleep(0.002)
        except OSError:
            return

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(10)


@pytest.mark.long
def test_a_pause_under_load_survives_kill_9_and_all_is_delivered_in_order_in_the_end(
    tmp_path: Path,
) -> None:
    data, rules = tmp_path / "data", tmp_path / "rules.json"
    rules.write_text("{}")
    options = ("--set", f"node.rules_file={rules}")
    with RecordingBroker() as broker:
        with server(data, broker_port=broker.port, options=options) as node:
            node.wait_ready()
            load = Load(node.port)
            assert until(lambda: len(broker.ids) > 100, seconds=20)
            rules.write_text('{"subjects":{"p.*":{"paused":true}}}')
            assert until(lambda: node.status()["controls"]["version"] == 1, seconds=5)
            time.sleep(0.3)
            seen = Counter(name[0] for name in broker.ids)
            assert until(lambda: len(broker.ids) > seen.total() + 200, seconds=30)
            assert Counter(name[0] for name in broker.ids)["p"] == seen["p"]
            node.kill()
            load.stop()
        with server(data, broker_port=broker.port, options=options) as node:
            node.wait_ready()
            others = {name for name in load.acknowledged if name[0] == "o"}
            assert until(lambda: others <= set(broker.ids), seconds=30)
            time.sleep(1)
            at_pause = [name for name in broker.ids if name[0] == "p"]
            assert len(set(at_pause)) == len(at_pause) == seen["p"]
            code, said = command(node, "explain", "--subject", "p.s")
            assert (code, "reason" in said, "paused" in said) == (0, True, True)
            assert node.status()["paused"]["messages"] > 0
            code, said = command(node, "controls", "--json")
            assert (code, msgspec.json.decode(said)["subjects"]) == (
                0,
                {"p.*": {"paused": True}},
            )
            rules.write_text('{"groups":{"g1":{"weight":3}}}')
            wanted = set(load.acknowledged)
            assert until(lambda: wanted <= set(broker.ids), seconds=60)
            resumed = [int(name[1:]) for name in broker.ids if name[0] == "p"][len(at_pause) :]
            assert resumed == sorted(resumed)
            assert node.status()["brokers"]["g1"]["weight"] == 3
            assert command(node, "drain", "--seconds", "5") == (0, "the node has stopped\n")
            assert node.wait(20) == 0


@pytest.mark.long
def test_a_node_refuses_to_be_administered_from_elsewhere_without_a_token(tmp_path: Path) -> None:
    with (
        RecordingBroker() as broker,
        server(tmp_path / "data", broker_port=broker.port, options=("--http", "0.0.0.0:0")) as node,
    ):
        assert node.wait(20) == ExitCode.USAGE
        assert "admin.token_file" in node.sentence()


@pytest.mark.long
def test_a_damaged_file_of_controls_keeps_the_node_from_starting(tmp_path: Path) -> None:
    data, rules = tmp_path / "data", tmp_path / "rules.json"
    rules.write_text('{"subjects":{"a":{"paused":true}}}')
    options = ("--set", f"node.rules_file={rules}")
    with RecordingBroker() as broker:
        with server(data, broker_port=broker.port, options=options) as node:
            node.wait_ready()
            node.terminate()
        path = data / "controls"
        path.write_bytes(path.read_bytes()[:-1])
        with server(data, broker_port=broker.port) as node:
            assert node.wait(20) == ExitCode.LOGS
            assert "move it away" in node.sentence()
        path.unlink()
        with server(data, broker_port=broker.port) as node:
            node.wait_ready()
            node.terminate()
