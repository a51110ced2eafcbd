"""Clients of a meta server by the thousand, in one thread without a task each.

What a client costs here is taken from the server beside it, so a client is a socket, a decoder and
a few numbers.
"""

import random
import select
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.processes import MetaServer, administer
from delay_protocol.basics.codes import CommandCode
from delay_protocol.meta.requests import (
    BrokerState,
    ClientRegister,
    ClientType,
    decode_client_register_reply,
    encode_client_register,
)
from delay_protocol.wire.frames import Frame, FrameDecoder, encode_request
from meta_server.known.model import (
    BrokerGroup,
    Change,
    GroupKind,
    Route,
    SaveBrokerGroup,
    SaveRoute,
    SaveSubject,
    Subject,
)
from meta_server.sql.databases import DatabaseSettings
from meta_server.sql.store import open_store

_NORMAL_GROUPS = 20
_DELAY_GROUPS = 2
"""As many as a subject has, so that a change of one concerns every delay producer."""
_COMMIT_SUBJECTS = 5000
_FRAME_MAX = 1 << 20
_PUSHES = 3
_TIMEOUT_S = 60.0


def fill_store(data: Path, subjects: int) -> None:
    """Make a store with so many subjects, each with a route of its own."""
    data.mkdir(parents=True)
    settings = DatabaseSettings(url=f"sqlite:///{data / 'meta.db'}")
    store = open_store(settings, now_ms=0, chance=random.Random(1))
    store.commit([SaveBrokerGroup(group) for group in _groups()])
    for start in range(0, subjects, _COMMIT_SUBJECTS):
        numbers = range(start, min(start + _COMMIT_SUBJECTS, subjects))
        store.commit([change for number in numbers for change in _subject(number)])
    store.close()


def _groups() -> Iterator[BrokerGroup]:
    for kind, letter, count in (
        (GroupKind.NORMAL, "n", _NORMAL_GROUPS),
        (GroupKind.DELAY, "d", _DELAY_GROUPS),
    ):
        for number in range(count):
            yield BrokerGroup(
                name=f"{letter}{number}",
                kind=kind,
                master=f"127.0.0.1:{1000 + number}",
                state=BrokerState.RW,
            )


def subject_name(number: int) -> str:
    """Return the name of a subject that fill_store made."""
    return f"some.service.subject.{number}"


def _subject(number: int) -> Iterator[Change]:
    name = subject_name(number)
    groups = (f"n{number % _NORMAL_GROUPS}", f"n{(number + 1) % _NORMAL_GROUPS}")
    yield SaveSubject(Subject(name=name))
    yield SaveRoute(Route(name=name, groups=groups))


class Clients:
    """Connected clients; what each was answered or pushed is counted."""

    def __init__(self, address: tuple[str, int], count: int) -> None:
        self._sockets = []
        self._decoders = []
        self._epoll = select.epoll()
        self.frames = 0
        self.took: list[float] = []
        """When each frame of the last `gather` came (perf_counter)."""
        self._by_file: dict[int, int] = {}
        for number in range(count):
            connection = socket.create_connection(address)
            connection.settimeout(0)
            self._sockets.append(connection)
            self._decoders.append(FrameDecoder(frame_bytes_max=_FRAME_MAX))
            self._by_file[connection.fileno()] = number
            self._epoll.register(connection, select.EPOLLIN)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._sockets)

    def register(self, wanted: Callable[[int], ClientRegister]) -> float:
        """Have each register, and all be answered; return the seconds."""
        began = time.perf_counter()
        answered = 0
        self.took = []
        for number, connection in enumerate(self._sockets):
            body = encode_client_register(wanted(number))
            connection.send(
                encode_request(code=CommandCode.CLIENT_REGISTER, opaque=number, body=body)
            )
            if number % 100 == 99:
                answered += len(self._poll(0.0))
        while answered < len(self):
            answered += len(self._poll(_left(began)))
        return time.perf_counter() - began

    def gather(self, is_news: Callable[[Frame], bool]) -> list[float]:
        """Wait until each has got a frame that is news; return the seconds that each waited."""
        began = time.perf_counter()
        waited: dict[int, float] = {}
        while len(waited) < len(self):
            for number, frame in self._poll(_left(began)):
                if is_news(frame):
                    waited.setdefault(number, time.perf_counter() - began)
        return sorted(waited.values())

    def _poll(self, seconds: float) -> list[tuple[int, Frame]]:
        came = []
        for file, _ in self._epoll.poll(seconds, 4096):
            number = self._by_file[file]
            data = self._sockets[number].recv(65536)
            if not data:
                raise SystemExit(f"the meta server closed the connection of client {number}")
            self._decoders[number].feed(data)
            came += [(number, frame) for frame in self._decoders[number].frames()]
        self.frames += len(came)
        return came

    def close(self) -> None:
        """Hang up."""
        self._epoll.close()
        for connection in self._sockets:
            connection.close()


