"""A gateway in front of real meta and delay servers: what it answers while they come and go."""

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from delay_transport.seams.process import allow_open_files
from tests.ports import closed_port
from tests.processes.real_gateway import Gateway, gateway
from tests.processes.real_processes import RecordingBroker, until
from tests.processes.test_nodes import Cluster
from tests.processes.test_replicas import ELECTED_S, Group, new_group

pytestmark = pytest.mark.process

MUCH = 200_000_000
"""Bytes that nobody has to read who has refused a request."""
WAITING = "/v1/messages?subject=orders"


def listed(door: Gateway, query: str = "", *, limit: int = 7) -> tuple[list[Any], dict[str, str]]:
    """Return all rows of a list, page by page, and who is away at its end."""
    rows, cursor = [], ""
    while True:
        page = door.ask("GET", f"{WAITING}{query}&limit={limit}&cursor={cursor}")
        assert page.code == 200, page
        rows += page.json["items"]
        assert page.json["complete"] is not bool(page.json["away"])
        cursor = page.json["next"]
        if cursor is None:
            return rows, page.json["away"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "meta").mkdir()
    with RecordingBroker() as broker:
        yield Cluster(tmp_path, broker)


@pytest.mark.long
def test_messages_of_two_groups_are_found_listed_moved_and_cancelled(cluster: Cluster) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(cluster.meta()).wait_ready()
        nodes = []
        for name in ("d1", "d2"):
            node = stack.enter_context(
                cluster.node(name, "--node-id", "n1", "--group", name, port=closed_port())
            )
            nodes.append(node.process.wait_ready())
        door = stack.enter_context(gateway(cluster.folder, cluster.meta_http))
        receipts: dict[str, Any] = {}

        def both_have_some() -> bool:
            number = len(receipts)
            headers = {"Idempotency_Key": f"m{number}", "Delaywheel_Delay": f"{3600 - number}s"}
            answer = door.ask("POST", "/v1/messages/orders", b"tea", **headers)
            assert answer.code == 202, answer
            receipts[f"m{number}"] = answer.json
            return number >= 20 and len({row["delay_group"] for row in listed(door)[0]}) == 2

        assert until(both_have_some, seconds=60)
        rows, away = listed(door)
        assert away == {}
        dues = {name: one["due_ms"] for name, one in receipts.items()}
        assert {row["id"]: row["due_ms"] for row in rows} == dues
        assert [row["due_ms"] for row in rows] == sorted(dues.values())

        one, two, three = (rows[place] for place in (0, 1, 2))
        token = receipts[one["id"]]["cancel_token"]
        assert [
            row["reason"] for row in door.ask("GET", f"/v1/messages/{token}").json["messages"]
        ] == ["waiting"]
        assert door.ask("DELETE", f"/v1/messages/{token}").code == 200
        gone = door.ask("GET", f"/v1/messages/{token}").json["messages"]
        assert [(row["reason"], row["fact"]["outcome"]) for row in gone] == [("done", "cancelled")]
        assert door.ask("GET", "/v1/messages/orders/none").code == 404
        assert door.ask("DELETE", "/v1/messages/orders/none").code == 404

        to = {"Content_Type": "application/json"}
        path = f"/v1/messages/orders/{two['id']}?due={two['due']}"
        moved = door.ask("PATCH", path, b'{"due": "2027-01-01T00:00:00Z"}', **to)
        assert (moved.code, moved.json["state"]) == (200, "moved")
        assert listed(door)[0][-1]["id"] == two["id"]
        assert door.ask("DELETE", f"/v1/messages/{moved.json['cancel_token']}").code == 200

        before = f"&due_before={three['due_ms'] // 1000 + 5}"
        counted = door.ask("DELETE", f"{WAITING}{before}&dry_run=true").json
        few = len(listed(door, before)[0])
        assert counted["states"] == {"pending": few}
        done = door.ask("DELETE", f"{WAITING}{before}").json
        assert done == {"states": {"cancelled": few}, "complete": True, "next": {}, "away": {}}
        left = listed(door)[0]
        assert len(left) == len(receipts) - 2 - few

        nodes[1].kill()
        rows, away = listed(door)
        assert list(away) == ["d2"]
        assert [row["id"] for row in rows] == [
            row["id"] for row in left if row["delay_group"] == "d1"
        ]
        lost = next(row for row in left if row["delay_group"] == "d2")
        path = f"/v1/messages/orders/{lost['id']}?due={lost['due']}"
        assert door.ask("GET", path).code == 503
        doubt = door.ask("DELETE", path)
        assert (doubt.code, doubt.json["code"]) == (503, "in-doubt")
        assert int(doubt.headers["retry-after"]) >= 1
        nodes[0].kill()
        assert door.ask("GET", WAITING).code == 503


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with new_group(tmp_path) as found:
        yield found


