"""The client for everyone else: blocking calls around a Client that runs in a thread of its own.

    the caller's thread                  the client's thread: asyncio, a Client
    a job, and a wait for its answer --> awaits what the job says
                      the answer     <-- its result or its error

A signal handler may raise in the caller's thread at any line. It interrupts the wait and nothing
else. For that the two threads share nothing that is ever half done, and no lock, which an
interrupted caller might keep: only a deque of jobs, a SimpleQueue for each answer, and
`call_soon_threadsafe()`. The calls of anyio's blocking portal do hold a lock.
"""

import _thread
import asyncio
import contextlib
import os
import random
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Generic, Self, TypeVar, cast

import anyio
import anyio.lowlevel

from delay_client.messages.changed import Changed, ChangeOutcome, Named, When
from delay_client.messages.config import ClientConfig
from delay_client.messages.errors import ClientClosed
from delay_client.messages.message import Body, Delay, Outcome, OutgoingMessage, Receipt
from delay_client.shells.client import Client
from delay_client.shells.lines import ENTERED_TWICE, Bell

_INTERRUPTED: Final = (
    "delaywheel: the call was interrupted, so its messages may have been kept all the same "
    "(maybe_kept): send them again with the same message ids"
)

_Result = TypeVar("_Result")
_Answer = tuple[_Result | None, Exception | None]


