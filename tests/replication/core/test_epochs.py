"""Where two logs part is found by asking again and again, and nothing that both have is cut."""

import random

from hypothesis import given
from hypothesis import strategies as st

from replication.core.epochs import Behind, Diverges, Epochs, Question
from tests.seeds import examples

Log = list[int]
"""The epoch of each record, ascending."""


def epochs_of(log: Log, *, first: int = 1) -> Epochs:
    starts = [
        (epoch, place + 1) for place, epoch in enumerate(log) if not place or log[place - 1] < epoch
    ]
    return Epochs(starts, first=first)


@st.composite
def two_logs(draw: st.DrawFn) -> tuple[Log, Log, int]:
    """Return the logs of a master and a slave, and how many records they have alike.

    An epoch has one master, which writes its records in order: what both have of an epoch is alike
    where they have the beginning of it from the same log.
    """
    chance = random.Random(draw(st.integers(0, 2**32)))
    common: Log = []
    epoch = 0
    for _ in range(chance.randrange(4)):
        epoch += chance.randrange(1, 3)
        common += [epoch] * chance.randrange(1, 5)
    logs = []
    # Epochs of what differs: those of one log are not the other's.
    for own in (0, 1):
        tail: Log = []
        for number in range(chance.randrange(3)):
            tail += [epoch + 2 * number + 1 + own] * chance.randrange(1, 4)
        logs.append(common + tail)
    if chance.random() < 0.5:
        # The last common epoch went on in one of them.
        logs[0] = common + [epoch] * chance.randrange(3) if epoch else logs[0]
    return logs[0], logs[1], len(common)


@given(two_logs())
@examples(500)
def test_a_slave_cuts_what_the_master_has_not_and_no_more(logs: tuple[Log, Log, int]) -> None:
    master, slave, common = logs
    known = epochs_of(master)
    for _ in range(10):
        question = Question(len(slave) + 1, slave[-1] if slave else 0)
        answer = known.answer(question, end=len(master) + 1)
        if answer is None:
            break
        assert isinstance(answer, Diverges)
        assert answer.question == question
        before = len(slave)
        slave = [epoch for epoch in slave[: answer.end - 1] if epoch <= answer.epoch]
        assert common <= len(slave) < before, "something is cut, and nothing that both have"
    else:
        raise AssertionError("it never ends")
    assert slave == master[: len(slave)]


def test_a_slave_that_ends_before_the_masters_log_begins_needs_a_snapshot() -> None:
    epochs = epochs_of([1, 1, 1, 2, 2], first=4)
    assert epochs.answer(Question(2, 1), end=6) == Behind(Question(2, 1), 4)
    assert epochs.answer(Question(4, 1), end=6) is None
    assert epochs.answer(Question(5, 1), end=6) == Diverges(Question(5, 1), 1, 4)


def test_epochs_grow_and_are_cut() -> None:
    epochs = epochs_of([1, 1, 3])
    epochs.begin(4, 4)
    assert epochs.all() == [(1, 1), (3, 3), (4, 4)]
    assert [epochs.before(sequence) for sequence in (1, 2, 3, 4, 5)] == [0, 1, 1, 3, 4]
    assert (epochs.start_of(3), epochs.start_of(2)) == (3, None)
    epochs.cut(3)
    assert epochs.all() == [(1, 1)]
