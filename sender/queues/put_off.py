"""Entries that wait for a time: for the end of their backoff, or for a clock that was set back."""

import math
import random
from collections.abc import Iterator
from typing import Final

import numpy as np
import trio

from delay_transport.seams.backoff import Backoff
from delay_transport.seams.runtime import Clock
from sender.queues.parcels import Batch, Parcel, Shelf, gathered
from sender.queues.places import HeldPart, Where

_RELEASE_STEP_S: Final = 1 / 32
"""What was refused for good is released in steps of this long at the most: each release costs."""

_CLOCK_CHECK_S: Final = 1.0
"""While entries wait because the clock was set back: how often it is read again."""


class PutOff:
    """The entries of a sender that may not be sent before a time, each in its lane.

    It keeps them on two shelves, with the backoff of each kind of failure. The sender puts entries
    here, asks when to look again, and takes those whose time has come.
    """

    def __init__(
        self,
        *,
        retry: Backoff,
        retry_refused: Backoff,
        clock: Clock,
        chance: random.Random,
    ) -> None:
        """Look at the clock each _CLOCK_CHECK_S while anything waits for it."""
        self._clock = clock
        self._chance = chance
        self._steps_from = trio.current_time()
        # Times are trio's in the one and the wall's (ms) in the other.
        self._retries = Shelf()
        self._early = Shelf()
        self._retry = retry
        self._retry_refused = retry_refused

    @property
    def retrying(self) -> int:
        """Entries that wait for the end of their backoff."""
        return self._retries.count

    @property
    def early(self) -> int:
        """Entries that wait for the clock, which was set back after they became due."""
        return self._early.count

    def retry(self, batch: Batch, *, avoid: int) -> None:
        """Keep entries for a while that depends on how often each was tried."""
        now = trio.current_time()
        for part in _by_tries(batch, avoid):
            self._retries.put(now + self._retry.wait_s(int(part.tries[0]), self._chance), part)

    def retry_refused(self, batch: Batch, *, avoid: int) -> None:
        """Keep entries that were refused for good, for a longer while."""
        now, start = trio.current_time(), self._steps_from
        for part in _by_tries(batch, avoid):
            wait_s = self._retry_refused.wait_s(int(part.tries[0]), self._chance)
            self._retries.put(start + release_at(now - start, wait_s), part)

    def hold_early(self, parcel: Parcel) -> None:
        """Keep entries until the earliest of them is due."""
        self._early.put(int(parcel.entries["due_ms"].min()), parcel)

    def next_at(self) -> float:
        """Return when to look again, in trio's time."""
        at = math.inf if self._retries.next_at is None else self._retries.next_at
        if self._early.next_at is not None:
            # By the wall clock, which may be set again meanwhile: hence the check in between.
            wait_s = (self._early.next_at - self._clock.now_ms()) / 1000
            at = min(at, trio.current_time() + min(wait_s, _CLOCK_CHECK_S))
        return at

    def take_retries(self) -> list[Parcel]:
        """Take the entries whose backoff has ended."""
        return gathered(self._retries.take_until(trio.current_time()))

    def take_due(self) -> list[Parcel]:
        """Take the entries that were early and are due now."""
        now_ms = self._clock.now_ms()
        due: list[Parcel] = []
        for parcel in self._early.take_until(now_ms):
            is_early = parcel.entries["due_ms"] > now_ms
            due.append(parcel.where(~is_early))
            if is_early.any():
                self.hold_early(parcel.where(is_early))
        return due

    def parts(self) -> Iterator[HeldPart]:
        """Yield everything, and what it waits for; it stays."""
        for where, shelf in ((Where.PUT_OFF, self._retries), (Where.EARLY, self._early)):
            for parcel in shelf.parcels():
                yield HeldPart(where, parcel.lane, None, parcel.entries)


def release_at(now: float, wait_s: float) -> float:
    """Return the end of a wait, put off a little so that others end with it: a 16th at the most."""
    step_s = min(_RELEASE_STEP_S, 2.0 ** math.floor(math.log2(wait_s / 16)))
    return math.ceil((now + wait_s) / step_s) * step_s


def _by_tries(batch: Batch, avoid: int) -> Iterator[Parcel]:
    """Yield the entries of a batch after another try, by lane and by how often each was tried."""
    for parcel in batch.by_lane():
        counts = sorted(set(parcel.tries.tolist()))
        for count in counts:
            # A copy: one entry that waits for minutes must not keep the array it came in.
            part = parcel.copy() if len(counts) == 1 else parcel.where(parcel.tries == count)
            part.tries += np.uint32(1)
            part.avoid = avoid
            yield part
