"""The seams to the world outside the program: clock, network, threads and chance.

Everything that runs under simulation gets these as arguments and touches the world through nothing
else (design section 9). Each seam is a Protocol (or an abstract class where trio wants one) with
its production form beside it; this is the only module of the server that reads a clock, opens a
socket, starts a thread or draws a seed.

Sleeping and deadlines are plain trio (`trio.sleep`, `trio.CancelScope`): trio's own clock is
virtual under simulation. `Clock` is the wall, which may be set back, and the boot clock.
"""

import abc
import ctypes
import errno
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, TypeVarTuple

import trio

from delay_protocol.basics.addresses import AddressFaultError, host_fault, read_address
from delay_transport.seams.errors import AddressError, ListenError, NoAddressError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Address = tuple[str, int]
"""Host (name or literal, IPv6 without brackets) and port."""


class Clock(Protocol):
    """The times of this machine that are not trio's."""

    def now_ms(self) -> int:
        """Return the wall clock in ms since 1970 UTC; it may be set forward and back."""

    def boot_ms(self) -> int:
        """Return ms since boot, suspension included; never set, never goes back."""

    def boot_id(self) -> str:
        """Return what names this boot of the machine among all others; empty if nothing does."""

    def synchronised(self) -> bool:
        """Say whether the kernel believes that the wall clock is disciplined (NTP, PTP)."""


class Arrival(Protocol):
    """A connection that was accepted and is no stream yet, so that refusing it costs little."""

    @property
    def peer(self) -> Address | str:
        """Who it is: an address, or whatever name there is."""

    def open(self) -> trio.abc.Stream:
        """Return the stream of it; from now on that is to be closed, and not this."""

    async def aclose(self) -> None:
        """Close it at once."""


class Listener(trio.abc.Listener[trio.abc.Stream]):
    """Accepts connections; `aclose` stops that and leaves accepted streams open.

    A stream may name its peer in an attribute `peer_name: str`, for logs.
    """

    @property
    @abc.abstractmethod
    def address(self) -> Address:
        """The address really bound: the port is known even where 0 was asked for."""

    async def arrivals(self) -> list[Arrival]:
        """Return the next connections, as many as wait and as take a few ms at the most."""
        return [StreamArrival(await self.accept())]


class StreamArrival:
    """An Arrival of which there is a stream already."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    @property
    def peer(self) -> str:
        """Who it is."""
        return str(getattr(self._stream, "peer_name", "a peer without name"))

    def open(self) -> trio.abc.Stream:
        """Return the stream."""
        return self._stream

    async def aclose(self) -> None:
        """Close it at once."""
        await trio.aclose_forcefully(self._stream)


class Network(Protocol):
    """Where streams come from."""

    async def listen(self, host: str, port: int) -> Listener:
        """Bind and listen; raise ListenError if that cannot be, AddressError for a bad host."""

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        """Connect; raise OSError if the peer cannot be reached, whatever is wrong with its name.

        The deadline is the caller's.
        """


class Executor(Protocol):
    """Runs calls that may block (disk, database) off the loop."""

    async def run(self, worker: str, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        """Return what `fn(*args)` returns, or raise what it raises.

        The calls of one worker run one at a time, in the order in which they were asked for;
        workers do not wait for each other. Cancelled before its turn, the call is not made;
        cancelled while it runs, `run` waits for its end and returns its result.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """All seams of one process, handed down from its composition root."""

    clock: Clock
    """Wall and boot time."""

    network: Network
    """Where connections come from and go to."""

    executor: Executor
    """Where blocking calls run."""

    chance: random.Random
    """The only source of chance. Derive one Random per concern from it."""


def set_receive_low_water(stream: trio.abc.Stream, size: int) -> None:
    """Have whoever waits to receive wake when `size` bytes have come, or the end, and not before.

    Streams that are no sockets wake at each byte, as they did.
    """
    if isinstance(stream, trio.SocketStream):
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)


def parse_address(text: str) -> Address:
    """Return host and port of `host:port`; an IPv6 literal stands in brackets, `[::1]:20801`.

    Port 0 (any free port) is let through. Raises AddressError.
    """
    return _read(text, port_min=0)


def parse_peer_address(text: str) -> Address:
    """Return host and port of `host:port` to connect to, as parse_address; port 0 is none."""
    return _read(text, port_min=1)


def _read(text: str, *, port_min: int) -> Address:
    try:
        return read_address(text, port_min=port_min)
    except AddressFaultError as fault:
        raise AddressError(text=text, reason=str(fault)) from fault


def format_address(address: Address) -> str:
    """Return the text that parse_address reads."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_PORT_MAX = 65535

_TIMEX_BYTES = 512
"""More than sizeof(struct timex) on any architecture; zeroed means: change nothing, only tell."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_TIME_ERROR = 5
"""adjtimex: the clock is not synchronised."""


@contextmanager
def unreachable_if_no_address(host: str, port: int) -> Iterator[None]:
    """Raise NoAddressError, an OSError, for an impossible host or port.

    Also for what a resolver or a socket raises inside because of it, which is no OSError: of a
    label that is too long (UnicodeError), a NUL (ValueError), a port out of range (OverflowError).
    """
    where = format_address((host, port))
    fault = host_fault(host)
    if not fault and not 0 < port <= _PORT_MAX:
        fault = f"port {port} is not a number from 1 to {_PORT_MAX}"
    if fault:
        raise NoAddressError(address=where, reason=fault)
    try:
        yield
    except (ValueError, OverflowError) as error:
        raise NoAddressError(address=where, reason=str(error)) from error


