"""The exchange: messages on their way to the servers, without I/O.

    offer(), submit() --> open --> ready --> in flight --> settled
                                     ^          |
                                     +- waiting-+  a setback, until its pause is over

Both shells (client.py, blocking.py) only move bytes and tell the time: they call in whatever
happened, and after each call look at what is wanted of them: `wants_connection()`,
`Link.has_outgoing`, `Link.condemned`, and `wake_at`, the time to call `poll()`. There are no
callbacks but those that settle an outcome.
"""

import logging
import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any

from delay_client.batches import Batch, Gathering, Setback, Waiter
from delay_client.config import ClientConfig
from delay_client.errors import (
    ClientClosed,
    DelaywheelError,
    Overloaded,
    RetryableError,
    TimedOut,
    Unavailable,
)
from delay_client.item_encoder import EncodedItem
from delay_client.links import Link, LinkState, pause_s
from delay_client.messages import Outcome, Receipt
from delay_client.verdicts import item_refusal, item_setback, request_refusal, request_setback
from delay_protocol import (
    ItemCode,
    MalformedReplyError,
    RemoteProtocolError,
    ResponseCode,
    decode_send_reply,
)

logger = logging.getLogger("delaywheel.client")

_new_receipt: Callable[[Iterable[Any]], Receipt] = partial(tuple.__new__, Receipt)
"""Receipt._make() without a Python frame: this runs once for each message."""

_GATHER_LINGERS = 20
"""A request that cannot go out yet lets calls in for so many lingers. Longer, and the time-out of
the first call in it would be stretched by what the last one adds."""


