"""Lines: what a shell on anyio keeps of a link to a server, and how it moves bytes."""

import os
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

import anyio
import anyio.abc

_RECEIVE_SIZE: Final = 65536

_Broken = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


class Link(Protocol):
    """What a shell has to know of a connection that is without its socket."""

    condemned: str | None
    """Why the shell must close the connection now and report it lost."""

    @property
    def host(self) -> str:
        """The address to connect to."""

    @property
    def port(self) -> int:
        """The port there."""

    def take_outgoing(self) -> bytes:
        """Return the bytes to write next, b"" if there are none."""


LinkT = TypeVar("LinkT", bound=Link)


class Bell:
    """Wakes one task, now or when it next waits."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def ring(self) -> None:
        """Wake the task."""
        self._event.set()

    async def wait(self) -> None:
        """Return once the bell was rung since the last time."""
        await self._event.wait()
        self._event = anyio.Event()


class ShellLine(Generic[LinkT]):
    """State of a shell for a link."""

    def __init__(self, link: LinkT) -> None:
        self.link = link
        self.is_gone = False
        """Whether there is nothing to connect to any more."""
        self.bell = Bell()
        self.scope: anyio.CancelScope | None = None
        """Ends the conversation, while there is one."""

    async def connect_and_converse(
        self,
        *,
        limit_s: float,
        connected: Callable[[LinkT, float], None],
        received: Callable[[LinkT, bytes, float], None],
    ) -> str:
        """Return why there is no connection any more; the functions are told of what happens."""
        link = self.link
        try:
            with anyio.fail_after(limit_s):
                stream = await anyio.connect_tcp(link.host, link.port)
        except TimeoutError:
            return f"no connection within {limit_s:g} s"
        except (OSError, UnicodeError) as error:
            return _describe(error)
        try:
            connected(link, anyio.current_time())
            return await self._converse(stream, received)
        finally:
            await anyio.aclose_forcefully(stream)

    async def _converse(
        self, stream: anyio.abc.SocketStream, received: Callable[[LinkT, bytes, float], None]
    ) -> str:
        """Read and write until the connection ends; return why it did."""
        reason = "closed by the server"
        async with anyio.create_task_group() as tasks:
            self.scope = tasks.cancel_scope
            tasks.start_soon(self._write, stream)
            try:
                while True:
                    data = await stream.receive(_RECEIVE_SIZE)
                    received(self.link, data, anyio.current_time())
            except anyio.EndOfStream:
                pass
            except _Broken as error:
                reason = _describe(error)
            tasks.cancel_scope.cancel()
        self.scope = None
        return self.link.condemned or reason

    async def _write(self, stream: anyio.abc.SocketStream) -> None:
        """Write what the link puts out. Only this task writes, so no cancelled call cuts a frame.

        A connection that cannot be written to is left to the reader: it may still find answers,
        and it will find the end.
        """
        try:
            while True:
                data = self.link.take_outgoing()
                if data:
                    await stream.send(data)
                else:
                    await self.bell.wait()
        except _Broken:
            pass


def _describe(error: BaseException) -> str:
    """Return the reason in few words; anyio and asyncio hide it in causes and groups."""
    inner = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__
    if inner is not None:
        return _describe(inner)
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
