"""How far the log is committed: what may be applied, sent, checkpointed and answered.

    durable      fsynced on this node               everything below `durable`
    committed    durable on all that have to        everything below `committed`; never beyond
                 have it                            durable, never taken back

A node that is alone has nobody to wait for: what is durable is committed in the same step.
"""


class CommitPoint:
    """The committed part of one log; both ends are sequences of the record after the last.

    Invariant: committed <= durable, and neither decreases.
    """

    def __init__(self, *, durable: int, committed: int = 1, is_sole: bool = True) -> None:
        """Begin with a log of which the first records are durable, and fewer may be committed."""
        self.is_sole = is_sole
        """Whether nobody else has to have a record before it is committed."""
        self.durable = durable
        self.committed = durable if is_sole else min(committed, durable)

    def durable_to(self, sequence: int) -> None:
        """Note that all records below are durable here."""
        self.durable = max(self.durable, sequence)
        if self.is_sole:
            self.committed = self.durable

    def commit_to(self, sequence: int) -> None:
        """Note that all records below are durable wherever they have to be.

        What is not durable here is not committed here, whatever others have.
        """
        self.committed = max(self.committed, min(sequence, self.durable))
