"""A message is found by its sequence or the hash of its id, or it is said how far was looked."""

import pytest

from storage.readers.find_row import FindRow
from tests.storage.store_rig import StoreRig


def search(rig: StoreRig, *, rows_max: int = 10**6, step: int = 7, **wanted: int) -> FindRow:
    found = FindRow(
        rig.store.schedule,
        sequence=wanted.get("sequence"),
        id_hash=wanted.get("id_hash"),
        rows_max=rows_max,
    )
    while not found.step(step):
        pass
    return found


@pytest.fixture
def rig() -> StoreRig:
    rig = StoreRig(3)
    rig.open()
    for _ in range(150):
        rig.random_step()
    rig.file(count=10**6)
    rig.cross_off()
    rig.flush()
    return rig


def test_each_sequence_is_found_with_its_columns_and_whether_it_is_done(rig: StoreRig) -> None:
    facts = rig.memory.durable_facts
    seen: set[bool] = set()
    for sequence, message in rig.memory.accepted.items():
        found = search(rig, sequence=sequence)
        assert found.is_complete
        if not found.found:
            # Its segment is sealed: nothing in it waits.
            assert sequence in facts
            continue
        (row,) = found.found
        assert (row.sequence, row.due_ms, row.subject, row.size) == (
            sequence,
            message.due_ms,
            message.subject,
            len(message.item),
        )
        assert row.is_crossed_off == (sequence in facts)
        seen.add(row.is_crossed_off)
    assert seen == {True, False}


def test_a_sequence_that_nobody_got_is_not_found(rig: StoreRig) -> None:
    found = search(rig, sequence=max(rig.memory.accepted) + 1)
    assert (found.found, found.is_complete) == ([], True)


def test_all_with_one_hash_are_found(rig: StoreRig) -> None:
    """The rig gives the first of each batch the hash 0."""
    found = search(rig, id_hash=0)
    assert len(found.found) == len({row.sequence for row in found.found}) > 5
    assert search(rig, id_hash=2**64 - 1).found == []


def test_no_more_rows_are_looked_at_than_allowed(rig: StoreRig) -> None:
    looks = {sequence: search(rig, sequence=sequence) for sequence in rig.memory.accepted}
    far = max(looks, key=lambda sequence: looks[sequence].examined if looks[sequence].found else 0)
    found = search(rig, sequence=far, rows_max=1)
    assert (found.found, found.is_complete) == ([], False)
    assert 1 <= found.examined < looks[far].examined
