"""What receivers saw, and what has to be true of it whatever they do.

    never early   no item arrives before its own due time, that of a LATER included
    whole         an item is one that was sent, or put in its place by a LATER
    credit        no more is unsettled on a connection than a FLOW that may have counted allows
    settled       a sequence of which a SETTLE was answered with 0 never comes again, in no life of
                  the server (checkers.py sees to it that it is durable); it is believed once, and
                  only from the connection that has it
    lease         after a lease of silence nothing comes, and nothing is believed
    alone         what two receivers of this life left with comes to one that holds nothing else,
                  and nothing comes beside it; what as many left with as give it up comes no more
    attempt       is at most one more than the tries of this life that were not released; and not
                  less, unless an operator held the message back since

That nothing is lost, late or sent twice without need is judged with what brokers got: a DONE is a
receipt (witness.py), and REFUSED is what brokers do to poison.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from delay_protocol.messages.items import item_message_ids
from delay_protocol.receivers.attaching import ALONE_AFTER, LEASE_S, UNSETTLED_TRIES
from delay_protocol.receivers.delivering import Delivered, Verdict
from tests.simulation.witness import Receipt, Witness

_MARGIN_S = 1.0
_LOST_S = 45.0
"""What went to a connection that was lost without a word comes again within this time."""
_LATE_S = 10.0
"""What was under way on a link that was silent for a while comes within this time after others."""


@dataclass(eq=False, slots=True)
class Held:
    """A message on the connection that it came to."""

    sequence: int
    item: bytes
    receipt: Receipt
    """Of it, should the receiver be done with it."""
    verdict: Verdict
    ready_s: float
    """When it is settled."""
    instead: bytes = b""
    """The item of a LATER."""
    is_doubtful: bool = False
    """Whether a SETTLE of it was answered with an error, and may have been done nevertheless."""


@dataclass(eq=False, slots=True)
class Line:
    """One connection of a receiver, once it is attached."""

    group: str
    life: int
    attached_s: float
    open: dict[int, Held] = field(default_factory=dict)
    """By sequence what came and was not settled."""
    flows: list[tuple[float, int, int]] = field(default_factory=list)
    """What it said it takes: when, items, bytes."""
    has_ended: bool = False

    @property
    def flow_s(self) -> float:
        """When it said last that it is there."""
        return self.flows[-1][0] if self.flows else self.attached_s

    def credit(self, since_s: float) -> tuple[int, int]:
        """Return the most items and bytes of the FLOWs that may have counted since then."""
        before = [flow for flow in self.flows if flow[0] <= since_s][-1:]
        found = before + [flow for flow in self.flows if flow[0] > since_s]
        return max((flow[1] for flow in found), default=0), max(
            (flow[2] for flow in found), default=0
        )


@dataclass(frozen=True, slots=True)
class _Odd:
    """An attempt that is only right if something went wrong that nobody saw."""

    what: str
    from_s: float
    at_s: float


@dataclass(slots=True)
class Receiving:
    """The judge of all receivers of a world."""

    witness: Witness
    counts: Counter[str]
    may_lack_space: Callable[[], bool]
    """Says whether a LATER may find no disk space: then its message comes again."""
    lines: list[Line] = field(default_factory=list)
    """Those that have not ended."""
    _life: int = 0
    settled: dict[int, bytes] = field(default_factory=dict)
    """By sequence: the ids of messages whose receiver heard that its verdict is durable."""
    _settled_s: dict[int, float] = field(default_factory=dict)
    """By sequence: when it heard so."""
    _tries: Counter[tuple[int, int]] = field(default_factory=Counter)
    """By life and sequence: how often it came and was not released."""
    _left: Counter[tuple[int, int]] = field(default_factory=Counter)
    """By life and sequence: how many receivers left with it and had not settled it."""
    _came: dict[int, tuple[Line, float]] = field(default_factory=dict)
    """By sequence, on which connection a message came last, and when."""
    _odd: list[_Odd] = field(default_factory=list)

    def server_started(self) -> None:
        """Note that a life of the server begins."""
        self._life += 1

    def attached(self, group: str) -> Line:
        """Note that a connection is attached."""
        line = Line(group, self._life, trio.current_time())
        self.lines.append(line)
        return line

    def ended(self, line: Line) -> None:
        """Note that a connection is gone: what is unsettled goes to others."""
        line.has_ended = True
        self.lines.remove(line)
        for sequence, held in line.open.items():
            self._left[line.life, sequence] += 1
            # A link that is silent may have lost some more on the way.
            is_unruly = not self.witness.deadly_one_in
            if is_unruly and self._left[line.life, sequence] >= UNSETTLED_TRIES // 2:
                self.witness.may_die.add(held.receipt.message_id)
        self.witness.broker_trouble(line.group)

    def others(self, line: Line) -> list[int]:
        """Return what is unsettled on other connections."""
        return [sequence for one in self.lines if one is not line for sequence in one.open]

    # -- what comes --------------------------------------------------------------------------

    def delivered(self, line: Line, one: Delivered) -> Receipt | None:
        """Judge what came; return the receipt of it, None if it cannot be one."""
        witness, now_s = self.witness, trio.current_time()
        self.counts["deliveries"] += 1
        message_id = item_message_ids(one.item, [len(one.item)])[0]
        due_ms, wall_ms = witness.due_of(message_id, one.item), witness.latest_wall_ms()
        if due_ms is None:
            self._complain("whole", f"{message_id!r} arrived with other bytes")
            return None
        if wall_ms < due_ms:
            self._complain("never early", f"{message_id!r} by {due_ms - wall_ms} ms")
        settled_s = self._settled_s.get(one.sequence)
        if settled_s is not None and not self._is_excused(message_id):
            is_under_way = line.attached_s < settled_s and now_s < settled_s + witness.under_way_s
            if not is_under_way:
                self._complain("settled", f"{one.sequence} at {settled_s:.3f}, and comes again")
        if now_s > line.flow_s + LEASE_S + witness.under_way_s + _MARGIN_S:
            self._complain("lease", f"{one.sequence} came though the last FLOW was {line.flow_s}")
        self._judge_attempt(line, one, message_id)
        if self.witness.deadly_one_in:
            self._judge_alone(line, one.sequence)
        self._tries[line.life, one.sequence] += 1
        self._came[one.sequence] = line, now_s
        witness.came(message_id, one.item, line.group)
        return Receipt(message_id, one.item, now_s, wall_ms, line.group)

    def check_credit(self, line: Line) -> None:
        """Hold what is unsettled against what the connection takes; call it when something came."""
        held = [one for one in line.open.values() if not one.is_doubtful]
        items, size = line.credit(trio.current_time() - self.witness.under_way_s)
        found = sum(len(one.item) for one in held)
        if len(held) > items or found > size:
            self._complain("credit", f"{len(held)} of {items} items, {found} of {size} bytes")

    def _judge_alone(self, line: Line, sequence: int) -> None:
        """Judge what comes beside a message that others have left with."""
        left = {one: self._left[line.life, one] for one in (sequence, *line.open)}
        if len(left) > 1 and max(left.values()) >= ALONE_AFTER:
            self._complain("alone", f"{sequence} came beside others: {left}")
        if left[sequence] >= UNSETTLED_TRIES:
            self._complain("alone", f"{sequence} came again after {left[sequence]} left with it")
        self.counts["came alone"] += max(left.values()) >= ALONE_AFTER

    def _judge_attempt(self, line: Line, one: Delivered, message_id: bytes) -> None:
        witness, now_s = self.witness, trio.current_time()
        began_s = witness.life_began(line.attached_s)
        seen = self._tries[line.life, one.sequence]
        elsewhere = sum(
            at_s >= began_s and name not in witness.receivers
            for at_s, name in witness.sightings.get(message_id, ())
        )
        what = f"{one.sequence} came as attempt {one.attempt} after {seen} and {elsewhere} tries"
        if one.attempt < 1 + seen:
            before, came_s = self._came[one.sequence]
            # On another connection it may have been under way since before that.
            is_late = before is not line and now_s < came_s + _LATE_S
            if witness.rules_changed_s < came_s and not is_late:
                self._complain("attempt", what)
            # It was taken back, to disk or to wait for its rate, and nobody knows of its tries.
            self._tries[line.life, one.sequence] = one.attempt - 1
        if one.attempt > 1 + seen + elsewhere and message_id not in witness.moved_s:
            due_s = now_s - (witness.clock.now_ms() - witness.due_ms[message_id]) / 1000
            from_s = max(began_s, min(due_s, now_s) - _LOST_S)
            self._odd.append(_Odd(what, from_s, now_s + _LOST_S))
        self.counts["attempts beyond the first"] += one.attempt > 1

    # -- what becomes of it ------------------------------------------------------------------

    def settling(self, line: Line, held: Held) -> None:
        """Note what a receiver is about to say of a message."""
        witness = self.witness
        line.open.pop(held.sequence, None)
        self.counts[f"settled {held.verdict.name}"] += 1
        message_id = held.receipt.message_id
        if held.verdict is Verdict.DONE and not held.is_doubtful:
            witness.take([held.receipt])
        elif held.verdict is Verdict.RELEASE:
            self._tries[line.life, held.sequence] -= 1
        elif held.verdict in {Verdict.LATER, Verdict.REFUSED}:
            witness.moved_s[message_id] = trio.current_time()

    def answered(
        self, line: Line, chosen: list[Held], strangers: int, unknown: int, asked_s: float
    ) -> None:
        """Judge the answer to a SETTLE: all that it says is durable."""
        now_s = trio.current_time()
        doubtful = sum(one.is_doubtful for one in chosen)
        if not strangers <= unknown <= strangers + doubtful:
            what = f"{unknown} are unknown of {len(chosen)}, with {strangers} of others"
            self._complain("settled", what)
        if chosen and unknown < strangers + len(chosen):
            silent_s = asked_s - line.flow_s
            if silent_s > LEASE_S + self.witness.under_way_s + _MARGIN_S:
                self._complain("lease", f"believed {silent_s:.1f} s after the last FLOW")
        self.counts["settles answered"] += 1
        for one in chosen:
            if one.verdict is Verdict.RELEASE or (one.is_doubtful and unknown > strangers):
                continue
            if one.verdict is Verdict.LATER and self.may_lack_space():
                continue
            message_id = one.receipt.message_id
            is_again = one.sequence in self.settled and not one.is_doubtful
            if is_again and not self._is_excused(message_id):
                self._complain("settled", f"{one.sequence} was settled twice")
            self.settled[one.sequence] = message_id
            self._settled_s[one.sequence] = now_s
            if one.verdict is Verdict.DONE:
                one.receipt.sure, one.receipt.durable_s = True, now_s

    def _is_excused(self, message_id: bytes) -> bool:
        """Say whether what is known of a message may have been damaged."""
        return message_id in self.witness.lost or message_id in self.witness.doubled

    def check(self) -> list[str]:
        """Return attempts that nothing explains, as violations."""
        witness = self.witness
        return [
            f"attempt: {one.what}"
            for one in self._odd
            if not witness.any_trouble(one.from_s, one.at_s)
        ][:5]

    def _complain(self, promise: str, what: str) -> None:
        self.witness.complain(f"{promise}: at a receiver {what} (at {trio.current_time():.3f})")
