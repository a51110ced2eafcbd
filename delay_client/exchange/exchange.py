"""The exchange: messages on their way to the servers, without I/O.

    offer(), submit() --> open --> ready --> in flight --> settled
                                     ^          |
                                     +- waiting-+  a setback, until its pause is over

Messages that may go to the same servers share a *lane* (routing.py). Each lane has its own open and
ready batches, so a blocked lane delays no other. The least loaded server of a lane gets the next
request; failures in a row count as load; of equals the first is used. Choosing the better of two at
random helps where load is known late or in part. Here the requests in flight are known exactly, the
servers are few, and while little is in flight a subject's messages stay with one group. A message
whose id the user gave goes to the group that subject and id name, and elsewhere only if that fails.

If an answer is missing, the server may have kept the items. A retry has the same bytes and message
ids. Consumers can recognise copies by the id; servers do not, and deliver each. After a lost
connection the items wait for the same group, for `same_group_s` at most, so that both copies are in
one log. After a time-out they do not wait, since a server that hangs would delay them again.

Both shells (client.py, blocking.py) only move bytes and pass the time. They report each event, and
after each call they check what the exchange wants: `wants_connection()`, `Link.has_outgoing`,
`Link.condemned`, and `wake_at`, the time to call `poll()`. The only callbacks settle an outcome,
tell of trouble, and keep routes.
"""

import logging
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Final, Protocol

