"""The exchange: messages on their way to the servers, without I/O.

    offer(), submit() --> open --> ready --> in flight --> settled
                                     ^          |
                                     +- waiting-+  a setback, until its pause is over

Messages that may go to the same servers share a *lane* (routing.py). Each lane has its own open and
ready batches (pending.py), so a blocked lane delays no other. The least loaded server of a lane
gets the next request (balancing.py). What its answer means is in answers.py.

If an answer is missing, the server may have kept the items. A retry has the same bytes and message
ids, by which a server finds the first one (`Receipt.duplicate`); another server does not, and both
copies are delivered. So after a lost connection the items wait for the same group, for
`same_group_s` at most. After a time-out they do not wait, since a server that hangs would delay
them again.

Cancels and moves go over the same links (changing.py).

The shell (client.py) only moves bytes and passes the time. It reports each event, and after each
call it checks what the exchange wants: `wants_connection()`, `Link.has_outgoing`, `Link.condemned`,
and `wake_at`, the time to call `poll()`. The only callbacks settle an outcome, tell of trouble, and
keep routes.
"""

import logging
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence

from delay_client.exchange import reasons
from delay_client.exchange.answers import read_answer
from delay_client.exchange.asking import Asking, ChangeCall
from delay_client.exchange.balancing import choose_link
from delay_client.exchange.batches import Batch, BatchLink, Lane, Setback, Waiter
from delay_client.exchange.changing import Changing
from delay_client.exchange.circuits import pause_s
from delay_client.exchange.links import LinkState
from delay_client.exchange.meta_link import MetaLink
from delay_client.exchange.pending import Pending
from delay_client.exchange.routing import FixedRouting, Line, MetaRouting
from delay_client.exchange.trouble import TroubleWatch
from delay_client.messages.config import ClientConfig, named_servers
from delay_client.messages.errors import RetryableError, TimedOut, Unavailable
from delay_client.messages.item_encoder import EncodedItem
from delay_client.messages.message import Outcome
from delay_protocol.basics.errors import RemoteProtocolError

logger = logging.getLogger("delaywheel.client")


