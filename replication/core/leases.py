"""The one lease: what a slave has promised the master that it hears. Pure.

Each slave promises the master that it hears to vote for nobody else for three seconds. A master
sends while all others that may be elected have promised it that; so no election can end meanwhile,
and where a meta server is away nobody is stopped. A promise is counted on the boot clock by whoever
relies on it from before it was given, less what clocks may drift. No message hangs on it: it keeps
two nodes from sending at the same time.

It is void once the start that it was given to is gone. Those of the epochs before went to masters
that were shut out when the epoch of that start began.
"""

from typing import Final

FOLLOWER_LEASE_S: Final = 3.0
"""How long a slave that hears its master votes for nobody else."""
DRIFT: Final = 0.02
"""How much faster than another one a boot clock may run, twice the most that was ever measured."""
STILL_HEARD_S: Final = 1.0
"""A master that was heard so lately, on a connection that is open, is not gone."""


class FollowerPromise:
    """What a node has promised the masters that it heard: to vote for nobody else for a while.

    A start forgets what was promised before it: so it promises nothing away for as long.
    """

    def __init__(self, *, now: float) -> None:
        self.until = now + FOLLOWER_LEASE_S * (1 + DRIFT)
        self.is_connected = False
        """True while there is a connection to the master that was heard last."""
        self._epoch = 0
        """Of that master; 0: none was heard by this start."""
        self._may_send = False
        """True if that one may send, as it said."""
        self._heard_at = float("-inf")
        self._wanted_epoch = 0

    def heard(self, epoch: int, now: float, *, may_send: bool = True) -> bool:
        """Note that a master was heard; say whether it is promised anything, and may count on it.

        An election for a later epoch has begun where not: the last promise runs out.
        """
        self._epoch, self._may_send, self._heard_at = epoch, may_send, now
        if self._wanted_epoch > epoch:
            return False
        self.until = max(self.until, now + FOLLOWER_LEASE_S)
        return True

    def hears(self, now: float) -> tuple[int, bool]:
        """Return the epoch of the master that is heard, 0 if none is, and whether it may send."""
        is_heard = now - self._heard_at < FOLLOWER_LEASE_S
        return (self._epoch, self._may_send) if is_heard else (0, False)

    def asked_to_vote(self, epoch: int, now: float, *, gone: int = 0) -> float:
        """Note an election; return for how many seconds the last promise still runs.

        gone: the epoch of a master of which the start is gone; 0: none is known to be.
        """
        self._wanted_epoch = max(self._wanted_epoch, epoch)
        if gone >= self._epoch and gone and not self.still_hears(gone, now):
            return 0.0
        return max(self.until - now, 0.0)

    def still_hears(self, epoch: int, now: float) -> bool:
        """Return True if the master of an epoch speaks on an open connection."""
        return self.is_connected and self._epoch == epoch and now - self._heard_at <= STILL_HEARD_S
