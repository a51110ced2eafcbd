"""The receiver for asyncio and trio: an anyio shell around the reception.

It runs the tasks of lines.py: one for time and, for each delay server and for the meta server, one
that keeps the connection. run() adds one for each handler that may be at work, none for a message.
"""

import asyncio
import inspect
import logging
import random
import signal
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, Self, cast

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread

from delay_client.messages.clock import monotonic_s
from delay_client.receiving.attachment import ReceiverCounts
from delay_client.receiving.message import MessageBatch, ReceivedMessage
from delay_client.receiving.reception import ReceiverLine, Reception
from delay_client.receiving.settings import ReceiverConfig, RetryPolicy
from delay_client.shells.cancelling import ends_task, forget_cancellation, take_cancellation
from delay_client.shells.lines import Bell, Shell
from delay_protocol.receivers.delivering import Verdict

logger = logging.getLogger("delaywheel.receiver")

AsyncHandler = Callable[[ReceivedMessage], Awaitable[object]]
Handler = AsyncHandler | Callable[[ReceivedMessage], object]
"""What run() calls for each message: an async function, or a plain one, which runs in a thread."""

_TURN_S: Final = 0.005
"""After so long without a pause others get their turn: a handler that never waits would keep the
receiver from saying that it is alive."""


class Receiver(Shell[ReceiverLine]):
    """Receives messages that are due. Use it as `async with Receiver(...) as receiver`.

    It connects out to each delay server that is master of a group, and listens nowhere. Receivers
    of one name share the messages of its subjects. Each message comes at least once, to one of
    them, until one has given its verdict: done, later or rejected.

    In the block, one of: `run(handler)`, `async for message in receiver`, and `batches()`. Leaving
    it gives back what has no verdict and waits until the delay servers have kept the verdicts;
    being cancelled only disconnects, so that what was done in the last ms may come again.
    """

    def __init__(
        self,
        name: str,
        *,
        subjects: Sequence[str] = (),
        meta: str | Sequence[str] | None = None,
        servers: Sequence[str] | None = None,
        token: str = "",
        weight: int = 100,
        config: ReceiverConfig | None = None,
        chance: random.Random | None = None,
    ) -> None:
        """Name the meta server's HTTP port as `host:port`, or those of several, any of which do.

        `subjects` are those to receive, or beginnings of subjects with a `*` behind; the meta
        server routes them to this name unless an operator has said otherwise. Or name delay
        `servers`, of which all that is routed to the name comes; neither means one on this machine.
        `token` is for clusters that have a secret. `weight` is this receiver's share beside others
        of the name. `chance` is for tests: it draws pauses.
        """
        self._config = config or ReceiverConfig()
        self._reception = Reception(
            name,
            subjects=subjects,
            meta=meta,
            servers=servers,
            token=token,
            weight=weight,
            config=self._config,
            chance=chance or random.SystemRandom(),
            ring=self._ring,
            ends_task=ends_task,
        )
        super().__init__(
            self._reception, connect_timeout_s=self._config.connecting.connect_timeout_s
        )
        self._takers: deque[anyio.Event] = self._reception.takers
        """What wakes those that wait for a message."""
        self._all_settled = Bell()
        self._yielded_at = 0.0

    @property
    def counts(self) -> ReceiverCounts:
        """What happened since the receiver began."""
        return self._reception.counts

    @property
    def is_attached(self) -> bool:
        """Whether messages may come from any delay server just now."""
        return self._reception.has_attached

    # What the user wants.

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int | None = None,
        retry: RetryPolicy | None = None,
        handle_signals: bool = False,
    ) -> None:
        """Call the handler for each message until stop(); at most `concurrency` at a time.

        A message is done when the handler returns. If it raises, the message comes again by the
        retry policy, RetryLater says when, and Reject that it does not. A handler that is no async
        function runs in threads. With `handle_signals` SIGTERM and SIGINT stop the receiver: what
        is at work ends, the rest is given back. Raises ReceiverRefusedError, and TypeError for a
        handler that is a generator.
        """
        count = self._config.concurrency if concurrency is None else concurrency
        if count < 1:
            raise ValueError(f"concurrency must be at least 1, not {count!r}")
        if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
            raise TypeError("a handler must not yield: nothing of it would run. Return instead")
        self._check_loop()
        self._reception.expect(count)
        call = _async_handler(handler, count)
        async with anyio.create_task_group() as watch:
            if handle_signals:
                await watch.start(self._stop_on_signals)
            async with anyio.create_task_group() as workers:
                for _ in range(count):
                    workers.start_soon(self._work, call, retry)
            watch.cancel_scope.cancel()
        if self._reception.fault is not None:
            raise self._reception.fault

    def __aiter__(self) -> Self:
        """Iterate over messages; each needs a verdict: `async with message:`, or `done()`."""
        return self

    async def __anext__(self) -> ReceivedMessage:
        message = await self._next()
        if message is None:
            if self._reception.fault is not None:
                raise self._reception.fault
            raise StopAsyncIteration
        return message

    def batches(self, *, max_items: int = 500) -> AsyncIterator[MessageBatch]:
        """Iterate over what has come, as many messages at once as are there, until stop().

        `await batch.done()` when all of them are done with. Raises ReceiverRefusedError.
        """
        if max_items < 1:
            raise ValueError(f"max_items must be at least 1, not {max_items!r}")
        self._reception.expect(max_items, least=1)
        return _Batches(self, self._reception.take, max_items)

    def pause(self, reason: str) -> None:
        """Take no messages for now: they wait in the delay servers, and operators see the reason.

        What nobody has begun is given back; handlers go on. Like resume() and stop() it is to be
        called in the event loop: a handler that runs in a thread asks the loop to.
        """
        self._reception.pause(reason)

    def resume(self) -> None:
        """Take messages again."""
        self._reception.resume()

    def stop(self) -> None:
        """Take no messages any more: run() and iterators end when what is at work has ended."""
        self._reception.stop()
        self._wake_takers()

    # Tasks.

    async def _finish(self) -> None:
        self.stop()
        self._reception.release(begun=True)
        with anyio.move_on_after(self._config.answer_timeout_s):
            while not self._reception.is_settled:
                await self._all_settled.wait()

    def _close(self) -> None:
        self.stop()

    async def _work(
        self,
        handler: AsyncHandler,
        retry: RetryPolicy | None,
    ) -> None:
        """Handle one message after another."""
        while (message := await self._next_of_ours()) is not None:
            try:
                await handler(message)
                await take_cancellation()
            except BaseException as error:
                if ends_task(error, is_ours=True):
                    message.desk.settle(message, Verdict.RELEASE)
                    raise
                await forget_cancellation()
                message.failed(error, retry)
            else:
                message.desk.settle(message, Verdict.DONE)

    async def _next_of_ours(self) -> ReceivedMessage | None:
        """Return the next message, in a task that only a scope around it may cancel."""
        while True:
            try:
                return await self._next()
            except asyncio.CancelledError as error:
                if ends_task(error, is_ours=True):
                    raise
                await forget_cancellation()

    async def _next(self) -> ReceivedMessage | None:
        """Return the next message, or None once there will be none."""
        self._check_open()
        now = monotonic_s()
        if now >= self._yielded_at + _TURN_S:
            await anyio.lowlevel.checkpoint()
            self._yielded_at = monotonic_s()
        has_waited = False
        while True:
            if self._reception.fault is not None:
                return None
            message = self._reception.take()
            if message is not None or self._reception.is_stopping:
                if has_waited:
                    self._wake_takers()
                return message
            taker = anyio.Event()
            self._takers.append(taker)
            try:
                await taker.wait()
            except BaseException:
                if taker.is_set():
                    # The message that it was woken for is another's.
                    self._wake_takers()
                else:
                    self._takers.remove(taker)
                raise
            has_waited = True
            self._yielded_at = monotonic_s()

    async def _stop_on_signals(
        self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Stop at the first signal; a second one does what it does without a handler."""
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            async for number in signals:
                logger.info("receiver: %s: it stops", signal.Signals(number).name)
                self.stop()
                break

    # What the tasks have to tell each other.

    def _changed(self) -> None:
        if self._takers:
            self._wake_takers()
        if self._reception.is_stopping and self._reception.is_settled:
            self._all_settled.ring()

    def _wake_takers(self) -> None:
        """Wake one of those that wait if there is a message, all of them at the end.

        That one wakes the next if there are more: quick handlers leave nothing for most of them.
        """
        reception = self._reception
        ends = reception.is_stopping or reception.fault is not None
        count = len(self._takers) if ends else min(len(reception.todo), len(self._takers), 1)
        for _ in range(count):
            self._takers.popleft().set()


class _Batches(AsyncIterator[MessageBatch]):
    """No generator: one that is left in the middle would need to be closed."""

    def __init__(
        self, receiver: Receiver, take: Callable[[], ReceivedMessage | None], max_items: int
    ) -> None:
        self._receiver = receiver
        self._take = take
        self._max_items = max_items

    async def __anext__(self) -> MessageBatch:
        messages = [await anext(self._receiver)]
        while len(messages) < self._max_items and (message := self._take()) is not None:
            messages.append(message)
        return MessageBatch(messages)


def _async_handler(handler: Handler, concurrency: int) -> AsyncHandler:
    """Return the handler as an async function: a plain one is called in a thread."""
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 (an object with an async __call__)
    ):
        return cast("AsyncHandler", handler)
    limiter = anyio.CapacityLimiter(concurrency)

    def call(message: ReceivedMessage) -> tuple[object, BaseException | None]:
        try:
            return handler(message), None
        except BaseException as error:  # noqa: BLE001 (it is raised again in the event loop)
            return None, error

    async def call_in_thread(message: ReceivedMessage) -> object:
        # A plain function may return what an async one does: a lambda around it. In a tuple, since
        # trio takes no coroutine from a thread; asyncio takes no GeneratorExit or StopIteration.
        result, error = await anyio.to_thread.run_sync(call, message, limiter=limiter)
        if error is not None:
            raise error
        return await result if inspect.isawaitable(result) else result

    return call_in_thread