class Exchange:
    """Everything the client knows: what is to be sent, to whom, and when to try again.

    Invariant: every batch handed in is in exactly one place (open, ready, waiting, or in flight on
    one link) until each of its items was settled.
    """

    def __init__(
        self, servers: Sequence[str], *, config: ClientConfig, chance: random.Random
    ) -> None:
        if isinstance(servers, str) or not servers:
            raise ValueError(f"servers={servers!r}: give a list of one or more host:port")
        if len(set(servers)) < len(servers):
            raise ValueError(f"servers={servers!r} names a server twice")
        self.links = [Link(server, config) for server in servers]
        self._config = config
        self._chance = chance
        self._open: dict[float, tuple[Batch, float]] = {}
        """Batches that still gather send() calls, by time-out, and when each began to."""
        self._ready: deque[Batch] = deque()
        self._waiting: list[Batch] = []
        self._is_closed = False
        self.wake_at = math.inf
        """Call poll() at this time, or before."""

    # What the user wants.

    def offer(self, encoded: EncodedItem, waiter: Waiter, *, timeout_s: float, now: float) -> None:
        """Take one message that may share a request with others."""
        item, message_id, due_ms = encoded
        if self._is_closed:
            waiter.settle(_closed(message_id, attempts=0))
            return
        gathered = self._open.get(timeout_s)
        if gathered is not None and (
            len(gathered[0]) >= self._config.request_items_max
            or gathered[0].size + len(item) > self._config.request_bytes_max
            or now >= gathered[1] + _GATHER_LINGERS * self._config.linger_s
        ):
            del self._open[timeout_s]
            self._ready.append(gathered[0])
            self._wake(now)
            gathered = None
        if gathered is None:
            gathered = Batch(Gathering(), deadline=now), now
            self._open[timeout_s] = gathered
            # If nothing is in flight that is now, but not in this very call: others that run in
            # the same turn of the loop join in.
            self._wake(self._ripe_at(now, now))
        batch = gathered[0]
        assert isinstance(batch.receiver, Gathering)
        batch.receiver.add(waiter)
        batch.positions = range(len(batch) + 1)
        batch.add(item, message_id, due_ms)
        batch.deadline = now + timeout_s

    def submit(self, batch: Batch, now: float) -> None:
        """Take one batch that is complete."""
        if self._is_closed:
            self._settle(batch, [_closed(name, attempts=batch.attempts) for name in batch.ids])
            return
        self._ready.append(batch)
        self._wake(batch.deadline)
        self._assign(now)

    def close(self) -> None:
        """Settle everything that is still on its way, and whatever comes later: the client ends."""
        self._is_closed = True
        batches = [*self._batches(), *(batch for link in self.links for batch in link.abandon())]
        self._open.clear()
        self._ready.clear()
        self._waiting.clear()
        for batch in batches:
            if batch.drop_unwanted():
                self._settle(batch, [_closed(name, attempts=batch.attempts) for name in batch.ids])

    @property
    def is_congested(self) -> bool:
        """Whether enough waits to go out; what bounds the memory of a send_many()."""
        return len(self._ready) + len(self._waiting) >= 2 * len(self.links)

    # What happened.

    def wants_connection(self, link: Link, now: float) -> bool:
        """Whether the shell should connect this link now."""
        return link.state is LinkState.IDLE and now >= link.retry_at and self._has_work()

    def connecting(self, link: Link) -> None:
        """Note that the shell has begun to connect."""
        link.connect()

    def connected(self, link: Link, now: float) -> None:
        """Note that the shell has connected, and send what waits for it."""
        logger.debug("%s: connected", link.server)
        link.connected(now)
        self._wake(now + self._config.idle_s)
        self._assign(now)

    def lost(self, link: Link, reason: str, now: float) -> None:
        """Note that the connection was lost or could not be made, and try elsewhere."""
        flying = link.lost(reason, now, self._chance)
        level = logging.WARNING if flying else logging.DEBUG
        logger.log(level, "%s: %s, %d requests unanswered", link.server, reason, len(flying))
        self._wake(link.retry_at)
        for batch in flying:
            batch.maybe_kept = True
            self._set_back(batch, Unavailable, f"lost the connection ({reason})", link, now)
        self._assign(now)

    def received(self, link: Link, data: bytes, now: float) -> None:
        """Take bytes that came in. Those of no protocol of ours condemn the link."""
        try:
            for batch, code, body in link.answers(data, now):
                self._take_answer(link, batch, code, body, now)
        except RemoteProtocolError as error:
            link.condemned = f"it does not speak the protocol: {error}"
        self._ripen(now)
        self._assign(now)

    def poll(self, now: float) -> None:
        """Do what has become due: time-outs, tries, requests that have gathered long enough."""
        self._ripen(now)
        for batch in self._take_due_retries(now):
            self._ready.append(batch)
        for link in self.links:
            if link.state is LinkState.UP:
                for batch in link.overdue(now):
                    self._time_out(link, batch, now)
        self._expire(now)
        self._assign(now)
        self.wake_at = min(self._events(now), default=math.inf)

    # Sending.

    def _assign(self, now: float) -> None:
        """Put what is ready on the wire, as far as links have room."""
        ready = self._ready
        while ready:
            link = self._choose_link(ready[0].avoid, now)
            if link is None:
                break
            batch = ready.popleft()
            if batch.drop_unwanted():
                link.send(batch, now)
                self._wake(now + min(self._config.try_timeout_s, batch.deadline - now))

    def _choose_link(self, avoid: str | None, now: float) -> Link | None:
        """Return the link with the least in flight, the first of equals; not `avoid` if it can."""
        chosen: Link | None = None
        spare: Link | None = None
        for link in self.links:
            if not link.has_room(now):
                continue
            if link.server == avoid:
                spare = link
            elif chosen is None or link.requests_in_flight < chosen.requests_in_flight:
                chosen = link
        return chosen or spare

    # Answers.

    def _take_answer(self, link: Link, batch: Batch, code: int, body: bytes, now: float) -> None:
        if code != ResponseCode.SUCCESS:
            setback = request_setback(code)
            if code == ResponseCode.BROKER_REJECT:
                link.refused(now, self._chance)
                self._wake(link.refuses_until)
            if setback is None:
                self._settle(
                    batch,
                    [
                        request_refusal(
                            code, server=link.server, message_id=name, attempts=batch.attempts
                        )
                        for name in batch.ids
                    ],
                )
            else:
                self._set_back(batch, *setback, link, now)
            return
        link.took()
        if not body:
            receipts = zip(
                batch.ids,
                batch.due_ms,
                repeat(link.server),
                repeat(batch.attempts),
                repeat(False),  # noqa: FBT003 (a column of a receipt)
                strict=False,
            )
            self._settle(batch, map(_new_receipt, receipts))
            return
        try:
            failures = decode_send_reply(body)
        except MalformedReplyError as error:
            batch.maybe_kept = True
            self._set_back(
                batch, Unavailable, f"gave an answer that cannot be read ({error})", link, now
            )
            return
        self._divide(link, batch, failures, now)

    def _divide(
        self, link: Link, batch: Batch, failures: dict[bytes, tuple[int, str]], now: float
    ) -> None:
        """Settle those items that have an outcome and try the others again."""
        positions: list[int] = []
        outcomes: list[Outcome] = []
        again: list[int] = []
        setback: tuple[type[RetryableError], str] | None = None
        for index, message_id in enumerate(batch.ids):
            code, remark = failures.get(message_id.encode(), (ItemCode.SUCCESS, ""))
            if code not in {ItemCode.SUCCESS, ItemCode.MESSAGE_DUPLICATE}:
                item_back = item_setback(code, remark)
                if item_back is not None:
                    setback = item_back
                    again.append(index)
                    continue
                outcome: Outcome = item_refusal(
                    code,
                    remark,
                    server=link.server,
                    message_id=message_id,
                    attempts=batch.attempts,
                )
            else:
                outcome = Receipt(
                    message_id,
                    batch.due_ms[index],
                    link.server,
                    batch.attempts,
                    code == ItemCode.MESSAGE_DUPLICATE,
                )
            positions.append(batch.positions[index])
            outcomes.append(outcome)
        if positions:
            batch.receiver.settle(positions, outcomes)
        if setback is not None:
            batch.keep(again)
            self._set_back(batch, *setback, link, now)

    def _settle(self, batch: Batch, outcomes: Iterable[Outcome]) -> None:
        batch.receiver.settle(batch.positions, outcomes)

    # Setbacks.

    def _set_back(
        self, batch: Batch, kind: type[RetryableError], text: str, link: Link, now: float
    ) -> None:
        """Let a batch whose try failed wait before the next one."""
        batch.setback = Setback(kind, text, link.server)
        batch.avoid = link.server
        batch.retry_at = now + pause_s(batch.attempts - 1, self._config, self._chance)
        logger.debug(
            "%s: %d messages, try %d failed: %s", link.server, len(batch), batch.attempts, text
        )
        self._waiting.append(batch)
        self._wake(min(batch.retry_at, batch.deadline))

    def _time_out(self, link: Link, batch: Batch, now: float) -> None:
        """Go on from a request that was not answered in time."""
        batch.maybe_kept = True
        self._set_back(batch, TimedOut, "did not answer in time", link, now)

    def _expire(self, now: float) -> None:
        """Settle what has run out of time."""
        if not any(batch.deadline <= now for batch in self._batches()):
            return
        late = [batch for batch in self._batches() if batch.deadline <= now]
        self._ready = deque(batch for batch in self._ready if batch.deadline > now)
        self._waiting = [batch for batch in self._waiting if batch.deadline > now]
        self._open = {key: kept for key, kept in self._open.items() if kept[0].deadline > now}
        for batch in late:
            self._give_up(batch)

    def _give_up(self, batch: Batch) -> None:
        if batch.drop_unwanted():
            self._settle(batch, [self._last_word(batch, name) for name in batch.ids])

    def _last_word(self, batch: Batch, message_id: str) -> DelaywheelError:
        """Return the error of a message that ran out of time."""
        server: str | None = None
        if batch.setback is not None:
            kind, server = batch.setback.kind, batch.setback.server
            text = f"not accepted in time ({batch.attempts} tries): {server} {batch.setback.text}"
        elif any(link.state is LinkState.UP for link in self.links):
            kind, text = Overloaded, "not sent in time, the servers answer too slowly"
        else:
            kind, text = Unavailable, f"no server could be reached ({self._troubles()})"
        advice = _ADVICE[kind]
        return kind(
            f"{text}: {advice}",
            message_id=message_id,
            server=server,
            attempts=batch.attempts,
            maybe_kept=batch.maybe_kept,
        )

    def _troubles(self) -> str:
        return "; ".join(f"{link.server}: {link.trouble or 'no answer'}" for link in self.links)

    # Time.

    def _ripen(self, now: float) -> None:
        """Close the batches that have gathered long enough."""
        for timeout_s, (batch, since) in list(self._open.items()):
            if now >= self._ripe_at(since, now):
                del self._open[timeout_s]
                self._ready.append(batch)

    def _ripe_at(self, since: float, now: float) -> float:
        """Return when a batch that gathers since then should go."""
        if not self._is_flying():
            return since
        has_room = any(link.has_room(now) for link in self.links)
        # What cannot go out yet may as well grow.
        return since + self._config.linger_s * (1 if has_room else _GATHER_LINGERS)

    def _take_due_retries(self, now: float) -> list[Batch]:
        due = [batch for batch in self._waiting if batch.retry_at <= now]
        if due:
            self._waiting = [batch for batch in self._waiting if batch.retry_at > now]
        return due

    def _events(self, now: float) -> Iterator[float]:
        """Yield the times at which poll() has something to do."""
        for batch, since in self._open.values():
            yield self._ripe_at(since, now)
            yield batch.deadline
        for batch in self._ready:
            yield batch.deadline
        for batch in self._waiting:
            yield min(batch.retry_at, batch.deadline)
        for link in self.links:
            if link.state is LinkState.UP and link.condemned is None:
                yield link.next_event()
            elif link.state is LinkState.IDLE and self._has_work() and link.retry_at > now:
                yield link.retry_at
            if link.refuses_until > now:
                yield link.refuses_until

    def _wake(self, at: float) -> None:
        self.wake_at = min(self.wake_at, at)

    def _batches(self) -> Iterator[Batch]:
        for batch, _ in self._open.values():
            yield batch
        yield from self._ready
        yield from self._waiting

    def _has_work(self) -> bool:
        return bool(self._ready or self._open or self._waiting)

    def _is_flying(self) -> bool:
        return any(link.requests_in_flight for link in self.links)


_ADVICE: dict[type[RetryableError], str] = {
    Unavailable: "check that a delay server runs at these addresses, then send it again",
    Overloaded: "send more slowly, or allow more time with timeout=",
    TimedOut: "send it again with the same message_id, or allow more time with timeout=",
}


def _closed(message_id: str, *, attempts: int) -> ClientClosed:
    return ClientClosed(
        "the client was closed before an answer came: send it again with the same message_id",
        message_id=message_id,
        attempts=attempts,
    )
