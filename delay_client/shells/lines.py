"""Lines: what a shell on anyio does for any core: connections are made, bytes move, time passes.

A *core* has links, connections without sockets, and does no I/O (exchange.py, reception.py). The
shell runs one task for time and, for each link, one that keeps the connection, with a writer below.
"""

import math
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final, Generic, Protocol, Self, TypeVar

import anyio
import anyio.abc
import anyio.lowlevel

from delay_client.exchange.links import LinkState, Plug
from delay_client.messages.errors import ClientClosed
from delay_client.shells.cancelling import ends_task

ENTERED_TWICE: Final = "it was entered before: make a new one for each `with` or `async with`"
_RECEIVE_SIZE: Final = 65536

_Broken = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


LinkT = TypeVar("LinkT", bound=Plug)


class Core(Protocol[LinkT]):
    """What a shell runs; it is told of each event, and looked at after each."""

    wake_at: float
    """Call poll() at this time, or before."""

    @property
    def lines(self) -> Sequence[LinkT]:
        """The connections that the shell has to make; a new object after each change."""

    def wants_connection(self, line: LinkT, now: float) -> bool:
        """Whether the shell should connect this line now."""

    def connected(self, line: LinkT, now: float) -> None:
        """Note that the shell has connected."""

    def lost(self, line: LinkT, reason: str, now: float) -> None:
        """Note that the connection was lost or could not be made."""

    def received(self, line: LinkT, data: bytes, now: float) -> None:
        """Take bytes that came in."""

    def poll(self, now: float) -> None:
        """Do what has become due."""


class Bell:
    """Wakes one task, now or when it next waits."""

    def __init__(self) -> None:
        """Make one, in an event loop or outside of all."""
        self._is_rung = False
        self._event: anyio.Event | None = None
        """Of a task that waits: it is of that task's event loop."""

    def ring(self) -> None:
        """Wake the task."""
        self._is_rung = True
        if self._event is not None:
            self._event.set()

    async def wait(self) -> None:
        """Return once the bell was rung since the last time."""
        self._event = anyio.Event()
        if self._is_rung:
            self._event.set()
        await self._event.wait()
        self._is_rung = False


