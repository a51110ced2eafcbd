"""What is in doubt, and for how long."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sender.outcomes.in_doubt import Doubts
from sender.queues.parcels import Entries
from storage.batch.entries import ENTRY


def entries_of(sequences: list[int]) -> Entries:
    entries = np.zeros(len(sequences), ENTRY)
    entries["sequence"] = sequences
    return entries


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 30), max_size=20))))
def test_what_is_in_doubt_is_what_was_noted_and_has_not_come_to_an_end(
    steps: list[tuple[bool, list[int]]],
) -> None:
    doubts, expected = Doubts(tracked_max=1000), set[int]()
    for is_noted, sequences in steps:
        if is_noted:
            doubts.note(entries_of(sequences))
            expected.update(sequences)
        else:
            doubts.forget(entries_of(sequences))
            expected.difference_update(sequences)
        assert len(doubts) == len(expected)


def test_no_more_are_known_than_there_may_be() -> None:
    doubts = Doubts(tracked_max=3)
    doubts.note(entries_of([1, 2]))
    doubts.note(entries_of([3, 4, 5]))
    doubts.note(entries_of([6]))
    assert len(doubts) == 3
    doubts.forget(entries_of([1, 4]))
    doubts.note(entries_of([7]))
    assert len(doubts) == 3
