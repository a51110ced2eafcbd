"""A client that cancels and moves messages, sends them again, and the judge of what it is told.

The judge knows of each message what may still happen after each answer:

    cancelled         it comes to nobody after that answer, and need not come
    moved             it comes at the new time, and no more at one that it had before
    delivered         it has come
    changed before    somebody wanted to change it, or a receiver or operator put it off
    unknown           it does not come afterwards
    another           it has to come, as if nobody had asked
    no answer, 51     the change is in doubt: it may be made or not, now or later

What is sent again while a change is asked for, or after it, is another message, which may come.
"""

import contextlib
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import trio

from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.messages.changes import (
    Change,
    ChangeRequest,
    ChangeResult,
    ChangeState,
    decode_change_reply,
    encode_change,
)
from delay_protocol.wire.frames import Frame
from tests.delay_server.server_rig import Producer

_ANSWER_S = 15.0
"""Filing is waited for up to 5 s, and each fsync may take seconds."""
_HELD_S = 12.0
"""A request with messages is held for up to 4 s, and its connection may be slow."""
_AT_ONCE = (1, 1, 1, 2, 5)
_UNTIMED = 0.15
"""Share of changes that do not say when the message is due."""
_ENDS = (
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    trio.TooSlowError,
    OSError,
    AssertionError,
)


@dataclass(frozen=True, slots=True)
class Sent:
    """A message as its producer sent it."""

    message_id: str
    subject: str
    due_ms: int
    """0: it was due when it came."""


Told = tuple[float, float]
"""When something was asked for, and answered."""


@dataclass(slots=True)
class _Fate:
    """Events that may still happen to one message."""

    to_ms: list[int] = field(default_factory=list)
    """All times to which somebody wanted to move it."""
    moved_to: int | None = None
    """The time of the last answer that it is moved."""
    has_twin: bool = False
    """True if it was sent again once it may have been moved: what names one names not the other."""
    asks: int = 0
    in_doubt: bool = False
    """True if a request without an answer may change it, now or later."""
    may_be_cancelled: bool = False
    """True if such a request may cancel it, or a cancel was answered beside a send."""
    cancelled: Told | None = None
    barred: dict[int, Told] = field(default_factory=dict)
    """By due time at which it comes no more: the move that was answered."""
    unknown: Told | None = None
    """When it was first said to be unknown, though it was kept."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One change that is under way."""

    message_id: str
    to_ms: int | None
    asked_s: float
    dues: frozenset[int]
    """Times at which it might have come until then."""
    is_sure: bool
    """True if it is to be found, as it is named."""


