"""A network in memory: streams that are delayed, cut into pieces, blocked, reset and half-opened.

Each node has a `NodeNetwork` (the Network seam) for each of its lives. Bytes of one direction
arrive in order, each piece at a drawn time, and wait in a bounded buffer; a sender waits while that
is full.
`cut` ends a life: after a Kill the kernel closes the node's connections, after a PowerCut its peers
hear nothing at all until they time out, or speak to the machine after it is up again.

No tasks are needed: a receiver sleeps until the arrival time of the piece in front. It sleeps by an
alarm of the clock and in one step, since much of what a simulation does is wait here.
"""

import errno
import math
import os
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import trio

from delay_transport.seams.errors import ListenError
from delay_transport.seams.runtime import (
    Address,
    Listener,
    Network,
    format_address,
    unreachable_if_no_address,
)
from tests.simulation.clock import event_clock
from tests.simulation.faults import Death, PowerCut
from tests.simulation.trace import Trace

_RECEIVE_BYTES = 65536
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 (nothing is bound: names in a dictionary)
_FIRST_PORT = 40_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPlan:
    """How the network behaves; times in virtual seconds, chances from 0 to 1."""

    delay_s: tuple[float, float] = (0.000_05, 0.002)
    """Least and most of an ordinary piece, one way."""

    slow_chance: float = 0.01
    """Per piece: that it is a slow one."""

    slow_s: tuple[float, float] = (0.05, 0.5)
    """Least and most of a slow piece; what follows waits behind it."""

    fragment_chance: float = 0.3
    """Per send: that it arrives in several pieces, cut at any byte."""

    reset_chance: float = 0.0
    """Per send: that the connection is reset on the way."""

    buffer_bytes: int = 65536
    """Per direction: bytes under way or not yet received; beyond it the sender waits."""

    backlog: int = 1024
    """Connections that wait to be accepted; beyond it connecting hangs."""

    connect_timeout_s: float = 127.0
    """After which connecting to a silent machine fails."""

    user_timeout_s: float = 30.0
    """After which a connection breaks whose other end is silent (keepalive, TCP_USER_TIMEOUT)."""


class _Piece:
    """Bytes on their way; None is the end of the stream."""

    __slots__ = ("arrives_s", "data")

    def __init__(self, data: bytes | None, arrives_s: float) -> None:
        self.data = data
        self.arrives_s = arrives_s