class SystemClock:
    """The clocks of this machine."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        try:
            self._boot_id = _BOOT_ID.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            self._boot_id = ""

    def now_ms(self) -> int:
        """Return the wall clock in ms."""
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        """Return CLOCK_BOOTTIME in ms."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def boot_id(self) -> str:
        """Return the kernel's boot id."""
        return self._boot_id

    def synchronised(self) -> bool:
        """Ask the kernel (adjtimex); where it cannot be asked the answer is no."""
        state: int = self._libc.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
        return state not in {-1, _TIME_ERROR}


_KEEPALIVE_IDLE_S = 15
_KEEPALIVE_INTERVAL_S = 5
_KEEPALIVE_PROBES = 3
_USER_TIMEOUT_MS = 30_000
_BACKLOG = 1024
_ARRIVALS_MAX = 32
"""Connections accepted in one turn of the loop: a few ms, whatever becomes of them."""

_ERRORS_OF_PEERS = frozenset(
    {
        errno.ECONNABORTED,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENONET,
        errno.ENOPROTOOPT,
        errno.EOPNOTSUPP,
        errno.EPERM,
        errno.EPROTO,
    }
)
"""accept(2) fails so for what became of one connection before it was accepted (EPERM: a firewall
rule); the next one is not concerned."""


class _Socket(Protocol):
    """What sockets and trio's streams have in common here."""

    def setsockopt(self, level: int, option: int, value: int, /) -> object:
        """Set an option."""


def _configure(what: _Socket) -> None:
    """Send at once, and notice within 30 s that a peer died without a word."""
    what.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    what.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    what.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
    what.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S)
    what.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
    what.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)


class TcpArrival:
    """A connection as the kernel gave it; what trio needs is made when it is opened."""

    __slots__ = ("_socket", "peer")

    def __init__(self, accepted: socket.socket, name: tuple[str, int]) -> None:
        self._socket = accepted
        self.peer: Address = (name[0], name[1])
        """Who it is."""

    def open(self) -> trio.SocketStream:
        """Return the stream of it."""
        return trio.SocketStream(trio.socket.from_stdlib_socket(self._socket))

    async def aclose(self) -> None:
        """Close it at once."""
        self._socket.close()


class TcpListener(Listener):
    """A Listener on one TCP address."""

    def __init__(self, listening: socket.socket) -> None:
        """Take a socket that listens and does not block."""
        self._socket = listening
        name = listening.getsockname()
        self._address: Address = (name[0], name[1])

    @property
    def address(self) -> Address:
        """The address really bound."""
        return self._address

    async def accept(self) -> trio.SocketStream:
        """Return the next connection; an OSError is about this process (out of descriptors)."""
        (arrival,) = await self._accept(1)
        return arrival.open()

    async def arrivals(self) -> list[Arrival]:
        """Return the next connections; an OSError is about this process (out of descriptors)."""
        return [*await self._accept(_ARRIVALS_MAX)]

    async def aclose(self) -> None:
        """Stop listening."""
        if self._socket.fileno() != -1:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
        await trio.lowlevel.checkpoint()

    async def _accept(self, most: int) -> list[TcpArrival]:
        found: list[TcpArrival] = []
        while not found:
            if self._socket.fileno() == -1:
                raise trio.ClosedResourceError("this listener was closed")
            await trio.lowlevel.wait_readable(self._socket)
            for _ in range(most):
                try:
                    found.append(TcpArrival(*self._socket.accept()))
                except BlockingIOError:
                    break
                except OSError as error:
                    if error.errno in _ERRORS_OF_PEERS:
                        continue
                    if found:
                        # Those are there; what is wrong is still so at the next call.
                        break
                    raise
        return found


class TcpNetwork:
    """Plain TCP through trio's sockets."""

    async def listen(self, host: str, port: int) -> TcpListener:
        """Bind one address. A name of several prefers IPv4: QMQ's clients cannot write IPv6."""
        where = format_address((host, port))
        try:
            found = await trio.socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        except (OSError, ValueError) as error:
            raise AddressError(text=where, reason=str(error)) from error
        found.sort(key=lambda entry: entry[0] != socket.AF_INET)
        family, kind, protocol, _, name = found[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.settimeout(0)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # [::] means every address of the machine, as it does elsewhere on Linux.
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            # What is accepted has the options of what listens (tcp(7)).
            _configure(bound)
            bound.bind(name)
            bound.listen(_BACKLOG)
        except OSError as error:
            bound.close()
            raise ListenError(address=where, reason=error.strerror or str(error)) from error
        return TcpListener(bound)

    async def connect(self, host: str, port: int) -> trio.SocketStream:
        """Connect, trying the addresses of a name in turn (happy eyeballs)."""
        with unreachable_if_no_address(host, port):
            stream = await trio.open_tcp_stream(host, port)
        try:
            _configure(stream)
        except OSError as error:
            # A peer that reset the connection meanwhile: the first receive will say so.
            if error.errno not in {errno.EINVAL, errno.ECONNRESET, errno.ENOTCONN}:
                raise
        return stream


class ThreadExecutor:
    """Runs calls in threads, one at a time per worker."""

    def __init__(self) -> None:
        # One permit per worker; trio's limiters serve first come first.
        self._workers: dict[str, trio.CapacityLimiter] = {}

    async def run(self, worker: str, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run `fn(*args)` in a thread, after everything asked of this worker before."""
        limiter = self._workers.get(worker)
        if limiter is None:
            limiter = self._workers[worker] = trio.CapacityLimiter(1)
        return await trio.to_thread.run_sync(fn, *args, limiter=limiter)


def system_runtime() -> Runtime:
    """Return the production seams: real clock, TCP, threads, chance of the system."""
    return Runtime(
        clock=SystemClock(),
        network=TcpNetwork(),
        executor=ThreadExecutor(),
        # The system's own, so that nobody can foresee a nonce or an id.
        chance=random.SystemRandom(),
    )