from delay_client.exchange.batches import Batch, BatchLink, Lane, Setback, Waiter
from delay_client.exchange.circuits import pause_s
from delay_client.exchange.links import LinkState
from delay_client.exchange.meta_link import MetaLink, RouteTalk, meta_addresses
from delay_client.exchange.pending import Pending
from delay_client.exchange.routing import FixedRouting, Line, MetaRouting, Places
from delay_client.messages.config import DEFAULT_SERVERS, ClientConfig
from delay_client.messages.errors import (
    ClientClosed,
    DelaywheelError,
    NoRoute,
    NotADelayServer,
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
from delay_protocol.basics.printable import printable
from delay_protocol.messages.items import item_subject
from delay_protocol.messages.send_message import decode_send_reply
from delay_protocol.meta.requests import ClientType
from delay_protocol.meta.session import MetaSession, MetaSessionConfig

logger = logging.getLogger("delaywheel.client")

_TROUBLE_S: Final = 1.0
"""When messages wait and none was accepted for so long, it is told why."""
_TROUBLE_LENGTH_MAX: Final = 500
"""Characters of why."""
_KEEP_ROUTES_S: Final = 5.0
"""Routes that have changed are kept at most so often…"""
_KEEP_ROUTES_AGAIN_S: Final = 3600.0
"""… and those that have not so often, as still right."""


class RoutesKeeper(Protocol):
    """What keeps routes beyond the process."""

    def load(self) -> Mapping[str, Places]:
        """Return what was kept, by subject."""

    def keep(self, routes: Mapping[str, Places]) -> None:
        """Keep what is right now."""


_new_receipt: Callable[[Iterable[Any]], Receipt] = partial(tuple.__new__, Receipt)
"""Receipt._make() without a Python frame: this runs once for each message."""


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
        keeper: RoutesKeeper | None = None,
    ) -> None:
        """Send to these servers, or to those that one of these meta servers names.

        `on_trouble` is told, once for each trouble, when and why messages are not accepted.
        """
        self._meta: MetaLink | None = None
        self._routing: FixedRouting | MetaRouting
        if meta is None:
            self._routing = FixedRouting(DEFAULT_SERVERS if servers is None else servers, config)
        elif servers is not None:
            raise ValueError("give either servers or meta=, not both")
        else:
            self._routing = _meta_routing(
                meta,
                client_id=client_id,
                app_code=app_code,
                config=config,
                chance=chance,
                remembered={} if keeper is None else keeper.load(),
            )
            self._meta = self._routing.meta
        self._config = config
        self._chance = chance
        self._pending = Pending(self._routing, config, self._wake)
        self._is_closed = False
        self._on_trouble = on_trouble
        self._trouble_at = math.inf
        """When there is trouble, unless a message is accepted before."""
        self._is_trouble_told = False
        """Whether it was told since a message was last accepted."""
        self._keeper = keeper
        self._news_kept = 0
        self._keep_at = -math.inf
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
        is_id_given: bool = False,
        is_past_due: bool = False,
    ) -> None:
        """Take one message that may share a request with others of its subject's lane."""
        if self._is_closed:
            _, message_id, _ = encoded
            waiter.settle(_closed(message_id, attempts=0))
            return
        self._expect_success(now)
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
            self._settle(batch, [_closed(name, attempts=batch.attempts) for name in batch.ids])
            return
        self._expect_success(now)
        self._pending.add(batch)
        self._assign(now)

    def close(self) -> None:
        """Settle everything that is still on its way, and whatever comes later: the client ends."""
        self._is_closed = True
        if isinstance(self._routing, MetaRouting) and self._routing.news != self._news_kept:
            self._keep_routes(self._routing)
        batches = self._pending.take_all()
        for link in self.links:
            batches += link.abandon()
        for batch in batches:
            if batch.drop_unwanted():
                self._settle(batch, [_closed(name, attempts=batch.attempts) for name in batch.ids])

    def is_congested(self, batch: Batch) -> bool:
        """Whether so much waits to go out that who submitted this batch should pause.

        That is where it went, or in all; what bounds the memory of a send_many().
        """
        return self._pending.is_congested(batch)

    # What happened.

    def wants_connection(self, line: Line, now: float) -> bool:
        """Whether the shell should connect this line now."""
        if line.state is not LinkState.IDLE or now < line.retry_at or self._is_closed:
            return False
        if isinstance(line, MetaLink):
            return line.wants_connection(now)
        return not line.is_retired and self._pending.has_work(line)

    def connecting(self, line: Line) -> None:
        """Note that the shell has begun to connect."""
        line.connect()

    def connected(self, line: Line, now: float) -> None:
        """Note that the shell has connected: a server is asked who it is before all else."""
        logger.debug("%s: connected", line.server)
        line.connected(now)
        if isinstance(line, MetaLink):
            self._wake(line.next_event())
            return
        self._wake(line.next_event())

    def lost(self, line: Line, reason: str, now: float) -> None:
        """Note that the connection was lost or could not be made, and try elsewhere."""
        if isinstance(line, MetaLink):
            line.lost(reason, now)
            self._wake(line.next_event())
            self._use_remembered_routes(now)
            return
        link = line
        was_up = link.state is LinkState.UP and link.is_greeted
        was_condemned = link.condemned is not None
        flying = link.lost(reason, now, self._chance)
        level = logging.WARNING if flying else logging.DEBUG
        logger.log(level, "%s: %s, %d requests unanswered", link.server, reason, len(flying))
        self._wake(link.retry_at)
        if flying:
            link.circuit.failed(now, self._chance)
        if not was_up:
            self._pending.release(link)
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
            self._pending.routes_changed(line.received(data, now), now)
            self._wake(line.next_event())
            if self._keeper is not None:
                self._wake(max(now, self._keep_at))
        else:
            was_greeted = line.is_greeted
            try:
                for batch, code, body in line.answers(data, now):
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
        if isinstance(self._routing, MetaRouting):
            self._routing.meta.poll(now)
            self._routing.poll(now, self._pending.lanes)
            self._keep_routes_in_time(self._routing, now)
        self._pending.poll(now)
        for link in self.links:
            if link.state is LinkState.UP:
                for batch in link.overdue(now):
                    self._time_out(link, batch, now)
        for batch in self._pending.take_expired(now):
            self._give_up(batch)
        self._assign(now)
        self._look_for_trouble(now)
        self.wake_at = min(self._events(now), default=math.inf)

    # Trouble.

    @property
    def _is_busy(self) -> bool:
        return bool(self._pending.lanes) or any(link.requests_in_flight for link in self.links)

    def _expect_success(self, now: float) -> None:
        """Note that a message is to be sent."""
        if self._trouble_at == math.inf or (now >= self._trouble_at and not self._is_busy):
            self._trouble_at = now + _TROUBLE_S
            self._wake(self._trouble_at)

    def _succeeded(self, link: BatchLink, now: float) -> None:
        """Note that a server has taken a request."""
        link.circuit.succeeded()
        self._trouble_at = now + _TROUBLE_S
        if self._is_trouble_told:
            self._is_trouble_told = False
            logger.info("%s: messages are accepted again", link.server)

    def _look_for_trouble(self, now: float) -> None:
        """Tell why messages are not accepted, once until one is."""
        if not self._is_busy:
            self._trouble_at = math.inf
        if now < self._trouble_at:
            return
        self._trouble_at = math.inf
        if self._is_trouble_told:
            return
        self._is_trouble_told = True
        why = printable(self._trouble())[:_TROUBLE_LENGTH_MAX]
        text = f"no message was accepted for {_TROUBLE_S:g} s ({why}): still trying"
        logger.warning("%s", text)
        if self._on_trouble is not None:
            try:
                self._on_trouble(text)
            except Exception:
                logger.exception("on_trouble failed")

    def _trouble(self) -> str:
        silent = [
            link.server
            for link in self.links
            if link.requests_in_flight or (link.state is LinkState.UP and not link.is_greeted)
        ]
        batch = next(self._pending.batches(), None)
        if silent or batch is None:
            return f"no answer from {', '.join(silent)}"
        if batch.setback is not None:
            return f"{batch.setback.server} {batch.setback.text}"
        if batch.lane is not None and batch.lane.subject is not None:
            assert isinstance(self._routing, MetaRouting)
            return self._routing.why_no_route(batch.lane.subject)[0]
        return self._troubles(batch.lane)

    # Routes.

    def _use_remembered_routes(self, now: float) -> None:
        """Send by what was told to another process, now that no meta server can be asked."""
        assert isinstance(self._routing, MetaRouting)
        subjects = self._routing.remembered()
        if subjects:
            logger.warning("no meta server: kept routes are used (%d subjects)", len(subjects))
        self._pending.routes_changed(subjects, now)
        self._assign(now)

    def _keep_routes_in_time(self, routing: MetaRouting, now: float) -> None:
        """Have routes kept that have changed, or that are still right after a long time."""
        is_right = routing.meta.trouble is None and self._news_kept > 0
        is_due_again = is_right and now >= self._keep_at + _KEEP_ROUTES_AGAIN_S
        if is_due_again or (now >= self._keep_at and routing.news != self._news_kept):
            self._keep_at = now + _KEEP_ROUTES_S
            self._keep_routes(routing)

    def _keep_routes(self, routing: MetaRouting) -> None:
        self._news_kept = routing.news
        if self._keeper is not None and (routes := routing.told()):
            self._keeper.keep(routes)

    def _suspect_route_of(self, link: BatchLink, now: float) -> None:
        """Ask the meta server whether this server is still the right one."""
        batch = self._pending.next_for(link)
        if batch is not None:
            self._suspect(batch, now)

    def _suspect(self, batch: Batch, now: float) -> None:
        if isinstance(self._routing, MetaRouting):
            self._routing.suspect(item_subject(batch.items[0]).decode(), now)
            self._wake(self._routing.meta.next_event())

    # Sending.

    def _assign(self, now: float) -> None:
        """Put what is ready on the wire, as far as links have room; one request a lane in turn."""
        if isinstance(self._routing, FixedRouting):
            self._refuse_foreign(now)
        is_moving = True
        while is_moving:
            is_moving = False
            for lane in list(self._pending.lanes):
                if lane.ready and self._send_one(lane, now):
                    is_moving = True
        self._pending.tidy()

    def _refuse_foreign(self, now: float) -> None:
        """Refuse all there is if none of the servers that the user named is a delay server."""
        said: list[str] = []
        for link in self.links:
            if (foreign := link.foreign(now)) is None:
                return
            said.append(f"{link.server} {foreign}")
        for batch in self._pending.take_all():
            if batch.drop_unwanted():
                self._settle(batch, [_not_a_delay_server(said, batch, name) for name in batch.ids])

    def _send_one(self, lane: Lane, now: float) -> bool:
        """Send a lane's next batch; return whether the next but one may have its turn."""
        batch = lane.ready[0]
        link = self._choose_link(lane, batch, now)
        if link is None:
            return False
        lane.ready.popleft()
        if batch.version != self._routing.version:
            self._pending.file(batch)
            return True
        if batch.drop_unwanted():
            batch.held_for = None
            link.send(batch, now)
            self._wake(now + min(self._config.try_timeout_s, batch.deadline - now))
        return True

    def _choose_link(self, lane: Lane, batch: Batch, now: float) -> BatchLink | None:
        """Return the link for a batch, if any has room.

        Messages with given ids wait for their home, unless it failed: then another gets them, and
        if its connection is lost it is made again.
        """
        home = lane.home
        if home is not None and home.server != batch.avoid:
            if home.is_hopeful:
                return home if home.has_room() else None
            home.is_missed = True
        return self._choose_any(lane, batch, now)

    def _choose_any(self, lane: Lane, batch: Batch, now: float) -> BatchLink | None:
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
            self._succeeded(link, now)
            is_elsewhere = _is_elsewhere(batch, link)
            receipts = zip(
                batch.ids,
                batch.due_ms,
                repeat(link.server),
                repeat(batch.attempts),
                repeat(False),  # noqa: FBT003 (a column of a receipt)
                repeat(is_elsewhere),
                map(batch.past_due.__contains__, batch.ids) if batch.past_due else repeat(False),  # noqa: FBT003
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
            self._succeeded(link, now)
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
                    _is_elsewhere(batch, link),
                    message_id in batch.past_due,
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
        self._pending.wait(batch)

    def _time_out(self, link: BatchLink, batch: Batch, now: float) -> None:
        """Go on from a request that was not answered in time."""
        batch.maybe_kept = True
        self._note_failure(link, batch, now)
        self._set_back(batch, TimedOut, "did not answer in time", link, now)

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
            if not any(link.is_answering for link in self._links_of(lane)):
                kind, text = TimedOut, "not sent, since no server has said in time that it is one"
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

    def _events(self, now: float) -> Iterator[float]:
        """Yield the times at which poll() has something to do."""
        yield self._trouble_at
        if isinstance(self._routing, MetaRouting) and self._keeper is not None:
            is_news = self._routing.news != self._news_kept
            yield max(now, self._keep_at) if is_news else now + _KEEP_ROUTES_AGAIN_S
        yield from self._pending.events(now)
        for link in self.links:
            if link.state is LinkState.UP and link.condemned is None:
                yield link.next_event()
            elif (
                link.state is LinkState.IDLE
                and link.retry_at > now
                and self._pending.has_work(link)
            ):
                yield link.retry_at
        # Where it is due the shell is connecting.
        if self._meta is not None and (at := self._meta.next_event()) > now:
            yield at

    def _wake(self, at: float) -> None:
        self.wake_at = min(self.wake_at, at)


def _is_elsewhere(batch: Batch, link: BatchLink) -> bool:
    """Whether a link is not that of the group that the ids of a batch name."""
    home = None if batch.lane is None else batch.lane.home
    return home is not None and home.group != link.group


def _meta_routing(
    meta: str | Sequence[str],
    *,
    client_id: str,
    app_code: str,
    config: ClientConfig,
    chance: random.Random,
    remembered: Mapping[str, Places],
) -> MetaRouting:
    """Return routing by the word of one of these meta servers."""
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
    meta_link = MetaLink(meta_addresses(meta), RouteTalk(session), config=config, chance=chance)
    return MetaRouting(session, meta_link, config, remembered)


_ADVICE: dict[type[RetryableError], str] = {
    Unavailable: "check that a delay server that takes messages runs at these addresses, then send "
    "it again",
    Overloaded: "send more slowly, or with a longer timeout",
    TimedOut: "send it again with the same message id, or with a longer timeout",
}


def _not_a_delay_server(said: list[str], batch: Batch, message_id: str) -> NotADelayServer:
    return NotADelayServer(
        f"{'; '.join(said)}: give a delay server's address, or the meta server's",
        message_id=message_id,
        attempts=batch.attempts,
    )


def _closed(message_id: str, *, attempts: int) -> ClientClosed:
    return ClientClosed(
        "the client was closed before an answer came: send it again with the same message id",
        message_id=message_id,
        attempts=attempts,
    )
