"""The exchange: messages on their way to the servers, without I/O.

    offer(), submit() --> open --> ready --> in flight --> settled
                                     ^          |
                                     +- waiting-+  a setback, until its pause is over

Messages that may go to the same servers share a *lane* (routing.py). Each lane has its own open and
ready batches, so a blocked lane delays no other. The least loaded server of a lane gets the next
request; failures in a row count as load; of equals the first is used. Choosing the better of two at
random helps where load is known late or in part. Here the requests in flight are known exactly, the
servers are few, and while little is in flight a subject's messages stay with one group.

If an answer is missing, the server may have kept the items. A retry has the same bytes and message
ids. Consumers can recognise copies by the id; servers do not, and deliver each. After a lost
connection the items wait for the same group, for `same_group_s` at most, so that both copies are in
one log. After a time-out they do not wait, since a server that hangs would delay them again.

Both shells (client.py, blocking.py) only move bytes and pass the time. They report each event, and
after each call they check what the exchange wants: `wants_connection()`, `Link.has_outgoing`,
`Link.condemned`, and `wake_at`, the time to call `poll()`. The only callbacks settle an outcome.
"""

import logging
import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any

from delay_client.exchange.batches import Batch, BatchLink, Gathering, Lane, Setback, Waiter
from delay_client.exchange.circuits import pause_s
from delay_client.exchange.links import LinkState
from delay_client.exchange.meta_link import MetaLink
from delay_client.exchange.routing import FixedRouting, Line, MetaRouting
from delay_client.messages.config import DEFAULT_SERVERS, ClientConfig
from delay_client.messages.errors import (
    ClientClosed,
    DelaywheelError,
    NoRoute,
    Overloaded,
    RetryableError,
    TimedOut,
    Unavailable,
)
from delay_client.messages.item_encoder import EncodedItem
from delay_client.messages.message import Outcome, Receipt
from delay_client.messages.verdicts import (
    item_refusal,
    item_setback,
    request_refusal,
    request_setback,
)
from delay_protocol.basics.codes import ItemCode, ResponseCode
from delay_protocol.basics.errors import MalformedReplyError, RemoteProtocolError
from delay_protocol.messages.items import item_subject
from delay_protocol.messages.send_message import decode_send_reply
from delay_protocol.meta.requests import ClientType
from delay_protocol.meta.session import MetaSession, MetaSessionConfig

logger = logging.getLogger("delaywheel.client")

_new_receipt: Callable[[Iterable[Any]], Receipt] = partial(tuple.__new__, Receipt)
"""Receipt._make() without a Python frame: this runs once for each message."""

_REFILE_S = 0.05
"""For so long changes of routes gather before what is ready is looked at again."""

_GATHER_LINGERS = 20
"""A request that cannot go out yet lets calls in for so many lingers. Longer, and the time-out of
the first call in it would be stretched by what the last one adds."""