def test_requests_through_a_failover_are_answered_late_or_503_and_kept_once(group: Group) -> None:
    """Four callers send each key until it is answered 202; the master and a gateway are killed."""
    nodes = group.start_three()
    meta, folder = group.cluster.meta_http, group.cluster.folder
    kept: dict[str, int] = {}
    codes: set[int] = set()
    lacking: list[object] = []
    stop = threading.Event()

    def call(caller: int, doors: list[Gateway]) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            key, door = f"c{caller}-{number}", doors[caller % 2]
            headers = {"Idempotency_Key": key, "Delaywheel_Not_Before": "2027-01-01T00:00:00Z"}
            while key not in kept:
                try:
                    answer = door.ask("POST", "/v1/messages/orders", b"tea", **headers)
                except OSError:
                    # Its gateway was killed: another one is asked the same.
                    door = doors[0]
                    continue
                codes.add(answer.code)
                if answer.code == 202:
                    kept[key] = answer.json["due_ms"]
                elif answer.code != 503 or "retry-after" not in answer.headers:
                    lacking.append(answer)
                    return
                else:
                    time.sleep(0.1)

    with gateway(folder, meta) as first, gateway(folder, meta) as second:
        callers = [threading.Thread(target=call, args=(n, [first, second])) for n in range(4)]
        for caller in callers:
            caller.start()
        try:
            assert until(lambda: len(kept) >= 40, seconds=30)
            nodes["n1"].process.kill()
            second.process.kill()
            master = group.until_master("n2", "n3")
            before = len(kept)
            assert until(lambda: len(kept) >= before + 40, seconds=ELECTED_S), (codes, master)
        finally:
            stop.set()
            for caller in callers:
                caller.join(60)
        assert not [caller for caller in callers if caller.is_alive()]
        assert lacking == []
        assert codes <= {202, 503}
        rows, away = listed(first, limit=1000)
        assert away == {}
        ids = [row["id"] for row in rows]
        assert len(ids) == len(set(ids))
        assert set(ids) == kept.keys()


@pytest.mark.parametrize("idle", [300, pytest.param(10_000, marks=pytest.mark.long)])
def test_who_does_harm_is_not_felt_by_others(cluster: Cluster, idle: int) -> None:
    """Idle connections, headers that drip or have no end, bodies of 5 GB or without an end."""
    allow_open_files(idle + 200)
    with contextlib.ExitStack() as stack:
        stack.enter_context(cluster.meta()).wait_ready()
        node = stack.enter_context(
            cluster.node("n1", "--node-id", "n1", "--group", "d1", port=closed_port())
        )
        node.process.wait_ready()
        door = stack.enter_context(gateway(cluster.folder, cluster.meta_http))
        host, _, port = door.address.rpartition(":")

        def connect() -> socket.socket:
            made = socket.create_connection((host, int(port)), timeout=30)
            return stack.enter_context(made)

        def pushed(head: bytes, part: bytes) -> int:
            """Send a part again and again; return the bytes after which the gateway ends it."""
            harm, sent = connect(), 0
            with contextlib.suppress(ConnectionError):
                harm.sendall(head)
                while sent < MUCH:
                    sent += harm.send(part)
            return sent

        def good() -> list[float]:
            took = []
            for _ in range(30):
                began = time.monotonic()
                answer = door.ask("POST", "/v1/messages/orders", b"tea", delaywheel_delay="1h")
                assert answer.code == 202
                took.append(time.monotonic() - began)
            return sorted(took)

        alone = good()
        held = [connect() for _ in range(idle)]
        drips = [connect() for _ in range(20)]
        post = b"POST /v1/messages/orders HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        stop = threading.Event()

        def drip() -> None:
            for byte in itertools.cycle(b"X: y\r\n"):
                if stop.wait(0.05):
                    return
                for one in drips:
                    with contextlib.suppress(OSError):
                        one.send(bytes([byte]))

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            with ThreadPoolExecutor(4) as pool:
                long = pool.submit(
                    pushed, post + b"Content-Length: 5000000000\r\n\r\n", b"x" * 65_536
                )
                chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
                endless = pool.submit(pushed, post + b"Transfer-Encoding: chunked\r\n\r\n", chunk)
                header = pool.submit(pushed, post + b"X: ", b"x" * 1_000_000)
                beside = good()
                for one in (long, endless, header):
                    assert one.result(30) < MUCH
        finally:
            stop.set()
            dripping.join()
        assert len(held) == idle
        assert beside[len(beside) // 2] < 3 * alone[len(alone) // 2] + 0.1, (alone, beside)
        assert beside[-1] < 3.0, beside
        status = Path(f"/proc/{door.process.pid}/status").read_text()
        [peak_kb] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
        assert int(peak_kb) < 400_000
