"""The server's side of the wire: accept connections and serve each until it ends."""

import errno
import math
from collections.abc import Callable, Mapping
from itertools import groupby
from operator import attrgetter

import structlog
import trio

from delay_protocol.basics.codes import ResponseCode
from delay_protocol.wire.frames import Frame
from delay_transport.connections.connection import (
    CloseReason,
    Connection,
    ConnectionCounts,
    FrameHandler,
    Shared,
)
from delay_transport.connections.door import Door
from delay_transport.connections.limits import ConnectionLimits
from delay_transport.connections.sources import source_of
from delay_transport.seams.runtime import Address, Arrival, Listener, Network, format_address

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_CROWDED_S = 10.0
"""So long after a connection had to go for another one it is told that there are too many."""
_GOING_MAX = 64
"""Connections that have to go and are not closed yet; beyond it newcomers are refused, since each
holds a descriptor."""
_ACCEPT_AGAIN_S = 0.1
"""Pause after an accept that failed for lack of descriptors or memory: some will be given back."""

RequestsTaker = Callable[[Connection, list[Frame]], None]
"""Takes requests of one code, as FrameHandler.frames takes requests of any."""


class Dispatch:
    """A FrameHandler that hands on by code; a code nobody takes is answered UNKNOWN_CODE (3).

    Neighbours of one code stay together in one call, and all stay in the order of arrival.
    """

    def __init__(
        self,
        takers: Mapping[int, RequestsTaker],
        *,
        on_closed: Callable[[Connection, CloseReason], None] | None = None,
    ) -> None:
        self._takers = dict(takers)
        self._on_closed = on_closed

    def frames(self, connection: Connection, frames: list[Frame], /) -> None:
        """Hand each run of one code to its taker."""
        for code, run in groupby(frames, key=attrgetter("code")):
            taker = self._takers.get(code)
            if taker is not None:
                taker(connection, list(run))
            else:
                for frame in run:
                    connection.fault()
                    connection.answer(frame, ResponseCode.UNKNOWN_CODE)

    def closed(self, connection: Connection, reason: CloseReason, /) -> None:
        """Tell whoever wanted to know."""
        if self._on_closed is not None:
            self._on_closed(connection, reason)


async def next_arrivals(listener: Listener) -> list[Arrival]:
    """Return the next connections; wait while there are no descriptors or no memory for them."""
    while True:
        try:
            return await listener.arrivals()
        except OSError as error:
            if error.errno not in _OUT_OF_RESOURCES:
                raise
            _log.error("cannot accept connections", reason=error.strerror)
            await trio.sleep(_ACCEPT_AGAIN_S)


