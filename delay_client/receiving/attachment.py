"""Attachments: what a receiver knows of its connection to one delay server, without the socket.

    a message: todo --> at a handler --> its verdict waits --> in a SETTLE --> answered
                                               ^                   |
                                               +---- a pause ------+  answered BROKER_ERROR

A LATER, which needs a record, and a verdict of another kind are never in one SETTLE: so what cannot
be put off at the moment holds up nothing else.

What it takes is what is at work, and as many more as handlers can soon begin. If they begin nothing
for UNBEGUN_S, what is in `todo` goes back, and nothing more is asked for until somebody takes.

A verdict counts on the connection that delivered. When that is lost, what has none, or an
unanswered one, comes again elsewhere: the receiver forgets it, and drops verdicts that come later.
"""

import logging
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from msgspec import structs

from delay_client.exchange.circuits import pause_s
from delay_client.exchange.links import LinkState, Plug
from delay_client.messages.clock import ServerClock
from delay_client.receiving.message import ReceivedMessage, reason_of
from delay_client.receiving.settings import ReceiverConfig, RetryPolicy
from delay_client.receiving.tracebacks import Tracebacks
from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.basics.errors import BodyError, MalformedMetaError, RemoteProtocolError
from delay_protocol.basics.printable import printable
from delay_protocol.receivers.attaching import (
    CREDIT_ITEMS_MAX,
    Attach,
    Attached,
    Flow,
    decode_attach_reply,
    encode_attach,
    encode_flow,
)
from delay_protocol.receivers.delivering import (
    DELIVER_ITEMS_MAX,
    Delivered,
    Settled,
    Verdict,
    decode_deliver,
    decode_settle_reply,
    encode_settle,
)
from delay_protocol.wire.frames import FRAME_OVERHEAD, Frame, encode_one_way

logger = logging.getLogger("delaywheel.receiver")

UNBEGUN_S: Final = 30.0
"""After so long what no handler has begun is given back: another receiver may be idle."""
_UNSETTLED_MAX: Final = 1000
"""Messages of a delay server that a loop may have begun, and given no verdict."""
_STUCK: Final = f"its handlers have begun nothing for {UNBEGUN_S:g} s"
_ROW_BYTES: Final = 16
"""Bytes of a message in a DELIVER, or of a verdict in a SETTLE, beside its item: at most."""
_REASON_SHOWN: Final = 500
"""Characters of what a server says that a log line repeats."""
_GONE: Final = "it is no master any more"
_LEAVES: Final = Flow(items=0, reason=_GONE)


@dataclass
class ReceiverCounts:
    """What happened since the receiver began."""

    received: int = 0
    """Messages that came."""
    verdicts: dict[Verdict, int] = field(default_factory=lambda: dict.fromkeys(Verdict, 0))
    """Verdicts that were given while their connection stood."""
    poison: int = 0
    """Of the refused: items that cannot be decoded."""
    dropped: int = 0
    """Verdicts that were not known to be kept when their connection was lost."""
    unknown: int = 0
    """Verdicts of messages that the delay server did not know as unsettled on the connection."""
    set_back: int = 0
    """Requests with verdicts that a delay server could not keep, and that were sent again."""
    garbage: int = 0
    """Connections that were closed because of what came on them."""


@dataclass(slots=True)
class _Waiting:
    """Verdicts that wait for a SETTLE, in order."""

    rows: deque[Settled] = field(default_factory=deque)
    flush_at: float = math.inf
    """When they have waited long enough for others to go with them; infinite while there are none
    or nobody has looked."""
    hold_until: float = -math.inf
    """Until when the server is not asked again that could not keep them."""
    setbacks: int = 0
    """How often in a row it could not."""
    alone: int = 0
    """How many of the next go in a request of their own."""

    def next_at(self) -> float:
        """Return when the next go."""
        return max(self.hold_until, self.flush_at)


class _Asked(NamedTuple):
    """A request with verdicts that is not answered yet."""

    rows: list[Settled]
    at: float
    asked_ms: int
    """By `boot_ms()`."""


