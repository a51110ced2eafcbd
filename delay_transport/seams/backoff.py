"""How long to wait before trying again."""

import random
from dataclasses import dataclass

_DOUBLINGS_MAX = 32
"""More would reach any ceiling anyway, and overflow one day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential, capped, jittered: between half of and the whole of `base_s * 2 ** n`."""

    base_s: float
    """The longest wait after the first failure."""

    max_s: float
    """The longest wait after any."""

    def wait_s(self, failures: int, chance: random.Random) -> float:
        """Return the wait after this many failures in a row (1 or more)."""
        whole = min(self.max_s, self.base_s * 2.0 ** min(failures - 1, _DOUBLINGS_MAX))
        return whole * (0.5 + 0.5 * chance.random())