@dataclass(slots=True)
class Fates:
    """The judge: hears of sends, asks, answers and arrivals, in order."""

    complain: Callable[[str], None]
    put_off: Callable[[str], bool]
    """Returns True if somebody else may have put a record in the place of a message."""
    lost: Callable[[str], bool] = lambda _: False
    """Returns True if the bytes of a message, or of its outcome, may have been damaged."""
    may_be_dead: Callable[[str], bool] = lambda _: False
    """Returns True if a message may have become a dead letter."""
    counts: Counter[str] = field(default_factory=Counter)
    _of: dict[str, _Fate] = field(default_factory=dict)
    _came: set[str] = field(default_factory=set)
    _kept_s: dict[str, float] = field(default_factory=dict)
    """When a message was first acknowledged."""
    _sent_s: dict[str, float] = field(default_factory=dict)
    """When a message was last sent."""
    _again: set[str] = field(default_factory=set)
    """Messages that were sent more than once."""
    _revived: dict[str, float] = field(default_factory=dict)
    """When what had been cancelled was sent again, which was acknowledged."""

    # -- what producers and brokers tell ---------------------------------------------------------

    def sent(self, message_id: str) -> None:
        """Note that a message is being sent, for the first time or again."""
        if message_id in self._sent_s:
            self._again.add(message_id)
        self._sent_s[message_id] = trio.current_time()
        fate = self._of.get(message_id)
        if fate is not None:
            fate.has_twin |= bool(fate.to_ms)

    def came(self, message_id: str, due_ms: int, *, since_s: float) -> None:
        """Judge a message that comes to a broker or a receiver, as its item has the due time.

        since_s: it may have left so early, from a life or on a line that has ended since.
        """
        self._came.add(message_id)
        fate = self._of.get(message_id)
        if fate is None or (message_id in self._again and self.may_be_dead(message_id)):
            # A dead letter is requeued, whatever became of the same message that was sent again.
            return
        for what, bar in (
            ("cancelled", self._if_quiet(message_id, fate.cancelled)),
            ("moved elsewhere", self._if_quiet(message_id, fate.barred.get(due_ms))),
            ("unknown", self._if_not_sent_since(message_id, fate.unknown)),
        ):
            if bar is not None and bar[1] < since_s and not self.lost(message_id):
                self.complain(
                    f"changed: {message_id} comes at {trio.current_time():.3f}, due {due_ms}, and "
                    f"was answered to be {what} at {bar[1]:.3f}"
                )

    def acknowledged(self, message_id: str, began_s: float) -> None:
        """Note that a message that was sent from then on is kept."""
        self._kept_s.setdefault(message_id, trio.current_time())
        fate = self._of.get(message_id)
        if fate is not None and fate.cancelled is not None and fate.cancelled[1] < began_s:
            self._revived[message_id] = began_s

    def _if_quiet(self, message_id: str, told: Told | None) -> Told | None:
        return told if told is not None and self._was_quiet(message_id, told[0]) else None

    def _if_not_sent_since(self, message_id: str, told: Told | None) -> Told | None:
        return told if told is not None and self._sent_s[message_id] <= told[0] else None

    def _was_quiet(self, message_id: str, asked_s: float) -> bool:
        """Return True if nobody sent a message any more when a change of it was asked for."""
        return self._sent_s.get(message_id, -math.inf) < asked_s - _HELD_S

    # -- what the client tells -------------------------------------------------------------------

    def asked(self, sent: Sent, change: Change) -> Ask:
        """Note a change that is asked for."""
        name, to_ms = sent.message_id, change.to_ms
        fate = self._of.setdefault(name, _Fate())
        dues = set() if fate.in_doubt else {sent.due_ms, *fate.to_ms}
        is_sure = not self.put_off(name) and (change.due_ms is None or not fate.to_ms)
        if to_ms is not None:
            fate.to_ms.append(to_ms)
            fate.barred.pop(to_ms, None)
        fate.asks += 1
        return Ask(name, to_ms, trio.current_time(), frozenset(dues), is_sure)

    def unanswered(self, ask: Ask) -> None:
        """Note that nobody knows what became of a change."""
        self.counts["in doubt"] += 1
        fate = self._of[ask.message_id]
        fate.in_doubt = True
        fate.may_be_cancelled |= ask.to_ms is None

    def answered(self, ask: Ask, result: ChangeResult) -> None:
        """Judge an answer, and note what may still happen."""
        fate, name = self._of[ask.message_id], ask.message_id
        told = ask.asked_s, trio.current_time()
        self.counts[result.state.value + ("?" if not ask.is_sure else "")] += 1
        wrong = ""
        match result.state:
            case ChangeState.CANCELLED:
                wrong = "was to be moved" * (ask.to_ms is not None)
                if fate.has_twin or not self._was_quiet(name, ask.asked_s):
                    fate.may_be_cancelled = True
                elif fate.cancelled is None or not self._was_quiet(name, fate.cancelled[0]):
                    fate.cancelled = told
                    self._revived.pop(name, None)
            case ChangeState.MOVED:
                if ask.to_ms is None or result.due_ms != ask.to_ms:
                    wrong = f"was to be moved to {ask.to_ms}"
                fate.moved_to = ask.to_ms
                if not (fate.in_doubt or fate.has_twin or wrong):
                    fate.barred |= dict.fromkeys(ask.dues - {ask.to_ms}, told)
            case ChangeState.DELIVERED:
                wrong = "has come to nobody" * (name not in self._came)
            case ChangeState.CHANGED_BEFORE:
                was_asked = fate.asks > 1 or self.put_off(name)
                wrong = "" if was_asked else "nobody else asked for it"
            case ChangeState.UNKNOWN:
                is_kept = self._kept_s.get(name, math.inf) < ask.asked_s
                if is_kept and ask.is_sure and not result.reason:
                    fate.unknown = fate.unknown or told
        if wrong and not self.lost(name):
            self.complain(f"changed: {name} is answered {result}, and {wrong}")

    # -- what is true ----------------------------------------------------------------------------

    def has_come(self, message_id: str) -> bool:
        """Return True if a message has come to somebody."""
        return message_id in self._came

    def is_touched(self, message_id: str) -> bool:
        """Return True if somebody wanted to change a message."""
        return message_id in self._of

    def is_cancelled(self, message_id: str) -> bool:
        """Return True if a message was cancelled, and not sent again since."""
        fate = self._of.get(message_id)
        cancelled = None if fate is None else fate.cancelled
        return cancelled is not None and self._was_quiet(message_id, cancelled[0])

    def may_stay(self, message_id: str) -> bool:
        """Return True if a message need not come."""
        fate = self._of.get(message_id)
        if fate is None:
            return False
        is_cancelled = fate.cancelled is not None and message_id not in self._revived
        return is_cancelled or fate.may_be_cancelled

    def times_of(self, message_id: str) -> Sequence[int]:
        """Return the times to which a message may have been moved."""
        fate = self._of.get(message_id)
        return () if fate is None else fate.to_ms

    def moved_to(self, message_id: str) -> int | None:
        """Return when a message is due as it was moved last; None if it was not."""
        fate = self._of.get(message_id)
        return None if fate is None else fate.moved_to

    @property
    def latest_ms(self) -> int:
        """The latest time to which something may have been moved; 0 if nothing was."""
        return max((one for fate in self._of.values() for one in fate.to_ms), default=0)


