"""The client for everyone else: a shell of blocking calls around the same exchange.

There is no thread of its own, so it survives a fork and costs nothing between calls. Whichever
thread waits for an outcome moves the bytes of all of them; when it has its own, another takes
over.
"""

import contextlib
import os
import random
import selectors
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Final, Self

from delay_client.exchange.batches import Collection, Lane, Waiter, cut_batches
from delay_client.exchange.exchange import Exchange
from delay_client.exchange.routing import Line
from delay_client.messages.clock import monotonic_s, wall_ms
from delay_client.messages.config import ClientConfig
from delay_client.messages.errors import ClientClosed
from delay_client.messages.identity import client_id
from delay_client.messages.item_encoder import ItemEncoder
from delay_client.messages.message import Body, Delay, Outcome, OutgoingMessage, Receipt
from delay_client.messages.message_ids import MessageIdMaker
from delay_client.shells.lines import describe
from delay_client.shells.routes_file import routes_keeper

_RECEIVE_SIZE: Final = 65536
_SocketName = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]

_READ: Final = selectors.EVENT_READ
_WRITE: Final = selectors.EVENT_WRITE


class BlockingClient:
    """Sends messages that are delivered later, from ordinary code. Threads may share it.

    Use it as `with BlockingClient(...) as client`, or keep it as long as the process lives: it
    connects when there is something to send, and in a forked process it connects anew.
    """

    def __init__(
        self,
        servers: Sequence[str] | None = None,
        *,
        meta: str | Sequence[str] | None = None,
        app_code: str = "",
        config: ClientConfig | None = None,
        on_trouble: Callable[[str], None] | None = None,
        routes_cache: str | os.PathLike[str] | None = None,
        chance: random.Random | None = None,
    ) -> None:
        """Name the meta server's HTTP port or delay servers, and all else, as Client does.

        Between calls the client does not read from the meta server: the next call processes its
        notifications before it sends.
        """
        self._config = config = config or ClientConfig()
        self._chance = chance = chance or random.SystemRandom()
        self._new_exchange: Callable[[], Exchange] = lambda: Exchange(
            servers,
            meta=meta,
            client_id=client_id(),
            app_code=app_code,
            config=config,
            chance=chance,
            on_trouble=on_trouble,
            keeper=routes_keeper(routes_cache, meta),
        )
        """Makes that of this process."""
        self._is_open = True
        self._traffic = self._begin_traffic()

    def send(
        self,
        subject: str,
        body: Body = "",
        *,
        delay: Delay | None = None,
        at: datetime | None = None,
        message_id: str | None = None,
        tags: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Send one message; as Client.send()."""
        timeout_s = self._config.timeout(timeout)
        traffic = self._current_traffic()
        message = OutgoingMessage(subject, body, delay, at, message_id, tags, headers, content_type)
        now_ms = wall_ms()
        encoded = self._new_encoder().encode(message, now_ms)
        waiter = Waiter(traffic.note_news)
        with traffic.turn_taking:
            traffic.catch_up()
            traffic.exchange.offer(
                encoded,
                waiter,
                subject=subject,
                timeout_s=timeout_s,
                now=monotonic_s(),
                is_id_given=message_id is not None,
                is_past_due=encoded[2] < now_ms,
            )
            try:
                traffic.run_until(lambda: waiter.outcome is not None)
            finally:
                waiter.abandoned = True
        return waiter.receipt()

    def send_many(
        self, messages: Iterable[OutgoingMessage], *, timeout: float | None = None
    ) -> list[Outcome]:
        """Send many messages and return the outcome of each, in order; as Client.send_many()."""
        timeout_s = self._config.timeout(timeout)
        traffic = self._current_traffic()
        exchange = traffic.exchange
        collection = Collection(traffic.note_news)
        try:
            # The lock is not held while the caller's iterable runs, nor while we encode.
            for batch in cut_batches(
                messages,
                collection,
                encoder=self._new_encoder(),
                config=self._config,
                wall_ms=wall_ms,
                lanes=_LockedLanes(traffic),
            ):
                with traffic.turn_taking:
                    traffic.catch_up()
                    now = monotonic_s()
                    batch.deadline = collection.deadline(now, timeout_s)
                    exchange.submit(batch, now)
                    traffic.step()
                    traffic.run_until(partial(exchange.has_room, batch))
            with traffic.turn_taking:
                traffic.run_until(lambda: not collection.unsettled)
        finally:
            collection.abandoned = True
        return collection.outcomes()

    def close(self) -> None:
        """Disconnect. Calls that still wait in other threads get a ClientClosed."""
        self._is_open = False
        if self._traffic.pid == os.getpid():
            self._traffic.close()

    def __enter__(self) -> Self:
        """Nothing to do: servers are connected to when there is work."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Disconnect."""
        self.close()

    def _current_traffic(self) -> "_Traffic":
        if not self._is_open:
            raise ClientClosed("the client is closed: make a new BlockingClient")
        if self._traffic.pid != os.getpid():
            # Forked: the connections, and perhaps a lock that is held, belong to the parent.
            self._traffic.leave_to_parent()
            self._traffic = self._begin_traffic()
        return self._traffic

    def _begin_traffic(self) -> "_Traffic":
        return _Traffic(self._new_exchange(), connect_timeout_s=self._config.connect_timeout_s)

    def _new_encoder(self) -> ItemEncoder:
        # One for each call: an encoder is not for two threads.
        return ItemEncoder(
            ids=MessageIdMaker(self._chance), item_bytes_max=self._config.item_bytes_max
        )


class _Traffic:
    """The sockets of one process, and the one thread at a time that serves them.

    Every method but close() and leave_to_parent() is called with `turn_taking` held; it is
    released only while waiting.
    """

    def __init__(self, exchange: Exchange, *, connect_timeout_s: float) -> None:
        self.pid = os.getpid()
        self.exchange = exchange
        self.turn_taking = threading.Condition()
        self._connect_timeout_s = connect_timeout_s
        self._connections: dict[Line, _Connection] = {}
        # Not epoll: its set of sockets would be shared with forked children.
        self._selector = selectors.PollSelector()
        self._alarm_in, self._alarm_out = socket.socketpair()
        self._alarm_in.settimeout(0)
        self._alarm_out.settimeout(0)
        self._selector.register(self._alarm_out, _READ, None)
        self._is_served = False
        """Whether a thread serves the sockets now, or waits for them with the lock released."""
        self._has_news = False
        self._is_closed = False

    def note_news(self) -> None:
        """Note that an outcome was settled: those who wait should look."""
        self._has_news = True

    def run_until(self, is_done: Callable[[], bool]) -> None:
        """Return when `is_done()`; until then serve, or wait while another thread does."""
        while not is_done():
            if self._is_served:
                # It sleeps on what it knew before we came.
                self._ring()
                self.turn_taking.wait()
                continue
            self._is_served = True
            try:
                while not is_done():
                    self._serve(block=True)
            finally:
                self._is_served = False
                self.turn_taking.notify_all()
                if self._is_closed:
                    self._close_sockets()

    def step(self) -> None:
        """Move what can be moved without waiting."""
        if not self._is_served and not self._is_closed:
            self._serve(block=False)

    def catch_up(self) -> None:
        """Learn what happened since the last call, so that nothing is sent into a dead connection.

        Nobody watches the connections between calls.
        """
        if not self._is_served and self._connections:
            self._handle(self._selector.select(0))
            self.exchange.poll(monotonic_s())
            self._tend()

    def close(self) -> None:
        """End every connection and every call."""
        with self.turn_taking:
            if self._is_closed:
                return
            self._is_closed = True
            self.exchange.close()
            self.turn_taking.notify_all()
            if self._is_served:
                # The thread that serves them will find that it is done.
                self._ring()
            else:
                self._close_sockets()

    def leave_to_parent(self) -> None:
        """Close our copies of the parent's sockets, which leaves the connections alone."""
        self._close_sockets()

    def _close_sockets(self) -> None:
        for connection in self._connections.values():
            connection.socket.close()
        self._connections.clear()
        self._selector.close()
        self._alarm_in.close()
        self._alarm_out.close()

    def _ring(self) -> None:
        # Where there is no room, it has not heard the last ones yet.
        with contextlib.suppress(BlockingIOError):
            self._alarm_in.send(b"!")

    def _serve(self, *, block: bool) -> None:
        """Make one round: do what is due, wait for sockets, handle what they have."""
        try:
            now = monotonic_s()
            self.exchange.poll(now)
            self._tend()
            wait_s = 0.0 if self._has_news else self._wait_s(now)
            self._handle(self._select(wait_s) if block else self._selector.select(0))
        except BaseException:
            # Interrupted between a write and the note of it: no frame may be cut or repeated.
            for link in list(self._connections):
                self._drop(link, "interrupted")
            raise
        if self._has_news:
            self._has_news = False
            self.turn_taking.notify_all()

    def _select(self, wait_s: float) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for sockets. Here alone other threads get in."""
        self.turn_taking.release()
        try:
            return self._selector.select(wait_s)
        finally:
            self.turn_taking.acquire()

    def _wait_s(self, now: float) -> float:
        wake_at = min(
            self.exchange.wake_at,
            *(c.connect_by for c in self._connections.values() if c.connect_by is not None),
            now + 3600,
        )
        return max(0.0, wake_at - now)

    def _tend(self) -> None:
        """Connect what is wanted, close what is condemned, write what can be written."""
        now = monotonic_s()
        for link in self.exchange.lines:
            connection = self._connections.get(link)
            if connection is None:
                if self.exchange.wants_connection(link, now):
                    self._connect(link)
            elif link.condemned is not None:
                self._drop(link, link.condemned)
            elif connection.connect_by is not None:
                if now >= connection.connect_by:
                    self._drop(link, f"no connection within {self._connect_timeout_s:g} s")
            elif link.has_outgoing or connection.unsent:
                self._write(connection)

    def _handle(self, ready: list[tuple[selectors.SelectorKey, int]]) -> None:
        for key, events in ready:
            connection: _Connection | None = key.data
            if connection is None:
                self._alarm_out.recv(_RECEIVE_SIZE)
            elif self._connections.get(connection.link) is not connection:
                continue  # Dropped while we waited, or by what was handled before it.
            elif connection.connect_by is not None:
                self._finish_connecting(connection)
            else:
                if events & _READ:
                    self._read(connection)
                if events & _WRITE and self._connections.get(connection.link) is connection:
                    self._write(connection)

    # One connection.

    def _connect(self, link: Line) -> None:
        link.connect()
        try:
            found = socket.getaddrinfo(link.host, link.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            self.exchange.lost(link, describe(error), monotonic_s())
            return
        self._try_address(link, [(family, name) for family, _, _, _, name in found])

    def _try_address(self, link: Line, addresses: list[tuple[int, _SocketName]]) -> None:
        """Begin to connect to the first address; keep the others for when it fails."""
        reason = "no address"
        while addresses:
            family, name = addresses.pop(0)
            try:
                plug = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                reason = describe(error)
                continue
            plug.settimeout(0)
            plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                plug.connect(name)
            except BlockingIOError:
                pass
            except OSError as error:
                plug.close()
                reason = describe(error)
                continue
            connection = _Connection(link, plug, addresses)
            connection.connect_by = monotonic_s() + self._connect_timeout_s
            self._connections[link] = connection
            self._selector.register(plug, _WRITE, connection)
            return
        self.exchange.lost(link, reason, monotonic_s())

    def _finish_connecting(self, connection: "_Connection") -> None:
        fault = connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        link = connection.link
        if fault:
            self._discard(connection)
            if connection.other_addresses:
                self._try_address(link, connection.other_addresses)
            else:
                self.exchange.lost(link, os.strerror(fault), monotonic_s())
            return
        connection.connect_by = None
        self._selector.modify(connection.socket, _READ, connection)
        self.exchange.connected(link, monotonic_s())

    def _read(self, connection: "_Connection") -> None:
        link = connection.link
        try:
            data = connection.socket.recv(_RECEIVE_SIZE)
        except BlockingIOError:
            return
        except OSError as error:
            self._drop(link, describe(error))
            return
        if not data:
            self._drop(link, "closed by the server")
            return
        self.exchange.received(link, data, monotonic_s())

    def _write(self, connection: "_Connection") -> None:
        """Write until the socket is full; wait for it to be writable only then."""
        link = connection.link
        try:
            while connection.unsent or link.has_outgoing:
                if not connection.unsent:
                    connection.unsent = memoryview(link.take_outgoing())
                sent = connection.socket.send(connection.unsent)
                connection.unsent = connection.unsent[sent:]
        except BlockingIOError:
            self._selector.modify(connection.socket, _READ | _WRITE, connection)
            return
        except OSError as error:
            self._drop(link, describe(error))
            return
        self._selector.modify(connection.socket, _READ, connection)

    def _drop(self, link: Line, reason: str) -> None:
        self._discard(self._connections[link])
        self.exchange.lost(link, reason, monotonic_s())

    def _discard(self, connection: "_Connection") -> None:
        del self._connections[connection.link]
        self._selector.unregister(connection.socket)
        connection.socket.close()


class _LockedLanes:
    """Which messages share a batch, asked without the lock."""

    def __init__(self, traffic: _Traffic) -> None:
        self._traffic = traffic
        self._lanes = traffic.exchange.lanes

    @property
    def version(self) -> int:
        """Counts the changes of routes."""
        return self._lanes.version

    def lane_for(self, subject: str, own_id: str | None) -> Lane:
        """Return the lane of a subject's messages, or of one with this id if the user gave it."""
        with self._traffic.turn_taking:
            return self._lanes.lane_for(subject, own_id)


class _Connection:
    """One socket, connecting or connected."""

    def __init__(
        self,
        link: Line,
        plug: socket.socket,
        other_addresses: list[tuple[int, _SocketName]],
    ) -> None:
        self.link = link
        self.socket = plug
        self.other_addresses = other_addresses
        self.connect_by: float | None = None
        """When to give up connecting; None once connected."""
        self.unsent = memoryview(b"")
