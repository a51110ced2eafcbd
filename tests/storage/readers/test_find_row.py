"""A message is found by the hash of its id."""

import pytest

from storage.readers.find_row import FindRow
from tests.storage.store_rig import StoreRig


def search(rig: StoreRig, id_hash: int) -> FindRow:
    found = FindRow(rig.store.schedule, id_hash)
    while not found.step(7):
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


def test_all_with_one_hash_are_found_with_their_columns_and_whether_they_are_done(
    rig: StoreRig,
) -> None:
    """The rig gives the first of each batch the hash 0, the second 1."""
    seen: dict[int, bool] = {}
    for id_hash in range(50):
        found = search(rig, id_hash)
        assert found.is_complete
        for row in found.found:
            message = rig.memory.accepted[row.sequence]
            assert (row.due_ms, row.subject) == (message.due_ms, message.subject)
            assert row.sequence not in seen
            seen[row.sequence] = row.is_crossed_off
    # Where a segment is sealed nothing in it waits.
    done = rig.memory.durable_facts
    assert {sequence for sequence, is_done in seen.items() if is_done} <= set(done)
    assert {sequence for sequence, is_done in seen.items() if not is_done} == (
        rig.memory.accepted.keys() - done
    )
    assert set(seen.values()) == {True, False}
    nothing = search(rig, 2**64 - 1)
    assert (nothing.found, nothing.is_complete) == ([], True)
