"""Links: what the client knows about its connection to one server, without the socket.

IDLE --connect()--> CONNECTING --connected()--> UP
  ^                     |                       |
  +--------lost()-------+---------lost()--------+

The first frame of each connection is a HELLO, and nothing is sent before its answer: a broker would
take messages as well, and hand them out at once. Its answer has the server's clock, by which delays
count; so it is said again while the connection is used.
"""

import contextlib
import math
import random
from collections.abc import Iterator
from enum import Enum
from typing import Generic, Protocol, TypeVar

from delay_client.exchange.circuits import Circuit, pause_s
from delay_client.messages.cancel_tokens import cluster_hash
from delay_client.messages.clock import ServerClock
from delay_client.messages.config import ClientConfig, parse_server
from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.basics.errors import FrameSizeError, MalformedHelloError, RemoteProtocolError
from delay_protocol.wire.frames import Frame, FrameDecoder, encode_request
from delay_protocol.wire.hello import Hello, decode_hello, encode_hello

_OPAQUE_MAX = 0x7FFF_FFFF
_HELLO_OPAQUE = 0
"""All others begin at 1."""
_HELLO = encode_request(
    code=CommandCode.HELLO,
    opaque=_HELLO_OPAQUE,
    body=encode_hello(Hello(group="", epoch=0, node_id="delay_client")),
)

_CLOCK_S = 60.0
"""After so long a server is asked for its clock again."""

_HTTP = int.from_bytes(b"HTTP")
"""What the answer of an HTTP server has where a frame has its length."""


class LinkState(Enum):
    """Whether requests can go out."""

    IDLE = "idle"
    CONNECTING = "connecting"
    UP = "up"


class IllegalLinkMoveError(AssertionError):
    """The shell reported what cannot have happened; a bug of the client."""


class Request(Protocol):
    """Contents of one frame, as far as a link has to know them."""

    code: CommandCode
    attempts: int
    size: int

    @property
    def deadline(self) -> float:
        """Loop time in seconds after which it is not tried any more."""

    @property
    def is_slow(self) -> bool:
        """True if its answer may take until the deadline."""

    def body(self) -> bytes:
        """Return the body of the frame."""

    def retime(self, by_ms: int) -> None:
        """Count its delays by another clock, which is so far ahead of the one here."""


RequestT = TypeVar("RequestT", bound=Request)


