"""A node's part in elections: what it has promised, and when it may vote. Pure.

A vote for an epoch is a promise never to follow, or to be, the master of an earlier one. It is made
durable before it is given, and so is the newest record that the node was told: a meta server that
lost its newest state finds out by the votes. A node that hears a master votes only when its promise
to that one has run out, or that start is gone, and promises nothing more to it from the first
question on.
"""

from typing import NamedTuple

from replication.core.leases import FollowerPromise
from replication.core.record import Record


class Promise(NamedTuple):
    """What a node has promised; durable in the file `promise` before anybody hears of it."""

    epoch: int = 0
    """It follows and is no master of an earlier one."""
    told: Record | None = None
    """The newest record that it was told."""


class Later(NamedTuple):
    """The node votes when its promise to the present master has run out."""

    seconds: float


class Refusal(NamedTuple):
    """The node does not vote for this epoch."""

    sentence: str


class Voter:
    """The promises of one start of a node."""

    def __init__(self, promise: Promise, *, now: float) -> None:
        """Go on from what is durable."""
        self.promise = promise
        self.to_master = FollowerPromise(now=now)

    def told(self, record: Record) -> Promise | None:
        """Note a record; return what is to be made durable before it is acted upon, if anything."""
        known = self.promise.told
        if known is not None and record.pair <= known.pair:
            return None
        self.promise = Promise(max(self.promise.epoch, record.epoch), record)
        return self.promise

    def asked(self, epoch: int, now: float, *, gone: int = 0) -> Promise | Later | Refusal:
        """Answer the question for a vote: what is to be made durable before the vote is given.

        The log has to be synced as well by then. gone: the epoch of a master whose start is gone.
        """
        if epoch < self.promise.epoch:
            return Refusal(f"it has promised epoch {self.promise.epoch} already")
        wait_s = self.to_master.asked_to_vote(epoch, now, gone=gone)
        if wait_s > 0:
            return Later(wait_s)
        self.promise = Promise(epoch, self.promise.told)
        return self.promise

    def may_follow(self, epoch: int) -> bool:
        """Say whether a master of this epoch may be followed, or be."""
        return epoch >= self.promise.epoch