class SimStream(trio.abc.HalfCloseableStream):
    """One end of a connection.

    Its inbox holds what the other end sent, in order of arrival. What it has not received when the
    connection breaks (`broken_s`) is lost to it.
    """

    def __init__(self, network: "NodeNetwork", number: int, *, peer_name: str) -> None:
        self.owner = network
        self.number = number
        self.peer_name = peer_name
        """The address of the other end, for logs."""
        self.peer: SimStream
        self.closed = False
        self.eof_sent = False
        self._reset_s = math.inf
        self._timeout_s = math.inf
        self._inbox: deque[_Piece] = deque()
        self._held = 0
        self._last_arrival_s = 0.0
        self._stalled_s = math.inf  # since when nothing arrives here
        self._reader: trio.lowlevel.Task | None = None  # asleep
        self._alarm = 0  # the number of the alarm that wakes it
        self._writers = trio.lowlevel.ParkingLot()
        self._receiving = False
        self._sending = False

    @property
    def broken_s(self) -> float:
        """When this end learns that the connection is no more."""
        return min(self._reset_s, self._timeout_s)

    # The trio stream.

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send, waiting while the peer's buffer is full."""
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this stream")
        self._sending = True
        try:
            self._check_sendable()
            await trio.lowlevel.checkpoint()
            if len(data):
                await self._send_pieces(bytes(data))
        finally:
            self._sending = False

    async def wait_send_all_might_not_block(self) -> None:
        """Wait for room in the peer's buffer."""
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this stream")
        self._sending = True
        try:
            self._check_sendable()
            await trio.lowlevel.checkpoint()
            await self._wait_for_room()
        finally:
            self._sending = False

    async def send_eof(self) -> None:
        """Tell the peer that nothing more comes from this side."""
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this stream")
        self._check_alive()
        await trio.lowlevel.checkpoint()
        if not self.eof_sent:
            self._check_sendable()
            self.eof_sent = True
            self.peer.deliver(None)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return what has arrived, b"" at the end of the stream."""
        if max_bytes is not None and max_bytes < 1:
            raise ValueError("max_bytes must be >= 1")
        if self._receiving:
            raise trio.BusyResourceError("another task is receiving on this stream")
        self._receiving = True
        try:
            self._check_alive()
            await trio.lowlevel.checkpoint_if_cancelled()
            if self._wakes_s() <= trio.current_time():
                await trio.lowlevel.cancel_shielded_checkpoint()
            return await self._receive(max_bytes or _RECEIVE_BYTES)
        finally:
            self._receiving = False

    async def aclose(self) -> None:
        """Close this end; the peer gets the end of the stream, or a reset if bytes lay unread."""
        self.close_now()
        await trio.lowlevel.checkpoint()

    # What the network and the other end do to this end.

    def close_now(self) -> None:
        """Close as the kernel does for a process that ends."""
        if self.closed:
            return
        self.closed = True
        now = trio.current_time()
        unread = [piece.arrives_s for piece in self._inbox if piece.data is not None]
        if now < self.broken_s and not self.peer.closed:
            if unread and unread[0] <= now:
                self.peer.hear_reset()
            else:
                if not self.eof_sent:
                    self.peer.deliver(None)
                if unread and unread[0] < math.inf:
                    self.peer.hear_reset(after_s=unread[0])
            # A sender that waits for room here finds out when its next bytes are refused.
            self.peer.wake_sender()
        self._inbox.clear()
        self._held = 0
        self.wake()
        self.owner.network.forget(self)

    def deliver(self, data: bytes | None) -> None:
        """Put bytes on their way to this end."""
        arrives_s = math.inf if self._stalled_s < math.inf else self.next_arrival_s()
        if arrives_s < math.inf:
            self._last_arrival_s = arrives_s
        self._inbox.append(_Piece(data, arrives_s))
        if data is not None:
            self._held += len(data)
        if len(self._inbox) == 1:
            self._set_alarm()

    def next_arrival_s(self) -> float:
        """Return when something sent to this end now would arrive, behind all that is under way."""
        return max(self._last_arrival_s, trio.current_time() + self.owner.network.draw_delay_s())

    def room(self) -> int:
        """Return how many bytes may still be sent to this end."""
        return self.owner.network.plan.buffer_bytes - self._held

    def break_at(self, when_s: float) -> None:
        """Let this end learn at some time that the connection is no more."""
        if when_s < self._reset_s:
            self._reset_s = when_s
            self.wake()

    def time_out_at(self, when_s: float) -> None:
        """Let this end give up at some time, unless it is resumed before."""
        self._timeout_s = min(self._timeout_s, when_s)
        self.wake()

    def hear_reset(self, after_s: float = 0.0) -> None:
        """Get a reset from the other end, behind what it sent, if it can get through."""
        if self._stalled_s == math.inf:
            self.break_at(max(self.next_arrival_s(), after_s))

    def wake_sender(self) -> None:
        """Let this end's sender look again whether there is room."""
        self._writers.unpark_all()

    def drop_under_way(self, keep: float) -> None:
        """Lose what has not arrived yet, but for a prefix of this share."""
        now = trio.current_time()
        arrived = sum(piece.arrives_s <= now for piece in self._inbox)
        kept = arrived + round((len(self._inbox) - arrived) * keep)
        while len(self._inbox) > kept:
            piece = self._inbox.pop()
            self._held -= len(piece.data or b"")

    def stall(self) -> None:
        """Let nothing arrive any more, what is under way included."""
        if self._stalled_s < math.inf:
            return
        self._stalled_s = now = trio.current_time()
        for piece in self._inbox:
            if piece.arrives_s > now:
                piece.arrives_s = math.inf
        self._last_arrival_s = now
        self.wake()

    def resume(self) -> None:
        """Let arrive what was stalled, in its order."""
        if self._timeout_s > trio.current_time():
            self._timeout_s = math.inf
        if self._stalled_s == math.inf:
            return
        self._stalled_s = math.inf
        for piece in self._inbox:
            if piece.arrives_s == math.inf:
                piece.arrives_s = self._last_arrival_s = self.next_arrival_s()
        self.wake()

    def wake(self) -> None:
        """Let every task that waits at this end look again."""
        self._wake_reader()
        self._writers.unpark_all()

    # Inside.

    def _check_alive(self) -> None:
        self.owner.check_alive()
        if self.closed:
            raise trio.ClosedResourceError("this stream was closed")

    def _check_sendable(self) -> None:
        self._check_alive()
        if self.eof_sent:
            raise trio.ClosedResourceError("this stream's sending side was closed")
        if trio.current_time() >= self.broken_s:
            raise trio.BrokenResourceError("connection reset") from OSError(
                errno.ECONNRESET, os.strerror(errno.ECONNRESET)
            )

    async def _send_pieces(self, data: bytes) -> None:
        network = self.owner.network
        network.trace.note(f"send {self.number} {len(data)} {trio.current_time()!r}")
        if network.chance.random() < network.plan.reset_chance:
            network.reset(self)
        for piece in network.fragments(data):
            rest = piece
            while rest:
                await self._wait_for_room()
                if self.peer.closed or self.peer.owner.death is not None:
                    self._send_into_the_void(rest)
                    break
                room = self.peer.room()
                self.peer.deliver(rest[:room])
                rest = rest[room:]

    async def _wait_for_room(self) -> None:
        """Return when there is room; raises as sending does."""
        self._check_sendable()
        while self.peer.room() <= 0:
            with trio.CancelScope(deadline=self.broken_s):
                await self._writers.park()
            self._check_sendable()

    def _send_into_the_void(self, data: bytes) -> None:
        """Nobody is there: a machine that runs refuses the bytes, one that does not says nothing.

        Bytes sent to a dead machine count against its buffer, until the connection breaks.
        """
        if self.peer.closed or self.owner.network.is_up(self.peer.owner.name):
            delay_s = self.owner.network.draw_delay_s() + self.owner.network.draw_delay_s()
            self.break_at(trio.current_time() + delay_s)
        else:
            self.peer.deliver(data)

    async def _receive(self, max_bytes: int) -> bytes:
        while True:
            self._check_alive()
            now = trio.current_time()
            if now >= self.broken_s:
                raise trio.BrokenResourceError("connection reset") from OSError(
                    errno.ECONNRESET, os.strerror(errno.ECONNRESET)
                )
            if self._inbox and self._inbox[0].arrives_s <= now:
                return self._take(max_bytes, now)
            self._reader = trio.lowlevel.current_task()
            self._set_alarm()
            await trio.lowlevel.wait_task_rescheduled(self._give_up)

    def _wakes_s(self) -> float:
        """Return when there is something to receive, or to learn."""
        arrives_s = self._inbox[0].arrives_s if self._inbox else math.inf
        return min(arrives_s, self.broken_s)

    def _set_alarm(self) -> None:
        """Have the reader, if one sleeps, woken when there is something for it."""
        if self._reader is None:
            return
        self._alarm = number = self._alarm + 1
        wake_s = self._wakes_s()
        if wake_s < math.inf:
            event_clock().call_at(wake_s, lambda: self._ring(number))

    def _ring(self, number: int) -> None:
        if number == self._alarm:
            self._wake_reader()

    def _wake_reader(self) -> None:
        if self._reader is not None:
            trio.lowlevel.reschedule(self._reader)
            self._reader = None

    def _give_up(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._reader = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _take(self, max_bytes: int, now: float) -> bytes:
        inbox = self._inbox
        parts: list[bytes] = []
        size = 0
        while inbox and inbox[0].arrives_s <= now and size < max_bytes:
            piece = inbox[0]
            if piece.data is None:
                break  # stays in front: the stream remains at its end
            data = piece.data[: max_bytes - size]
            if len(data) < len(piece.data):
                piece.data = piece.data[len(data) :]
            else:
                inbox.popleft()
            parts.append(data)
            size += len(data)
        self._held -= size
        self.peer.wake_sender()
        self.owner.network.trace.note(f"receive {self.number} {size} {now!r}")
        return b"".join(parts)


class SimListener(Listener):
    """Accepts the connections to one address."""

    def __init__(self, network: "NodeNetwork", address: Address) -> None:
        self.owner = network
        self._address = address
        self._waiting: deque[SimStream] = deque()
        self._lot = trio.lowlevel.ParkingLot()
        self._closed = False

    @property
    def address(self) -> Address:
        """The address listened on."""
        return self._address

    @property
    def is_full(self) -> bool:
        """Say whether the backlog takes no more."""
        return len(self._waiting) >= self.owner.network.plan.backlog

    async def accept(self) -> SimStream:
        """Return the next connection."""
        self._check_open()
        await trio.lowlevel.checkpoint()
        self._check_open()
        while not self._waiting:
            await self._lot.park()
            self._check_open()
        return self._waiting.popleft()

    async def aclose(self) -> None:
        """Stop listening; connections not yet accepted are reset."""
        self.close_now()
        await trio.lowlevel.checkpoint()

    def close_now(self) -> None:
        """Close as the kernel does."""
        if self._closed:
            return
        self._closed = True
        self.owner.network.unlisten(self)
        for stream in self._waiting:
            stream.peer.break_at(stream.peer.next_arrival_s())
            stream.close_now()
        self._waiting.clear()
        self._lot.unpark_all()

    def offer(self, stream: SimStream) -> None:
        """Queue a connection."""
        self._waiting.append(stream)
        self._lot.unpark()

    def _check_open(self) -> None:
        self.owner.check_alive()
        if self._closed:
            raise trio.ClosedResourceError("this listener was closed")


class NodeNetwork:
    """The Network of one life of a node."""

    def __init__(self, network: "SimNetwork", name: str) -> None:
        self.network = network
        self.name = name
        self.death: Death | None = None

    async def listen(self, host: str, port: int) -> SimListener:
        """Listen on an address; port 0 takes a free one."""
        self.check_alive()
        await trio.lowlevel.checkpoint()
        return self.network.bind(self, host, port)

    async def connect(self, host: str, port: int) -> SimStream:
        """Connect, after a round trip; OSError if refused, or when nobody answers for long."""
        self.check_alive()
        await trio.lowlevel.checkpoint()
        with unreachable_if_no_address(host, port):
            # As the resolver does, which refuses some names in a way of its own.
            host.encode("idna")
        network = self.network
        give_up_s = trio.current_time() + network.plan.connect_timeout_s
        while True:
            await trio.sleep(network.draw_delay_s() + network.draw_delay_s())
            self.check_alive()
            found = network.find(host, port)
            if found is None and not network.is_silent(self.name, (host, port)):
                raise ConnectionRefusedError(
                    errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED), f"{host}:{port}"
                )
            if found is not None and network.reaches(self, found):
                return network.join(self, found)
            if trio.current_time() >= give_up_s:
                raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), f"{host}:{port}")
            await trio.sleep(1.0)  # the next SYN

    def check_alive(self) -> None:
        """Raise the death of a life that ended."""
        if self.death is not None:
            raise type(self.death)(*self.death.args)


