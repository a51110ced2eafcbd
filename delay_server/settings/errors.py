"""Errors that end the mastership or the process of a delay server in a cluster, and the remedy.

* MembershipError
    * NodeRefusedError: the meta server refuses the node. Somebody has to look first.
    * FencedError: the node is not the master any more, or not in the epoch in which it acted.
      Start it again: it asks for its role anew.
"""


class MembershipError(Exception):
    """The node must not serve in its group; its data are as they were."""


class NodeRefusedError(MembershipError):
    """The meta server refuses the node, for the reason that it gave."""

    def __init__(self, *, node: str, meta: str, reason: str) -> None:
        super().__init__(f"the meta server at {meta} refuses {node}: {reason}")
        self.reason = reason


class FencedError(MembershipError):
    """The node's epoch has ended: it stops accepting and delivering."""

    def __init__(self, *, node: str, epoch: int, reason: str) -> None:
        super().__init__(f"{node} is fenced, its epoch {epoch} has ended: {reason}")
        self.epoch = epoch
        self.reason = reason
