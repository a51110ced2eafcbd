"""What a fake cluster keeps: one list of messages by due time, and who gets them. No I/O.

It does as a meta server and delay servers do with receivers:

* A message goes to every name of which a pattern takes its subject. Where there are several each
  has a copy of its own when it is due, and what one does with it the others do not see.
* A message without a receiver waits, also after its receiver has come and gone.
* A message that is sent again within ten minutes is the first one, as long as that was not
  cancelled and is no dead letter.
* Receivers of one name share by weight, and none gets more than it takes, or other subjects than
  its own patterns take.
"""

import logging
import math
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from delay_client.messages.due_times import due_at
from delay_client.messages.envelope import decode_envelope
from delay_client.messages.errors import Unavailable
from delay_client.messages.item_encoder import EncodedItem
from delay_client.messages.message import Outcome, Receipt, moment
from delay_client.messages.verdicts import item_refusal
from delay_client.receiving.attachment import Attachment, Shared
from delay_client.receiving.errors import ReceiverRefusedError
from delay_client.receiving.message import ReceivedMessage
from delay_client.receiving.settings import RetryPolicy
from delay_protocol.basics.codes import ItemCode
from delay_protocol.basics.levels import parse_levels
from delay_protocol.basics.subjects import Patterns, real_subject, retry_group, subject_fault
from delay_protocol.messages.changes import Change, ChangeReply, ChangeResult, ChangeState
from delay_protocol.messages.items import FLAG_DELAY, decode_item, item_subject
from delay_protocol.messages.origin import TIMES_KEY, count_of, first_due_ms
from delay_protocol.messages.repeats import is_repeat
from delay_protocol.receivers.attaching import ALONE_AFTER, UNSETTLED_REASON
from delay_protocol.receivers.delivering import Delivered, Settled, Verdict

logger = logging.getLogger("delaywheel.receiver")

FAKE_SERVER: Final = "fake-cluster:1"
"""The address that receipts and errors name."""

_DAY_MS: Final = 86_400_000
_WINDOW_MS: Final = 600_000
"""The time for which a message that is sent again is known: `duplicates.window_ms` of a server."""
_PAST_MS: Final = 60_000
"""By so much a message may be moved into the past: clocks differ."""


_WITH_RECEIVER: Final = {ChangeState.SENDING, ChangeState.DELIVERED}


class StoredMessage:
    """A message as the cluster keeps it; one whose retry was asked for is another, with its id."""

    def __init__(self, sequence: int, data: bytes) -> None:
        item = decode_item(data)
        self.subject = _real(item.subject)
        self.id, self.tags = item.message_id, item.tags
        self.body, self.headers, self.content_type = decode_envelope(item.attributes)
        self.due_ms = item.due_ms if item.flag & FLAG_DELAY else item.create_ms
        self.known_as = {None, self.due_ms, first_due_ms(item)}
        """Due times by which it may be cancelled or moved; None: any."""
        self.origin = self
        """The message as it was sent, which this is a retry, a move or a copy of."""
        self.at_ms = 0
        """When a receiver got it, or when it came to its end."""
        self.attempts = self._attempts_before = count_of(item.attributes, TIMES_KEY)
        """How many times a receiver had it; what was released or put off does not count."""
        self.unsettled = 0
        """Number of receivers that left with it and had not settled it."""
        self.receiver = ""
        """Name that a copy is for; else who has it, or had it last."""
        self.is_copy = False
        """True if it is for one of several names."""
        self.reason = ""
        """Why it was refused, cancelled or moved, if it was."""
        self.data = data
        self.sequence = sequence
        if group := retry_group(item.subject):
            self.receiver, self.is_copy = group, True

    @property
    def due(self) -> datetime:
        """When it is due, in UTC."""
        return moment(self.due_ms)

    @property
    def goes_alone(self) -> bool:
        """True if it comes alone, since it may end its receiver."""
        return self.unsettled >= ALONE_AFTER

    def take_place_of(self, other: "StoredMessage") -> None:
        """Be for whom another message was, which this one stands for now."""
        self.receiver, self.is_copy = other.receiver, other.is_copy
        self.origin = other.origin

    def delivered(self) -> Delivered:
        """Count an attempt, and return what goes to the receiver."""
        self.attempts += 1
        return Delivered(self.sequence, self.attempts - self._attempts_before, self.data)

    def __repr__(self) -> str:
        return f"<message {self.id!a} of {self.subject!a}, due {self.due}>"


