"""A slave's side of the connection to its master. Pure.

    ask     --> FOLLOW(sequence, epoch)
    MATCHES --> append BATCHES that go on from there, sync, ACK
    DIVERGES--> cut, and ask again
    BEHIND  --> take a snapshot, where this disk is not in sync

What the master says is committed counts here as far as the log is known to be the same: up to the
matched end, and what was appended since. A cut at or below what counts as committed cannot be: the
node stops, with nothing changed.
"""

from typing import NamedTuple

from replication.core.epochs import Behind, Diverges, Question
from replication.core.in_sync import ProtocolFaultError


class Cut(NamedTuple):
    """What to cut: all of later epochs, and what lies at `end` or beyond."""

    epoch: int
    end: int


class CutRefusedError(Exception):
    """The master's log lacks what is committed; nothing was changed."""


class Ack(NamedTuple):
    """What a slave tells its master."""

    end: int
    """Of its durable log."""
    applied: int
    echo: float | None
    """The master's time that it heard last, where it has promised something since."""


class Follower:
    """One connection to the master of an epoch."""

    def __init__(self, *, epoch: int, committed: int) -> None:
        """Follow the master of this epoch; up to `committed` the log here is known as committed."""
        self.epoch = epoch
        self.committed = committed
        """What counts as committed here."""
        self._told = committed
        self._asked: Question | None = None
        self._matched = False
        self._next = 0
        """The sequence that the next batch begins with."""
        self._verified = 0
        """Up to there the log here is the master's."""
        self._echo: float | None = None

    def ask(self, question: Question) -> Question:
        """Ask with the end of the durable log, and the epoch of the record before it."""
        self._asked, self._matched = question, False
        return question

    @property
    def has_matched(self) -> bool:
        """Whether batches are taken."""
        return self._matched

    def matches(self, question: Question) -> None:
        """Take the answer that the log is the same; raises ProtocolFaultError for an older one."""
        self._require_asked(question)
        self._matched, self._next = True, question.sequence
        self._verified = question.sequence
        self._count()

    def diverges(self, answer: Diverges | Behind, *, end: int) -> Cut | None:
        """Take the answer that the log is another one; return what to cut before it asks again.

        None: it begins below the master's log, so it needs a snapshot. end: of the durable log.
        Raises CutRefusedError, and ProtocolFaultError for an answer to another question.
        """
        self._require_asked(answer.question)
        if isinstance(answer, Behind):
            return None
        if answer.end >= end and answer.epoch >= answer.question.epoch:
            raise ProtocolFaultError(f"an answer that cuts nothing: {answer}")
        if answer.end < self.committed:
            raise CutRefusedError(
                f"the log of the master in epoch {self.epoch} parts from this one at record "
                f"{answer.end} in epoch {answer.epoch}, and up to record {self.committed - 1} it "
                "is committed here: nothing was cut. Keep this directory: it may have messages "
                "that the group has not (docs/operating.md, A refused cut)"
            )
        return Cut(answer.epoch, answer.end)

    def _require_asked(self, question: Question) -> None:
        if question != self._asked:
            raise ProtocolFaultError(f"an answer to {question}; asked was {self._asked}")

    def batches(
        self, first: int, behind: int, *, committed: int, time: float, is_promised: bool
    ) -> bool:
        """Take batches of records `first` up to `behind`, none if equal; say whether they go on.

        committed: as the master says; time: its own; is_promised: whether it may count on this
        node's promise. Raises ProtocolFaultError if they leave a gap, or nothing has matched yet.
        """
        if not self._matched:
            raise ProtocolFaultError("batches came before the log matched")
        if first not in {behind, self._next}:
            raise ProtocolFaultError(f"batches from record {first} on; {self._next} comes next")
        self._told = max(self._told, committed)
        if is_promised:
            self._echo = time
        self._count()
        return first != behind

    def expects(self, sequence: int) -> None:
        """Note that what came up to this sequence will be appended: what goes on comes next."""
        self._next = max(self._next, sequence)

    def appended(self, end: int) -> None:
        """Note that the log here has what came, up to this end; it need not be durable yet."""
        self._verified = max(self._verified, end)
        self.expects(end)
        self._count()

    def _count(self) -> None:
        if self._matched:
            self.committed = max(self.committed, min(self._told, self._verified))

    def ack(self, *, end: int, applied: int) -> Ack:
        """Return what to tell the master."""
        return Ack(end, applied, self._echo)
