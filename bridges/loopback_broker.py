"""A real-time broker for demos and tests: it speaks QMQ's protocol, counts, and keeps nothing.

To a delay server it looks like any broker group: SEND_MESSAGE is answered item by item, a bad CRC
by item code 6, an illegal subject by 3. It also knows HELLO, and refuses a sender whose epoch is
older than one it has seen. It prints or records what it receives; with neither it only scans,
checks and counts, fast enough to measure a delay server with.
"""

import contextlib
import signal
import struct
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import trio

from bridges.broker_end import Refusal, Request
from bridges.recorder import Delivery, Recorder
from bridges.registration import Registration
from delay_protocol.basics.codes import CommandCode, ItemCode, ResponseCode
from delay_protocol.basics.errors import (
    IndivisibleBodyError,
    MalformedHelloError,
    MalformedItemError,
)
from delay_protocol.basics.printable import printable
from delay_protocol.basics.subjects import subject_fault
from delay_protocol.messages.items import FLAG_DELAY, ItemScan, decode_item
from delay_protocol.wire.frames import Frame
from delay_protocol.wire.hello import Hello, decode_hello, encode_hello
from delay_transport.connections.connection import CloseReason, Connection
from delay_transport.connections.limits import ConnectionLimits
from delay_transport.connections.listener import Dispatch, Server, serve_connections
from delay_transport.seams.runtime import (
    Address,
    Runtime,
    format_address,
    parse_address,
    parse_peer_address,
    system_runtime,
)

