"""The client for everyone else: blocking calls around a Client in a thread of its own.

The way into the thread is anyio's blocking portal. A signal handler that raises interrupts the wait
for an answer and nothing else.
"""

import _thread
import functools
import os
import random
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Concatenate, Final, ParamSpec, Self, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from delay_client.messages.config import ClientConfig
from delay_client.messages.errors import ClientClosed
from delay_client.shells.client import Client

_CLOSED: Final = "the client is closed: make a new BlockingClient"
_INTERRUPTED: Final = (
    "delaywheel: the call was interrupted, so its messages may have been kept all the same "
    "(maybe_kept): send them again with the same message ids"
)

_P = ParamSpec("_P")
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def _blocking(
    method: Callable[Concatenate[Client, _P], Awaitable[_Result]],
) -> Callable[Concatenate["BlockingClient", _P], _Result]:
    """Return a method that does what one of Client does, and waits for its result."""

    @functools.wraps(method)
    def call(self: "BlockingClient", /, *args: _P.args, **named: _P.kwargs) -> _Result:
        return self._call(functools.partial(method, self._client, *args, **named))

    return call


def _blocking_many(
    method: Callable[Concatenate[Client, Iterable[_Item], _P], Awaitable[_Result]],
) -> Callable[Concatenate["BlockingClient", Iterable[_Item], _P], _Result]:
    """Return such a method of many, which are taken in the thread that calls."""

    @functools.wraps(method)
    def call(
        self: "BlockingClient", many: Iterable[_Item], /, *args: _P.args, **named: _P.kwargs
    ) -> _Result:
        return self._call(functools.partial(method, self._client, list(many), *args, **named))

    return call


class BlockingClient:
    """Sends messages that are delivered later, from ordinary code. Threads may share it.

    Use it as `with BlockingClient(...) as client`, or keep it as long as the process lives: it
    connects when there is something to send. Its calls are those of Client, without await. What
    takes many takes them from the iterable first: if that raises, nothing was sent. After a fork
    the child makes a new one. An exception that interrupts the wait of a call, of a signal handler
    say, does not spoil the next one.
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

        `on_trouble` is called in the client's thread, and must not use the client.
        """
        self._client = Client(
            servers,
            meta=meta,
            app_code=app_code,
            config=config,
            on_trouble=on_trouble,
            chance=chance,
        )
        self._opening = threading.Lock()
        self._thread: threading.Thread | None = None
        self._portal: BlockingPortal | None = None
        """The way into the client's thread, from the first call on."""
        self._pid = 0
        """The process that it runs in; 0 before the first call."""
        self._is_closed = False

    send = _blocking(Client.send)
    send_many = _blocking_many(Client.send_many)
    send_items = _blocking_many(Client.send_items)
    cancel = _blocking(Client.cancel)
    cancel_many = _blocking_many(Client.cancel_many)
    move = _blocking(Client.move)
    move_many = _blocking_many(Client.move_many)

    def close(self) -> None:
        """Disconnect. Calls that still wait in other threads get a ClientClosed."""
        with self._opening:
            self._is_closed = True
        # In a forked process there is no thread.
        if self._portal is not None and self._thread is not None and self._pid == os.getpid():
            _stop(self._portal)
            if self._thread is not threading.current_thread():
                self._thread.join()

    def __enter__(self) -> Self:
        """Begin. Servers are connected to when there is work; raise ClientClosed after close()."""
        if self._is_closed:
            raise ClientClosed(_CLOSED)
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect."""
        self.close()

    def _call(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        """Return the result of work in the client's thread, or raise its error."""
        portal = self._opened()
        try:
            answer = portal.start_task_soon(work)
        except RuntimeError as error:
            raise ClientClosed(
                "the client is closed, or this is its own thread, in which on_trouble= is called: "
                "make a new BlockingClient"
            ) from error
        try:
            return answer.result()
        except BaseException as interruption:
            if not answer.done():
                answer.cancel()
                interruption.add_note(_INTERRUPTED)
            raise

    def _opened(self) -> BlockingPortal:
        """Return the way into the client's thread, which runs then; raise ClientClosed."""
        with self._opening:
            if self._is_closed:
                raise ClientClosed(_CLOSED)
            if self._pid not in {0, os.getpid()}:
                raise ClientClosed(
                    f"the client is of process {self._pid}, and this one was forked from it: make "
                    "a new BlockingClient here"
                )
            if self._portal is None:
                self._pid = os.getpid()
                opened: Future[BlockingPortal] = Future()
                args = (self._client, opened)
                self._thread = threading.Thread(target=_serve, args=args, daemon=True)
                self._thread.start()
                self._portal = opened.result()
                # A client that nobody closes ends with the last reference to it, which may be
                # dropped in its thread. A process that exits does not wait for it.
                end = weakref.finalize(self, _thread.start_new_thread, _stop, (self._portal,))
                end.atexit = False
            return self._portal


def _serve(client: Client, opened: Future[BlockingPortal]) -> None:
    """Run a client in this thread, until the portal is stopped by which it is reached."""

    async def serve() -> None:
        async with BlockingPortal() as portal:
            with suppress(ClientClosed):
                async with client:
                    opened.set_result(portal)
                    await portal.sleep_until_stopped()
                    # Leaving by an error does not wait for calls.
                    raise ClientClosed(_CLOSED)

    try:
        anyio.run(serve)
    finally:
        if not opened.done():
            opened.set_exception(ClientClosed("it could not begin: make a new BlockingClient"))


def _stop(portal: BlockingPortal) -> None:
    """Let the thread of a client end, unless it has."""
    with suppress(RuntimeError):
        portal.call(portal.stop)
