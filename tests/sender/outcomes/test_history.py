"""Deliveries are in doubt for as long as they may have arrived."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sender.outcomes import history
from sender.outcomes.history import History
from sender.queues.parcels import Entries
from sender.settings.config import SenderConfig
from storage.batch.entries import ENTRY


def entries_of(sequences: list[int]) -> Entries:
    entries = np.zeros(len(sequences), ENTRY)
    entries["sequence"] = sequences
    return entries


def nothing_known() -> History:
    return History(config=SenderConfig(), on_dead=lambda *_: None)


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 30), max_size=20))))
def test_what_is_in_doubt_is_what_was_noted_and_has_not_come_to_an_end(
    steps: list[tuple[bool, list[int]]],
) -> None:
    known, expected = nothing_known(), set[int]()
    for is_noted, sequences in steps:
        if is_noted:
            known.note_doubt(entries_of(sequences))
            expected.update(sequences)
        else:
            known.forget(entries_of(sequences))
            expected.difference_update(sequences)
        assert known.in_doubt == len(expected)


def test_no_more_are_known_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "DOUBTS_MAX", 3)
    known = nothing_known()
    known.note_doubt(entries_of([1, 2]))
    assert not known.doubts_all
    known.note_doubt(entries_of([3, 4, 5]))
    known.note_doubt(entries_of([6]))
    assert (known.in_doubt, known.doubts_all) == (3, True)
    known.forget(entries_of([1, 4]))
    known.note_doubt(entries_of([7]))
    assert known.in_doubt == 3
