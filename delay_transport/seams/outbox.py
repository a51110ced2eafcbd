"""What is to be sent over one stream: put by anyone without waiting, sent by one task.

Everything put while a send is under way goes out together in the next one, so that a thousand
answers cost one system call and no task, event or await each.
"""

from collections.abc import Callable

import trio


class Wakeup:
    """Lets one task sleep until another calls wake(); an Event that is used over and over."""

    __slots__ = ("_sleeper",)

    def __init__(self) -> None:
        self._sleeper: trio.lowlevel.Task | None = None

    def wake(self) -> None:
        """Wake the task that sleeps, if one does; otherwise nothing is remembered."""
        if self._sleeper is not None:
            trio.lowlevel.reschedule(self._sleeper)
            self._sleeper = None

    async def sleep(self) -> None:
        """Sleep until wake() is called or the task is cancelled. One task at a time."""
        assert self._sleeper is None
        self._sleeper = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._sleeper = None
        return trio.lowlevel.Abort.SUCCEEDED


class OutBox:
    """The unsent bytes of one stream.

    Whoever cancels run() in the middle of a send has spoilt the stream and must close it.
    """

    __slots__ = (
        "_more",
        "_on_sending",
        "_on_sent",
        "_parts",
        "_step_bytes",
        "_stream",
        "sending_since",
        "unsent_bytes",
    )

    def __init__(
        self,
        stream: trio.abc.SendStream,
        *,
        step_bytes: int,
        on_sending: Callable[[float], None],
        on_sent: Callable[[int], None],
    ) -> None:
        """Call `on_sending(now)` before each send and `on_sent(size)` after it."""
        self._stream = stream
        self._step_bytes = step_bytes
        self._on_sending = on_sending
        self._on_sent = on_sent
        self._parts: list[bytes] = []
        self._more = Wakeup()
        self.unsent_bytes = 0
        """Bytes put and not yet taken by the stream, the send under way included."""
        self.sending_since: float | None = None
        """When the send under way began (trio time), None if there is none."""

    def put(self, data: bytes) -> None:
        """Have `data` sent after all that was put before."""
        self._parts.append(data)
        self.unsent_bytes += len(data)
        self._more.wake()

    async def run(self) -> None:
        """Send what is put until cancelled; raises what the stream raises when it is broken."""
        while True:
            if not self._parts:
                self.sending_since = None
                await self._more.sleep()
            parts = self._parts
            self._parts = []
            await self._send(parts[0] if len(parts) == 1 else b"".join(parts))

    async def _send(self, data: bytes) -> None:
        step_bytes = self._step_bytes
        if len(data) <= step_bytes:
            await self._send_step(data)
            return
        view = memoryview(data)
        for start in range(0, len(data), step_bytes):
            await self._send_step(view[start : start + step_bytes])

    async def _send_step(self, step: bytes | memoryview) -> None:
        self.sending_since = now = trio.current_time()
        self._on_sending(now)
        await self._stream.send_all(step)
        self.unsent_bytes -= len(step)
        self._on_sent(len(step))