class Plug:
    """A connection, as far as every kind has the same."""

    def __init__(self, server: str, *, frame_bytes_max: int) -> None:
        """Take `host:port`; raise ValueError for what is none.

        frame_bytes_max: a larger frame is none of the protocol
        """
        self.server = server
        """The address as the user or the meta server wrote it, for receipts and texts."""
        self.host, self.port = parse_server(server)
        """Where to connect to."""
        self.state = LinkState.IDLE
        self.retry_at = 0.0
        """Not connected again before this."""
        self.is_retired = False
        """Whether nothing names it any more: it is not connected to again."""
        self.condemned: str | None = None
        """Why the shell must close the connection now and report it lost."""
        self.trouble: str | None = None
        """Why it was lost, or not reached, the last time; None once it has answered."""
        self._failures = 0
        self._opaque = 0
        self._outgoing: list[bytes] = []
        self._frame_bytes_max = frame_bytes_max
        self._decoder = FrameDecoder(frame_bytes_max=frame_bytes_max)

    def wants_connection(self, now: float) -> bool:
        """Whether the shell may connect now."""
        return self.state is LinkState.IDLE and now >= self.retry_at and not self.is_retired

    @property
    def has_outgoing(self) -> bool:
        """Whether take_outgoing() would return anything."""
        return bool(self._outgoing)

    def take_outgoing(self) -> bytes:
        """Return the bytes to write next, b"" if there are none."""
        outgoing = self._outgoing
        if len(outgoing) == 1:
            return outgoing.pop()
        data = b"".join(outgoing)
        outgoing.clear()
        return data

    def connect(self) -> None:
        """Note that the shell is connecting."""
        self._move(LinkState.IDLE, LinkState.CONNECTING)
        self._decoder = FrameDecoder(frame_bytes_max=self._frame_bytes_max)

    def _move(self, before: LinkState, after: LinkState) -> None:
        if self.state is not before:
            raise IllegalLinkMoveError(f"{self.server}: {self.state} to {after}")
        self.state = after

    def _frames(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that these bytes complete; raise RemoteProtocolError after good ones."""
        self._decoder.feed(data)
        yield from self._decoder.frames()
        if self._decoder.fault is not None:
            raise self._decoder.fault

    def _request(self, code: CommandCode, body: bytes) -> int:
        """Put a request out; return its opaque, from 1, by which its answer is known."""
        self._opaque = self._opaque % _OPAQUE_MAX + 1
        self._outgoing.append(encode_request(code=code, opaque=self._opaque, body=body))
        return self._opaque


class Link(Plug, Generic[RequestT]):
    """One server: its connection, the requests that it has not answered, and its health.

    Invariants: requests are in flight only in state UP. Every request in flight was put into the
    outgoing bytes of this connection, once and whole.
    """

    def __init__(self, server: str, config: ClientConfig, *, group: str | None = None) -> None:
        super().__init__(server, frame_bytes_max=config.answer_bytes_max)
        self.group = server if group is None else group
        """The broker group whose master it is; a server that the user named is its own group."""
        self._config = config
        self.circuit = Circuit(config)
        """Whether it gets more than probes."""
        self._in_flight: dict[int, tuple[RequestT, float]] = {}
        self.bytes_in_flight = 0
        self._asked_at: float | None = None
        """While it has not said who it is: when it was asked."""
        self._clock = ServerClock(server)
        self._clock_asked_at = 0.0
        self._clock_asked_ms = 0
        self._foreign: str | None = None
        self.cluster = 0
        """Hash of the name of its cluster, as it said last; 0: it did not."""
        self.is_missed = False
        """Whether messages went elsewhere for lack of a connection, so that one is made again."""
        self.heard_at = 0.0
        self.used_at = 0.0

    @property
    def requests_in_flight(self) -> int:
        """How many requests wait for their answer."""
        return len(self._in_flight)

    @property
    def in_flight(self) -> list[RequestT]:
        """The requests that wait for their answer."""
        return [request for request, _ in self._in_flight.values()]

    def has_room(self) -> bool:
        """Whether a request may be put on the wire, as far as the connection is concerned."""
        return (
            self.state is LinkState.UP
            and self.condemned is None
            and self._asked_at is None
            and len(self._in_flight) < self._config.requests_in_flight_max
            and self.bytes_in_flight < self._config.bytes_in_flight_max
        )

    @property
    def is_greeted(self) -> bool:
        """Whether it has said who it is, and is a delay server; or there is no connection."""
        return self._asked_at is None and self._foreign is None

    @property
    def is_answering(self) -> bool:
        """Whether the connection stands, to a delay server."""
        return self.state is LinkState.UP and self.is_greeted

    @property
    def is_hopeful(self) -> bool:
        """Whether what waits for it is worth the wait: it gets requests, or may soon."""
        return not self.circuit.is_open and (self.state is LinkState.UP or self.trouble is None)

    def takes_probe(self) -> bool:
        """Whether a single request may be put on the wire."""
        return self.has_room() and not self._in_flight

    def foreign(self, now: float) -> str | None:
        """Return why this is no delay server, until it is asked again; None: not that we know."""
        is_asked_again = self.state is LinkState.IDLE and now >= self.retry_at
        return None if is_asked_again else self._foreign

    def connect(self) -> None:
        """Note that the shell is connecting: whoever it was, it may be another one now."""
        super().connect()
        self.is_missed = False
        self._foreign = None

    def connected(self, now: float) -> None:
        """Note that the connection stands, and ask who it is."""
        self._move(LinkState.CONNECTING, LinkState.UP)
        self.heard_at = self.used_at = self._asked_at = now
        self._say_hello(now)

    def _say_hello(self, now: float) -> None:
        self._clock_asked_at, self._clock_asked_ms = now, self._clock.asked_ms()
        self._outgoing.append(_HELLO)

    def lost(self, reason: str, now: float, chance: random.Random) -> list[RequestT]:
        """Note that there is no connection; return what was in flight."""
        unused = self.is_answering and not self._in_flight
        lost = self.abandon()
        self.state = LinkState.IDLE
        self.condemned = None
        self._asked_at = None
        if unused:
            # It closed a connection that nobody used: no reason to doubt or to spare it.
            self.retry_at = now
        else:
            self.trouble = reason
            self.retry_at = now + pause_s(self._failures, self._config, chance)
            self._failures += 1
        return lost

    def abandon(self) -> list[RequestT]:
        """Forget what is in flight, and return it: the client ends."""
        batches = [batch for batch, _ in self._in_flight.values()]
        self._in_flight.clear()
        self._outgoing.clear()
        self.bytes_in_flight = 0
        return batches

    def send(self, batch: RequestT, now: float) -> None:
        """Put a request with this batch on the wire."""
        assert self.has_room()
        if now >= self._clock_asked_at + _CLOCK_S:
            self._say_hello(now)
        if not batch.attempts and (ahead_ms := self._clock.ahead_ms()):
            batch.retime(ahead_ms)
        batch.attempts += 1
        # Built anew for each try, from the same items.
        opaque = self._request(batch.code, batch.body())
        self._in_flight[opaque] = (batch, now)
        self.bytes_in_flight += batch.size
        self.used_at = now

    def answers(self, data: bytes, now: float) -> Iterator[tuple[RequestT, int, bytes]]:
        """Yield (batch, code, body) of each answer that became complete.

        Raises RemoteProtocolError, after the good answers before it, where the server does not
        speak the protocol.
        """
        self.heard_at = self.used_at = now
        for frame in self._frames(data):
            if frame.is_response and frame.opaque == _HELLO_OPAQUE:
                self._take_hello(frame)
                continue
            found = self._in_flight.pop(frame.opaque, None) if frame.is_response else None
            if found is None:
                # It answers no request of ours, or too late: but the server takes messages.
                if frame.is_response and frame.code == ResponseCode.SUCCESS and not frame.body:
                    self.circuit.succeeded()
                continue
            batch, _ = found
            self.bytes_in_flight -= batch.size
            self._failures = 0
            self.trouble = None
            yield batch, frame.code, frame.body

    def garbled(self, error: RemoteProtocolError) -> None:
        """Note that what came is not of our protocol."""
        self.condemned = f"it does not speak the protocol: {error}"
        if self._asked_at is not None:
            is_http = isinstance(error, FrameSizeError) and error.total == _HTTP
            self._refuse(
                "is an HTTP server, not a delay server (a meta server's goes to meta= or --meta)"
                if is_http
                else f"is not a delay server ({error})"
            )

    def _take_hello(self, frame: Frame) -> None:
        """Take who it is: a delay server refuses the HELLO, and says which one it is."""
        self._asked_at = None
        if frame.code == ResponseCode.BROKER_ERROR:
            return  # It starts, or follows another one: what it is sent is answered accordingly.
        if frame.code == ResponseCode.SUCCESS:
            self._refuse("is a broker, not a delay server")
            return
        hello = None
        with contextlib.suppress(MalformedHelloError):
            hello = decode_hello(frame.body)
        if frame.code != ResponseCode.BROKER_REJECT or hello is None or not hello.log_uuid:
            self._refuse(
                f"is not a delay server (it answers HELLO with code {frame.code}, as QMQ's brokers "
                "and the listener of a meta server do)"
            )
        else:
            self._clock.heard(hello.now_ms, self._clock_asked_ms)
            self.cluster = cluster_hash(hello.cluster)

    def _refuse(self, text: str) -> None:
        self._foreign = self.condemned = text

    def overdue(self, now: float) -> list[RequestT]:
        """Give up waiting for what was not answered in time, and return it.

        A server that was silent all that time is presumed dead and the connection condemned; from
        one that answered other requests, a late answer is a stray.
        """
        overdue: list[RequestT] = []
        for opaque, (batch, sent_at) in list(self._in_flight.items()):
            if now >= self._overdue_at(batch, sent_at):
                del self._in_flight[opaque]
                self.bytes_in_flight -= batch.size
                overdue.append(batch)
                if self.heard_at <= sent_at and now >= sent_at + self._config.try_timeout_s:
                    self.condemned = f"silent for {now - sent_at:.3g} s"
        asked_at = self._asked_at
        if asked_at is not None and now >= asked_at + self._config.try_timeout_s:
            self.condemned = f"silent for {now - asked_at:.3g} s"
        if not self._in_flight and (self.is_retired or now >= self.used_at + self._config.idle_s):
            self.condemned = "unused"
        return overdue

    def next_event(self) -> float:
        """Return when overdue() has something to do, unless more happens before."""
        if self.is_retired and not self._in_flight:
            return self.used_at
        if self._asked_at is not None:
            return self._asked_at + self._config.try_timeout_s
        return min(
            (self._overdue_at(batch, sent_at) for batch, sent_at in self._in_flight.values()),
            default=self.used_at + self._config.idle_s,
        )

    def _overdue_at(self, request: RequestT, sent_at: float) -> float:
        try_s = math.inf if request.is_slow else self._config.try_timeout_s
        return min(sent_at + try_s, request.deadline)