class Server:
    """What serve_connections gives to its starter: where it listens, what happens, how to stop."""

    def __init__(self, listener: Listener, handler: FrameHandler, limits: ConnectionLimits) -> None:
        self.address: Address = listener.address
        """Where connections are accepted; the port is known even where 0 was asked for."""
        self.counts = ConnectionCounts()
        """What happened so far, on all connections."""
        self._listener = listener
        self._handler = handler
        self._limits = limits
        self._shared = Shared(limits)
        self._door = Door(limits, self._shared, self.counts, enter=self._admit)
        self._accepting = trio.CancelScope()
        self._serving: trio.Nursery
        # A dict and not a set: stopped in the order of arrival, in every process.
        self._open: dict[Connection, None] = {}
        """Also those that have to go, until they are closed."""
        self._crowded_at = -math.inf

    @property
    def open_connections(self) -> int:
        """Connections that stand at this moment, those at the door included."""
        return len(self._shared.sources) + len(self._door)

    @property
    def fullness(self) -> str:
        """Say that all places are taken; empty if there are some left."""
        most = self._limits.connections_max
        if self.open_connections < most:
            return ""
        return f"all {most} connections are taken (listener.connections_max)"

    @property
    def crowding(self) -> str:
        """Say that silent connections were closed for new ones of late; empty if none was."""
        if trio.current_time() >= self._crowded_at + _CROWDED_S:
            return ""
        return (
            f"more than {self._limits.connections_per_address_max} connections come from one "
            "address (listener.connections_per_address_max), or more than there are places: silent "
            "ones are closed for new ones"
        )

    @property
    def at_door(self) -> int:
        """Those that wait at the door."""
        return len(self._door)

    @property
    def wasters(self) -> int:
        """Addresses known for connections that came to nothing."""
        return len(self._shared.standing)

    @property
    def held_bytes(self) -> int:
        """Bytes held for all connections; compare ConnectionLimits.total_bytes_max."""
        return self._shared.held

    def stop(self) -> None:
        """Accept no connection and read no request more; answer what was accepted, then close.

        serve_connections returns when that is done, for which each connection has
        drain_seconds_max and linger_seconds_max. Give it a deadline if that is too long.
        """
        self._accepting.cancel()
        for connection in self._open:
            connection.stop()

    async def run(self) -> None:
        """Accept and serve until stop() and the end of the last connection."""
        async with trio.open_nursery() as self._serving, self._listener:
            with self._accepting:
                async with trio.open_nursery() as entrance:
                    entrance.start_soon(self._door.run)
                    await self._accept()

    async def _accept(self) -> None:
        while True:
            arrivals = await next_arrivals(self._listener)
            now = trio.current_time()
            for arrival in arrivals:
                where = _where(arrival)
                if not await self._has_place(where):
                    await self._refuse(arrival)
                    continue
                is_bad = self._shared.standing.is_bad(where, now)
                if is_bad and not self._accepting.cancel_called:
                    await self._door.take(arrival, where)
                else:
                    self._admit(arrival, where, b"")

    async def _has_place(self, where: str) -> bool:
        """Say whether one more may be open in all; another one may have had to go for it."""
        if len(self._open) - len(self._shared.sources) >= _GOING_MAX:
            return False
        if self.open_connections < self._limits.connections_max:
            return True
        self._crowded_at = trio.current_time()
        if len(self._door):
            # Where they come from is known for what comes to nothing.
            await self._door.make_room()
            return True
        sources = self._shared.sources
        is_crowd = sources.size_of(where) >= self._limits.connections_per_address_max
        return self._show_out(where if is_crowd else sources.largest())

    def _show_out(self, where: str | None) -> bool:
        """Close a connection from there that is silent; say whether there was one."""
        self._crowded_at = trio.current_time()
        leaving = None if where is None else self._shared.sources.silent_of(where)
        if leaving is None:
            return False
        self._shared.sources.remove(leaving)
        leaving.make_room()
        return True

    async def _refuse(self, arrival: Arrival) -> None:
        self.counts.refused += 1
        self._shared.warn("connection refused, too many are open", peer=_peer_name(arrival))
        await arrival.aclose()

    def _admit(self, arrival: Arrival, where: str, received: bytes) -> None:
        """Serve a connection, where its address has a place for it."""
        is_crowd = self._shared.sources.size_of(where) >= self._limits.connections_per_address_max
        if is_crowd and not self._show_out(where):
            self._serving.start_soon(self._refuse, arrival)
            return
        self.counts.accepted += 1
        connection = Connection(
            arrival.open(),
            peer=_peer_name(arrival),
            where=where,
            received=received,
            handler=self._handler,
            limits=self._limits,
            shared=self._shared,
            counts=self.counts,
        )
        self._open[connection] = None
        self._shared.sources.add(connection)
        if self._accepting.cancel_called:
            # It was accepted before stop() and is seen after it.
            connection.stop()
        self._serving.start_soon(self._serve, connection)

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            del self._open[connection]
            self._shared.sources.remove(connection)


def _peer_name(arrival: Arrival) -> str:
    peer = arrival.peer
    return peer if isinstance(peer, str) else format_address(peer)


def _where(arrival: Arrival) -> str:
    """Return what the peer shares its standing with."""
    peer = arrival.peer
    return source_of(peer.rpartition(":")[0] if isinstance(peer, str) else peer[0])


async def serve_connections(
    network: Network,
    address: Address,
    handler: FrameHandler,
    limits: ConnectionLimits,
    *,
    task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Listen on `address` and serve every connection until cancelled, or stopped by Server.stop.

    Starts with the Server. Raises ListenError or AddressError if it cannot listen. Cancelling cuts
    connections off at once; what was accepted then goes unanswered.
    """
    host, port = address
    server = Server(await network.listen(host, port), handler, limits)
    _log.debug("listening", address=format_address(server.address))
    task_status.started(server)
    await server.run()