class Exchange:
    """Everything the client knows: what is to be sent, to whom, and when to try again.

    Invariant: every batch handed in is in exactly one place (open or ready in one lane, waiting, or
    in flight on one link) until each of its items was settled.
    """

    def __init__(
        self,
        servers: Sequence[str] | None = None,
        *,
        meta: str | Sequence[str] | None = None,
        client_id: str = "",
        app_code: str = "",
        config: ClientConfig,
        chance: random.Random,
    ) -> None:
        """Send to these servers, or to those that one of these meta servers names."""
        self._meta: MetaLink | None = None
        self._routing: FixedRouting | MetaRouting
        if meta is None:
            self._routing = FixedRouting(DEFAULT_SERVERS if servers is None else servers, config)
        elif servers is not None:
            raise ValueError("give either servers or meta=, not both")
        else:
            self._routing = _meta_routing(
                meta, client_id=client_id, app_code=app_code, config=config, chance=chance
            )
            self._meta = self._routing.meta
        self._config = config
        self._chance = chance
        self._busy: dict[Lane, None] = {}
        """Lanes that have something to be sent, in the order of their turns."""
        self._waiting: list[Batch] = []
        self._is_closed = False
        self._refile_at = math.inf
        """When what is ready is looked at by routes that have changed."""
        self.wake_at = math.inf
        """Call poll() at this time, or before."""

    @property
    def links(self) -> Sequence[BatchLink]:
        """The links there are; they come and go if a meta server names them."""
        return self._routing.links

    @property
    def lines(self) -> Sequence[Line]:
        """The connections that the shell has to make: the links, and the one to the meta server.

        A new object after each change.
        """
        return self._routing.lines

    @property
    def lanes(self) -> FixedRouting | MetaRouting:
        """Which messages share a batch."""
        return self._routing

    # What the user wants.

    def offer(
        self,
        encoded: EncodedItem,
        waiter: Waiter,
        *,
        timeout_s: float,
        now: float,
        subject: str = "",
    ) -> None:
        """Take one message that may share a request with others of its subject's lane."""
        item, message_id, due_ms = encoded
        if self._is_closed:
            waiter.settle(_closed(message_id, attempts=0))
            return
        lane = self._routing.lane_of(subject)
        if self._meta is not None and not lane.links:
            self._wake(self._meta.next_event())
        gathered = lane.open.get(timeout_s)
        if gathered is not None and (
            len(gathered[0]) >= self._config.request_items_max
            or gathered[0].size + len(item) > self._config.request_bytes_max
            or now >= gathered[1] + _GATHER_LINGERS * self._config.linger_s
        ):
            del lane.open[timeout_s]
            lane.ready.append(gathered[0])
            self._wake(now)
            gathered = None
        if gathered is None:
            batch = Batch(Gathering(), deadline=now, lane=lane, version=self._routing.version)
            gathered = batch, now
            lane.open[timeout_s] = gathered
            self._busy[lane] = None
            # If nothing is in flight that is now, but not in this very call: others that run in
            # the same turn of the loop join in.
            self._wake(self._ripe_at(lane, now))
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
        if batch.lane is not None and batch.lane.links and batch.version == self._routing.version:
            batch.lane.ready.append(batch)
            self._busy[batch.lane] = None
        else:
            self._file(batch)
        self._wake(batch.deadline)
        self._assign(now)

    def close(self) -> None:
        """Settle everything that is still on its way, and whatever comes later: the client ends."""
        self._is_closed = True
        batches = [*self._batches(), *(batch for link in self.links for batch in link.abandon())]
        for lane in self._busy:
            lane.open.clear()
            lane.ready.clear()
            lane.waiting = 0
        self._busy.clear()
        self._waiting.clear()
        for batch in batches:
            if batch.drop_unwanted():
                self._settle(batch, [_closed(name, attempts=batch.attempts) for name in batch.ids])

    def is_congested(self, batch: Batch) -> bool:
        """Whether so much waits to go out that who submitted this batch should pause.

        That is where it went, or in all; what bounds the memory of a send_many().
        """
        lane = batch.lane
        assert lane is not None
        if len(lane.ready) + lane.waiting >= 2 * max(1, len(lane.links)):
            return True
        queued_max = max(self._config.requests_queued_max, 2 * len(self.links))
        return sum(len(one.ready) + one.waiting for one in self._busy) >= queued_max

    # What happened.

    def wants_connection(self, line: Line, now: float) -> bool:
        """Whether the shell should connect this line now."""
        if line.state is not LinkState.IDLE or now < line.retry_at or self._is_closed:
            return False
        if isinstance(line, MetaLink):
            return line.wants_connection(now)
        return not line.is_retired and self._has_work(line)

    def connecting(self, line: Line) -> None:
        """Note that the shell has begun to connect."""
        line.connect()

    def connected(self, line: Line, now: float) -> None:
        """Note that the shell has connected, and send what waits for it."""
        logger.debug("%s: connected", line.server)
        line.connected(now)
        if isinstance(line, MetaLink):
            self._wake(line.next_event())
            return
        self._wake(now + self._config.idle_s)
        self._release(line)
        self._assign(now)

    def lost(self, line: Line, reason: str, now: float) -> None:
        """Note that the connection was lost or could not be made, and try elsewhere."""
        if isinstance(line, MetaLink):
            line.lost(reason, now)
            self._wake(line.next_event())
            return
        link = line
        was_up = link.state is LinkState.UP
        was_condemned = link.condemned is not None
        flying = link.lost(reason, now, self._chance)
        level = logging.WARNING if flying else logging.DEBUG
        logger.log(level, "%s: %s, %d requests unanswered", link.server, reason, len(flying))
        self._wake(link.retry_at)
        if flying:
            link.circuit.failed(now, self._chance)
        if not was_up:
            self._release(link)
            self._suspect_route_of(link, now)
        for batch in flying:
            # Once: a server that does it again had better be left.
            hold = not was_condemned and not batch.maybe_kept
            batch.maybe_kept = True
            text = f"lost the connection ({reason})"
            self._set_back(batch, Unavailable, text, link, now, hold=hold)
        self._assign(now)

    def received(self, line: Line, data: bytes, now: float) -> None:
        """Take bytes that came in. Those of no protocol of ours condemn the line."""
        if isinstance(line, MetaLink):
            self._take_routes(line.received(data, now), now)
            self._wake(line.next_event())
        else:
            try:
                for batch, code, body in line.answers(data, now):
                    self._take_answer(line, batch, code, body, now)
            except RemoteProtocolError as error:
                line.condemned = f"it does not speak the protocol: {error}"
        self._ripen(now)
        self._assign(now)

    def poll(self, now: float) -> None:
        """Do what has become due: time-outs, tries, requests that have gathered long enough."""
        if isinstance(self._routing, MetaRouting):
            self._routing.meta.poll(now)
            self._routing.poll(now, self._busy)
        if now >= self._refile_at:
            self._refile(now)
        self._ripen(now)
        for batch in self._take_due_retries(now):
            self._file(batch)
        for link in self.links:
            if link.state is LinkState.UP:
                for batch in link.overdue(now):
                    self._time_out(link, batch, now)
        self._expire(now)
        self._assign(now)
        self.wake_at = min(self._events(now), default=math.inf)

    # Routes.

    def _take_routes(self, subjects: Sequence[str], now: float) -> None:
        """Take changed routes: what waited for one goes into its lane, the rest is looked at soon.

        Soon, not now: when a group fails many routes change one after another.
        """
        if not subjects:
            return
        assert isinstance(self._routing, MetaRouting)
        version = self._routing.version
        for lane in self._routing.changed(subjects):
            self._refile_lane(lane)
        if self._routing.version != version and self._refile_at == math.inf:
            self._refile_at = now + _REFILE_S
            self._wake(self._refile_at)

    def _refile(self, now: float) -> None:
        """Put what is ready into the lanes that are right by now, and drop links without routes."""
        self._refile_at = math.inf
        assert isinstance(self._routing, MetaRouting)
        for lane in list(self._busy):
            if any(batch.version != self._routing.version for batch in lane.ready):
                self._refile_lane(lane, only_ready=True)
        self._tidy()
        self._routing.prune(self._busy)
        for link in self.links:
            if link.is_retired:
                self._wake(now)

    def _refile_lane(self, lane: Lane, *, only_ready: bool = False) -> None:
        batches = list(lane.ready)
        lane.ready.clear()
        if not only_ready:
            batches += [batch for batch, _ in lane.open.values()]
            lane.open.clear()
        for batch in batches:
            self._file(batch)

    def _file(self, batch: Batch) -> None:
        """Put a batch into the lane of its items, in parts if they are of several."""
        routing = self._routing
        if isinstance(routing, FixedRouting):
            self._enqueue(batch, routing.lane_of(""))
            return
        parts: dict[Lane, list[int]] = {}
        for index, item in enumerate(batch.items):
            # What was encoded here has a subject that is text.
            lane = routing.lane_of(item_subject(item).decode())
            parts.setdefault(lane, []).append(index)
        if len(parts) == 1:
            [lane] = parts
            self._enqueue(batch, lane)
            self._wake(routing.meta.next_event())
            return
        self._wake(routing.meta.next_event())
        for lane, indices in parts.items():
            self._enqueue(batch.part(indices), lane)
        batch.lane = next(iter(parts))

    def _enqueue(self, batch: Batch, lane: Lane) -> None:
        batch.lane = lane
        batch.version = self._routing.version
        last = lane.ready[-1] if lane.ready else None
        if last is not None and self._may_share(last, batch):
            last.absorb(batch)
        else:
            lane.ready.append(batch)
        self._busy[lane] = None

    def _may_share(self, last: Batch, batch: Batch) -> bool:
        """Whether two batches may be one: those that waited for their routes are small."""
        return (
            last.receiver is batch.receiver
            and last.attempts == batch.attempts == 0
            and last.version == batch.version
            and len(last) + len(batch) <= self._config.request_items_max
            and last.size + batch.size <= self._config.request_bytes_max
        )

    def _suspect_route_of(self, link: BatchLink, now: float) -> None:
        """Ask the meta server whether this server is still the right one."""
        for lane in self._busy:
            if lane.ready and link in lane.links:
                self._suspect(lane.ready[0], now)
                return

    def _suspect(self, batch: Batch, now: float) -> None:
        if isinstance(self._routing, MetaRouting):
            self._routing.suspect(item_subject(batch.items[0]).decode(), now)
            self._wake(self._routing.meta.next_event())

    # Sending.

    def _assign(self, now: float) -> None:
        """Put what is ready on the wire, as far as links have room; one request a lane in turn."""
        is_moving = True
        while is_moving:
            is_moving = False
            for lane in list(self._busy):
                if lane.ready and self._send_one(lane, now):
                    is_moving = True
        self._tidy()

    def _send_one(self, lane: Lane, now: float) -> bool:
        """Send a lane's next batch; return whether the next but one may have its turn."""
        batch = lane.ready[0]
        link = self._choose_link(lane, batch, now)
        if link is None:
            return False
        lane.ready.popleft()
        if batch.version != self._routing.version:
            self._file(batch)
            return True
        if batch.drop_unwanted():
            batch.held_for = None
            link.send(batch, now)
            self._wake(now + min(self._config.try_timeout_s, batch.deadline - now))
        return True

    def _tidy(self) -> None:
        """Forget lanes that have nothing to be sent."""
        idle = [lane for lane in self._busy if not lane.is_busy]
        for lane in idle:
            del self._busy[lane]

    def _choose_link(self, lane: Lane, batch: Batch, now: float) -> BatchLink | None:
        """Return the link for a batch: a probe that is due, else the least loaded, if any has room.

        The one that failed it last only if no other can take it, and probes are for batches that
        did not fail before, as long as any server of the lane takes more than probes.
        """
        chosen: BatchLink | None = None
        spare: BatchLink | None = None
        least = math.inf
        is_closed = False
        for link in lane.links:
            circuit = link.circuit
            if circuit.is_open:
                if now >= circuit.probe_at and not batch.attempts and link.takes_probe():
                    return link
                continue
            is_closed = True
            if not link.has_room():
                continue
            if link.group == batch.held_for:
                return link
            if link.server == batch.avoid:
                spare = link
                continue
            load = (link.requests_in_flight + 1) * (circuit.failures + 1)
            if load < least:
                chosen, least = link, load
        if is_closed:
            return chosen or spare
        last_resort = [
            link for link in lane.links if now >= link.circuit.last_resort_at and link.takes_probe()
        ]
        others = [link for link in last_resort if link.server != batch.avoid]
        return next(iter(others or last_resort), None)

    # Answers.

    def _take_answer(
        self, link: BatchLink, batch: Batch, code: int, body: bytes, now: float
    ) -> None:
        if code != ResponseCode.SUCCESS:
            setback = request_setback(code, body.decode(errors="replace"))
            self._note_failure(link, batch, now, for_sure=code == ResponseCode.BROKER_REJECT)
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
        if not body:
            link.circuit.succeeded()
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
            failures = decode_send_reply(body, results_max=len(batch.ids))
        except MalformedReplyError as error:
            batch.maybe_kept = True
            self._note_failure(link, batch, now)
            self._set_back(
                batch, Unavailable, f"gave an answer that cannot be read ({error})", link, now
            )
            return
        if any(code == ItemCode.BROKER_READ_ONLY for code, _ in failures.values()):
            # Its disk is full, or it is on its way out: it takes nothing from anybody.
            self._note_failure(link, batch, now, for_sure=True)
        else:
            link.circuit.succeeded()
        self._divide(link, batch, failures, now)

    def _divide(
        self, link: BatchLink, batch: Batch, failures: dict[bytes, tuple[int, str]], now: float
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

    def _note_failure(
        self, link: BatchLink, batch: Batch, now: float, *, for_sure: bool = False
    ) -> None:
        """Note that a server did not take what it should have taken."""
        link.circuit.failed(now, self._chance, for_sure=for_sure)
        self._suspect(batch, now)

    def _set_back(
        self,
        batch: Batch,
        kind: type[RetryableError],
        text: str,
        link: BatchLink,
        now: float,
        *,
        hold: bool = False,
    ) -> None:
        """Let a batch whose try failed wait before the next one; `hold` it for the same group."""
        word = "" if batch.setback is None else batch.setback.word
        if kind is Unavailable:
            word = f"{link.server} {text}"
        batch.setback = Setback(kind, text, link.server, word)
        batch.avoid = link.server
        batch.retry_at = now + pause_s(batch.attempts - 1, self._config, self._chance)
        if hold and isinstance(self._routing, MetaRouting):
            batch.held_for = link.group
            batch.retry_at = now + self._config.same_group_s
        elif batch.lane is not None and batch.attempts < len(batch.lane.links):
            # Another server has not had its try yet, and no reason to be spared.
            batch.retry_at = now
        logger.debug(
            "%s: %d messages, try %d failed: %s", link.server, len(batch), batch.attempts, text
        )
        self._waiting.append(batch)
        if batch.lane is not None:
            batch.lane.waiting += 1
            self._busy[batch.lane] = None
        self._wake(min(batch.retry_at, batch.deadline))

    def _release(self, link: BatchLink) -> None:
        """Let go what was held for a group that is there again, or cannot be reached."""
        for batch in [batch for batch in self._waiting if batch.held_for == link.group]:
            self._stop_waiting(batch)
            if link.state is not LinkState.UP:
                batch.held_for, batch.avoid = None, link.server
            self._file(batch)

    def _stop_waiting(self, batch: Batch) -> None:
        self._waiting.remove(batch)
        if batch.lane is not None:
            batch.lane.waiting -= 1

    def _time_out(self, link: BatchLink, batch: Batch, now: float) -> None:
        """Go on from a request that was not answered in time."""
        batch.maybe_kept = True
        self._note_failure(link, batch, now)
        self._set_back(batch, TimedOut, "did not answer in time", link, now)

    def _expire(self, now: float) -> None:
        """Settle what has run out of time."""
        if not any(batch.deadline <= now for batch in self._batches()):
            return
        late = [batch for batch in self._batches() if batch.deadline <= now]
        for lane in self._busy:
            lane.ready = deque(batch for batch in lane.ready if batch.deadline > now)
            lane.open = {key: kept for key, kept in lane.open.items() if kept[0].deadline > now}
        for batch in [batch for batch in self._waiting if batch.deadline <= now]:
            self._stop_waiting(batch)
        for batch in late:
            self._give_up(batch)

    def _give_up(self, batch: Batch) -> None:
        if batch.drop_unwanted():
            self._settle(batch, [self._last_word(batch, name) for name in batch.ids])

    def _last_word(self, batch: Batch, message_id: str) -> DelaywheelError:
        """Return the error of a message that ran out of time."""
        server: str | None = None
        advice: str | None = None
        lane = batch.lane
        if batch.setback is not None:
            kind, server = batch.setback.kind, batch.setback.server
            text = f"not accepted in time ({batch.attempts} tries): {server} {batch.setback.text}"
            if kind is not Unavailable and batch.setback.word:
                text += f"; before that {batch.setback.word}"
        elif lane is not None and lane.subject is not None:
            assert isinstance(self._routing, MetaRouting)
            kind = NoRoute
            text, advice = self._routing.why_no_route(lane.subject)
        elif any(link.state is LinkState.UP for link in self._links_of(lane)):
            kind, text = Overloaded, "not sent in time, the servers answer too slowly"
        else:
            kind, text = Unavailable, f"no server could be reached ({self._troubles(lane)})"
        return kind(
            f"{text}: {advice or _ADVICE[kind]}",
            message_id=message_id,
            server=server,
            attempts=batch.attempts,
            maybe_kept=batch.maybe_kept,
        )

    def _links_of(self, lane: Lane | None) -> Sequence[BatchLink]:
        return self.links if lane is None else lane.links

    def _troubles(self, lane: Lane | None) -> str:
        return "; ".join(
            f"{link.server}: {link.trouble or 'no answer'}" for link in self._links_of(lane)
        )

    # Time.

    def _ripen(self, now: float) -> None:
        """Close the batches that have gathered long enough."""
        for lane in self._busy:
            for timeout_s, (batch, since) in list(lane.open.items()):
                if now >= self._ripe_at(lane, since):
                    del lane.open[timeout_s]
                    lane.ready.append(batch)

    def _ripe_at(self, lane: Lane, since: float) -> float:
        """Return when a batch that gathers in a lane since then should go."""
        if lane.links and not any(link.requests_in_flight for link in lane.links):
            return since
        has_room = any(link.has_room() for link in lane.links)
        # What cannot go out yet may as well grow.
        return since + self._config.linger_s * (1 if has_room else _GATHER_LINGERS)

    def _take_due_retries(self, now: float) -> list[Batch]:
        due = [batch for batch in self._waiting if batch.retry_at <= now]
        for batch in due:
            self._stop_waiting(batch)
            batch.held_for = None
        return due

    def _events(self, now: float) -> Iterator[float]:
        """Yield the times at which poll() has something to do."""
        for lane in self._busy:
            yield from self._lane_events(lane, now)
        for batch in self._waiting:
            yield min(batch.retry_at, batch.deadline)
        for link in self.links:
            if link.state is LinkState.UP and link.condemned is None:
                yield link.next_event()
            elif link.state is LinkState.IDLE and link.retry_at > now and self._has_work(link):
                yield link.retry_at
        yield self._refile_at
        # Where it is due the shell is connecting.
        if self._meta is not None and (at := self._meta.next_event()) > now:
            yield at

    def _lane_events(self, lane: Lane, now: float) -> Iterator[float]:
        for batch, since in lane.open.values():
            yield self._ripe_at(lane, since)
            yield batch.deadline
        for batch in lane.ready:
            yield batch.deadline
        for link in lane.links:
            if link.circuit.is_open:
                for at in (link.circuit.last_resort_at, link.circuit.probe_at):
                    if at > now:
                        yield at

    def _wake(self, at: float) -> None:
        self.wake_at = min(self.wake_at, at)

    def _batches(self) -> Iterator[Batch]:
        for lane in self._busy:
            for batch, _ in lane.open.values():
                yield batch
            yield from lane.ready
        yield from self._waiting

    def _has_work(self, link: BatchLink) -> bool:
        """Whether anything is to be sent that this link could take."""
        if isinstance(self._routing, FixedRouting):
            return any(lane.is_busy for lane in self._busy)
        return any(lane.is_busy and link in lane.links for lane in self._busy)


def _meta_routing(
    meta: str | Sequence[str],
    *,
    client_id: str,
    app_code: str,
    config: ClientConfig,
    chance: random.Random,
) -> MetaRouting:
    """Return routing by the word of one of these meta servers."""
    addresses = [meta] if isinstance(meta, str) else list(meta)
    if not addresses:
        raise ValueError("no meta server: give host:port of a meta server's HTTP port, or several")
    session = MetaSession(
        client_type=ClientType.DELAY_PRODUCER,
        client_id=client_id,
        app_code=app_code,
        config=MetaSessionConfig(
            heartbeat_s=config.meta_heartbeat_s,
            answer_timeout_s=config.meta_answer_timeout_s,
            retry_min_s=min(config.meta_backoff_min_s / 2, config.meta_backoff_max_s),
            retry_max_s=config.meta_backoff_max_s,
            subjects_max=config.subjects_max,
        ),
        chance=chance,
    )
    return MetaRouting(session, MetaLink(addresses, session, config=config, chance=chance), config)


_ADVICE: dict[type[RetryableError], str] = {
    Unavailable: "check that a delay server that takes messages runs at these addresses, then send "
    "it again",
    Overloaded: "send more slowly, or with a longer timeout",
    TimedOut: "send it again with the same message id, or with a longer timeout",
}


def _closed(message_id: str, *, attempts: int) -> ClientClosed:
    return ClientClosed(
        "the client was closed before an answer came: send it again with the same message id",
        message_id=message_id,
        attempts=attempts,
    )