class Changing:
    """The client; `run` until cancelled."""

    def __init__(
        self,
        chance: random.Random,
        fates: Fates,
        *,
        connect: Callable[[], Awaitable[trio.abc.Stream]],
        known: Callable[[], Sequence[Sent]],
        now_ms: Callable[[], int],
        pause_s: float,
        ahead_s: float,
        send_again: Callable[[Producer, Sent], Awaitable[None]] | None = None,
    ) -> None:
        """Act about every `pause_s` seconds, and move messages up to `ahead_s` seconds ahead."""
        self._chance = chance
        self._fates = fates
        self._connect = connect
        self._known = known
        self._now_ms = now_ms
        self._pause_s = pause_s
        self._ahead_s = ahead_s
        self._send_again = send_again
        self._nudge = trio.Event()

    def nudge(self) -> None:
        """Act now."""
        self._nudge.set()

    async def run(self) -> None:
        """Cancel and move again and again, until cancelled."""
        while True:
            self._nudge = trio.Event()
            with trio.move_on_after(self._chance.expovariate(1 / self._pause_s)):
                await self._nudge.wait()
            known = self._known()
            if not known:
                continue
            await self._wait_for_due(known)
            with contextlib.suppress(*_ENDS):
                stream = await self._connect()
                try:
                    await self._act(Producer(stream), known)
                finally:
                    await trio.aclose_forcefully(stream)

    async def _wait_for_due(self, known: Sequence[Sent]) -> None:
        """Wait until about when a message is due, in most cases: that is where races are."""
        now_ms, chance = self._now_ms(), self._chance
        ahead = [one.due_ms - now_ms for one in known if one.due_ms > now_ms]
        wait_ms = min(ahead, default=0) + chance.choice((-1000, -50, -5, 0, 1, 20))
        if chance.random() < 0.6 and 0 < wait_ms < self._pause_s * 1000:
            with trio.move_on_after(wait_ms / 1000):
                await self._nudge.wait()

    async def _act(self, producer: Producer, known: Sequence[Sent]) -> None:
        chance, now_ms = self._chance, self._now_ms()
        if self._send_again is not None and chance.random() < 0.3:
            await self._send_again(producer, chance.choice(known))
            return
        has_come = self._fates.has_come
        near = sorted(known, key=lambda one: (has_come(one.message_id), abs(one.due_ms - now_ms)))
        chosen = [chance.choice(chance.choice((near[:6], near[:6], known, known[-8:])))]
        chosen += chance.sample(known, min(chance.choice(_AT_ONCE) - 1, len(known)))
        await self._change(producer, chosen)
        if self._send_again is not None and chance.random() < 0.25:
            await self._send_again(producer, chosen[0])
            return
        while chance.random() < 0.4:
            # Whoever is told that it is being sent asks again, and others change their minds.
            await trio.sleep(chance.choice((0.0, 0.1, 1.0, 5.0)))
            await self._change(producer, chosen)

    def _to_ms(self, now_ms: int) -> int | None:
        chance = self._chance
        if chance.random() < 0.5:
            return None
        kind = chance.random()
        if kind < 0.3:
            return now_ms + chance.randint(-2000, 2000)
        if kind < 0.6:
            return now_ms + chance.randint(0, 90_000)
        return now_ms + round(chance.uniform(0, self._ahead_s) * 1000)

    async def _change(self, producer: Producer, chosen: Sequence[Sent]) -> None:
        """Ask for changes in one request, and have the answers judged."""
        now_ms, chance = self._now_ms(), self._chance
        changes = []
        for one in chosen:
            moved_ms = self._fates.moved_to(one.message_id)
            due_ms: int | None = one.due_ms
            if moved_ms is not None and chance.random() < 0.8:
                due_ms = moved_ms
            due_ms = None if not due_ms or chance.random() < _UNTIMED else due_ms
            changes.append(Change(one.subject, one.message_id, due_ms, self._to_ms(now_ms)))
        asks = [self._fates.asked(one, change) for one, change in zip(chosen, changes, strict=True)]
        answer: Frame | None = None
        try:
            with trio.move_on_after(_ANSWER_S):
                body = encode_change(ChangeRequest(items=tuple(changes)))
                answer = await producer.answer(await producer.post(body, code=CommandCode.CHANGE))
        finally:
            if answer is None or answer.code == ResponseCode.BROKER_ERROR:
                for ask in asks:
                    self._fates.unanswered(ask)
        if answer is None:
            raise trio.BrokenResourceError("no answer")
        if answer.code == ResponseCode.SUCCESS:
            for result in decode_change_reply(answer.body).results:
                self._fates.answered(asks[result.item], result)
        elif answer.code != ResponseCode.BROKER_ERROR:
            # The clock may have been set meanwhile: then nothing was done.
            assert answer.code == ResponseCode.PARAM_ERROR, answer