class Shell(Generic[LinkT]):
    """Runs a core between `async with` and the end of the block; a shell can be entered once."""

    def __init__(self, core: Core[LinkT], *, connect_timeout_s: float) -> None:
        self._core = core
        self._connect_timeout_s = connect_timeout_s
        self._lines: dict[LinkT, _Line[LinkT]] = {}
        self._followed: Sequence[LinkT] | None = None
        """The lines of which `_lines` is made."""
        self._loop: object = None
        """The event loop that it was entered in, by anyio's token."""
        self._tasks: anyio.abc.TaskGroup | None = None
        self._lifetime = self._run()
        self._leaves_by_error = False
        self._time_bell = Bell()
        self._sleeps_until = math.inf

    async def __aenter__(self) -> Self:
        """Begin, once. Servers are connected to when there is work."""
        if self._loop is not None:
            raise ClientClosed(ENTERED_TWICE)
        self._loop = anyio.lowlevel.current_token()
        await self._lifetime.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Finish what was begun, then disconnect."""
        self._leaves_by_error = error is not None
        try:
            if error is not None and not ends_task(error):
                # That we use a task group is nobody's business: the error does not pass through it.
                await self._lifetime.__aexit__(None, None, None)
                return False
            return await self._lifetime.__aexit__(kind, error, traceback)
        except BaseExceptionGroup as group:
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise

    async def _finish(self) -> None:
        """Wait for what was begun in the block; not called where it is cancelled."""
        raise NotImplementedError

    def _close(self) -> None:
        """Give up what is left: the connections end."""
        raise NotImplementedError

    def _changed(self) -> None:
        """Wake those who wait for what may have changed in the core; nobody does."""

    def _check_open(self) -> None:
        if self._tasks is None:
            name = type(self).__name__
            raise ClientClosed(
                f"the {name.lower()} is not open: use it inside `async with {name}(...)`"
            )

    def _check_loop(self) -> None:
        """Check that it is open, and in this event loop: elsewhere a call would wait for ever."""
        self._check_open()
        if anyio.lowlevel.current_token() != self._loop:
            raise ClientClosed("it is open in another event loop: make one in each")

    # Tasks.

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._keep_time)
            try:
                yield
                await self._finish()
            finally:
                self._tasks = None
                self._close()
                tasks.cancel_scope.cancel()

    async def _keep_time(self) -> None:
        """Wake the core at the times it asks for."""
        while True:
            now = anyio.current_time()
            self._core.poll(now)
            self._look_round(now)
            self._sleeps_until = self._core.wake_at
            with anyio.CancelScope(deadline=self._sleeps_until):
                await self._time_bell.wait()

    async def _keep_line(self, line: "_Line[LinkT]") -> None:
        """Connect to one server whenever there is work, again and again, while it is named."""
        link = line.link
        while True:
            while not self._core.wants_connection(link, anyio.current_time()):
                if line.is_gone:
                    return
                await line.bell.wait()
            link.connect()
            reason = await self._connect_and_converse(line)
            now = anyio.current_time()
            self._core.lost(link, reason, now)
            self._look_round(now)

    async def _connect_and_converse(self, line: "_Line[LinkT]") -> str:
        """Return why there is no connection any more."""
        link = line.link
        limit_s = self._connect_timeout_s
        try:
            with anyio.fail_after(limit_s):
                stream = await anyio.connect_tcp(link.host, link.port)
        except TimeoutError:
            return f"no connection within {limit_s:g} s"
        except (OSError, UnicodeError) as error:
            return describe(error)
        try:
            now = anyio.current_time()
            self._core.connected(link, now)
            self._look_round(now)
            return await self._converse(line, stream)
        finally:
            await anyio.aclose_forcefully(stream)

    async def _converse(self, line: "_Line[LinkT]", stream: anyio.abc.SocketStream) -> str:
        """Read and write until the connection ends; return why it did."""
        reason = "closed by the server"
        async with anyio.create_task_group() as tasks:
            line.scope = tasks.cancel_scope
            tasks.start_soon(self._write, line, stream)
            try:
                while True:
                    data = await stream.receive(_RECEIVE_SIZE)
                    now = anyio.current_time()
                    self._core.received(line.link, data, now)
                    self._look_round(now)
            except anyio.EndOfStream:
                pass
            except _Broken as error:
                reason = describe(error)
            tasks.cancel_scope.cancel()
        line.scope = None
        return line.link.condemned or reason

    async def _write(self, line: "_Line[LinkT]", stream: anyio.abc.SocketStream) -> None:
        """Write what the link puts out. Only this task writes, so no cancelled call cuts a frame.

        A connection that cannot be written to is left to the reader: it may still find answers,
        and it will find the end.
        """
        try:
            while True:
                data = line.link.take_outgoing()
                if data:
                    await stream.send(data)
                else:
                    await line.bell.wait()
        except _Broken:
            pass

    # What the tasks have to tell each other.

    def _look_round(self, now: float) -> None:
        """Wake the tasks that have work after a change of the core."""
        core = self._core
        if core.lines is not self._followed:
            self._follow_lines()
        for line in self._lines.values():
            link = line.link
            if link.condemned is not None and line.scope is not None:
                line.scope.cancel()
            elif link.has_outgoing or (
                # Asked here too, since mostly it is another.
                link.state is LinkState.IDLE and core.wants_connection(link, now)
            ):
                line.bell.ring()
        self._watch_time()
        self._changed()

    def _watch_time(self) -> None:
        """Wake the task that keeps time if it would sleep too long."""
        if self._core.wake_at < self._sleeps_until:
            self._ring()

    def _ring(self) -> None:
        """Wake the task that keeps time: there is something to do."""
        if self._sleeps_until > -math.inf:
            # Once is enough; the task sets it again.
            self._sleeps_until = -math.inf
            self._time_bell.ring()

    def _follow_lines(self) -> None:
        """Run a task for each connection, and end those of removed connections."""
        if self._tasks is None:
            return
        lines = self._followed = self._core.lines
        for link in lines:
            if link not in self._lines:
                line = self._lines[link] = _Line(link)
                self._tasks.start_soon(self._keep_line, line)
        for link in self._lines.keys() - set(lines):
            line = self._lines.pop(link)
            line.is_gone = True
            line.bell.ring()


class _Line(Generic[LinkT]):
    """State of the shell for a link."""

    def __init__(self, link: LinkT) -> None:
        self.link = link
        self.is_gone = False
        """Whether there is nothing to connect to any more."""
        self.bell = Bell()
        self.scope: anyio.CancelScope | None = None
        """Ends the conversation, while there is one."""


def describe(error: BaseException) -> str:
    """Return the reason in few words; anyio and asyncio hide it in causes and groups."""
    inner = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__
    if inner is not None:
        return describe(inner)
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
