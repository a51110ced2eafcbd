"""The client for asyncio and trio: an anyio shell around the exchange.

It runs one task for time and, for each server and for the meta server, one that keeps the
connection, with a writer below it. A message costs no task: a send() waits for one event, a
send_many() for one per answer.
"""

import math
import random
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from types import TracebackType
from typing import Self, TypeVar

import anyio
import anyio.abc
import anyio.lowlevel

from delay_client.exchange.batches import Batch, Collection, Encoder, Waiter, cut_batches
from delay_client.exchange.exchange import Exchange
from delay_client.exchange.links import LinkState
from delay_client.exchange.routing import Line
from delay_client.messages.clock import wall_ms
from delay_client.messages.config import ClientConfig
from delay_client.messages.errors import ClientClosed
from delay_client.messages.identity import client_id
from delay_client.messages.item_encoder import ItemChecker, ItemEncoder
from delay_client.messages.message import (
    Body,
    Delay,
    Outcome,
    OutgoingItem,
    OutgoingMessage,
    Receipt,
)
from delay_client.messages.message_ids import MessageIdMaker
from delay_client.shells.lines import Bell, ShellLine

_Message = TypeVar("_Message", OutgoingMessage, OutgoingItem)


class Client:
    """Sends messages that are delivered later. Use it as `async with Client(...) as client`.

    Any number of tasks may use one client at the same time; their messages share connections and
    requests. All servers take messages; when one fails, the others take over. The servers come from
    a meta server, `meta=`, or from a list, `servers`. Leaving the block waits until every call has
    its outcome; leaving it by an exception does not.
    """

    def __init__(
        self,
        servers: Sequence[str] | None = None,
        *,
        meta: str | Sequence[str] | None = None,
        app_code: str = "",
        config: ClientConfig | None = None,
        chance: random.Random | None = None,
    ) -> None:
        """Name the meta server's HTTP port as `host:port`, or those of several, any of which do.

        Or name delay servers, which then take all subjects; neither means one on this machine.
        `app_code` is what operators see of who asks the meta server. `chance` is for tests: it
        draws ids and pauses.
        """
        self._config = config or ClientConfig()
        chance = chance or random.SystemRandom()
        self._exchange = Exchange(
            servers,
            meta=meta,
            client_id=client_id(),
            app_code=app_code,
            config=self._config,
            chance=chance,
        )
        self._encoder = ItemEncoder(
            ids=MessageIdMaker(chance), item_bytes_max=self._config.item_bytes_max
        )
        self._lines: dict[Line, ShellLine[Line]] = {}
        self._followed: Sequence[Line] | None = None
        """The lines of which `_lines` is made."""
        self._tasks: anyio.abc.TaskGroup | None = None
        self._lifetime = self._run()
        self._is_open = False
        self._leaves_at_once = False
        self._calls = 0
        """Calls that have no outcome yet."""
        self._time_bell = Bell()
        self._sleeps_until = math.inf
        self._paused: list[tuple[Batch, anyio.Event]] = []
        """send_many() calls that wait for room, and the events that wake them."""
        self._all_done = anyio.Event()
        """Set, and replaced, whenever no call is left."""

    async def send(
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
        timeout: float | None = None,  # noqa: ASYNC109 (bounds the tries, tells why they failed)
    ) -> Receipt:
        """Send a message that is delivered after `delay` (timedelta or seconds) or `at` a datetime.

        Returns when a server has it on disk. Raises a DelaywheelError: a FatalError at once, a
        RetryableError after `timeout` seconds of retries. If the call is cancelled, the message may
        have been sent.
        """
        message = OutgoingMessage(subject, body, delay, at, message_id, tags, headers, content_type)
        timeout_s = self._config.timeout(timeout)
        self._check_open()
        encoded = self._encoder.encode(message, wall_ms())
        settled = anyio.Event()
        waiter = Waiter(settled.set)
        now = anyio.current_time()
        self._exchange.offer(encoded, waiter, subject=subject, timeout_s=timeout_s, now=now)
        # Nothing goes out before the exchange is polled, which it asks for.
        self._watch_time()
        self._calls += 1
        try:
            await settled.wait()
        finally:
            waiter.abandoned = True
            self._end_call()
        return waiter.receipt()

    async def send_many(
        self,
        messages: Iterable[OutgoingMessage],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 (as send(): per message, not for the call)
    ) -> list[Outcome]:
        """Send many messages, many in one request and several requests at a time.

        Returns one outcome for each message, in order: its Receipt, or the DelaywheelError that
        send() would have raised. `timeout` is for each message, from the moment it is taken from
        `messages`; but once no server has answered for so long, the rest is given up as well.
        """
        return await self._send_all(messages, self._encoder, timeout)

    async def send_items(
        self,
        items: Iterable[OutgoingItem],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 (as send_many())
    ) -> list[Outcome]:
        """Send items again that were sent before, byte for byte: create time, attributes and all.

        As send_many() in all else; what is due is what the item says, so one in the past means at
        once.
        """
        return await self._send_all(items, ItemChecker(), timeout)

    async def _send_all(
        self,
        messages: Iterable[_Message],
        encoder: Encoder[_Message],
        timeout: float | None,  # noqa: ASYNC109 (as send_many())
    ) -> list[Outcome]:
        timeout_s = self._config.timeout(timeout)
        self._check_open()
        progress = Bell()
        collection = Collection(progress.ring)
        self._calls += 1
        try:
            for batch in cut_batches(
                messages,
                collection,
                encoder=encoder,
                config=self._config,
                wall_ms=wall_ms,
                lanes=self._exchange.lanes,
            ):
                now = anyio.current_time()
                batch.deadline = collection.deadline(now, timeout_s)
                self._exchange.submit(batch, now)
                self._look_round(now)
                await anyio.lowlevel.checkpoint()
                if self._exchange.is_congested(batch):
                    room = anyio.Event()
                    self._paused.append((batch, room))
                    await room.wait()
            while collection.unsettled:
                await progress.wait()
        finally:
            collection.abandoned = True
            self._end_call()
        return collection.outcomes()

    async def __aenter__(self) -> Self:
        """Begin; a client can be entered once. Servers are connected to when there is work."""
        await self._lifetime.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Wait for the outcomes of all calls, then disconnect; after an error only disconnect."""
        self._leaves_at_once = error is not None
        try:
            if isinstance(error, Exception):
                # That we use a task group is nobody's business: the error does not pass through it.
                await self._lifetime.__aexit__(None, None, None)
                return False
            return await self._lifetime.__aexit__(kind, error, traceback)
        except BaseExceptionGroup as group:
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise

    # Tasks.

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            self._is_open = True
            self._tasks = tasks
            tasks.start_soon(self._keep_time)
            try:
                yield
                while self._calls and not self._leaves_at_once:
                    await self._all_done.wait()
            finally:
                self._is_open = False
                self._exchange.close()
                for _, room in self._paused:
                    room.set()
                self._paused.clear()
                self._tasks = None
                tasks.cancel_scope.cancel()

    async def _keep_time(self) -> None:
        """Wake the exchange at the times it asks for."""
        while True:
            now = anyio.current_time()
            self._exchange.poll(now)
            self._look_round(now)
            self._sleeps_until = self._exchange.wake_at
            with anyio.CancelScope(deadline=self._sleeps_until):
                await self._time_bell.wait()

    async def _keep_line(self, line: ShellLine[Line]) -> None:
        """Connect to one server whenever there is work, again and again, while it is named."""
        link = line.link
        while True:
            while not self._exchange.wants_connection(link, anyio.current_time()):
                if line.is_gone:
                    return
                await line.bell.wait()
            self._exchange.connecting(link)
            reason = await line.connect_and_converse(
                limit_s=self._config.connect_timeout_s,
                connected=self._connected,
                received=self._received,
            )
            now = anyio.current_time()
            self._exchange.lost(link, reason, now)
            self._look_round(now)

    def _connected(self, link: Line, now: float) -> None:
        self._exchange.connected(link, now)
        self._look_round(now)

    def _received(self, link: Line, data: bytes, now: float) -> None:
        self._exchange.received(link, data, now)
        self._look_round(now)

    # What the tasks have to tell each other.

    def _look_round(self, now: float) -> None:
        """Wake the tasks that have work after a change of the exchange."""
        exchange = self._exchange
        if exchange.lines is not self._followed:
            self._follow_lines()
        for line in self._lines.values():
            link = line.link
            if link.condemned is not None and line.scope is not None:
                line.scope.cancel()
            elif link.has_outgoing or (
                # Asked here too, since mostly it is another.
                link.state is LinkState.IDLE and exchange.wants_connection(link, now)
            ):
                line.bell.ring()
        self._watch_time()
        if self._paused:
            self._resume()

    def _watch_time(self) -> None:
        """Wake the task that keeps time if it would sleep too long."""
        if self._exchange.wake_at < self._sleeps_until:
            # Once is enough; the task sets it again.
            self._sleeps_until = -math.inf
            self._time_bell.ring()

    def _follow_lines(self) -> None:
        """Run a task for each connection, and end those of removed connections."""
        if self._tasks is None:
            return
        lines = self._followed = self._exchange.lines
        for link in lines:
            if link not in self._lines:
                line = self._lines[link] = ShellLine(link)
                self._tasks.start_soon(self._keep_line, line)
        for link in self._lines.keys() - set(lines):
            line = self._lines.pop(link)
            line.is_gone = True
            line.bell.ring()

    def _resume(self) -> None:
        """Wake the calls for whose next batch there is room by now."""
        paused: list[tuple[Batch, anyio.Event]] = []
        for batch, room in self._paused:
            if self._exchange.is_congested(batch):
                paused.append((batch, room))
            else:
                room.set()
        self._paused = paused

    def _end_call(self) -> None:
        self._calls -= 1
        if not self._calls:
            self._all_done.set()
            self._all_done = anyio.Event()

    def _check_open(self) -> None:
        if not self._is_open:
            raise ClientClosed("the client is not open: use it inside `async with Client(...)`")
