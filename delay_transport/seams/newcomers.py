"""How many subjects or groups may be new: in all, and of one address or connection."""

from collections import OrderedDict
from typing import Final

from delay_transport.seams.leaky_bucket import LeakyBucket

SOURCES_MAX: Final = 1000
"""Sources of one kind that are told apart; of more than that those that made no subject for longest
begin anew."""


class Newcomers:
    """Admits what is new at a rate, and so many at once after a quiet time; sources have shares.

    Kinds of sources are named by `shares`: `address=0.25` leaves the rest to other addresses.
    """

    def __init__(self, what: str, *, rate: float, burst: float, **shares: float) -> None:
        """Admit `rate` a second; `what` they are goes behind `too many` in a refusal."""
        self._what = what
        self._rate = rate
        self._burst = burst
        self._shares = shares
        self._all = LeakyBucket(rate=rate, size=burst)
        self._from: dict[str, OrderedDict[str, LeakyBucket]] = {
            kind: OrderedDict() for kind in shares
        }

    def __len__(self) -> int:
        """Return how many sources of the kind that has most are told apart."""
        return max(map(len, self._from.values()))

    def refusal(self, now: float, **sources: str) -> str | None:
        """Count a new subject from one source of each kind; say why not if it is too early.

        What is refused is not counted, and takes nothing from others. `now` is in seconds.
        """
        for kind, source in sources.items():
            own = self._from[kind].get(source)
            if own is not None and own.seconds_until_room(now):
                return f"too many {self._what} from this {kind}; try again later"
        if self._all.seconds_until_room(now):
            return f"too many {self._what}; try again later"
        for kind, source in sources.items():
            known = self._from[kind]
            own = known.get(source)
            if own is None:
                share = self._shares[kind]
                own = known[source] = LeakyBucket(rate=self._rate * share, size=self._burst * share)
                if len(known) > SOURCES_MAX:
                    known.popitem(last=False)
            known.move_to_end(source)
            own.pour(now, 1)
        self._all.pour(now, 1)
        return None
