"""The server's side of the wire: accept connections and serve each until it ends."""

import errno
from collections.abc import Callable, Mapping
from contextlib import closing
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
from delay_transport.connections.limits import ConnectionLimits
from delay_transport.connections.sources import Sources, source_of
from delay_transport.seams.outbox import Wakeup
from delay_transport.seams.runtime import Address, Arrival, Listener, Network, format_address
from delay_transport.seams.trouble import Trouble

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_CLOSING_MAX = 64
"""Evicted connections that are not closed yet. At so many accepting pauses, since each still holds
a descriptor and memory."""
_ACCEPT_AGAIN_S = 0.1
"""Pause after an accept that failed for lack of descriptors or memory: some will be given back."""

RequestsTaker = Callable[[Connection, list[Frame]], None]
"""Takes requests of one code, as FrameHandler.frames takes requests of any."""


class Dispatch:
    """A FrameHandler that routes frames by code; an unknown code is answered UNKNOWN_CODE (3).

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


async def next_arrivals(listener: Listener, trouble: Trouble) -> list[Arrival]:
    """Return the next connections; wait while there are no descriptors or no memory for them."""
    while True:
        try:
            return await listener.arrivals()
        except OSError as error:
            if error.errno not in _OUT_OF_RESOURCES:
                raise
            trouble.log(_log.error, "cannot accept connections", reason=error.strerror)
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
        self._sources = Sources()
        self._trouble = Trouble()
        self._accepting = trio.CancelScope()
        self._serving: trio.Nursery
        # A dict and not a set: stopped in the order of arrival, in every process.
        self._open: dict[Connection, None] = {}
        """Also those that are evicted, until they are closed."""
        self._closed = Wakeup()
        """Woken when a connection is closed."""

    @property
    def open_connections(self) -> int:
        """Open connections, without those that are evicted."""
        return len(self._sources)

    @property
    def fullness(self) -> str:
        """Say that all places are taken; empty if there are some left."""
        most = self._limits.connections_max
        if self.open_connections < most:
            return ""
        return f"all {most} connections are taken (listener.connections_max)"

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
        with closing(self._shared.turns):
            async with trio.open_nursery() as reading:
                reading.start_soon(self._shared.turns.run)
                async with trio.open_nursery() as self._serving, self._listener:
                    with self._accepting:
                        await self._accept()
                reading.cancel_scope.cancel()

    async def _accept(self) -> None:
        while True:
            while len(self._open) - len(self._sources) >= _CLOSING_MAX:
                await self._closed.sleep()
            for arrival in await next_arrivals(self._listener, self._trouble):
                where = _where(arrival)
                if self._make_room(where):
                    self._admit(arrival, where)
                else:
                    await self._refuse(arrival)

    def _make_room(self, where: str) -> bool:
        """Say whether an address may have one more connection, for which one may be evicted."""
        sources = self._sources
        if sources.size_of(where) >= self._limits.connections_per_address_max:
            crowd: str | None = where
        elif len(sources) >= self._limits.connections_max:
            crowd = sources.largest()
        else:
            return True
        evicted = None if crowd is None else sources.silent_of(crowd)
        if evicted is None:
            return False
        sources.remove(evicted)
        evicted.evict()
        return True

    async def _refuse(self, arrival: Arrival) -> None:
        self.counts.refused += 1
        self._shared.warn("connection refused, too many are open", peer=_peer_name(arrival))
        await arrival.aclose()

    def _admit(self, arrival: Arrival, where: str) -> None:
        self.counts.accepted += 1
        connection = Connection(
            arrival.open(),
            peer=_peer_name(arrival),
            where=where,
            handler=self._handler,
            limits=self._limits,
            shared=self._shared,
            counts=self.counts,
        )
        self._open[connection] = None
        self._sources.add(connection)
        if self._accepting.cancel_called:
            # It was accepted before stop() and is seen after it.
            connection.stop()
        self._serving.start_soon(self._serve, connection)

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            del self._open[connection]
            self._sources.remove(connection)
            self._closed.wake()


def _peer_name(arrival: Arrival) -> str:
    peer = arrival.peer
    return peer if isinstance(peer, str) else format_address(peer)


def _where(arrival: Arrival) -> str:
    """Return the source address that a peer counts for."""
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
