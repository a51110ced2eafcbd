"""A delay server process keeps its promises on real sockets and files, and says what is wrong."""

import random
import threading
import time
import zlib
from collections import Counter
from pathlib import Path

import pytest

from delaywheel.shared.failures import ExitCode
from storage.batch.file_header import FILE_HEADER_SIZE
from tests.ports import closed_port
from tests.processes.real_processes import (
    STOP_S,
    Producer,
    RecordingBroker,
    make_item,
    server,
    until,
    wall_ms,
)

pytestmark = pytest.mark.process


def test_what_is_sent_arrives_when_due_byte_for_byte_and_is_counted(tmp_path: Path) -> None:
    with (
        RecordingBroker() as broker,
        server(tmp_path / "data", broker_port=broker.port, options=("--group", "dg1")) as node,
    ):
        node.wait_ready()
        now_ms = wall_ms()
        sent = [
            make_item(f"m{n}", now_ms - 1000 + 20 * n, subject=f"%RETRY%s{n % 3}%g")
            for n in range(100)
        ]
        with Producer(node.port) as producer:
            assert producer.send(sent[:1]) == {}
            assert producer.send(sent[1:]) == {}
            assert producer.send([make_item("later", now_ms + 3_600_000)]) == {}
            assert producer.send([]) == {}
            assert list(producer.send([make_item("a/b", now_ms, subject="a/b")]) or {}) == [b"a/b"]
        assert until(lambda: len(broker.ids) >= 100, seconds=15)
        assert sorted(delivery.data for delivery in broker.deliveries) == sorted(sent)
        assert all(delivery.at_ms >= delivery.due_ms for delivery in broker.deliveries)
        assert until(lambda: node.status()["pending"] == 1, seconds=5)
        status = node.status()
        assert status["group"] == "dg1"
        assert status["accepted"] == 101
        assert status["refused"] == {"subject_not_assigned": 1}
        assert status["dispatched"] == {"delivered": 100}
        assert node.get("/livez") == (200, b'{"live":true}')
        assert node.get("/readyz") == (200, b'{"ready":true,"failing":[]}')
        code, metrics = node.get("/metrics")
        assert code == 200
        assert b"delaywheel_accepted_total 101.0" in metrics
        assert node.terminate() < STOP_S


def test_a_sigterm_under_load_loses_nothing_and_nothing_is_sent_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with RecordingBroker() as broker:
        acknowledged: set[str] = set()
        with server(data, broker_port=broker.port) as node:
            node.wait_ready()
            load = Load(node.port, acknowledged)
            time.sleep(1.5)
            assert node.terminate() < STOP_S
            load.stop()
        assert len(acknowledged) > 100
        with server(data, broker_port=broker.port) as node:
            node.wait_ready()
            assert until(lambda: acknowledged <= set(broker.ids), seconds=20)
            time.sleep(0.5)
            assert node.terminate() < STOP_S
        assert [name for name, count in Counter(broker.ids).items() if count > 1] == []