class SimNetwork:
    """All nodes' connections."""

    def __init__(
        self,
        chance: random.Random,
        *,
        plan: NetworkPlan | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.plan = plan or NetworkPlan()
        """How the network behaves; may be changed at any time."""
        self.chance = chance
        self.trace = trace or Trace()
        self.resets_s: list[float] = []
        """When connections were reset."""
        self._lives: dict[str, NodeNetwork] = {}
        self._listeners: dict[Address, SimListener] = {}
        self._hosts: dict[Address, str] = {}  # who listened there last
        self._streams: dict[int, SimStream] = {}
        self._blocked: dict[tuple[str, str], None] = {}
        self._connections = 0
        self._next_port = _FIRST_PORT

    # What a test does to the network.

    def node(self, name: str) -> NodeNetwork:
        """Return the network of a node's next life; its machine is up from now on.

        Peers whose connections ended in silence find out by their keepalive, or when they send.
        """
        before = self._lives.get(name)
        if before is not None and before.death is None:
            raise ValueError(f"{name} still lives; cut it first")
        self._lives[name] = life = NodeNetwork(self, name)
        for stream in self._peers_of(name):
            wait_s = self.chance.uniform(0, self.plan.user_timeout_s / 2)
            stream.break_at(trio.current_time() + wait_s)
        return life

    def cut(self, name: str, death: Death) -> None:
        """End a node's life on the network."""
        life = self._lives.get(name)
        if life is None or life.death is not None:
            return
        self.trace.note(f"cut {name} {type(death).__name__}")
        if not isinstance(death, PowerCut):
            for stream in self._streams_of(name):
                stream.close_now()
            for listener in [found for found in self._listeners.values() if found.owner is life]:
                listener.close_now()
            life.death = death
            return
        life.death = death
        for address in [key for key, at in self._listeners.items() if at.owner is life]:
            del self._listeners[address]
        for stream in self._streams_of(name):
            stream.peer.drop_under_way(self.chance.choice((0.0, 1.0, self.chance.random())))
            stream.peer.break_at(trio.current_time() + self.plan.user_timeout_s)
            stream.wake()
            self.forget(stream)

    def block(self, source: str, target: str) -> None:
        """Let nothing pass from one node to another; connections break if it lasts."""
        self.trace.note(f"block {source} {target}")
        self._blocked[source, target] = None
        for stream in list(self._streams.values()):
            if stream.owner.name == target and stream.peer.owner.name == source:
                stream.stall()
                for end in (stream, stream.peer):
                    end.time_out_at(trio.current_time() + self.plan.user_timeout_s)

    def unblock(self, source: str, target: str) -> None:
        """Let pass again what goes from one node to another, and leave other links as they are."""
        self.trace.note(f"unblock {source} {target}")
        self._blocked.pop((source, target), None)
        is_open = not self.is_cut_off(source, target)
        for stream in list(self._streams.values()):
            ends = (stream.peer.owner.name, stream.owner.name)
            if ends == (source, target) or (is_open and ends == (target, source)):
                stream.resume()

    def heal(self) -> None:
        """Let everything pass again."""
        self.trace.note("heal")
        self._blocked.clear()
        for stream in list(self._streams.values()):
            stream.resume()

    def reset(self, stream: SimStream) -> None:
        """Reset a connection: both ends learn it, each after a while."""
        self.trace.note(f"reset {stream.number}")
        now = trio.current_time()
        self.resets_s.append(now)
        stream.break_at(now + self.draw_delay_s())
        stream.peer.break_at(now + self.draw_delay_s())

    def reset_any(self) -> bool:
        """Reset a drawn connection, if there is one."""
        if not self._streams:
            return False
        self.reset(self.chance.choice(list(self._streams.values())))
        return True

    # What nodes, streams and listeners ask.

    def is_up(self, name: str) -> bool:
        """Say whether a node's machine runs: then its kernel answers, whatever its process does."""
        life = self._lives.get(name)
        return life is not None and not isinstance(life.death, PowerCut)

    def is_cut_off(self, one: str, other: str) -> bool:
        """Say whether either direction between two nodes is blocked."""
        return (one, other) in self._blocked or (other, one) in self._blocked

    def is_silent(self, source: str, address: Address) -> bool:
        """Say whether connecting to an address where nobody listens is not even refused."""
        host, port = address
        for bound in (host, *_WILDCARDS):
            name = self._hosts.get((bound, port))
            if name is not None:
                return not self.is_up(name) or self.is_cut_off(source, name)
        return False

    def reaches(self, source: NodeNetwork, listener: SimListener) -> bool:
        """Say whether a connection can be made now."""
        return not (listener.is_full or self.is_cut_off(source.name, listener.owner.name))

    def find(self, host: str, port: int) -> SimListener | None:
        """Return who listens on an address."""
        for name in (host, *_WILDCARDS):
            listener = self._listeners.get((name, port))
            if listener is not None:
                return listener
        return None

    def bind(self, life: NodeNetwork, host: str, port: int) -> SimListener:
        """Listen."""
        if not port:
            port = self._free_port()
        address = (host, port)
        if address in self._listeners:
            raise ListenError(address=format_address(address), reason=os.strerror(errno.EADDRINUSE))
        listener = self._listeners[address] = SimListener(life, address)
        self._hosts[address] = life.name
        self.trace.note(f"listen {life.name} {host} {port}")
        return listener

    def unlisten(self, listener: SimListener) -> None:
        """Free an address."""
        self._listeners.pop(listener.address, None)

    def join(self, source: NodeNetwork, listener: SimListener) -> SimStream:
        """Make a connection; it exists before it is accepted."""
        self._connections += 1
        number = 2 * self._connections
        here = format_address(("127.0.0.1", self._free_port()))
        there = format_address(listener.address)
        near = SimStream(source, number, peer_name=there)
        far = SimStream(listener.owner, number + 1, peer_name=here)
        near.peer = far
        far.peer = near
        self._streams[near.number] = near
        self._streams[far.number] = far
        self.trace.note(f"connect {source.name} {there} {number} {trio.current_time()!r}")
        listener.offer(far)
        return near

    def forget(self, stream: SimStream) -> None:
        """Drop an end that is closed or dead from the books."""
        self._streams.pop(stream.number, None)

    def draw_delay_s(self) -> float:
        """Draw the time of one piece, one way."""
        plan = self.plan
        if self.chance.random() < plan.slow_chance:
            return self.chance.uniform(*plan.slow_s)
        return self.chance.uniform(*plan.delay_s)

    def fragments(self, data: bytes) -> Iterator[bytes]:
        """Yield the pieces in which a send travels."""
        if len(data) < 2 or self.chance.random() >= self.plan.fragment_chance:
            yield data
            return
        cuts = sorted(self.chance.randrange(1, len(data)) for _ in range(self.chance.randint(1, 3)))
        start = 0
        for cut in (*cuts, len(data)):
            if cut > start:
                yield data[start:cut]
            start = cut

    def _free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def _streams_of(self, name: str) -> list[SimStream]:
        return [stream for stream in self._streams.values() if stream.owner.name == name]

    def _peers_of(self, name: str) -> list[SimStream]:
        """Return the living ends of connections whose other end went silent with this node."""
        return [
            stream
            for stream in self._streams.values()
            if stream.peer.owner.name == name and not stream.peer.closed
        ]


def _conforms(network: NodeNetwork) -> Network:
    """Let the type checker hold NodeNetwork against the seam."""
    return network