@dataclass
class Shared:
    """What the attachments of a receiver have in common."""

    attach: Attach
    config: ReceiverConfig
    chance: random.Random
    ring: Callable[[], None]
    """Called when poll() has something to do sooner than was said."""
    ends_task: Callable[[BaseException], bool]
    """Returns True for an exception by which the task itself ends that calls: it is cancelled."""
    levels_ms: Sequence[int]
    """The delays of levels in ms."""
    policy: RetryPolicy | None = None
    """The retry policy that an operator set for the name, if there is one."""
    pause: Flow | None = None
    """The FLOW of each connection while no messages are taken."""
    backlog: int = 0
    """Messages that may be here, of all delay servers, and that no handler has begun."""
    room: int = 0
    """The part of it that is asked for: nothing after they were given back; it grows again."""
    attached: int = 0
    takers: deque[Any] = field(default_factory=deque)
    """Tasks that wait for a message."""
    tracebacks: Tracebacks = field(default_factory=Tracebacks)
    todo: deque[ReceivedMessage] = field(default_factory=deque)
    """Messages that nobody has begun."""
    epochs: dict[str, int] = field(default_factory=dict)
    """The newest of each group."""
    counts: ReceiverCounts = field(default_factory=ReceiverCounts)


class Attachment(Plug):
    """One delay server: its connection, the messages that came by it, and their verdicts.

    Invariant: each message of this connection is in `todo` or at a handler, which is what
    `_unsettled` has, or its verdict waits, or is in one request of `_in_flight`.
    """

    def __init__(self, server: str, shared: Shared) -> None:
        most = shared.config.credit_bytes + _ROW_BYTES * (DELIVER_ITEMS_MAX + 1)
        super().__init__(server, frame_bytes_max=FRAME_OVERHEAD + most)
        self.chance = shared.chance
        self.tracebacks = shared.tracebacks
        self.ends_task = shared.ends_task
        self.group = ""
        """The delay group of the server, once it was attached."""
        self.refusal: str | None = None
        """Why the server will never let this receiver attach, once it has said so."""
        self._shared = shared
        self._clock = ServerClock(server)
        self._config = shared.config
        self._connection = 0
        self._was_refused = False
        self._clear()

    def _clear(self) -> None:
        """Forget what was of the connection."""
        self._attach_by = self._attached_at = math.inf
        self._attach_asked_ms = 0
        self._flow: Flow | None = None
        # So many verdicts go at once: the server has little left to send.
        self._full = self._config.settle_items_max
        self._flow_said_at = self._asked_at = self._answered_at = 0.0
        self._epoch = 0
        self._lease_s = math.inf
        self._unsettled: dict[int, ReceivedMessage] = {}
        self._unsettled_bytes = 0
        self._unbegun = 0
        self._verdicts, self._laters = _Waiting(), _Waiting()
        self._in_flight: dict[int, _Asked] = {}
        self._outgoing.clear()

    @property
    def retry(self) -> RetryPolicy:
        """When a message comes again whose handler failed."""
        return self._shared.policy or self._config.retry

    @property
    def levels_ms(self) -> Sequence[int]:
        """The delays of levels in ms, as a meta server told last."""
        return self._shared.levels_ms

    @property
    def is_attached(self) -> bool:
        """Whether messages may come."""
        return self._attached_at < math.inf

    @property
    def is_settled(self) -> bool:
        """Whether all verdicts that were given were answered."""
        return not (self._verdicts.rows or self._laters.rows or self._in_flight)

    @property
    def credit(self) -> Flow:
        """The FLOW that stands for what is at work, and what handlers can begin now and soon."""
        shared, config = self._shared, self._config
        if shared.pause is not None or self.is_retired:
            return shared.pause or _LEAVES
        # What a server cannot put off just now is with it, but no handler has it.
        items = len(self._laters.rows) if self._laters.setbacks else 0
        items += len(self._unsettled) - self._unbegun
        room = shared.room + len(shared.takers)
        items += room if config.credit_items else -(-room // max(shared.attached, 1))
        most = config.credit_items or max(_UNSETTLED_MAX, 2 * shared.backlog)
        reason = "" if room else _STUCK
        return Flow(items=min(items, most), bytes=config.credit_bytes, reason=reason)

    def connected(self, now: float) -> None:
        """Note that the connection stands, and attach."""
        self._move(LinkState.CONNECTING, LinkState.UP)
        self._attach_by, self._attach_asked_ms = (
            now + self._config.answer_timeout_s,
            self._clock.asked_ms(),
        )
        attach = structs.replace(self._shared.attach, unsettled_tries=self.retry.unsettled_tries)
        self._request(CommandCode.ATTACH, encode_attach(attach))

    def lost(self, reason: str, now: float) -> None:
        """Note that there is no connection: what came by it comes again, elsewhere."""
        dropped = len(self._verdicts.rows) + len(self._laters.rows)
        dropped += sum(len(asked.rows) for asked in self._in_flight.values())
        if self.is_attached:
            self._shared.attached -= 1
            count = dropped + len(self._unsettled)
            self._log(logging.WARNING, f"lost: {reason}; {count} messages come again")
            if now >= self._attached_at + self._config.connecting.backoff_max_s:
                self._failures = 0
        elif reason != self.trouble:
            self._log(logging.INFO, reason)
        self.trouble = reason
        self._shared.counts.dropped += dropped
        self._take_unbegun()
        self._clear()
        self.state = LinkState.IDLE
        self.condemned = None
        self._connection += 1
        connecting = self._config.connecting
        max_s = connecting.probe_max_s if self._was_refused else None
        self.retry_at = now + pause_s(self._failures, connecting, self.chance, max_s=max_s)
        self._failures += 1
        self._was_refused = False

    def received(self, data: bytes, now: float) -> None:
        """Take bytes that came in. Those of no protocol of ours condemn the connection."""
        try:
            for frame in self._frames(data):
                if self.condemned is not None:
                    return
                if not frame.is_response:
                    if frame.code == CommandCode.DELIVER:
                        self._deliver(frame.body, now)
                elif self._attach_by < math.inf:
                    self._attach_by = math.inf
                    self._take_attach_reply(frame, now)
                elif (found := self._in_flight.pop(frame.opaque, None)) is not None:
                    self._answered_at = now
                    self._take_settle_reply(found, frame, now)
        except (RemoteProtocolError, BodyError) as error:
            self._shared.counts.garbage += 1
            self.condemned = f"it does not speak the protocol: {error}"

    def poll(self, now: float) -> None:
        """Do what has become due."""
        if self.state is not LinkState.UP or self.condemned is not None:
            return
        if now >= self._answer_by():
            self.condemned = f"no answer within {self._config.answer_timeout_s:g} s"
        elif self.is_attached and self._epoch < self._shared.epochs[self.group]:
            self.condemned = f"there is a newer master of {self.group}"
        elif self.is_attached and now >= self._flow_said_at + self._lease_s:
            # This process stood still: others have got what is here.
            self.condemned = f"nothing was said to it for {now - self._flow_said_at:.0f} s"
        elif self.is_retired and not self._unsettled and self.is_settled:
            self.condemned = _GONE
        elif self.is_attached:
            self.give_back_unbegun(now)
            self._say_flow(now)
            self._flush(self._verdicts, now)
            self._flush(self._laters, now)

    def next_event(self) -> float:
        """Return when poll(), or the shell, has something to do unless more happens before."""
        if self.state is LinkState.IDLE:
            return math.inf if self.is_retired else self.retry_at
        if self.state is LinkState.CONNECTING or self.condemned is not None:
            return math.inf
        flow_at = math.inf
        if self.is_attached:
            flow_at = min(self._flow_said_at + self._flow_s(), self.unbegun_until())
        has_room = len(self._in_flight) < self._config.settles_in_flight_max
        flush_at = min(self._verdicts.next_at(), self._laters.next_at()) if has_room else math.inf
        return min(flush_at, flow_at, self._ask_at(), self._answer_by())

    # Messages and verdicts.

    def now_ms(self) -> int:
        """Return the server's time, in ms since 1970 UTC: the delay of a LATER counts from it."""
        return self._clock.now_ms()

    def begin(self) -> None:
        """Note that a handler has begun a message that was in `todo`."""
        self._unbegun -= 1
        if self._flow is None or len(self._unsettled) >= self._flow.items:
            # The server may send no more: perhaps it may now.
            self._shared.ring()

    def unbegun_until(self) -> float:
        """Return when what no handler has begun is given back; infinite if there is nothing."""
        todo = self._shared.todo
        return todo[0].came_at + UNBEGUN_S if todo else math.inf

    def give_back_unbegun(self, now: float) -> None:
        """Give back what no handler has begun, once the oldest of it has waited for UNBEGUN_S."""
        if now >= self.unbegun_until():
            self._shared.room = 0
            self.release(begun=False)

    def settle(self, message: ReceivedMessage, verdict: Verdict, rest: bytes = b"") -> None:
        """Take the verdict, unless the message has one or its connection was lost."""
        if message.is_settled:
            return
        message.is_settled = True
        counts = self._shared.counts
        if message.connection != self._connection:
            counts.dropped += 1
            return
        counts.verdicts[verdict] += 1
        del self._unsettled[message.sequence]
        self._unsettled_bytes -= len(message.kept)
        rows = (self._laters if verdict == Verdict.LATER else self._verdicts).rows
        rows.append(Settled(message.sequence, verdict, rest))
        if len(rows) == 1 or len(rows) == self._full:
            self._shared.ring()

    def release(self, *, begun: bool) -> None:
        """Give back what nobody has begun, or all that has no verdict, as nobody is at work."""
        for message in list(self._unsettled.values()) if begun else self._take_unbegun():
            self.settle(message, Verdict.RELEASE)

    def _take_unbegun(self) -> list[ReceivedMessage]:
        todo = self._shared.todo
        mine = [message for message in todo if message.desk is self]
        others = [message for message in todo if message.desk is not self]
        todo.clear()
        todo.extend(others)
        self._unbegun = 0
        return mine

    def _deliver(self, body: bytes, now: float) -> None:
        if not self.is_attached:
            raise MalformedMetaError("a DELIVER before ATTACH was answered")
        self._take(decode_deliver(body), now)

    def _take(self, delivered: Sequence[Delivered], now: float) -> None:
        """Take messages that were delivered, unless they are more than may be here."""
        shared = self._shared
        arrived_ms = self.now_ms()
        messages = [ReceivedMessage(self, self._connection, one, arrived_ms) for one in delivered]
        for message in messages:
            message.came_at = now
        count = len(self._unsettled) + len(messages)
        self._unsettled_bytes += sum(len(message.kept) for message in messages)
        most = self._config.credit_items or CREDIT_ITEMS_MAX
        if count > most or self._unsettled_bytes > self._config.credit_bytes:
            raise MalformedMetaError(
                f"{count} messages of {self._unsettled_bytes} bytes are more than it was to send"
            )
        self._unsettled.update((message.sequence, message) for message in messages)
        if len(self._unsettled) < count:
            raise MalformedMetaError("a DELIVER of what is here already")
        shared.counts.received += len(messages)
        shared.todo.extend(messages)
        self._unbegun += len(messages)
        if shared.pause is not None or self.is_retired:
            self.release(begun=False)

    # Frames.

    def _take_attach_reply(self, frame: Frame, now: float) -> None:
        epochs, code, body = self._shared.epochs, frame.code, frame.body
        reply = decode_attach_reply(body) if code == ResponseCode.SUCCESS else None
        if reply is None:
            self._was_refused = True
            self.condemned = f"it answered ATTACH with code {code} {_shown(body)}".rstrip()
        elif not isinstance(reply, Attached):
            self._was_refused = reply.is_final
            self.condemned = f"it refuses the receiver: {printable(reply.reason)}"
            self.refusal = self.condemned if reply.is_final else None
        elif reply.epoch < (newest := epochs.get(reply.group, 0)):
            self.condemned = f"it is master of {reply.group} in epoch {reply.epoch}, not {newest}"
        else:
            epochs[reply.group] = reply.epoch
            self.group, self._epoch, self._lease_s = reply.group, reply.epoch, reply.lease_s
            self._clock.heard(reply.now_ms, self._attach_asked_ms)
            # The lease begins now; the FLOW goes out when this is polled.
            self._attached_at = self._flow_said_at = now
            self._shared.attached += 1
            self.trouble = None
            self._log(logging.INFO, f"attached, group {reply.group}")

    def _take_settle_reply(self, asked: _Asked, frame: Frame, now: float) -> None:
        rows, code, body = asked.rows, frame.code, frame.body
        counts = self._shared.counts
        are_laters = bool(rows) and rows[0].verdict == Verdict.LATER
        waiting = self._laters if are_laters else self._verdicts
        if code == ResponseCode.SUCCESS:
            unknown, now_ms = decode_settle_reply(body)
            counts.unknown += unknown
            self._clock.heard(now_ms, asked.asked_ms)
            waiting.setbacks = 0
        elif code == ResponseCode.BROKER_ERROR:
            level = logging.DEBUG if waiting.setbacks else logging.WARNING
            what = "cannot put off messages" if are_laters else "keeps no verdicts"
            self._log(level, f"{what} just now: {_shown(body)}")
            waiting.rows.extendleft(reversed(rows))
            pause = pause_s(waiting.setbacks, self._config.connecting, self.chance)
            waiting.hold_until = now + pause
            waiting.setbacks += 1
            counts.set_back += 1
        elif code == ResponseCode.PARAM_ERROR and are_laters:
            self._divide(rows, _shown(body))
        else:
            counts.dropped += len(rows)
            self.condemned = f"it answered SETTLE with code {code} {_shown(body)}".rstrip()

    def _divide(self, rows: list[Settled], reason: str) -> None:
        """Find the LATER that a server does not take, due beyond its horizon say: a dead letter.

        It would fail the others each time it is tried. So each goes alone, and what does not go is
        refused with the server's reason.
        """
        if len(rows) == 1:
            self._log(logging.ERROR, f"refuses a LATER, so the message is given up: {reason}")
            said = f"given up, since it could not come again: {reason}"
            refused = Settled(rows[0].sequence, Verdict.REFUSED, reason_of(said))
            self._verdicts.rows.appendleft(refused)
        else:
            self._laters.alone += len(rows)
            self._laters.rows.extendleft(reversed(rows))

    def _say_flow(self, now: float) -> None:
        """Send a FLOW when it is time or when it is news."""
        flow, said = self.credit, self._flow
        is_news = (
            said is None
            or flow.items > said.items
            or (flow.reason, not flow.items) != (said.reason, not said.items)
        )
        is_time = now >= self._flow_said_at + self._flow_s()
        if (is_time and not self._in_flight) or now >= self._ask_at():
            # It is answered at once, since it says nothing: so a server that is silent is left.
            self._asked_at = now
            self._settle([], now)
        if is_time or is_news:
            self._flow, self._flow_said_at = flow, now
            self._full = min(self._config.settle_items_max, max(flow.items // 2, 1))
            self._outgoing.append(encode_one_way(CommandCode.FLOW, encode_flow(flow)))

    def _flush(self, waiting: _Waiting, now: float) -> None:
        """Put verdicts on the wire that have waited long enough, or fill a request."""
        verdicts, config = waiting.rows, self._config
        if verdicts and waiting.flush_at == math.inf:
            waiting.flush_at = now + config.settle_linger_s
        while (
            verdicts
            and now >= waiting.hold_until
            and (now >= waiting.flush_at or len(verdicts) >= self._full)
            and len(self._in_flight) < config.settles_in_flight_max
        ):
            rows = [verdicts.popleft()]
            waiting.alone = max(waiting.alone - 1, 0)
            size = FRAME_OVERHEAD + 2 * _ROW_BYTES + len(rows[0].rest)
            while verdicts and not waiting.alone and len(rows) < config.settle_items_max:
                size += _ROW_BYTES + len(verdicts[0].rest)
                if size > config.settle_bytes_max:
                    break
                rows.append(verdicts.popleft())
            self._settle(rows, now)
        if not verdicts:
            waiting.flush_at = math.inf

    def _settle(self, rows: list[Settled], now: float) -> None:
        """Put a request with verdicts on the wire."""
        opaque = self._request(CommandCode.SETTLE, encode_settle(rows))
        self._in_flight[opaque] = _Asked(rows, now, self._clock.asked_ms())

    def _answer_by(self) -> float:
        """Return when the server must have answered something since it was asked."""
        answer_by = self._unanswered_since() + self._config.answer_timeout_s
        return min(self._attach_by, answer_by)

    def _ask_at(self) -> float:
        """Return when to ask whether the server is there: verdicts may wait for its replicas."""
        if self._asked_at > self._answered_at:
            return math.inf
        return self._unanswered_since() + self._config.answer_timeout_s / 2

    def _unanswered_since(self) -> float:
        oldest = min((asked.at for asked in self._in_flight.values()), default=math.inf)
        return max(oldest, self._answered_at)

    def _flow_s(self) -> float:
        return min(self._config.flow_s, self._lease_s / 3)

    def _log(self, level: int, text: str) -> None:
        logger.log(level, "receiver %s: %s: %s", self._shared.attach.name, self.server, text)


def _shown(body: bytes) -> str:
    return printable(body.decode(errors="replace"))[:_REASON_SHOWN]
