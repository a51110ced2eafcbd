"""Measures a meta server: subjects loaded, registrations at once, operators beside, many groups.

All is measured over TCP and HTTP, in CPU seconds of the meta server where it is not a bar in wall
seconds. One process is the crowd: all clients and delay servers, with a connection each. Another is
the operator, who changes a route again and again while the crowd registers. The crowds follow each
other without a pause: so all of some hundred changes, of which the number is printed, lie beside
registrations.
"""

import atexit
import contextlib
import http.client
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from pathlib import Path
from statistics import median
from typing import Any
from uuid import UUID

from benchmarks.processes import Process, free_port
from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.meta import requests
from delay_protocol.nodes import group_changes, registration
from delay_protocol.nodes.registration import NodeRegister, NodeRegistered, Stands
from delay_protocol.wire.frames import Frame, FrameDecoder, encode_request

_FILES = 12_000
_BEAT_S = 1.0
"""The interval of the heartbeats of a delay server."""
_IDLE_S = 20.0
_ROUNDS = 6
_SILENT = 100
"""Masters that end at once."""
_WATCHES = group_changes.encode_node_watch(group_changes.NodeWatch())


def measure(directory: Path, scale: float) -> Iterator[tuple[str, object]]:
    """Yield the figures."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, _FILES), hard), hard))
    yield "load of the machine before", f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    for figures in (_subjects, _groups):
        where = directory / figures.__name__
        where.mkdir()
        yield from figures(where, scale)
    yield "load of the machine after", f"{os.getloadavg()[0]:.1f}"


def _subjects(where: Path, scale: float) -> Iterator[tuple[str, object]]:
    """Load many subjects; then register many clients at once, with an operator beside."""
    meta = Meta(where / "empty")
    empty = meta.cpu_seconds(), meta.seconds_to_ready
    meta.stop()
    meta = Meta(where)
    crowd = Crowd(meta.port)
    _add_brokers(crowd)
    count, lines = int(200_000 * scale), crowd.connect(50)
    names = [f"subjects.of.a.cluster.{number}" for number in range(count)]
    for first in range(0, count, 10_000):
        crowd.register(
            (lines[number % len(lines)], names[number])
            for number in range(first, min(first + 10_000, count))
        )
    crowd.close()
    meta.stop()
    meta = Meta(where)
    cpu, wall = meta.cpu_seconds() - empty[0], meta.seconds_to_ready - empty[1]
    yield f"{count:,} subjects loaded", f"{cpu:.2f} s of CPU, {wall:.2f} s more than with none"
    yield "  memory", f"{meta.memory_mib():.0f} MiB"
    crowd = Crowd(meta.port)
    _add_brokers(crowd)
    lines = crowd.connect(int(5000 * scale))
    operator = Process("benchmarks.registering", "operator", meta.http, log=where / "operator.log")
    for kind in ("known", "new"):
        took, cpu = [], meta.cpu_seconds()
        for turn in range(_ROUNDS):
            fresh = [f"new.{turn}.{number}" for number in range(len(lines))]
            began = time.perf_counter()
            crowd.register(zip(lines, names if kind == "known" else fresh, strict=False))
            took.append(time.perf_counter() - began)
        cpu = (meta.cpu_seconds() - cpu) / _ROUNDS
        yield (
            f"{len(lines):,} registrations at once, {kind} subjects",
            (f"{median(took):.2f} s, at the most {max(took):.2f} s; {cpu:.2f} s of CPU"),
        )
    waits = sorted(1000 * wait for wait in json.loads(operator.stop()))
    p50, p99 = median(waits), waits[len(waits) * 99 // 100]
    yield (
        f"  {len(waits)} changes of an operator beside these",
        (f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, at the most {waits[-1]:.0f} ms"),
    )
    crowd.close()
    meta.stop()


def _groups(where: Path, scale: float) -> Iterator[tuple[str, object]]:
    """Keep many groups of three delay servers; then let many of their masters end at once."""
    meta = Meta(where)
    count = int(1000 * scale)
    operator = http.client.HTTPConnection(meta.http)
    for number in range(count):
        add_delay_group(operator, f"d{number}")
    crowd, before = Crowd(meta.port), meta.cpu_seconds()
    groups = [Group(crowd, number) for number in range(count)]
    for first in range(0, count, 20):
        for group in groups[first : first + 20]:
            group.nodes[0].begin()
        crowd.run(all_of(groups[first : first + 20], "is_whole"), within_s=60)
    yield (
        f"{count:,} groups of three have registered",
        (f"{meta.cpu_seconds() - before:.1f} s of CPU of the meta server"),
    )
    crowd.run(lambda: False, within_s=5)
    before, own = meta.cpu_seconds(), time.process_time()
    crowd.run(lambda: False, within_s=_IDLE_S)
    idle = (meta.cpu_seconds() - before) / _IDLE_S
    own = (time.process_time() - own) / _IDLE_S
    yield "  idle", f"{idle:.3f} s of CPU a second (the crowd {own:.2f})"
    yield "  elections meanwhile", sum(bool(group.elected_at) for group in groups)
    yield "  memory", f"{meta.memory_mib():.0f} MiB"
    silent = [group for group in groups if not group.elected_at][: int(_SILENT * scale) or 1]
    before, began = meta.cpu_seconds(), time.perf_counter()
    for group in silent:
        group.end_master()
    crowd.run(all_of(silent, "elected_at"), within_s=120)
    took = [group.elected_at - began for group in silent]
    cpu = meta.cpu_seconds() - before - idle * (time.perf_counter() - began)
    yield (
        f"  {len(silent)} masters end at once: until others know theirs",
        (f"{median(took):.2f} s, the last {max(took):.2f} s; {cpu:.2f} s of CPU more than idle"),
    )
    crowd.close()
    meta.stop()


def all_of(groups: Sequence["Group"], attribute: str) -> Callable[[], bool]:
    """Return what says whether all groups have something."""
    return lambda: all(getattr(group, attribute) for group in groups)


class Meta(Process):
    """A meta server that takes all that the crowd brings."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.port, http_port = free_port(), free_port()
        self.http = f"127.0.0.1:{http_port}"
        settings = (
            "registration.new_subjects_per_second_max=10000000",
            "registration.broker_timeout_ms=3600000",
            "listener.connections_per_address_max=16384",
        )
        super().__init__(
            "delaywheel", "meta-server",
            "--data", str(directory / "meta"),
            "--listen", f"127.0.0.1:{self.port}",
            "--http", self.http,
            *(part for setting in settings for part in ("--set", setting)),
            log=directory / "meta-server.log",
        )  # fmt: skip
        atexit.register(self.kill)