_LATE_MS_MAX: Final = 60_000
_SUBJECTS_KEPT: Final = 10_000
_STOP_SECONDS_MAX: Final = 3.0
_CREATE_MS: Final = struct.Struct(">q")
_CREATE_MS_AT: Final = 9
"""Where an item has its create time: behind its CRC and its flag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopbackBrokerConfig:
    """Where a loopback broker listens, and what it does with messages."""

    listen: Address = ("127.0.0.1", 20881)
    """Host and port; port 0 for any free one."""

    record: Path | None = None
    """File to which each received message is appended as a line of JSON."""

    print_line: Callable[[str], None] | None = None
    """Called with a line for people for each message; None for quiet."""

    group: str = "loopback"
    """The name it answers a HELLO with, and registers by."""

    meta: tuple[Address, ...] = ()
    """HTTP addresses of meta servers to register at, as the master of the group."""

    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    """What each delay server is granted."""


class LoopbackBroker:
    """Takes requests and counts what they brought. One per process.

    Invariant: what is counted as received was answered with success.
    """

    def __init__(
        self,
        config: LoopbackBrokerConfig,
        *,
        now_ms: Callable[[], int],
        recorder: Recorder | None,
    ) -> None:
        self.address: Address = config.listen
        """Where it listens; the port is known once it has started."""
        self.received = 0
        """Messages accepted, those received twice counted twice."""
        self.late_ms: Counter[int] = Counter()
        """Received messages that have a due time, by how late they came; a minute at most."""
        self.requests = 0
        """SEND_MESSAGE requests, refused ones included."""
        self.refused: Counter[str] = Counter()
        """Messages and requests that were not accepted, by reason."""
        self.epochs: dict[str, int] = {}
        """The highest epoch of each delay group that said HELLO."""
        self._config = config
        self._now_ms = now_ms
        self._recorder = recorder
        self._senders: dict[Connection, Hello] = {}
        self._legal_subjects: set[bytes] = set()
        self._stop: Callable[[], None] | None = None
        self.stopping = trio.Event()
        """Set once it was told to stop."""
        self._looks_at_items = config.print_line is not None or recorder is not None

    def dispatch(self) -> Dispatch:
        """Return the handler for a listener."""
        return Dispatch(
            {CommandCode.SEND_MESSAGE: self._take_messages, CommandCode.HELLO: self._take_hellos},
            on_closed=self._forget,
        )

    def statistics(self) -> str:
        """Return one line about everything since the start."""
        late = self.late_ms
        earliest = min(late, default=0)
        by = f" (by up to {-earliest} ms)" if earliest < 0 else ""
        p50, p99 = self._late_ms_of(0.5), self._late_ms_of(0.99)
        parts = [
            f"received {self.received} messages in {self.requests} requests",
            f"early {sum(count for ms, count in late.items() if ms < 0)}{by}",
            f"lateness p50 {p50} ms, p99 {p99} ms, max {max(late, default=0)} ms",
        ]
        parts += [f"refused {count} ({reason})" for reason, count in sorted(self.refused.items())]
        return ", ".join(parts)

    def _late_ms_of(self, share: float) -> int:
        """Return the least lateness that this share of the messages did not exceed; 0 of none."""
        left = share * self.late_ms.total()
        for late_ms, count in sorted(self.late_ms.items()):
            left -= count
            if left <= 0:
                return max(late_ms, 0)
        return 0

    def started(self, server: Server) -> None:
        """Note where it listens and how to stop it."""
        self.address = server.address
        self._stop = server.stop

    def stop(self) -> None:
        """Take no more, answer what was received, and end."""
        assert self._stop is not None
        self.stopping.set()
        self._stop()

    # HELLO

    def _take_hellos(self, connection: Connection, frames: list[Frame]) -> None:
        for frame in frames:
            try:
                hello = decode_hello(frame.body)
            except MalformedHelloError:
                self.refused["unreadable hello"] += 1
                connection.answer(frame, ResponseCode.BROKER_ERROR)
                continue
            newest = max(hello.epoch, self.epochs.get(hello.group, 0))
            self.epochs[hello.group] = newest
            self._senders[connection] = hello
            if hello.epoch < newest:
                self.refused["older epoch"] += 1
                connection.answer(frame, ResponseCode.BROKER_REJECT)
                continue
            answer = Hello(group=self._config.group, epoch=newest, node_id="loopback")
            connection.answer(frame, ResponseCode.SUCCESS, encode_hello(answer))

    def _is_fenced(self, connection: Connection) -> bool:
        """Whether a newer epoch of the sender's group has been here; without HELLO nobody can tell.

        Asked for each receive: the newer one may have come over another connection meanwhile.
        """
        hello = self._senders.get(connection)
        return hello is not None and hello.epoch < self.epochs[hello.group]

    def _forget(self, connection: Connection, _: CloseReason) -> None:
        self._senders.pop(connection, None)

    # SEND_MESSAGE

    def _take_messages(self, connection: Connection, frames: list[Frame]) -> None:
        """Take all requests of one receive; their answers go out in one piece."""
        now_ms = self._now_ms()
        self.requests += len(frames)
        deliveries: list[Delivery] = []
        if self._is_fenced(connection):
            self.refused["older epoch"] += len(frames)
            answers = [Request(f).answer(code=ResponseCode.BROKER_REJECT) for f in frames]
        else:
            answers = [self._take_request(frame, now_ms, deliveries) for frame in frames]
        if self._recorder is not None and deliveries:
            self._recorder.record(deliveries)
        answers = [data for data, f in zip(answers, frames, strict=True) if not f.is_one_way]
        connection.reply(b"".join(answers))

    def _take_request(self, frame: Frame, now_ms: int, deliveries: list[Delivery]) -> bytes:
        """Return the answer to one request."""
        request = Request(frame)
        try:
            scan = request.scan
        except IndivisibleBodyError:
            self.refused["indivisible body"] += 1
            return request.answer(code=ResponseCode.BROKER_ERROR)
        failures = self._failures(scan)
        kept: Sequence[int] = range(len(scan))
        if failures:
            kept = [index for index in kept if index not in failures]
        self.received += len(kept)
        if self._looks_at_items:
            deliveries += [self._delivery(request, index, now_ms) for index in kept]
        self.late_ms.update(
            min(now_ms - scan.due_ms[index], _LATE_MS_MAX)
            for index in kept
            if scan.flags[index] & FLAG_DELAY
        )
        return request.answer(failures.values())

    def _failures(self, scan: ItemScan) -> dict[int, Refusal]:
        """Return which items are refused, by their index. Costs little where none is."""
        failures: dict[int, Refusal] = {}
        if not self._legal_subjects.issuperset(scan.subjects):
            for index, subject in enumerate(scan.subjects):
                if not self._is_legal(subject):
                    self.refused["illegal subject"] += 1
                    failures[index] = (
                        scan.ids[index],
                        ItemCode.SUBJECT_NOT_ASSIGNED,
                        "message rejected",
                    )
        if not all(scan.crc_ok):
            for index, is_ok in enumerate(scan.crc_ok):
                if not is_ok:
                    self.refused["bad crc"] += 1
                    failures[index] = (scan.ids[index], ItemCode.STORE_ERROR, "bad crc")
        return failures

    def _is_legal(self, subject: bytes) -> bool:
        if subject in self._legal_subjects:
            return True
        if subject_fault(subject) is not None:
            return False
        if len(self._legal_subjects) >= _SUBJECTS_KEPT:
            self._legal_subjects.clear()
        self._legal_subjects.add(subject)
        return True

    # Showing

    def _delivery(self, request: Request, index: int, now_ms: int) -> Delivery:
        scan = request.scan
        due_ms = scan.due_ms[index]
        if not scan.flags[index] & FLAG_DELAY:
            # Its time field says something else: it was due when it was made.
            (due_ms,) = _CREATE_MS.unpack_from(request.item(index), _CREATE_MS_AT)
        delivery = Delivery(
            scan.ids[index].decode(errors="replace"),
            scan.subjects[index].decode(errors="replace"),
            due_ms,
            now_ms,
        )
        if self._config.print_line is not None:
            self._config.print_line(_line(delivery, request.item(index)))
        return delivery


def _line(delivery: Delivery, item: bytes) -> str:
    """Return what a person wants to know of one message."""
    when = datetime.fromtimestamp(delivery.received_ms / 1000, UTC).astimezone()
    attributes: dict[str, str] = {}
    with contextlib.suppress(MalformedItemError):
        found = decode_item(item).attributes
        attributes = {key: value for key, value in found.items() if not key.startswith("qmq_")}
    text = attributes["body"] if attributes.keys() == {"body"} else attributes
    return (
        f"{when:%H:%M:%S}.{delivery.received_ms % 1000:03d} {printable(delivery.subject)} "
        f"{printable(delivery.message_id)} {delivery.received_ms - delivery.due_ms:+d} ms {text!r}"
    )


async def run_broker(
    config: LoopbackBrokerConfig,
    runtime: Runtime,
    *,
    task_status: trio.TaskStatus[LoopbackBroker] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Listen and take messages until cancelled, or stopped by LoopbackBroker.stop().

    Starts with the LoopbackBroker. Raises ListenError or AddressError if it cannot listen, OSError
    if the record cannot be opened or written.
    """
    recorder = Recorder(config.record) if config.record is not None else None
    try:
        async with trio.open_nursery() as nursery:
            broker = LoopbackBroker(config, now_ms=runtime.clock.now_ms, recorder=recorder)
            server: Server = await nursery.start(
                serve_connections, runtime.network, config.listen, broker.dispatch(), config.limits
            )
            broker.started(server)
            task_status.started(broker)
            if config.meta:
                nursery.start_soon(_stay_registered, config, broker, runtime)
    finally:
        if recorder is not None:
            recorder.close()


