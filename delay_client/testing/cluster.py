"""A cluster for tests: it makes clients and receivers without connections, and has their clock."""

import contextlib
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final, Self

import anyio
import anyio.lowlevel

from delay_client.exchange.asking import ChangeCall
from delay_client.exchange.batches import Batch, Waiter
from delay_client.exchange.exchange import Exchange
from delay_client.exchange.routing import Line
from delay_client.messages.clock import wall_ms
from delay_client.messages.config import ClientConfig
from delay_client.messages.item_encoder import EncodedItem
from delay_client.messages.message import moment
from delay_client.receiving.errors import ReceiverRefusedError
from delay_client.receiving.message import ReceivedMessage
from delay_client.receiving.settings import ReceiverConfig, RetryPolicy
from delay_client.shells.client import Client
from delay_client.shells.receiver import Receiver
from delay_client.testing.schedule import FAKE_SERVER, Schedule, StoredMessage, Taker
from delay_protocol.basics.levels import DEFAULT_LEVELS

_MS: Final = timedelta(milliseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TURNS: Final = 20
"""Turns that other tasks get: so many does a run() need that was just started, to ask."""


class FakeClient(Client):
    """A client of a fake cluster: `FakeCluster.client()` makes it."""

    def __init__(
        self,
        schedule: Schedule,
        app_code: str,
        config: ClientConfig | None,
        chance: random.Random,
    ) -> None:
        config = replace(config or ClientConfig(), levels=schedule.levels)
        super().__init__(app_code=app_code, config=config, chance=chance)
        self._exchange = self._core = _Exchange(schedule, self._config, chance)
        self._wall_ms = lambda: schedule.now_ms


class _Exchange(Exchange):
    """Has the schedule's answer at once."""

    def __init__(self, schedule: Schedule, config: ClientConfig, chance: random.Random) -> None:
        super().__init__([FAKE_SERVER], config=config, chance=chance)
        self._schedule = schedule

    @property
    def lines(self) -> Sequence[Line]:
        return ()

    def offer(
        self, encoded: EncodedItem, waiter: Waiter, *, is_past_due: bool = False, **_: object
    ) -> None:
        waiter.settle(self._schedule.take(encoded, is_past_due=is_past_due))

    def submit(self, batch: Batch, now: float) -> None:  # noqa: ARG002 (as Exchange)
        rows = zip(batch.items, batch.ids, batch.due_ms, [False] * len(batch), strict=True)
        outcomes = [self._schedule.take(row, is_past_due=row[1] in batch.past_due) for row in rows]
        batch.receiver.settle(batch.positions, outcomes)

    def change(self, call: ChangeCall, now: float) -> None:  # noqa: ARG002 (as Exchange)
        while call.parts:
            part = next(iter(call.parts))
            changes = [one.change for one in part.wanted]
            fault = next(filter(None, map(self._schedule.fault_of, changes)), "")
            if self._schedule.why_down:
                part.doubts[FAKE_SERVER] = self._schedule.why_down
            elif fault:
                part.refuse(f"{FAKE_SERVER} refused it: {fault}")
                continue
            else:
                part.take(FAKE_SERVER, self._schedule.change(changes))
            part.finish()


class FakeReceiver(Receiver):
    """A receiver of a fake cluster: `FakeCluster.receiver()` makes it."""

    def join(self, schedule: Schedule, subjects: Sequence[str]) -> None:
        """Receive from this schedule alone, once the block is entered."""
        self._schedule, self._subjects = schedule, subjects
        self._taker = self._reception.attach_only_to(lambda shared: Taker(shared, schedule))
        self._askers: set[int] = set()
        """Tasks that ever asked for a message."""

    @property
    def unsettled(self) -> set[int]:
        """Messages that it has, without a verdict."""
        return self._taker.unsettled

    def is_busy(self, caller: int, given_up: set[int]) -> bool:
        """Whether a task other than the caller may give a verdict, but on what was given up."""
        return bool(self._askers - {caller}) and bool(self.unsettled - given_up)

    async def __aenter__(self) -> Self:
        """Attach to the cluster."""
        await super().__aenter__()
        try:
            self._schedule.attach(self._taker, self._subjects)
        except ReceiverRefusedError as error:
            self._reception.fault = error
        return self

    def _changed(self) -> None:
        # What it takes may be more than before.
        self._schedule.deliver()
        super()._changed()

    def _close(self) -> None:
        # First, as when a connection is lost: what is still there may have been begun.
        self._schedule.detach(self._taker)
        super()._close()

    async def _next(self) -> ReceivedMessage | None:
        self._askers.add(anyio.get_current_task().id)
        return await super()._next()


class FakeCluster:
    """A meta server and delay servers of a test: their messages, and a clock that it moves.

    It begins at a moment that the test says, or now, and time stands still but for advance(). What
    a service computes from the clock of the machine fits if it begins now.
    """

    def __init__(
        self,
        now: datetime | None = None,
        *,
        horizon: timedelta = timedelta(days=730),
        levels: str = DEFAULT_LEVELS,
        patience_s: float = 1.0,
        seed: int = 0,
    ) -> None:
        """Take messages that are due within `horizon`, as delay servers do.

        `levels` is the table that clients and receivers are told (`delay.levels`).
        `patience_s` is how long, in real time, advance() waits for verdicts. `seed` is of message
        ids and of the jitter of retries.
        """
        now_ms = wall_ms() if now is None else (now - _EPOCH) // _MS
        self._schedule = Schedule(now_ms, horizon_ms=horizon // _MS, levels=levels)
        self.sent: Sequence[StoredMessage] = self._schedule.sent
        """All messages that were accepted, in the order in which they were sent."""
        self.done: Sequence[StoredMessage] = self._schedule.done
        """Messages that receivers are done with, in the order of their verdicts."""
        self.refused: Sequence[StoredMessage] = self._schedule.refused
        """Dead letters: messages that were rejected or given up, each with its `reason`."""
        self._patience_s = patience_s
        self._chance = random.Random(seed)  # noqa: S311 (tests want the same ids again)
        self._receivers: list[FakeReceiver] = []
        self._given_up: set[int] = set()
        """Messages whose verdicts are not waited for any more."""

    def client(self, *, app_code: str = "", config: ClientConfig | None = None) -> FakeClient:
        """Return a client, to be used as `async with cluster.client() as client`."""
        return FakeClient(self._schedule, app_code, config, self._chance)

    def receiver(
        self,
        name: str,
        *,
        subjects: Sequence[str] = (),
        weight: int = 100,
        config: ReceiverConfig | None = None,
    ) -> FakeReceiver:
        """Return a receiver, to be used as `async with cluster.receiver(...) as receiver`."""
        receiver = FakeReceiver(
            name,
            subjects=subjects,
            meta=FAKE_SERVER,
            weight=weight,
            config=config,
            chance=self._chance,
        )
        receiver.join(self._schedule, subjects)
        self._receivers.append(receiver)
        return receiver

    @property
    def now(self) -> datetime:
        """What time it is, in UTC."""
        return moment(self._schedule.now_ms)

    async def advance(self, by: timedelta = timedelta(), **parts: float) -> None:
        """Let time pass: `advance(hours=3)`, with the arguments of a timedelta, or with one.

        It goes from one message that falls due to the next. At each it waits until other tasks, in
        run() or iterating, have given their verdicts, for `patience_s` at most; so a retry comes
        within the same advance(). Without arguments receivers do what is due, and no time passes.
        """
        by += timedelta(**parts)
        if by < timedelta():
            raise ValueError(f"time does not go back, by {by}")
        schedule = self._schedule
        until_ms = schedule.now_ms + by // _MS
        await self._let_work()
        while (event_ms := schedule.next_event_ms()) <= until_ms:
            schedule.now_ms = math.ceil(event_ms)
            await self._let_work()
        schedule.now_ms = until_ms

    async def _let_work(self) -> None:
        """Deliver what is due, and wait for verdicts."""
        self._schedule.deliver()
        for _ in range(_TURNS):
            await anyio.lowlevel.checkpoint()
        caller = anyio.get_current_task().id
        with anyio.move_on_after(self._patience_s) as scope:
            while any(one.is_busy(caller, self._given_up) for one in self._receivers):
                settled = anyio.Event()
                self._schedule.on_change = settled.set
                await settled.wait()
                self._schedule.deliver()
        if scope.cancelled_caught:
            self._given_up.update(*(one.unsettled for one in self._receivers))

    def subscribe(self, name: str, *patterns: str, retry: RetryPolicy | None = None) -> None:
        """Set the subjects that a name gets, and no others, as an operator does; `*`: all.

        retry: the policy of its receivers, unless a `run(retry=…)` says otherwise.
        """
        self._schedule.subscriptions[name] = dict.fromkeys(patterns)
        self._schedule.set_policy(name, retry)
        self._schedule.deliver()

    @contextlib.contextmanager
    def outage(self, reason: str = "an outage") -> Iterator[None]:
        """Refuse what is sent with Unavailable, at once, and deliver nothing."""
        self._schedule.why_down = reason
        try:
            yield
        finally:
            self._schedule.why_down = ""
            self._schedule.deliver()

    def pending(self, subject: str | None = None) -> list[StoredMessage]:
        """Return what is neither done nor refused, in due order; with receivers or not."""
        kept = [*self._schedule.waiting, *self._schedule.unsettled.values()]
        kept.sort(key=lambda message: (message.due_ms, message.sequence))
        return [message for message in kept if subject in {None, message.subject}]
