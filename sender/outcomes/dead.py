"""Which items were refused for good, by whom, and which of them are given up.

Only what a broker said of a single item counts: neither a refusal of a whole request nor an answer
that does not say. Of what receivers left with, and had not settled, the same is kept apart from it.
What is kept of an item is a reference to its last refusal, which knows the one before; items that
were refused together share both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from sender.outcomes.answers import Codes
from sender.queues.parcels import Batch, Entries, Mask

_TRACKED_MAX: Final = 100_000
"""Items at a time, about 150 bytes each. Further ones are tried on until some of these are dead
letters."""


@dataclass(frozen=True, slots=True, eq=False)
class Refusal:
    """One item refused for good. code: an ItemCode; at_ms: wall ms; number: which one, from 1.

    said: why, in the words of the receiver that refused it, or that it left; empty from a broker.
    """

    group: str
    code: int
    at_ms: int
    number: int
    earlier: "Refusal | None" = None
    said: str = ""

    def all(self) -> list["Refusal"]:
        """Return it and those before it, the oldest first."""
        found: list[Refusal] = []
        refusal: Refusal | None = self
        while refusal is not None:
            found.append(refusal)
            refusal = refusal.earlier
        return found[::-1]


class OnDead(Protocol):
    """Whoever takes what the sender gives up."""

    def __call__(self, entries: Entries, refusals: Sequence[Refusal], tries: Sequence[int]) -> None:
        """Take entries, the last refusal of each, and how often each was sent."""


class Refusals:
    """The items that were refused for good and not given up yet.

    An item is given up when it was refused `tries_max` times (see `note`) and, where its lane has
    several groups, by two of them at least; or twice as often by one, since the others may be gone.
    """

    def __init__(self, *, tracked_max: int = _TRACKED_MAX) -> None:
        """Beyond `tracked_max` items at a time nothing is noted: they are tried on."""
        self._tracked_max = tracked_max
        self._last: dict[int, Refusal] = {}

    def __len__(self) -> int:
        return len(self._last)

    def note(
        self,
        batch: Batch,
        codes: Codes,
        *,
        group: str,
        at_ms: int,
        tries_max: int,
        has_others: bool,
        said: str = "",
    ) -> tuple[Mask, list[Refusal]]:
        """Note a refusal of each entry; say which are given up, with the last refusal of these.

        has_others: whether there are further groups that might take them; said: why.
        """
        made: dict[tuple[int, int], tuple[Refusal, bool]] = {}
        places: list[int] = []
        refusals: list[Refusal] = []
        last, tracked_max = self._last, self._tracked_max
        sequences: list[int] = batch.entries["sequence"].tolist()
        for place, (sequence, code) in enumerate(zip(sequences, codes.tolist(), strict=True)):
            earlier = last.get(sequence)
            if earlier is None and len(last) >= tracked_max:
                continue
            found = made.get((id(earlier), code))
            if found is None:
                number = 1 if earlier is None else earlier.number + 1
                refusal = Refusal(group, code, at_ms, number, earlier, said)
                found = refusal, _is_enough(refusal, tries_max, has_others=has_others)
                made[id(earlier), code] = found
            refusal, is_enough = found
            if is_enough:
                last.pop(sequence, None)
                places.append(place)
                refusals.append(refusal)
            else:
                last[sequence] = refusal
        given_up = np.zeros(len(batch), np.bool_)
        given_up[places] = True
        return given_up, refusals

    def noted(self, entries: Entries, times: int) -> Mask | None:
        """Return which entries were refused so often, or oftener; None if nothing is noted."""
        if not self._last:
            return None
        found = map(self._last.get, entries["sequence"].tolist())
        return np.array([one is not None and one.number >= times for one in found])

    def forget(self, entries: Entries) -> None:
        """Forget entries for which nothing more is to be done."""
        if self._last:
            for sequence in self._last.keys() & set(entries["sequence"].tolist()):
                del self._last[sequence]


def _is_enough(refusal: Refusal, tries_max: int, *, has_others: bool) -> bool:
    if refusal.number < tries_max:
        return False
    if not has_others or refusal.number >= 2 * tries_max:
        return True
    return any(one.group != refusal.group for one in refusal.all())