class Taker(Attachment):
    """A receiver's attachment to a schedule: verdicts are kept as they are given."""

    def __init__(self, shared: Shared, schedule: "Schedule") -> None:
        super().__init__(FAKE_SERVER, shared)
        shared.levels_ms = parse_levels(schedule.levels)
        self._schedule = schedule
        self.name, self._weight = shared.attach.name, shared.attach.weight
        self.takes = Patterns(shared.attach.patterns).take

    @property
    def unsettled(self) -> set[int]:
        """Sequences of the messages that are here without a verdict."""
        return set(self._unsettled)

    @property
    def served(self) -> float:
        """Messages that it was given, by its weight."""
        return self._shared.counts.received / self._weight

    def now_ms(self) -> int:
        """Return the cluster's time."""
        return self._schedule.now_ms

    def set_policy(self, policy: RetryPolicy | None) -> None:
        """Go by a retry policy that an operator set; None: by its own."""
        self._shared.policy = policy

    def enter(self) -> None:
        """Note that messages may come."""
        self._attached_at = 0.0

    def leave(self) -> None:
        """Forget what is here, and drop verdicts that come later."""
        self._take_unbegun()
        self._clear()
        self._connection += 1

    def has_room(self, size: int = 0) -> bool:
        """Whether it takes one more message, of so many bytes, now."""
        flow = self.credit
        return len(self._unsettled) < flow.items and self._unsettled_bytes + size <= flow.bytes

    def deliver(self, delivered: Delivered) -> None:
        """Take a message."""
        self._take([delivered], self._schedule.now_ms / 1000)
        self._shared.ring()

    def settle(self, message: ReceivedMessage, verdict: Verdict, rest: bytes = b"") -> None:
        """Pass the verdict on, unless the message has one or the receiver has left."""
        super().settle(message, verdict, rest)
        for waiting in (self._verdicts, self._laters):
            while waiting.rows:
                self._schedule.settle(waiting.rows.popleft())


