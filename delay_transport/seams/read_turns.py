"""Reads of many sockets, some of them in each turn of the loop.

Thousands of connections that are readable at once would all be read in one turn: trio wakes every
task whose socket is ready, and everybody else waits for them. So the sockets of a listener wait in
an epoll of their own, which trio sees as one descriptor; each turn it wakes some of them. The
kernel hands them out in the order in which they became readable, and one that is read again is the
last.
"""

import os
import select
from typing import Final

import trio

READS_MAX: Final = 16
"""Sockets that are read in one turn of the loop: with what follows half a millisecond or so."""


class ReadTurns:
    """The sockets of one listener that wait to be read.

    Where there is no epoll, and for streams that are no sockets, whoever can read does.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        self._waiting: dict[int, trio.lowlevel.Task] = {}
        self._receiving = 0
        """Streams that are being received from."""

    def close(self) -> None:
        """Let go of the epoll; nobody may wait, or receive after this."""
        if self._epoll is not None:
            self._epoll.close()

    async def run(self) -> None:
        """Wake those whose turn it is until cancelled."""
        if self._epoll is None:
            return
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            for number, _ in self._epoll.poll(0, READS_MAX):
                trio.lowlevel.reschedule(self._waiting.pop(number))

    async def receive(self, stream: trio.abc.Stream, bytes_max: int) -> bytes | bytearray:
        """Return what has come when it is this stream's turn, b"" at the end.

        No more than one turn reads are read as they come, which is cheaper. `run` is to be running.
        Raises trio.BrokenResourceError.
        """
        self._receiving += 1
        try:
            if (
                self._epoll is None
                or self._receiving <= READS_MAX
                or not isinstance(stream, trio.SocketStream)
            ):
                return await stream.receive_some(bytes_max)
            return await self._receive(self._epoll, stream.socket.fileno(), bytes_max)
        finally:
            self._receiving -= 1

    async def _receive(self, epoll: select.epoll, number: int, bytes_max: int) -> bytes:
        while True:
            await self._turn(epoll, number)
            try:
                return os.read(number, bytes_max)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError("the connection is broken") from error

    async def _turn(self, epoll: select.epoll, number: int) -> None:
        """Wait until a socket can be read and has its turn."""

        def abort(_: object) -> trio.lowlevel.Abort:
            del self._waiting[number]
            epoll.unregister(number)
            return trio.lowlevel.Abort.SUCCEEDED

        # Once it has had its turn a socket stays there without being looked at, until it is closed.
        once = select.EPOLLIN | select.EPOLLONESHOT
        try:
            epoll.modify(number, once)
        except FileNotFoundError:
            epoll.register(number, once)
        self._waiting[number] = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)
