"""The limits of connections: every bound on memory, time and number, by name.

Together they bound the memory that peers can make a server hold:
`total_bytes_max + connections_max * receive_bytes`, since a connection finds the total exceeded
only after it has received once more.
"""

import math
from dataclasses import dataclass, fields

from delay_transport.seams.constants import constant

KIB = 1024
MIB = 1024 * KIB


def _require_positive(settings: "ConnectionLimits | RequestLimits") -> None:
    for field in fields(settings):
        value = getattr(settings, field.name)
        if math.isnan(value) or value <= 0:
            raise ValueError(f"{field.name} must be more than 0, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The limits of the connections that a listener accepts."""

    connections_max: int = 10_000
    """Open connections. At the limit a new connection evicts a silent one of the source address
    with the most connections; if none of those is silent, the new connection is refused."""

    connections_per_address_max: int = 2000
    """Open connections from one source address (of IPv6 a /64), loopback included. At the limit a
    new connection evicts a silent one of the same address. Raise it if more clients share one
    address."""

    frame_bytes_max: int = 16 * MIB
    """Bytes of one frame. A longer one ends the connection before its body is buffered."""

    receive_bytes: int = constant(64 * KIB)
    """Bytes asked of the socket at a time. More means fewer receives and more memory per peer."""

    in_flight_requests_max: int = constant(8192)
    """Requests of one connection that wait for their answer. At this many nothing is read from the
    peer until some are answered; one receive may go beyond."""

    in_flight_bytes_max: int = constant(16 * MIB)
    """Bytes of one connection's waiting requests. At this many nothing is read from the peer."""

    unsent_bytes_pause: int = constant(32 * MIB)
    """Bytes of answers that one peer has not taken. At this many nothing more is read from it. More
    than what may be under way to a slave, whose acknowledgements are read all the same."""

    unsent_bytes_max: int = constant(64 * MIB)
    """Bytes of answers that one peer has not taken. Beyond this the connection is closed."""

    total_bytes_max: int = 256 * MIB
    """Bytes held for all connections: waiting requests, unfinished frames, unsent answers. At the
    limit the listener reads from no connection until there are fewer."""

    unfinished_bytes_max: int = constant(96 * MIB)
    """The part of `total_bytes_max` that frames not yet complete may take, of all connections
    together. Beyond this the connection with the largest one is closed at once, so that nobody
    waits for the rest of somebody else's frame."""

    frame_seconds_max: float = constant(10.0)
    """Seconds from the first to the last byte of a frame, without the time in which the server does
    not read. A slower connection is closed."""

    frame_grace_seconds: float = constant(5.0)
    """Seconds after which an unfinished frame must also come at `frame_bytes_per_second_min`."""

    frame_bytes_per_second_min: int = constant(1 * KIB)
    """Bytes per second, on average, of an unfinished frame older than the grace."""

    idle_seconds_max: float = 150.0
    """Seconds without a byte in either direction and without a request in flight, after which the
    connection is closed. A QMQ client sends no heartbeat and closes after 120 s. With a lower value
    it can send into a connection that is just closing, and then waits for a time-out."""

    send_seconds_max: float = constant(10.0)
    """Seconds in which a peer must take `send_step_bytes` (or what there is); then it is closed."""

    send_step_bytes: int = constant(1 * MIB)
    """Bytes given to the socket at a time: what `send_seconds_max` is measured on."""

    drain_seconds_max: float = constant(4.0)
    """Seconds in which requests already accepted are answered when a connection ends in good order
    (the peer finished, broke the protocol after them, or the server stops)."""

    warnings_per_second_max: float = constant(10.0)
    """Lines a second in the log about connections refused or closed for what their peer did, after
    a burst of ten times as many. The lines after those left out say how many there were."""

    linger_seconds_max: float = constant(1.0)
    """Seconds for the peer to close after we said that we are done. What it still sends meanwhile
    is discarded: closing with unread bytes could destroy the answers on their way to it."""

    def __post_init__(self) -> None:
        """Refuse values that no connection could live with."""
        _require_positive(self)
        one_frame = self.frame_bytes_max + self.receive_bytes
        if self.unfinished_bytes_max < one_frame:
            raise ValueError("unfinished_bytes_max must hold a frame_bytes_max and a receive_bytes")
        if self.total_bytes_max < self.unfinished_bytes_max + one_frame:
            raise ValueError(
                "total_bytes_max must hold a frame_bytes_max and a receive_bytes "
                "besides unfinished_bytes_max"
            )
        if self.unsent_bytes_max < self.unsent_bytes_pause:
            raise ValueError("unsent_bytes_max must be at least unsent_bytes_pause")
        if self.frame_seconds_max < self.frame_grace_seconds:
            raise ValueError("frame_seconds_max must be at least frame_grace_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What a requester grants the peer that it connects to."""

    connect_seconds_max: float = 5.0
    """Seconds for a connection to stand."""

    frame_bytes_max: int = 16 * MIB
    """Bytes of one answer. A longer one ends the connection before its body is buffered."""

    receive_bytes: int = 64 * KIB
    """Bytes asked of the socket at a time."""

    in_flight_requests_max: int = 8192
    """Requests that wait for their answer. At this many `submit` refuses, `request` waits."""

    unsent_bytes_max: int = 16 * MIB
    """Bytes of requests that the peer has not taken. At this many `submit` refuses, `request`
    waits; one request may go beyond."""

    heartbeat_seconds: float = 15.0
    """Seconds without a byte received after which a HEARTBEAT is sent; math.inf for never."""

    idle_seconds_max: float = 45.0
    """Seconds without a byte received after which the connection counts as lost."""

    send_seconds_max: float = 10.0
    """Seconds in which the peer must take `send_step_bytes`; then the connection is lost."""

    send_step_bytes: int = 1 * MIB
    """Bytes given to the socket at a time: what `send_seconds_max` is measured on."""

    def __post_init__(self) -> None:
        """Refuse values that no connection could live with."""
        _require_positive(self)
        if self.idle_seconds_max < self.heartbeat_seconds:
            raise ValueError("idle_seconds_max must be at least heartbeat_seconds")
