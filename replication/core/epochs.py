"""Where two logs part: the question of a slave, and the answer of its master. Pure.

    FOLLOW(from, last epoch)         the slave: its durable end, and the epoch of the record before
    MATCHES                          the master: it has that record in that epoch
    DIVERGES(question, epoch, end)   the newest of its epochs that is not above the slave's, and
                                     where that one ends here
    BEHIND(question, first)          its log begins later: a snapshot is needed

A slave that is told DIVERGES cuts what it has of later epochs, and what lies at `end` or beyond,
and asks again. The answer names its question: an older answer cuts nothing.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple


class Question(NamedTuple):
    """What a slave asks before it follows; a sequence of 1 and epoch 0 for an empty log."""

    sequence: int
    """The end of its durable log: the first sequence that it lacks."""
    epoch: int
    """Of the record before."""


class Diverges(NamedTuple):
    """The logs part at or before `end`."""

    question: Question
    epoch: int
    end: int


class Behind(NamedTuple):
    """The master's log begins later than the slave's ends."""

    question: Question
    first: int


class Epochs:
    """The epochs of one log, each with the sequence of its first record; it grows by `begin`."""

    def __init__(self, starts: Sequence[tuple[int, int]] = (), *, first: int = 1) -> None:
        """Take over (epoch, first sequence), ascending; `first`: the first record that is kept."""
        self._epochs = [epoch for epoch, _ in starts]
        self._starts = [start for _, start in starts]
        self.first = first

    def begin(self, epoch: int, sequence: int) -> None:
        """Note that the records from this one on are of a new epoch."""
        if self._epochs and epoch <= self._epochs[-1]:
            raise ValueError(f"epoch {epoch} after epoch {self._epochs[-1]}")
        self._epochs.append(epoch)
        self._starts.append(sequence)

    def cut(self, end: int) -> None:
        """Forget what lies at a sequence or beyond."""
        while self._starts and self._starts[-1] >= end:
            self._starts.pop()
            self._epochs.pop()

    def all(self) -> list[tuple[int, int]]:
        """Return all of them, each with the sequence of its first record."""
        return list(zip(self._epochs, self._starts, strict=True))

    def before(self, sequence: int) -> int:
        """Return the epoch of the record before a sequence; 0 if there is none."""
        place = bisect_right(self._starts, sequence - 1) - 1
        return self._epochs[place] if place >= 0 else 0

    def start_of(self, epoch: int) -> int | None:
        """Return the sequence of the first record of an epoch; None if the log has not got it."""
        place = bisect_right(self._epochs, epoch) - 1
        found = place >= 0 and self._epochs[place] == epoch
        return self._starts[place] if found else None

    def answer(self, question: Question, *, end: int) -> Diverges | Behind | None:
        """Answer a slave, `end` being the end of this log; None if it matches."""
        if question.sequence < self.first:
            return Behind(question, self.first)
        if question.sequence <= end and self.before(question.sequence) == question.epoch:
            return None
        place = bisect_right(self._epochs, question.epoch)
        epoch = self._epochs[place - 1] if place else 0
        stop = self._starts[place] if place < len(self._starts) else end
        return Diverges(question, epoch, min(stop, end))
