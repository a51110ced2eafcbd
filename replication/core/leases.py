"""Leases: why a master may send and acknowledge, and what a slave has promised it. Pure.

Two kinds, of which either is enough. The meta server grants one to the master of the recorded
epoch, and elects nobody else before it has ended. Each slave promises the master that it hears to
vote for nobody else for three seconds; where all others needed have promised, no election can end.
So a meta server that is away stops nobody. Both are counted on the boot clock by whoever relies on
them from before they were given, less what clocks may drift; safety never depends on them: they
keep two nodes from sending at the same time.
"""

from typing import Final

FOLLOWER_LEASE_S: Final = 3.0
"""How long a slave that hears its master votes for nobody else."""
DRIFT: Final = 0.02
"""How much faster than another one a boot clock may run, twice the most that was ever measured."""


class MetaLease:
    """The lease that the meta server grants to a master, in one epoch."""

    def __init__(self) -> None:
        self.until = float("-inf")

    def granted(self, *, sent_at: float, lease_s: float) -> None:
        """Note an answer to a request that was sent at a time of the boot clock."""
        self.until = max(self.until, sent_at + lease_s * (1 - DRIFT))

    def holds(self, now: float) -> bool:
        """Say whether it holds."""
        return now < self.until


class FollowerPromise:
    """What a node has promised the masters that it heard: to vote for nobody else for a while.

    A start forgets what was promised before it: so it promises nothing away for as long.
    """

    def __init__(self, *, now: float) -> None:
        self.until = now + FOLLOWER_LEASE_S * (1 + DRIFT)
        self._wanted_epoch = 0

    def heard(self, epoch: int, now: float) -> bool:
        """Note that a master was heard; say whether it is promised anything, and may count on it.

        An election for a later epoch has begun where not: the last promise runs out.
        """
        if self._wanted_epoch > epoch:
            return False
        self.until = max(self.until, now + FOLLOWER_LEASE_S)
        return True

    def asked_to_vote(self, epoch: int, now: float) -> float:
        """Note an election; return for how many seconds the last promise still runs."""
        self._wanted_epoch = max(self._wanted_epoch, epoch)
        return max(self.until - now, 0.0)