class Schedule:
    """The list, its clock, the routes, and the receivers that are attached.

    Invariant: a message is in `waiting`, in due order, or with a receiver in `unsettled`, or in
    `done`, in `refused` or in `taken_back`, or it was replaced by its retry or by copies.
    """

    def __init__(self, now_ms: int, *, horizon_ms: int, levels: str) -> None:
        self.now_ms = now_ms
        self.levels = levels
        self.why_down = ""
        """Why nothing is taken or delivered at present; empty if it is."""
        self.sent: list[StoredMessage] = []
        self.waiting: list[StoredMessage] = []
        self.unsettled: dict[int, StoredMessage] = {}
        self.done: list[StoredMessage] = []
        self.refused: list[StoredMessage] = []
        self.taken_back: list[StoredMessage] = []
        self._sent_at: defaultdict[tuple[str, str], list[tuple[int, StoredMessage]]] = defaultdict(
            list
        )
        """When messages were sent, by subject and id."""
        self._began_ms = now_ms
        self.subscriptions: dict[str, dict[str, None]] = {}
        """The patterns of each name of receivers."""
        self._policies: dict[str, RetryPolicy | None] = {}
        """The retry policies that an operator set, by name."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after each verdict, and when a receiver leaves."""
        self._horizon_ms = horizon_ms
        self._takers: list[Taker] = []
        self._made = 0

    def take(self, encoded: EncodedItem, *, is_past_due: bool) -> Outcome:
        """Keep a message, as a delay server does; return what becomes of it."""
        data, message_id, due_ms, _ = encoded
        subject = item_subject(data).decode()
        if self.why_down:
            text = f"{FAKE_SERVER} takes no messages ({self.why_down}): send it again later"
            return Unavailable(text, message_id=message_id, server=FAKE_SERVER, attempts=1)
        code, fault = ItemCode.SUBJECT_NOT_ASSIGNED, subject_fault(item_subject(data))
        if not fault:
            code, fault = ItemCode.BLOCK, self._beyond_horizon(due_ms)
        if fault:
            return item_refusal(code, fault, server=FAKE_SERVER, message_id=message_id, attempts=1)
        first = self._first_of(subject, message_id, data)
        if first is None:
            message = self._keep(data)
            self.sent.append(message)
            self._sent_at[subject, message_id].append((self.now_ms, message))
            self.deliver()
        due_ms = due_ms if first is None else first.due_ms
        is_duplicate = first is not None
        more = (FAKE_SERVER, 1, is_duplicate, False, is_past_due, subject)
        return Receipt(message_id, due_ms, *more)

    def _first_of(self, subject: str, message_id: str, data: bytes) -> StoredMessage | None:
        """Return the message of which an item is a repeat."""
        alive = (*self.waiting, *self.unsettled.values(), *self.done)
        origins = {message.origin for message in alive}
        for at_ms, message in self._sent_at.get((subject, message_id), ()):
            is_known = self.now_ms <= at_ms + _WINDOW_MS and message in origins
            if is_known and is_repeat(data, message.data):
                return message
        return None

    def change(self, asked: Sequence[Change]) -> ChangeReply:
        """Cancel or move messages, as a delay server does."""
        results = [
            replace(result, item=item)
            for item, change in enumerate(asked)
            for result in self._change(change)
        ]
        self.deliver()
        return ChangeReply(results=tuple(results), facts_since_ms=self._began_ms)

    def fault_of(self, change: Change) -> str:
        """Return why a message may not be moved to its new time; empty if it may."""
        if change.to_ms is None:
            return ""
        if change.to_ms < self.now_ms - _PAST_MS:
            return f"{change.message_id!a} is to be moved into the past: cancel it"
        return self._beyond_horizon(change.to_ms)

    def _change(self, change: Change) -> Iterable[ChangeResult]:
        """Return what became of a message for each name."""
        took = ChangeState.CANCELLED if change.to_ms is None else ChangeState.MOVED
        found: dict[str, ChangeResult] = {}
        for messages, state in (
            (list(self.waiting), took),
            (self.unsettled.values(), ChangeState.SENDING),
            (self.done, ChangeState.DELIVERED),
            (self.refused, ChangeState.DEAD),
            (self.taken_back, ChangeState.CHANGED_BEFORE),
        ):
            for message in messages:
                name = message.receiver if message.is_copy else ""
                names = (message.subject, message.id)
                is_meant = names == (change.subject, change.message_id)
                if not is_meant or change.due_ms not in message.known_as or name in found:
                    continue
                due_ms, at_ms = message.due_ms, message.at_ms or None
                if state is took:
                    due_ms, at_ms = self._take_back(message, change.to_ms), None
                to = message.receiver if state in _WITH_RECEIVER else ""
                again_ms = 1000 if state is ChangeState.SENDING else None
                reason = message.reason if state is ChangeState.CHANGED_BEFORE else ""
                found[name] = ChangeResult(0, state, name, due_ms, at_ms, to, again_ms, reason)
        unknown = ChangeResult(0, ChangeState.UNKNOWN, due_ms=change.due_ms)
        return found.values() or (unknown,)

    def _take_back(self, message: StoredMessage, to_ms: int | None) -> int:
        """Take out a message that waits, or put it at another time; return when it is due."""
        self.waiting.remove(message)
        message.reason = "cancelled" if to_ms is None else "moved"
        message.at_ms = self.now_ms
        self.taken_back.append(message)
        if to_ms is None:
            return message.due_ms
        again = self._keep(due_at(decode_item(message.data), to_ms))
        again.take_place_of(message)
        return to_ms

    def settle(self, settled: Settled) -> None:
        """Do as the verdict on a message says."""
        message = self.unsettled.pop(settled.sequence)
        message.at_ms = self.now_ms
        if settled.verdict == Verdict.DONE:
            self.done.append(message)
        elif settled.verdict == Verdict.RELEASE:
            message.attempts -= 1
            self._insert(message)
        elif settled.verdict == Verdict.REFUSED:
            message.reason = settled.rest.decode()
            self.refused.append(message)
        else:
            again = self._keep(settled.rest)
            again.take_place_of(message)
            again.known_as |= message.known_as
            again.is_copy = message.is_copy or len(self._names_of(message.subject)) > 1
            if fault := self._beyond_horizon(again.due_ms):
                self.waiting.remove(again)
                message.reason = f"given up, since it could not come again: {fault}"
                self.refused.append(message)
        self.deliver()
        self.on_change()

    def attach(self, taker: Taker, patterns: Sequence[str]) -> None:
        """Add patterns to the subscription of a receiver, which then takes.

        Raises ReceiverRefusedError.
        """
        for pattern in dict.fromkeys(patterns):
            subject = pattern.removesuffix("*")
            is_bad = subject_fault(subject.encode()) is not None or "*" in subject
            if is_bad or _real(subject) != subject:
                raise ReceiverRefusedError(
                    f"the meta server refuses it: pattern {pattern!a}: a subject, or the beginning "
                    "of subjects with a * behind it"
                )
        self.subscriptions.setdefault(taker.name, {}).update(dict.fromkeys(patterns))
        taker.set_policy(self._policies.get(taker.name))
        taker.enter()
        self._takers.append(taker)
        self.deliver()

    def set_policy(self, name: str, policy: RetryPolicy | None) -> None:
        """Set the retry policy of the receivers of a name; None: their own."""
        self._policies[name] = policy
        for taker in self._takers:
            if taker.name == name:
                taker.set_policy(policy)

    def detach(self, taker: Taker) -> None:
        """Give what a receiver has not settled to others; it may have been at work."""
        self._takers = [other for other in self._takers if other is not taker]
        for sequence in taker.unsettled:
            message = self.unsettled.pop(sequence)
            message.unsettled += 1
            if message.unsettled < taker.retry.unsettled_tries:
                self._insert(message)
            else:
                message.reason = UNSETTLED_REASON
                self.refused.append(message)
        taker.leave()
        self.deliver()
        self.on_change()

    def deliver(self) -> None:
        """Give what is due to receivers, as far as they take it, and what others never began."""
        for taker in self._takers:
            taker.give_back_unbegun(self.now_ms / 1000)
        at = 0
        while at < len(self.waiting) and self.waiting[at].due_ms <= self.now_ms:
            takers = [one for one in self._takers if one.has_room()]
            if self.why_down or not takers:
                return
            message, size = self.waiting[at], len(self.waiting[at].data)
            names = self._names_of(message.subject)
            if not message.is_copy and len(names) > 1:
                self._copy(message, names)
                continue
            if message.is_copy:
                names = [one for one in names if one == message.receiver]
            takers = [one for one in takers if one.name in names and one.takes(message.subject)]
            takers = [one for one in takers if one.has_room(size) and self._fits(one, message)]
            if takers:
                del self.waiting[at]
                self.unsettled[message.sequence] = message
                taker = min(takers, key=lambda one: one.served)
                message.receiver, message.at_ms = taker.name, self.now_ms
                taker.deliver(message.delivered())
            else:
                at += 1

    def _fits(self, taker: Taker, message: StoredMessage) -> bool:
        """Return True unless the message, or one that the taker has, goes alone."""
        held = [self.unsettled[sequence] for sequence in taker.unsettled]
        return not held or not any(one.goes_alone for one in (message, *held))

    def next_event_ms(self) -> float:
        """Return when the next message falls due, or goes to another receiver; else infinity."""
        at = bisect_right(self.waiting, self.now_ms, key=lambda message: message.due_ms)
        due_ms = self.waiting[at].due_ms if at < len(self.waiting) else math.inf
        until_s = min((taker.unbegun_until() for taker in self._takers), default=math.inf)
        return min(due_ms, max(until_s * 1000, self.now_ms + 1))

    def _names_of(self, subject: str) -> list[str]:
        """Return the names that receive a subject."""
        found = self.subscriptions.items()
        return [
            name for name, patterns in found if patterns and Patterns([*patterns]).take(subject)
        ]

    def _copy(self, message: StoredMessage, names: Sequence[str]) -> None:
        """Put a copy for each name in the place of a message."""
        self.waiting.remove(message)
        for name in names:
            copy = self._keep(message.data)
            copy.receiver, copy.is_copy, copy.origin = name, True, message.origin

    def _keep(self, data: bytes) -> StoredMessage:
        self._made += 1
        message = StoredMessage(self._made, data)
        self._insert(message)
        return message

    def _insert(self, message: StoredMessage) -> None:
        insort(self.waiting, message, key=lambda one: (one.due_ms, one.sequence))

    def _beyond_horizon(self, due_ms: int) -> str:
        if due_ms <= self.now_ms + self._horizon_ms:
            return ""
        days, limit = (due_ms - self.now_ms) / _DAY_MS, self._horizon_ms / _DAY_MS
        return f"due in {days:.1f} days, limit {limit:.1f}"


def _real(subject: str) -> str:
    """Return the subject that a retry is of; else the same."""
    return real_subject(subject.encode()).decode()