class BlockingClient:
    """Sends messages that are delivered later, from ordinary code. Threads may share it.

    Use it as `with BlockingClient(...) as client`, or keep it as long as the process lives: it
    connects when there is something to send. After a fork the child makes a new one. An exception
    that interrupts a call, of a signal handler say, does not spoil the next one.
    """

    def __init__(
        self,
        servers: Sequence[str] | None = None,
        *,
        meta: str | Sequence[str] | None = None,
        app_code: str = "",
        config: ClientConfig | None = None,
        on_trouble: Callable[[str], None] | None = None,
        chance: random.Random | None = None,
    ) -> None:
        """Name the meta server's HTTP port or delay servers, and all else, as Client does.

        `on_trouble` is called in the client's thread.
        """
        self._client = Client(
            servers,
            meta=meta,
            app_code=app_code,
            config=config,
            on_trouble=on_trouble,
            chance=chance,
        )
        self._thread = _ClientThread(self._client)
        self._was_entered = False
        # A client that nobody closes ends with the last reference to it. A process that exits
        # does not wait for it.
        weakref.finalize(self, self._thread.stop).atexit = False

    def send(
        self,
        subject: str,
        body: Body = "",
        *,
        delay: Delay | None = None,
        at: datetime | None = None,
        level: int | None = None,
        message_id: str | None = None,
        tags: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        attributes: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Send one message; as Client.send()."""
        message = OutgoingMessage(
            subject, body, delay, at, message_id, tags, headers, content_type, attributes, level
        )
        return self._thread.call(
            _Job(partial(self._client.send, **message._asdict(), timeout=timeout))
        )

    def send_many(
        self, messages: Iterable[OutgoingMessage], *, timeout: float | None = None
    ) -> list[Outcome]:
        """Send many messages and return the outcome of each, in order; as Client.send_many().

        All messages are taken from the iterable first: if that raises, nothing was sent.
        """
        job = _Job(partial(self._client.send_many, list(messages), timeout=timeout))
        return self._thread.call(job)

    def cancel(
        self,
        message: Named,
        message_id: str | None = None,
        *,
        at: datetime | None = None,
        timeout: float | None = None,
    ) -> Changed:
        """Take a message back; as Client.cancel()."""
        work = partial(self._client.cancel, message, message_id, at=at, timeout=timeout)
        return self._thread.call(_Job(work))

    def move(
        self,
        message: Named,
        message_id: str | None = None,
        *,
        to: When,
        at: datetime | None = None,
        timeout: float | None = None,
    ) -> Changed:
        """Move a message to another time; as Client.move()."""
        work = partial(self._client.move, message, message_id, to=to, at=at, timeout=timeout)
        return self._thread.call(_Job(work))

    def cancel_many(
        self, messages: Iterable[Named], *, timeout: float | None = None
    ) -> list[ChangeOutcome]:
        """Take many messages back; as Client.cancel_many()."""
        job = _Job(partial(self._client.cancel_many, list(messages), timeout=timeout))
        return self._thread.call(job)

    def move_many(
        self, moves: Iterable[tuple[Named, When]], *, timeout: float | None = None
    ) -> list[ChangeOutcome]:
        """Move many messages to other times; as Client.move_many()."""
        job = _Job(partial(self._client.move_many, list(moves), timeout=timeout))
        return self._thread.call(job)

    def close(self) -> None:
        """Disconnect. Calls that still wait in other threads get a ClientClosed."""
        self._thread.close()

    def __enter__(self) -> Self:
        """Begin, once. Servers are connected to when there is work."""
        if self._was_entered:
            raise ClientClosed(ENTERED_TWICE)
        self._thread.check_open()
        self._was_entered = True
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect."""
        self.close()


class _Job(Generic[_Result]):
    """One call: what the client's thread is to await, and its answer."""

    def __init__(self, work: Callable[[], Awaitable[_Result]]) -> None:
        self._work = work
        self.scope: anyio.CancelScope | None = None
        """Ends the work where it is, once that has begun; what is on its way may arrive."""
        self.is_given_up = False
        """True once the caller does not wait any more."""
        self.answers: SimpleQueue[_Answer[_Result]] = SimpleQueue()
        """Gets the answer."""

    async def run(self) -> None:
        """Do the work and answer, whatever happens."""
        answer: _Answer[_Result] = None, _closed()
        try:
            with anyio.CancelScope() as self.scope:
                if not self.is_given_up:
                    answer = await self._work(), None
        except Exception as error:  # noqa: BLE001 (it is the caller's)
            answer = None, error
        finally:
            self.answers.put(answer)


class _ClientThread:
    """A client and the thread that it runs in, from the first call on.

    Invariant: a job that was appended is answered, by its run() or by _end(), unless its caller was
    interrupted.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._pid = 0
        """The process that it runs in; 0 before the first call."""
        self._ident = 0
        """The thread, once it runs."""
        self._beginning = threading.Lock()
        """Taken by the thread, for ever: a second one ends at once."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The thread's, once it takes jobs."""
        self._bell = Bell()
        """Rung in the thread when there are jobs, or no more."""
        self._jobs: deque[_Job[Any]] = deque()
        """Those that were begun or given up since the thread last looked."""
        self._is_closed = False
        self._has_ended = False
        """True once the thread takes no jobs any more."""

    # In the threads of callers.

    def check_open(self) -> None:
        """Raise ClientClosed where no call can be made."""
        if self._pid not in {0, os.getpid()}:
            raise ClientClosed(
                f"the client is of process {self._pid}, and this one was forked from it: make a "
                "new BlockingClient here"
            )
        if self._ident == threading.get_ident():
            raise ClientClosed("on_trouble= must not use the client: it is called in its thread")
        if self._is_closed or self._has_ended:
            raise _closed()

    def call(self, job: _Job[_Result]) -> _Result:
        """Return the result of a job, or raise its error."""
        self.check_open()
        self._pid = os.getpid()
        try:
            answer = self._wait(job)
        except BaseException as interruption:
            job.is_given_up = True
            self._jobs.append(job)
            self._wake()
            interruption.add_note(_INTERRUPTED)
            raise
        result, error = answer
        if error is not None:
            raise error
        return cast("_Result", result)

    def stop(self) -> None:
        """End the thread, without waiting for that."""
        self._is_closed = True
        if self._pid == os.getpid():
            self._wake()

    def close(self) -> None:
        """Disconnect, and wait until that is done. The calls of other threads end."""
        self.stop()
        # In a forked process there is no thread, and in its own nothing to wait for.
        if self._loop and os.getpid() == self._pid and threading.get_ident() != self._ident:
            self._wait(_Job(anyio.lowlevel.checkpoint))

    def _wait(self, job: _Job[_Result]) -> _Answer[_Result]:
        self._jobs.append(job)
        if self._loop is None:
            _thread.start_new_thread(self._run, ())
        self._wake()
        if self._has_ended:
            self._end()
        return job.answers.get()

    def _wake(self) -> None:
        """Let the thread look at its jobs, unless it has ended."""
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._bell.ring)
            except RuntimeError:
                if not self._loop.is_closed():
                    raise

    # In the client's thread.

    def _run(self) -> None:
        if self._beginning.acquire(blocking=False):
            self._ident = threading.get_ident()
            try:
                anyio.run(self._serve)
            finally:
                self._end()

    async def _serve(self) -> None:
        async with anyio.create_task_group() as tasks:
            with contextlib.suppress(ClientClosed):
                async with self._client:
                    self._loop = asyncio.get_running_loop()
                    while not self._is_closed:
                        while self._jobs:
                            job = self._jobs.popleft()
                            if not job.is_given_up:
                                tasks.start_soon(job.run)
                            elif job.scope is not None:
                                job.scope.cancel()
                        await self._bell.wait()
                    # Leaving by an error does not wait for calls.
                    raise _closed()
            self._end()

    def _end(self) -> None:
        """Refuse the jobs that are left. Who appends one after that calls this as well."""
        self._has_ended = True
        with contextlib.suppress(IndexError):
            while True:
                self._jobs.popleft().answers.put((None, _closed()))


def _closed() -> ClientClosed:
    return ClientClosed("the client is closed: make a new BlockingClient")