class Line:
    """A connection of the crowd."""

    def __init__(self, crowd: "Crowd") -> None:
        self._socket = socket.create_connection(("127.0.0.1", crowd.port))
        self._socket.settimeout(0)
        self._decoder = FrameDecoder(frame_bytes_max=1 << 22)
        self._unsent = b""
        self._awaits_room = False
        self._crowd = crowd
        self.take: Callable[[Frame], None] = crowd.answered
        crowd.lines[self._socket.fileno()] = self
        crowd.poll.register(self._socket, select.EPOLLIN)

    def send(self, code: int, body: bytes) -> None:
        """Send a request, now or when there is room."""
        self._unsent += encode_request(code=code, opaque=1, body=body)
        self.flush()

    def flush(self) -> None:
        """Send what there is room for."""
        with contextlib.suppress(BlockingIOError):
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        if bool(self._unsent) is not self._awaits_room:
            self._awaits_room = bool(self._unsent)
            more = select.EPOLLOUT if self._awaits_room else 0
            self._crowd.poll.modify(self._socket, select.EPOLLIN | more)

    def receive(self) -> None:
        """Take what has come."""
        data = self._socket.recv(1 << 18)
        if not data:
            raise SystemExit("the meta server closed a connection: its log says why")
        self._decoder.feed(data)
        for frame in self._decoder.frames():
            self.take(frame)

    def close(self) -> None:
        """Hang up."""
        self._crowd.poll.unregister(self._socket)
        del self._crowd.lines[self._socket.fileno()]
        self._socket.close()


