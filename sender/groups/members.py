"""Receivers that are attached under a name, and the one of them that has a message alone.

Messages go out alone that receivers left with again and again: one of them may end its process.

    others --> a member is kept free --> it is free --> it has the message --> it is free --> others
               and gets nothing more                    and nothing beside it           have a turn

One member of a group at a time does so. The others take what they would take without it; where
there is no other, a message alone and what is not alone take turns. Free is who holds nothing, or
nothing that came less than KEPT_S ago: a handler that takes longer would hold up all else of a name
that has one receiver.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from delay_protocol.receivers.attaching import CREDIT_BYTES_MAX, CREDIT_ITEMS_MAX, Attach, Flow
from delay_transport.connections.connection import Connection
from sender.groups.taking import PatternSet, Takers
from sender.queues.lanes import LaneQueue
from sender.queues.parcels import Batch

KEPT_S: Final = 30.0
"""Time that a message held by a member is waited for."""
_UNSENT_BYTES_MAX: Final = 1024 * 1024
"""Bytes that a receiver has not taken beyond which it gets nothing more."""


@dataclass(eq=False, slots=True)
class Attachment:
    """A receiver on one connection, as a member of its group."""

    connection: Connection
    attach: Attach
    brought: PatternSet
    lease_until: float
    """When all that is unsettled goes to others, in trio's time, if it does not say anything."""
    credit: Flow = field(default_factory=lambda: Flow(items=0, reason="it has not said so yet"))
    """Limit on what may be unsettled with it."""
    unsettled: dict[int, tuple[Batch, int]] = field(default_factory=dict)
    """By sequence, what was delivered and not settled: the delivery, and the place in it."""
    unsettled_bytes: int = 0
    served: float = 0.0
    """Messages that it was given, by its weight: who has least of it is next."""

    @property
    def items_left(self) -> int:
        """Number of further items it takes."""
        return max(min(self.credit.items, CREDIT_ITEMS_MAX) - len(self.unsettled), 0)

    @property
    def bytes_left(self) -> int:
        """Number of further bytes it takes."""
        return max(min(self.credit.bytes, CREDIT_BYTES_MAX) - self.unsettled_bytes, 0)

    def takes(self, takers: Takers) -> bool:
        """Return True if it is among these takers."""
        return self.brought.is_known if takers is None else self.brought in takers

    def free_in_s(self, now_ms: int) -> float:
        """Return in how many seconds it is free at the latest; 0 if it is. now_ms: wall ms."""
        if not self.unsettled:
            return 0.0
        newest, _ = self.unsettled[next(reversed(self.unsettled))]
        # A clock that was set back by an hour does not make it an hour.
        return max(KEPT_S - abs(now_ms - newest.sent_ms) / 1000, 0.0)

    @property
    def is_choked(self) -> bool:
        """True if it does not take what was sent."""
        return self.connection.unsent_bytes > _UNSENT_BYTES_MAX


class Alone:
    """The messages of one group that go out alone, and the member that has one, or will have it."""

    def __init__(self, *, turn_items: int) -> None:
        self.queues = defaultdict[Takers, LaneQueue](lambda: LaneQueue(turn_items=turn_items))
        """Waiting items, by who takes them."""
        self.member: Attachment | None = None
        """The member that gets nothing else."""
        self._is_out = False
        """True if the member has it."""
        self._is_others_turn = False

    def choose(
        self, ready: Sequence[Attachment], now_ms: int
    ) -> tuple[Attachment, LaneQueue] | None:
        """Return the queue of which one message goes out now, and to whom; None if none does.

        `ready` are the members that take more. One of them is kept free from now on if need be.
        """
        if self._is_out and self.member is not None and not self.member.free_in_s(now_ms):
            self.member, self._is_out, self._is_others_turn = None, False, True
        if self._is_out or self._is_others_turn or (self.member is None and not self.queues):
            return None
        for takers in [takers for takers, queue in self.queues.items() if not queue.count]:
            del self.queues[takers]
        ready = [one for one in ready if any(map(one.takes, self.queues))]
        if self.member not in ready:
            self.member = min(ready, key=lambda one: len(one.unsettled), default=None)
        if self.member is None or self.member.free_in_s(now_ms):
            return None
        self._is_out = True
        takers = next(filter(self.member.takes, self.queues))
        # The other queues have their turns before it.
        queue = self.queues[takers] = self.queues.pop(takers)
        return self.member, queue

    def others_had_turn(self) -> bool:
        """Let a message go out alone next; return True if none could before, and some wait."""
        was_theirs, self._is_others_turn = self._is_others_turn, False
        return was_theirs and bool(self.queues)