def _left(began: float) -> float:
    left = began + _TIMEOUT_S - time.perf_counter()
    if left <= 0:
        raise SystemExit(f"not all were answered within {_TIMEOUT_S:.0f} s")
    return left


def move_group(address: tuple[str, int], group: str, master: str) -> None:
    """Enter another address of a group over the HTTP port at `address`: a change of routes.

    A broker that says so itself is not believed while its old place is heard.
    """
    administer(address, "PATCH", f"broker-groups/{group}", {"address": master})


def has_address(frame: Frame, master: str) -> bool:
    """Say whether an answer names a group at this address."""
    reply = decode_client_register_reply(frame.body)
    return any(group.master == master for group in reply.groups)


def measure(directory: Path, scale: float) -> Iterator[tuple[str, object]]:
    """Yield the figures of 10,000 clients and 100,000 subjects."""
    clients_max, subjects = int(10_000 * scale), int(100_000 * scale)
    data = directory / "meta"
    fill_store(data, subjects)
    server = MetaServer(directory, data)
    yield (f"start with {subjects:,} subjects", f"{server.seconds_to_ready:.2f} s until ready")
    yield ("  memory", f"{server.memory_mib():.0f} MiB")
    clients = Clients(server.address, clients_max)

    def producer(number: int) -> ClientRegister:
        return ClientRegister(
            subject=subject_name(number % subjects),
            client_type=ClientType.PRODUCER,
            client_id=f"host{number}@@1",
            app_code="bench",
        )

    def delay_producer(number: int) -> ClientRegister:
        return ClientRegister(
            subject="bench.hot",
            client_type=ClientType.DELAY_PRODUCER,
            client_id=f"host{number}@@1",
            app_code="bench",
        )

    for what, wanted in (
        ("registrations of clients not seen before", producer),
        ("of clients known", producer),
        ("of delay producers, one subject", delay_producer),
    ):
        before = server.cpu_seconds()
        seconds = clients.register(wanted)
        cpu = (server.cpu_seconds() - before) / len(clients)
        yield (what, f"{len(clients) / seconds:,.0f}/s, {cpu * 1e6:.0f} us CPU each")
    time.sleep(3)
    yield (f"  memory with {len(clients):,} clients", f"{server.memory_mib():.0f} MiB")
    for number in range(_PUSHES):
        master = f"127.0.0.2:{number + 1}"
        before = server.cpu_seconds()
        began = time.perf_counter()
        move_group(server.http_address, "d0", master)
        stored = time.perf_counter() - began
        waited = clients.gather(partial(has_address, master=master))
        cpu = (server.cpu_seconds() - before) / len(clients)
        last, median = stored + waited[-1], stored + waited[len(waited) // 2]
        yield (
            f"push of one change to {len(clients):,} clients",
            f"the last after {last:.2f} s, half after {median:.2f} s, {cpu * 1e6:.0f} us CPU each",
        )
    clients.close()
    server.stop()
