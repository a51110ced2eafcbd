"""The one trio shell of the protocol, and the seams to clock, network, threads and chance."""

from delay_transport.connection import (
    CloseReason,
    Connection,
    ConnectionCounts,
    FrameHandler,
)
from delay_transport.errors import (
    AddressError,
    ConfigError,
    ConnectError,
    ConnectionLostError,
    ListenError,
    NoAddressError,
    RequestTimeoutError,
    TooManyInFlightError,
    TransportError,
)
from delay_transport.limits import ConnectionLimits, RequestLimits
from delay_transport.listener import Dispatch, Server, serve_connections
from delay_transport.outbox import Wakeup
from delay_transport.request_client import RequestConnection, RequestCounts
from delay_transport.runtime import (
    Address,
    Clock,
    Executor,
    Listener,
    Network,
    Runtime,
    SystemClock,
    TcpNetwork,
    ThreadExecutor,
    format_address,
    parse_address,
    parse_peer_address,
    system_runtime,
)

__all__ = [
    "Address",
    "AddressError",
    "Clock",
    "CloseReason",
    "ConfigError",
    "ConnectError",
    "Connection",
    "ConnectionCounts",
    "ConnectionLimits",
    "ConnectionLostError",
    "Dispatch",
    "Executor",
    "FrameHandler",
    "ListenError",
    "Listener",
    "Network",
    "NoAddressError",
    "RequestConnection",
    "RequestCounts",
    "RequestLimits",
    "RequestTimeoutError",
    "Runtime",
    "Server",
    "SystemClock",
    "TcpNetwork",
    "ThreadExecutor",
    "TooManyInFlightError",
    "TransportError",
    "Wakeup",
    "format_address",
    "parse_address",
    "parse_peer_address",
    "serve_connections",
    "system_runtime",
]