async def _stay_registered(
    config: LoopbackBrokerConfig, broker: LoopbackBroker, runtime: Runtime
) -> None:
    """Be registered for as long as the broker listens."""
    registration = Registration(
        group=config.group,
        address=broker.address,
        meta=config.meta,
        network=runtime.network,
        chance=runtime.chance,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(registration.run)
        await broker.stopping.wait()
        nursery.cancel_scope.cancel()


def run(
    *,
    listen: str,
    group: str = "loopback",
    meta: Sequence[str] = (),
    record: Path | None = None,
    quiet: bool = False,
) -> None:
    """Run a loopback broker as this process, until SIGTERM or SIGINT.

    Prints a line that begins with `ready` and has the address once it accepts connections, a line
    for each message unless `quiet`, and one with statistics at the end.
    """
    config = LoopbackBrokerConfig(
        listen=parse_address(listen),
        group=group,
        meta=tuple(map(parse_peer_address, meta)),
        record=record,
        print_line=None if quiet else _print,
    )
    trio.run(_run_until_signal, config)


async def _run_until_signal(config: LoopbackBrokerConfig) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            broker: LoopbackBroker = await nursery.start(run_broker, config, system_runtime())
            _print(f"ready {format_address(broker.address)}")
            async for _ in signals:
                break
            broker.stop()
            nursery.cancel_scope.deadline = trio.current_time() + _STOP_SECONDS_MAX
    _print(broker.statistics())


def _print(line: str) -> None:
    # Flushed: whoever started us waits for these lines, perhaps at the end of a pipe.
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
