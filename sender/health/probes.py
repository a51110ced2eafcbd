"""What is risked on a broker group that was given up, or that is slow: single items. Pure.

A trial that is not answered says nothing of how the group is by now: it may have been swallowed, or
be delayed by what is over. So while others take what there is, a few more are sent, each a while
after the one before. An answer to a later one *overtakes* those before it: how long these take, and
that their time runs out, counts no more. Where there is nobody else nothing more is risked.
"""

from collections.abc import Collection, Iterable
from typing import Protocol


class TrialRequest(Protocol):
    """A request in flight."""

    sent_at: float
    """In seconds."""
    is_trial: bool
    """Whether it is of no more items than may be risked, to a group that was on trial or slow."""
    is_further: bool
    """Whether it was sent while an earlier trial was not answered."""
    is_overtaken: bool
    """Whether a later trial was answered before it."""

    size: int
    """Bytes of its items."""

    @property
    def count(self) -> int:
        """Its items."""


class Trials:
    """The trials of one group. Times are in seconds, of a clock that does not go back.

    Invariant: the `overtaken_…` are the sums over the requests in flight that are overtaken.
    """

    def __init__(self, *, again_s: float, others_items: int) -> None:
        self.overtaken_requests = 0
        self.overtaken_items = 0
        self.overtaken_bytes = 0
        self._again_s = again_s
        self._others_items = others_items
        self._others = 0
        """What other groups had been given when the latest trial was sent."""

    def may_send_further(
        self, in_flight: Collection[TrialRequest | None], *, others: int, now: float
    ) -> bool:
        """Say whether one more may be risked, though what is in flight is not answered.

        `in_flight` is in the order of sending (None: a heartbeat), `others` is how many items
        other groups were given since the start.
        """
        if others - self._others < self._others_items:
            return False
        newest: TrialRequest | None = None
        for request in in_flight:
            if request is not None and not request.is_overtaken:
                if not request.is_trial:
                    return False
                newest = request
        return newest is not None and now - newest.sent_at >= self._again_s

    def sent(self, *, others: int) -> None:
        """Hear that a trial is sent."""
        self._others = others

    def answered(self, request: TrialRequest, in_flight: Iterable[TrialRequest | None]) -> None:
        """Hear that a request was answered, by which an item was taken."""
        if not request.is_further or request.is_overtaken:
            return
        for other in in_flight:
            if other is None or other.is_overtaken:
                continue
            if other.sent_at < request.sent_at:
                other.is_overtaken = True
                self.overtaken_requests += 1
                self.overtaken_items += other.count
                self.overtaken_bytes += other.size

    def landed(self, request: TrialRequest) -> None:
        """Hear that a request is in flight no more, before anything else is heard of it."""
        if request.is_overtaken:
            self.overtaken_requests -= 1
            self.overtaken_items -= request.count
            self.overtaken_bytes -= request.size