class Exchange:
    """Everything the client knows: what is to be sent, to whom, and when to try again.

    Invariant: every batch handed in is in exactly one place (pending, or in flight on one link)
    until each of its items was settled.
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
        on_trouble: Callable[[str], None] | None = None,
    ) -> None:
        """Send to these servers, or to those that one of these meta servers names.

        `on_trouble` is told, once for each trouble, when and why messages are not accepted.
        """
        self._meta: MetaRouting | None = None
        """The routing, if a meta server names the servers."""
        self.routing: FixedRouting | MetaRouting
        """The links there are, and which messages share a batch."""
        named = named_servers(servers, meta)
        if meta is None:
            self.routing = FixedRouting(named, config)
        else:
            self.routing = self._meta = MetaRouting(
                meta,
                client_id=client_id,
                app_code=app_code,
                config=config,
                chance=chance,
            )
        self._config = config
        self._chance = chance
        self._pending = Pending(self.routing, config, self._wake)
        self._changing = Changing(self.routing, config, chance, self._wake)
        self._trouble = TroubleWatch(
            on_trouble, is_busy=self._is_busy, why=self._why_nothing, wake=self._wake
        )
        self._is_closed = False
        self.wake_at = math.inf
        """Call poll() at this time, or before."""

    @property
    def lines(self) -> Sequence[Line]:
        """The connections that the shell has to make: the links, and the one to the meta server.

        A new object after each change.
        """
        return self.routing.lines

    # What the user wants.

    def offer(
        self,
        encoded: EncodedItem,
        waiter: Waiter,
        *,
        timeout_s: float,
        now: float,
        subject: str = "",
        is_id_given: bool = False,
        is_past_due: bool = False,
    ) -> None:
        """Take one message that may share a request with others of its subject's lane."""
        if self._is_closed:
            _, message_id, *_ = encoded
            waiter.settle(reasons.closed_before(message_id, attempts=0))
            return
        self._trouble.expect(now)
        self._pending.gather(
            encoded,
            waiter,
            subject=subject,
            timeout_s=timeout_s,
            now=now,
            is_id_given=is_id_given,
            is_past_due=is_past_due,
        )

    def submit(self, batch: Batch, now: float) -> None:
        """Take one batch that is complete."""
        if self._is_closed:
            self._end([batch], reasons.closed)
            return
        self._trouble.expect(now)
        self._pending.add(batch)
        self._assign(now)

    def change(self, call: ChangeCall, now: float) -> None:
        """Take messages that are to be cancelled or moved."""
        self._changing.begin(call, now)
        if self._is_closed:
            self._changing.close()

    def close(self) -> None:
        """Settle everything that is still on its way, and whatever comes later: the client ends."""
        self._is_closed = True
        batches = self._pending.take_all()
        for link in self.routing.links:
            batches += [one for one in link.abandon() if isinstance(one, Batch)]
        self._changing.close()
        self._end(batches, reasons.closed)

    def has_room(self, batch: Batch) -> bool:
        """Whether who submitted this batch may go on; what bounds the memory of a send_many()."""
        return self._pending.has_room(batch)

    # What happened.

    def wants_connection(self, line: Line, now: float) -> bool:
        """Whether the shell should connect this line now."""
        if self._is_closed or not line.wants_connection(now):
            return False
        return isinstance(line, MetaLink) or self._has_work(line)

    def connected(self, line: Line, now: float) -> None:
        """Note that the shell has connected: a server is asked who it is before all else."""
        logger.debug("%s: connected", line.server)
        line.connected(now)
        self._wake(line.next_event())

    def lost(self, line: Line, reason: str, now: float) -> None:
        """Note that the connection was lost or could not be made, and try elsewhere."""
        if isinstance(line, MetaLink):
            line.lost(reason, now)
            self._wake(line.next_event())
        else:
            self._lost_server(line, reason, now)
        self._assign(now)

    def _lost_server(self, link: BatchLink, reason: str, now: float) -> None:
        """Have what was unanswered wait for the same group, and the route looked at."""
        was_up = link.is_answering
        was_condemned = link.condemned is not None
        flying = link.lost(reason, now, self._chance)
        level = logging.WARNING if flying else logging.DEBUG
        logger.log(level, "%s: %s, %d requests unanswered", link.server, reason, len(flying))
        self._wake(link.retry_at)
        if flying:
            link.circuit.failed(now, self._chance)
        if not was_up:
            self._pending.release(link)
            self._changing.unreachable(link, reason)
        for batch in flying:
            if isinstance(batch, Asking):
                self._changing.set_back(batch, f"lost the connection ({reason})", now)
                continue
            # Once: a server that does it again had better be left.
            hold = not was_condemned and not batch.maybe_kept
            batch.maybe_kept = True
            text = f"lost the connection ({reason})"
            self._set_back(batch, Unavailable, text, link, now, hold=hold)

    def received(self, line: Line, data: bytes, now: float) -> None:
        """Take bytes that came in. Those of no protocol of ours condemn the line."""
        if isinstance(line, MetaLink):
            assert self._meta is not None
            self._pending.routes_changed(line.received(data, now), now)
            self._changing.masters_changed(now)
            self._wake(line.next_event())
        else:
            was_greeted = line.is_greeted
            try:
                for batch, code, body in line.answers(data, now):
                    if isinstance(batch, Asking):
                        self._changing.answered(batch, code, body, now)
                    else:
                        self._take_answer(line, batch, code, body, now)
            except RemoteProtocolError as error:
                line.garbled(error)
            if not was_greeted:
                self._learn_who(line, now)
        self._pending.ripen(now)
        self._assign(now)

    def _learn_who(self, link: BatchLink, now: float) -> None:
        """Let what waits for a server go to it, once it has said that it is one."""
        if link.is_greeted:
            self._wake(now + self._config.idle_s)
            self._pending.release(link)
        elif (foreign := link.foreign(now)) is not None and foreign != link.trouble:
            logger.warning("%s %s", link.server, foreign)

    def poll(self, now: float) -> None:
        """Do what has become due: time-outs, tries, requests that have gathered long enough."""
        if self._meta is not None:
            self._meta.poll(now, self._pending.lanes)
        self._pending.poll(now)
        for link in self.routing.links:
            if link.state is LinkState.UP:
                for batch in link.overdue(now):
                    if isinstance(batch, Asking):
                        self._changing.set_back(batch, "did not answer in time", now)
                        continue
                    batch.maybe_kept = True
                    link.circuit.failed(now, self._chance)
                    self._set_back(batch, TimedOut, "did not answer in time", link, now)
        self._end(
            self._pending.take_expired(now), lambda batch: reasons.given_up(batch, self.routing)
        )
        self._changing.poll(now)
        self._assign(now)
        self._trouble.poll(now)
        self.wake_at = min(self._events(now), default=math.inf)

    def _is_busy(self) -> bool:
        """Whether any message waits to be accepted."""
        in_flight = (request for link in self.routing.links for request in link.in_flight)
        return bool(self._pending.lanes) or any(isinstance(one, Batch) for one in in_flight)

    def _has_work(self, link: BatchLink) -> bool:
        return self._pending.has_work(link) or self._changing.has_work(link)

    def _why_nothing(self) -> str:
        """Return why no message is accepted."""
        silent = [
            link.server
            for link in self.routing.links
            if link.requests_in_flight or (link.state is LinkState.UP and not link.is_greeted)
        ]
        batch = next(self._pending.batches(), None)
        if silent or batch is None:
            return f"no answer from {', '.join(silent)}"
        return reasons.trouble(batch, self.routing)

    # Sending.

    def _assign(self, now: float) -> None:
        """Put what is ready on the wire, as far as links have room; one request a lane in turn."""
        if self._meta is None:
            self._refuse_foreign(now)
        is_moving = True
        while is_moving:
            is_moving = False
            for lane in list(self._pending.lanes):
                if lane.ready and self._send_one(lane, now):
                    is_moving = True
        self._pending.tidy()
        self._changing.assign(now)

    def _refuse_foreign(self, now: float) -> None:
        """Refuse all there is if none of the servers that the user named is a delay server."""
        said: list[str] = []
        for link in self.routing.links:
            if (foreign := link.foreign(now)) is None:
                return
            said.append(f"{link.server} {foreign}")
        self._end(self._pending.take_all(), lambda batch: reasons.not_delay_servers(batch, said))

    def _send_one(self, lane: Lane, now: float) -> bool:
        """Send a lane's next batch; return whether the next but one may have its turn."""
        batch = lane.ready[0]
        link = choose_link(lane, batch, now)
        if link is None:
            return False
        lane.ready.popleft()
        if batch.version != self.routing.version:
            self._pending.file(batch)
            return True
        if batch.drop_unwanted():
            batch.held_for = None
            # Known by now: whoever told the route told the levels before.
            levels_ms = self.routing.levels_ms
            if levels_ms is not None and batch.past_due and not batch.attempts:
                batch.count_levels(levels_ms)
            link.send(batch, now)
            self._wake(now + min(self._config.try_timeout_s, batch.deadline - now))
        return True

    # Answers.

    def _take_answer(
        self, link: BatchLink, batch: Batch, code: int, body: bytes, now: float
    ) -> None:
        """Settle those items that have an outcome and try the others again."""
        answer = read_answer(batch, link, code, body)
        if answer.is_failure:
            link.circuit.failed(now, self._chance, for_sure=answer.for_sure)
        else:
            link.circuit.succeeded()
            self._trouble.accepted(link.server, now)
        if answer.positions:
            batch.receiver.settle(answer.positions, answer.outcomes)
        if answer.setback is not None:
            batch.maybe_kept |= answer.maybe_kept
            batch.keep(answer.again)
            self._set_back(batch, *answer.setback, link, now)

    def _end(
        self, batches: Iterable[Batch], errors_of: Callable[[Batch], Sequence[Outcome]]
    ) -> None:
        """Settle batches that are not tried any more."""
        for batch in batches:
            if batch.drop_unwanted():
                batch.receiver.settle(batch.positions, errors_of(batch))

    # Setbacks.

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
        if hold and self._meta is not None:
            batch.held_for = link.group
            batch.retry_at = now + self._config.same_group_s
        elif batch.attempts < len(batch.lane.links):
            # Another server has not had its try yet, and no reason to be spared.
            batch.retry_at = now
        logger.debug(
            "%s: %d messages, try %d failed: %s", link.server, len(batch), batch.attempts, text
        )
        self._pending.wait(batch)

    # Time.

    def _events(self, now: float) -> Iterator[float]:
        """Yield the times at which poll() has something to do."""
        yield self._trouble.at
        yield from self._pending.events(now)
        yield from self._changing.events(now)
        for link in self.routing.links:
            if link.state is LinkState.UP and link.condemned is None:
                yield link.next_event()
            elif link.state is LinkState.IDLE and link.retry_at > now and self._has_work(link):
                yield link.retry_at
        # Where that is due the shell is connecting.
        if self._meta is not None and (at := self._meta.next_event()) > now:
            yield at

    def _wake(self, at: float) -> None:
        self.wake_at = min(self.wake_at, at)
