"""What was added lately is found, however many there are and whatever came between."""

import random
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.logs.recent_ids import FIRST_RECORDS, WAYS, RecentIds
from tests.seeds import examples


def keys_of(numbers: list[int]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Return keys that are spread as hashes are."""
    return np.array([random.Random(number).getrandbits(64) for number in numbers], np.uint64)


def found_in(ids: RecentIds, numbers: list[int], next_sequence: int) -> list[set[int]]:
    places, sequences = ids.find(keys_of(numbers), next_sequence=next_sequence)
    found: list[set[int]] = [set() for _ in numbers]
    for place, sequence in zip(places.tolist(), sequences.tolist(), strict=True):
        found[place].add(sequence)
    return found


calls = st.lists(
    st.tuples(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(0, 3)),
    max_size=30,
)


@given(calls, st.sampled_from([1, 2**31, 2**32 - 20, 2**33 - 5]))
@examples(200)
def test_it_finds_what_a_dictionary_finds(
    added: list[tuple[list[int], int]], sequence: int
) -> None:
    ids, model = RecentIds(600), defaultdict[int, list[int]](list)
    for numbers, others in added:
        ids.add(keys_of(numbers), np.arange(sequence, sequence + len(numbers)))
        for number in numbers:
            model[number].append(sequence)
            sequence += 1
        # Records of other kinds.
        sequence += others
        asked = [*range(42)]
        for number, found in zip(asked, found_in(ids, asked, sequence), strict=True):
            # More than a bucket holds of one key are forgotten, the oldest first.
            assert found == set(model[number][-WAYS:]), number
        assert found_in(ids, [7], sequence) == [set(model[7][-WAYS:])]


@pytest.mark.parametrize("together", [1, 1000])
def test_all_of_the_last_are_remembered_after_many_more(together: int) -> None:
    most = 20_000
    ids, chance = RecentIds(most), np.random.default_rng(5)
    keys = chance.integers(0, 2**64, 4 * most, dtype=np.uint64)
    for first in range(0, len(keys), together):
        ids.add(keys[first : first + together], np.arange(first, first + together))
    places, sequences = ids.find(keys[-most:], next_sequence=len(keys))
    assert set(range(3 * most, 4 * most)) <= set(sequences[sequences == places + 3 * most].tolist())
    assert len(places) < most + 10


def test_of_more_of_one_key_at_once_than_a_bucket_holds_some_are_found() -> None:
    ids = RecentIds(100)
    ids.add(keys_of([3] * 100), np.arange(1, 101))
    assert found_in(ids, [3, 4], 101) == [set(range(101 - WAYS, 101)), set()]


def test_it_grows_with_what_is_added_and_finds_all_of_it() -> None:
    most = 3_000_000
    ids, chance = RecentIds(most), np.random.default_rng(7)
    small = ids.size_bytes
    assert small < 6 << 20
    step = FIRST_RECORDS // 4
    keys = chance.integers(0, 2**64, -(-most // step) * step, dtype=np.uint64)
    for first in range(0, len(keys), step):
        ids.add(keys[first : first + step], np.arange(first, first + step))
        came = np.arange(0, first + step, step // 2)
        places, sequences = ids.find(keys[came], next_sequence=first + step)
        assert set(came) <= set(sequences[sequences == came[places]].tolist())
    assert ids.size_bytes < 22 * most
    ids.forget_before(FIRST_RECORDS - 1)
    assert ids.size_bytes > 21 * most
    ids.forget_before(len(keys) + 1)
    assert 20 * most <= ids.size_bytes < 20.1 * most


def test_it_stays_small_where_little_is_to_be_remembered() -> None:
    ids, chance = RecentIds(3_000_000), np.random.default_rng(7)
    small, step = ids.size_bytes, 1000
    for first in range(0, 4 * FIRST_RECORDS, step):
        keys = chance.integers(0, 2**64, step, dtype=np.uint64)
        ids.add(keys, np.arange(first, first + step))
        ids.forget_before(first + step - FIRST_RECORDS // 2)
    assert ids.size_bytes == small


def test_one_table_stays_when_all_that_it_has_is_too_old() -> None:
    ids = RecentIds(100)
    ids.add(keys_of([3]), np.arange(1, 2))
    ids.forget_before(50)
    assert found_in(ids, [3], 60) == [{1}]