class Crowd:
    """All peers of the meta server, in one task."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.poll = select.epoll()
        self.lines: dict[int, Line] = {}
        self.beats: list[tuple[float, int, Callable[[], bool]]] = []
        """The calls that are due, soonest first; each is made again as long as it says so."""
        self._unanswered = 0

    def connect(self, count: int) -> list[Line]:
        """Open connections."""
        return [Line(self) for _ in range(count)]

    def close(self) -> None:
        """Hang up on all."""
        for line in list(self.lines.values()):
            line.close()

    def answered(self, frame: Frame) -> None:
        """Note an answer."""
        if frame.code:
            raise SystemExit(f"{frame.code}: {frame.body!r}")
        # Pushes have no number.
        self._unanswered -= bool(frame.opaque)

    def register(self, uses: Iterator[tuple[Line, str]]) -> None:
        """Register producers of subjects, all at once; return when all are answered."""
        for line, subject in uses:
            request = requests.ClientRegister(
                subject=subject, client_type=requests.ClientType.PRODUCER, client_id="h@@1"
            )
            self._unanswered += 1
            line.send(CommandCode.CLIENT_REGISTER, requests.encode_client_register(request))
        self.run(lambda: not self._unanswered, within_s=300)

    def ask(self, line: Line, code: int, body: bytes) -> None:
        """Ask one thing, and wait until it is answered."""
        self._unanswered += 1
        line.send(code, body)
        self.run(lambda: not self._unanswered, within_s=30)

    def run(self, is_done: Callable[[], bool], *, within_s: float) -> None:
        """Speak and listen until something is done, or the time is over."""
        until = time.perf_counter() + within_s
        while not is_done() and (now := time.perf_counter()) < until:
            while self.beats and self.beats[0][0] <= now:
                at, number, beat = heappop(self.beats)
                if beat():
                    heappush(self.beats, (max(at + _BEAT_S, now), number, beat))
            wake = min(until, self.beats[0][0] if self.beats else until)
            for place, event in self.poll.poll(max(0.0, wake - time.perf_counter())):
                if (line := self.lines.get(place)) is None:
                    continue
                if event & select.EPOLLOUT:
                    line.flush()
                if event & ~select.EPOLLOUT:
                    line.receive()


def _add_brokers(crowd: Crowd) -> None:
    [line] = crowd.connect(1)
    for number in range(4):
        request = requests.BrokerRegister(
            request_type=requests.BrokerRequestType.ONLINE,
            group=f"g{number}",
            address=f"10.0.0.{number + 1}:20881",
            role=requests.BrokerRole.MASTER,
            state=requests.BrokerState.RW,
        )
        crowd.ask(line, CommandCode.BROKER_REGISTER, requests.encode_broker_register(request))
    line.close()


class Group:
    """A delay group: three nodes in sync."""

    def __init__(self, crowd: Crowd, number: int) -> None:
        self.name = f"d{number}"
        self.log = UUID(int=number + 1)
        self.nodes = [Node(crowd, self, number) for number in range(3)]
        self.record: registration.GroupRecord | None = None
        """The newest that a node was told."""
        self.epoch = 0
        """The node id of the master that a node was sent last."""
        self.is_whole = False
        """True if all three are in sync."""
        self.elected_at = 0.0

    def is_told(self, record: registration.GroupRecord) -> None:
        """Note what a node was told of the group."""
        known = self.record or record
        if registration.is_older(record, known):
            return
        if self.is_whole and record.master is not None and record.epoch > self.epoch:
            self.elected_at = time.perf_counter()
        if record.master is not None:
            self.epoch = record.epoch
        self.record = record
        self.is_whole = self.is_whole or len(record.in_sync) == len(self.nodes)

    def end_master(self) -> None:
        """End the first node, and have the others know that it is gone."""
        self.nodes[0].end()
        for node in self.nodes[1:]:
            node.stands = Stands()


class Node:
    """A delay server, as far as a meta server sees it."""

    def __init__(self, crowd: Crowd, group: Group, number: int) -> None:
        self._crowd, self._group = crowd, group
        self.name = f"n{number}"
        self.storage = UUID(int=(group.log.int << 8) + number)
        self._address = f"10.{group.log.int >> 8}.{group.log.int & 255}.{number}:20801"
        [self._line] = crowd.connect(1)
        self._line.take = self._take
        self.is_registered = False
        self._waits = False
        """True while its last registration is not answered."""
        self._is_over = False
        self.stands = Stands()

    def begin(self) -> None:
        """Register, and go on with that."""
        heappush(self._crowd.beats, (time.perf_counter(), id(self), self._beat))

    def change(self, change: group_changes.GroupChange) -> None:
        """Ask for a change."""
        body = group_changes.encode_group_change(change)
        self._line.send(CommandCode.GROUP_CHANGE, body)

    def end(self) -> None:
        """End, as by SIGKILL."""
        self._is_over = True
        self._line.close()

    def _registration(self) -> bytes:
        request = NodeRegister(
            cluster="c1",
            group=self._group.name,
            node_id=self.name,
            log_uuid=self._group.log,
            storage_uuid=self.storage,
            incarnation=1,
            boot_id=self.storage,
            last_sequence=0,
            address=self._address,
            http_address="",
            version="1.0",
            stands=self.stands,
            state="RW" if self.stands.may_send else None,
        )
        return registration.encode_node_register(request)

    def _beat(self) -> bool:
        if self._is_over:
            return False
        if self._waits:
            return True
        self._waits = True
        self._line.send(CommandCode.NODE_REGISTER, self._registration())
        record, nodes = self._group.record, self._group.nodes
        if not self._group.is_whole and self is nodes[0] and record and self._can_complete():
            in_sync = {one.name: one.storage for one in nodes}
            self.change(
                group_changes.Alter(epoch=record.epoch, version=record.version, in_sync=in_sync)
            )
        return True

    def _can_complete(self) -> bool:
        return all(node.is_registered for node in self._group.nodes)

    def _take(self, frame: Frame) -> None:
        if frame.request_code == CommandCode.NODE_REGISTER:
            self._waits = False
        if frame.code == ResponseCode.BROKER_ERROR:
            # Not now: it is said again.
            return
        if frame.code:
            raise SystemExit(f"{self.name} of {self._group.name}: {frame.code}: {frame.body!r}")
        if frame.request_code == CommandCode.NODE_WATCH:
            self._take_news(group_changes.decode_watch_reply(frame.body).news)
            self._line.send(CommandCode.NODE_WATCH, _WATCHES)
        elif frame.request_code == CommandCode.GROUP_CHANGE:
            self._group.is_told(group_changes.decode_change_reply(frame.body).record)
        elif frame.request_code == CommandCode.NODE_REGISTER and not self.is_registered:
            self._take_role(frame)

    def _take_role(self, frame: Frame) -> None:
        reply = registration.decode_node_reply(frame.body)
        if not isinstance(reply, NodeRegistered):
            raise SystemExit(f"{self.name} of {self._group.name}: {reply.reason}")
        self.is_registered = True
        self._group.is_told(reply.record)
        is_first = self is self._group.nodes[0]
        epoch = reply.record.epoch
        self.stands = Stands(may_send=True) if is_first else Stands(hears=epoch, hears_sender=True)
        self._line.send(CommandCode.NODE_WATCH, _WATCHES)
        if is_first:
            for node in self._group.nodes[1:]:
                node.begin()

    def _take_news(self, news: Any) -> None:  # noqa: ANN401 (of one tree or another)
        if news is None:
            return
        self._group.is_told(news.record)
        if news.vote_epoch:
            self.change(group_changes.Vote(epoch=news.vote_epoch, last_epoch=1, end=11, applied=11))


# The operator


def add_delay_group(connection: http.client.HTTPConnection, name: str) -> None:
    """Add a group of delay servers, so that its nodes are expected."""
    code = put(connection, f"broker-group/{name}", {"kind": "delay"})
    if code != 200:
        raise SystemExit(f"{name} was not added: {code}")


def put(connection: http.client.HTTPConnection, path: str, body: object) -> int:
    """Change something; return the code of the answer."""
    headers = {"Content-Type": "application/json"}
    sent = ("PUT", f"/api/v1/{path}", json.dumps(body), headers)
    try:
        connection.request(*sent)
        answer = connection.getresponse()
    except (OSError, http.client.HTTPException):
        # A server ends a connection after many requests.
        connection.close()
        connection.request(*sent)
        answer = connection.getresponse()
    answer.read()
    return answer.status


def operate(address: str) -> None:
    """Change a route again and again until SIGTERM; print how long each took."""
    connection, waits = http.client.HTTPConnection(address), []
    is_over: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: is_over.append(number))
    print("ready", flush=True)
    for number in range(sys.maxsize):
        began = time.perf_counter()
        code = put(connection, "route/an.operator", {"groups": [f"g{number % 4}"]})
        waits.append(time.perf_counter() - began)
        if code != 200:
            raise SystemExit(f"a change was answered {code}")
        if is_over:
            break
        time.sleep(0.01)
    print(json.dumps(waits), flush=True)


def main(arguments: Sequence[str]) -> None:
    """Be the operator."""
    operate(arguments[1])


if __name__ == "__main__":
    main(sys.argv[1:])
