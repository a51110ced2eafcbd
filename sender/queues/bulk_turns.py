"""Whose turn it is to make a large request: one group's in each round of the loop.

A request of a thousand items takes a millisecond or two to make. If every group made one in the
same round of the event loop, whatever has become due meanwhile would wait for all of them, and that
once for each round it takes to leave. So groups that have much to send take turns.
"""

import math
from collections.abc import Callable
from typing import Final

import trio

from delay_transport.seams.outbox import Wakeup

_TURNS_S: Final = 0.05
"""How long after a small request there are turns."""


class BulkTurns:
    """The turns of the groups of one sender.

    Nobody waits for a group that does not use its turn, one that asks alone need not wait, and
    nobody need where nothing small was sent of late, which would wait as well.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, Callable[[], None]] = {}
        """For each group that was told to wait how it is woken; the longest waiting first."""
        self._granted: set[int] = set()
        """Groups that were woken and have not used their turns."""
        self._latest: int | None = None
        """The group that had the latest turn."""
        self._more = Wakeup()
        self._until = -math.inf
        """Until then there are turns."""

    def small_sent(self, now: float) -> None:
        """Hear that a request was made beside the large ones, of what must not wait for them."""
        self._until = now + _TURNS_S

    def take(self, number: int, now: float, wake: Callable[[], None]) -> bool:
        """Take the turn of the group of this number; if it has none yet, have it woken then."""
        if number in self._granted:
            self._granted.remove(number)
            return True
        is_free = not self._waiting and self._latest in {None, number}
        if is_free or now > self._until:
            self._latest = number
            return True
        self._waiting[number] = wake
        self._more.wake()
        return False

    def forget(self, number: int) -> None:
        """Hear that there is no such group any more, nor will be."""
        self._waiting.pop(number, None)
        self._granted.discard(number)

    async def run(self) -> None:
        """Give one turn in each round; ends only when it is cancelled."""
        while True:
            if not self._waiting:
                await self._more.sleep()
                continue
            self._latest = next(iter(self._waiting))
            wake = self._waiting.pop(self._latest)
            self._granted.add(self._latest)
            wake()
            await trio.lowlevel.checkpoint()