@pytest.mark.long
def test_a_sigterm_is_quick_though_no_broker_can_be_reached(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with server(data, broker_port=closed_port()) as node:
        node.wait_ready()
        with Producer(node.port) as producer:
            assert producer.send([make_item(f"m{n}", wall_ms()) for n in range(100)]) == {}
            time.sleep(0.5)
            assert node.terminate() < STOP_S
    with RecordingBroker() as broker, server(data, broker_port=broker.port) as node:
        node.wait_ready()
        assert until(lambda: len(set(broker.ids)) == 100, seconds=15)
        assert node.terminate() < STOP_S
        assert len(broker.ids) == 100


def test_a_data_directory_in_use_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with server(tmp_path / "data", broker_port=1) as first:
        first.wait_ready()
        with server(tmp_path / "data", broker_port=1) as second:
            assert second.wait(20) == ExitCode.DATA_DIRECTORY
            last = second.sentence()
            assert last == (
                f"Error: {tmp_path / 'data'} is in use by another process; "
                "one data directory serves one node"
            )
        assert first.status()["ready"] is True
        first.terminate()


@pytest.mark.long
def test_the_data_of_another_group_are_refused_in_one_sentence(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with server(data, broker_port=1, options=("--group", "dg1")) as node:
        node.wait_ready().terminate()
    with server(data, broker_port=1, options=("--group", "dg2")) as node:
        assert node.wait(20) == ExitCode.DATA_DIRECTORY
        last = node.sentence()
        assert "dg1" in last
        assert "dg2" in last


@pytest.mark.long
def test_files_of_a_newer_version_are_refused_in_one_sentence(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with server(data, broker_port=1) as node:
        node.wait_ready()
        with Producer(node.port) as producer:
            assert producer.send([make_item("m1", wall_ms() + 3_600_000)]) == {}
        node.terminate()
    [path] = data.glob("message_log/*.log")
    whole = path.read_bytes()
    header = bytearray(whole[:FILE_HEADER_SIZE])
    header[4] += 1
    header[-4:] = zlib.crc32(header[:-4]).to_bytes(4, "little")
    path.write_bytes(bytes(header) + whole[FILE_HEADER_SIZE:])
    with server(data, broker_port=1) as node:
        assert node.wait(20) == ExitCode.LOGS
        last = node.sentence()
        assert "file of format version 3" in last
        assert "upgrade this node" in last
    assert path.read_bytes()[FILE_HEADER_SIZE:] == whole[FILE_HEADER_SIZE:]


@pytest.mark.parametrize("option", ["listener.address", "http.address"])
@pytest.mark.long
def test_an_address_that_is_taken_is_one_sentence(tmp_path: Path, option: str) -> None:
    with RecordingBroker() as broker:
        taken = f"127.0.0.1:{broker.port}"
        options = ("--set", f"{option}={taken}")
        with server(tmp_path / "data", broker_port=1, options=options) as node:
            assert node.wait(20) == ExitCode.NETWORK
            last = node.sentence()
            assert taken in last


class Load:
    """A producer that sends small requests one after another until it is stopped.

    Each message is due within a second and a half. `acknowledged` gets the ids that were taken.
    """

    def __init__(
        self, port: int, acknowledged: set[str], *, name: str = "m", seed: int = 1
    ) -> None:
        self.sent: dict[str, bytes] = {}
        self._acknowledged = acknowledged
        self._name = name
        self._chance = random.Random(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(port,), daemon=True)
        self._thread.start()

    def _run(self, port: int) -> None:
        number = 0
        try:
            with Producer(port, timeout_s=6) as producer:
                while not self._stopping.is_set():
                    items = {}
                    for _ in range(self._chance.randint(1, 30)):
                        number += 1
                        due_ms = wall_ms() + self._chance.randint(-200, 1500)
                        name = f"{self._name}-{number}"
                        items[name] = make_item(
                            name, due_ms, value="v" * self._chance.randint(1, 300)
                        )
                    self.sent |= items
                    refused = producer.send(list(items.values()))
                    if refused is not None:
                        self._acknowledged |= {
                            name for name in items if name.encode() not in refused
                        }
                    self._stopping.wait(0.002)
        except OSError:
            # The server is gone: what was not answered is nobody's promise.
            return

    def stop(self) -> None:
        """End the load."""
        self._stopping.set()
        self._thread.join(10)
        assert not self._thread.is_alive()


@pytest.mark.long
def test_whenever_it_is_killed_nothing_acknowledged_is_lost_or_early_and_few_come_twice(
    tmp_path: Path,
) -> None:
    chance = random.Random(2026)
    data = tmp_path / "data"
    acknowledged: set[str] = set()
    sent: dict[str, bytes] = {}
    kills_ms: list[int] = []
    with RecordingBroker() as broker:
        # Under load; and, after each, in start-up and recovery: before the ready line.
        for cycle in range(4):
            with server(data, broker_port=broker.port) as node:
                node.wait_ready()
                load = Load(node.port, acknowledged, name=f"c{cycle}", seed=cycle)
                time.sleep(chance.uniform(0.5, 2.5))
                kills_ms.append(wall_ms())
                node.kill()
                load.stop()
                sent |= load.sent
            with server(data, broker_port=broker.port) as node:
                time.sleep(chance.uniform(0.1, 1.0))
                kills_ms.append(wall_ms())
                node.kill()
        assert len(acknowledged) > 500
        with server(data, broker_port=broker.port) as node:
            node.wait_ready()
            assert until(lambda: acknowledged <= set(broker.ids), seconds=20), (
                f"{len(acknowledged - set(broker.ids))} of {len(acknowledged)} lost"
            )
            time.sleep(1.6)
            assert until(lambda: node.status()["pending"] == 0, seconds=5)
            assert node.terminate() < STOP_S
        deliveries = list(broker.deliveries)
    assert all(delivery.at_ms >= delivery.due_ms for delivery in deliveries), "early"
    assert all(delivery.crc_ok for delivery in deliveries)
    assert all(sent[delivery.message_id] == delivery.data for delivery in deliveries)
    seen: dict[str, int] = {}
    again = 0
    for delivery in deliveries:
        before_ms = seen.get(delivery.message_id)
        if before_ms is not None:
            again += 1
            assert any(-500 <= kill_ms - before_ms <= 1000 for kill_ms in kills_ms), (
                f"{delivery.message_id} came twice, first at {before_ms}, kills at {kills_ms}"
            )
        seen[delivery.message_id] = delivery.at_ms
    assert again <= len(deliveries) // 5
