"""The client for asyncio and trio: an anyio shell around the exchange.

It runs the tasks of lines.py: one for time and, for each server and for the meta server, one that
keeps the connection. A message costs no task: a send() waits for one event, a send_many() for one
per answer.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

import anyio
import anyio.abc
import anyio.lowlevel

from delay_client.exchange.asking import ChangeCall
from delay_client.exchange.batches import Collection, Encoder, Waiter, cut_batches
from delay_client.exchange.exchange import Exchange
from delay_client.exchange.routing import Line
from delay_client.messages.changed import (
    Changed,
    ChangeOutcome,
    MessageName,
    Named,
    Wanted,
    When,
    wanted,
)
from delay_client.messages.clock import wall_ms
from delay_client.messages.config import ClientConfig
from delay_client.messages.errors import DelaywheelError, InvalidMessage
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
from delay_client.shells.lines import Bell, Shell

_Message = TypeVar("_Message", OutgoingMessage, OutgoingItem)


class Client(Shell[Line]):
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
        on_trouble: Callable[[str], None] | None = None,
        chance: random.Random | None = None,
    ) -> None:
        """Name the meta server's HTTP port as `host:port`, or those of several, any of which do.

        Or name delay servers, which then take all subjects; neither means one on this machine.
        `app_code` is what operators and receivers see of who sends. `chance` is for tests: it
        draws ids and pauses.

        `on_trouble` is called with one line, as the log has it, when messages wait and none was
        accepted for a second; again only after one was. It must not use the client.
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
            on_trouble=on_trouble,
        )
        self._encoder = ItemEncoder(
            ids=MessageIdMaker(chance),
            item_bytes_max=self._config.item_bytes_max,
            app_code=app_code,
            levels_ms=lambda: self._exchange.routing.levels_ms,
        )
        super().__init__(self._exchange, connect_timeout_s=self._config.connect_timeout_s)
        self._wall_ms = wall_ms
        """The clock that delays count from until a server has said what its own shows."""
        self._calls = 0
        """Calls that have no outcome yet."""
        self._all_done = Bell()
        """Rung whenever no call is left."""

    async def send(
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
        timeout: float | None = None,  # noqa: ASYNC109 (bounds the tries, tells why they failed)
    ) -> Receipt:
        """Send a message that is delivered after `delay` (timedelta or seconds) or `at` a datetime.

        Or after the delay of a `level`; OutgoingMessage explains all of them. Returns when a server
        has it on disk. Raises a DelaywheelError: a FatalError at once, a RetryableError after
        `timeout` seconds of retries. If the call is cancelled, the message may have been sent.
        """
        message = OutgoingMessage(
            subject, body, delay, at, message_id, tags, headers, content_type, attributes, level
        )
        timeout_s = self._config.timeout(timeout)
        self._check_loop()
        now_ms = self._wall_ms()
        encoded = self._encoder.encode(message, now_ms)
        settled = anyio.Event()
        waiter = Waiter(settled.set)
        now = anyio.current_time()
        self._exchange.offer(
            encoded,
            waiter,
            subject=subject,
            timeout_s=timeout_s,
            now=now,
            is_id_given=message_id is not None,
            is_past_due=encoded[2] < now_ms,
        )
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

    async def cancel(
        self,
        message: Named,
        message_id: str | None = None,
        *,
        at: datetime | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 (bounds the tries, tells why they failed)
    ) -> Changed:
        """Take a message back: by its receipt or `cancel_token`, or by subject, id and due time.

        Without `at` it is looked for at all times, which takes longer. Returns what became of it;
        a group that does not answer within `timeout` seconds leaves it IN_DOUBT. Raises a
        DelaywheelError where it could not be asked for: an InvalidMessage at once, a NoRoute after
        `timeout` seconds in which no meta server told which delay groups there are.
        """
        return await self._change_one(_named(message, message_id, at), None, timeout)

    async def move(
        self,
        message: Named,
        message_id: str | None = None,
        *,
        to: When,
        at: datetime | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 (as cancel())
    ) -> Changed:
        """Move a message to another time: `to` a datetime, or seconds or a timedelta.

        A delay counts from now. The message keeps its id and its bytes. All else is as cancel().
        """
        return await self._change_one(_named(message, message_id, at), to, timeout, is_move=True)

    async def cancel_many(
        self,
        messages: Iterable[Named],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 (as cancel())
    ) -> list[ChangeOutcome]:
        """Take many messages back, up to a thousand in a request.

        Returns one outcome for each, in order: what cancel() would return or raise. It gives up
        once no server has told outcomes for `timeout` seconds.
        """
        return await self._change_all([(one, None) for one in messages], timeout)

    async def move_many(
        self,
        moves: Iterable[tuple[Named, When]],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 (as cancel())
    ) -> list[ChangeOutcome]:
        """Move many messages to other times, each to its own; else as cancel_many()."""
        return await self._change_all(list(moves), timeout, is_move=True)

    async def _change_one(
        self, named: Named, to: When | None, timeout_s: float | None, *, is_move: bool = False
    ) -> Changed:
        [outcome] = await self._change_all([(named, to)], timeout_s, is_move=is_move)
        if isinstance(outcome, DelaywheelError):
            raise outcome
        return outcome

    async def _change_all(
        self,
        asked: Sequence[tuple[Named, When | None]],
        timeout_s: float | None,
        *,
        is_move: bool = False,
    ) -> list[ChangeOutcome]:
        limit_s = self._config.timeout(timeout_s)
        self._check_loop()
        progress = Bell()
        now, now_ms = anyio.current_time(), self._wall_ms()
        changes = [
            InvalidMessage("give to=, when it is to be delivered; cancel() takes it back")
            if is_move and to is None
            else _wanted_or_error(named, to, now_ms)
            for named, to in asked
        ]
        call = ChangeCall(changes, timeout_s=limit_s, now=now, on_progress=progress.ring)
        self._calls += 1
        try:
            self._exchange.change(call, now)
            self._look_round(now)
            while call.parts:
                await progress.wait()
        finally:
            call.abandoned = True
            self._end_call()
        return call.outcomes()

    async def _send_all(
        self,
        messages: Iterable[_Message],
        encoder: Encoder[_Message],
        timeout: float | None,  # noqa: ASYNC109 (as send_many())
    ) -> list[Outcome]:
        timeout_s = self._config.timeout(timeout)
        self._check_loop()
        progress = Bell()
        collection = Collection(progress.ring)
        self._calls += 1
        try:
            for batch in cut_batches(
                messages,
                collection,
                encoder=encoder,
                config=self._config,
                wall_ms=self._wall_ms,
                lanes=self._exchange.routing,
            ):
                now = anyio.current_time()
                batch.deadline = collection.deadline(now, timeout_s)
                self._exchange.submit(batch, now)
                self._look_round(now)
                await anyio.lowlevel.checkpoint()
                # One batch of each call is taken, however many others have.
                while collection.unsettled and not self._exchange.has_room(batch):
                    await progress.wait()
            while collection.unsettled:
                await progress.wait()
        finally:
            collection.abandoned = True
            self._end_call()
        return collection.outcomes()

    async def _finish(self) -> None:
        while self._calls and not self._leaves_by_error:
            await self._all_done.wait()

    def _close(self) -> None:
        self._exchange.close()

    def _end_call(self) -> None:
        self._calls -= 1
        if not self._calls:
            self._all_done.ring()


def _named(message: Named, message_id: str | None, at: datetime | None) -> Named:
    """Return the message that arguments name; raise InvalidMessage."""
    if message_id is not None and isinstance(message, str):
        return MessageName(message, message_id, at)
    if message_id is not None or at is not None:
        raise InvalidMessage("give a receipt or a token alone, or subject, id and at=")
    return message


def _wanted_or_error(named: Named, to: When | None, now_ms: int) -> Wanted | DelaywheelError:
    try:
        return wanted(named, to, now_ms)
    except DelaywheelError as error:
        return error
