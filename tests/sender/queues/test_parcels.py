"""Entries keep their order, their tries and their number, however they are cut and joined."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sender.queues.lanes import LaneQueue
from sender.queues.parcels import Batch, Entries, Parcel, Shelf, first_try
from tests.seeds import examples
from tests.sender.broker_rig import ENTRY


def entries_of(sequences: Sequence[int], *, size: int = 10) -> Entries:
    entries = np.zeros(len(sequences), ENTRY)
    entries["sequence"] = sequences
    entries["size"] = size
    return entries


def sequences(parcel: Parcel | Batch | None) -> list[int]:
    assert parcel is not None
    assert len(parcel.tries) == len(parcel)
    found: list[int] = parcel.entries["sequence"].tolist()
    return found


def queue_of(*parts: Sequence[int]) -> LaneQueue:
    """Return a queue of one lane, whose turns are shorter than what is taken at once."""
    queue = LaneQueue(turn_items=2)
    for part in parts:
        queue.append(first_try(entries_of(part)))
    return queue


def test_a_part_chosen_by_mask_is_a_copy_that_keeps_nothing_else_alive() -> None:
    entries = entries_of(range(100_000))
    mask = np.zeros(100_000, np.bool_)
    mask[[5, 7]] = True
    chosen = first_try(entries).where(mask)
    assert sequences(chosen) == [5, 7]
    assert not np.shares_memory(chosen.entries, entries)
    assert chosen.entries.dtype == ENTRY


def test_what_is_taken_spans_parcels_up_to_the_count() -> None:
    queue = queue_of([1, 2], [3], [4, 5, 6])
    assert sequences(queue.take(items_max=4, bytes_max=1000, any_size=False)) == [1, 2, 3, 4]
    assert queue.count == 2
    assert sequences(queue.take(items_max=4, bytes_max=1000, any_size=False)) == [5, 6]
    assert queue.take(items_max=4, bytes_max=1000, any_size=False) is None


def test_what_is_taken_fits_into_the_bytes() -> None:
    queue = queue_of([1, 2], [3, 4])
    assert sequences(queue.take(items_max=9, bytes_max=39, any_size=False)) == [1, 2, 3]
    assert queue.take(items_max=9, bytes_max=9, any_size=False) is None
    assert queue.count == 1


def test_bytes_are_counted_beyond_32_bits() -> None:
    queue = LaneQueue(turn_items=2)
    queue.append(first_try(entries_of([1, 2, 3], size=2**31)))
    assert sequences(queue.take(items_max=9, bytes_max=2**32, any_size=False)) == [1, 2]


def test_alike_means_from_one_parcel_with_the_group_it_avoids() -> None:
    queue = LaneQueue(turn_items=2)
    queue.append(Parcel(entries_of([1, 2, 3]), np.zeros(3, np.uint32), avoid=4))
    queue.append(first_try(entries_of([9])))
    first = queue.take_alike(2)
    rest = queue.take_alike(2)
    assert (sequences(first), first.avoid, sequences(rest), rest.avoid) == ([1, 2], 4, [3], 4)
    assert sequences(queue.take_alike(2)) == [9]


def test_small_parcels_are_merged_with_their_tries_where_they_avoid_the_same_group() -> None:
    queue = LaneQueue(turn_items=2)
    for number in range(600):
        entries = entries_of([2 * number, 2 * number + 1])
        queue.append(Parcel(entries, np.array([number, 0], np.uint32), avoid=number // 100))
    seen: list[int] = []
    avoided: list[int] = []
    while queue.count:
        parcel = queue.take_alike(10_000)
        assert parcel.tries.tolist()[::2] == [n // 2 for n in sequences(parcel)[::2]]
        assert {n // 200 for n in sequences(parcel)} == {parcel.avoid}
        seen += sequences(parcel)
        avoided.append(parcel.avoid)
    assert seen == list(range(1200))
    # Twice 256 parcels were merged; the others wait for more.
    assert avoided == [0, 1, 2, 2, 3, 4, 5, *[5] * 88]


def test_large_parcels_are_not_copied() -> None:
    queue = LaneQueue(turn_items=2)
    parcels = [first_try(entries_of(range(100))) for _ in range(600)]
    for parcel in parcels:
        queue.append(parcel)
    assert all(queue.take_alike(1000).entries is parcel.entries for parcel in parcels)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4)), min_size=800, max_size=1200))
@examples(20)
def test_a_queue_that_merges_while_it_is_emptied_keeps_its_order(
    steps: list[tuple[int, int]],
) -> None:
    queue = LaneQueue(turn_items=2)
    put = 0
    taken: list[int] = []
    for count, wanted in steps:
        queue.append(first_try(entries_of(range(put, put + count))))
        put += count
        batch = queue.take(items_max=wanted, bytes_max=1000, any_size=False)
        taken += sequences(batch) if batch is not None else []
        assert queue.count == put - len(taken)
    taken += [sequence for parcel in queue.clear() for sequence in sequences(parcel)]
    assert taken == list(range(put))


@given(
    st.lists(st.lists(st.integers(1, 60), max_size=6), max_size=8),
    st.lists(st.tuples(st.integers(1, 7), st.integers(0, 150), st.booleans()), max_size=60),
)
def test_a_queue_gives_each_entry_once_in_order_within_the_limits(
    parts: list[list[int]], takes: list[tuple[int, int, bool]]
) -> None:
    queue = LaneQueue(turn_items=2)
    put = 0
    for part in parts:
        entries = entries_of(range(put, put + len(part)))
        entries["size"] = part
        queue.append(first_try(entries))
        put += len(part)
    taken: list[int] = []
    for items_max, bytes_max, any_size in takes:
        parcel = queue.take(items_max=items_max, bytes_max=bytes_max, any_size=any_size)
        if parcel is None:
            assert not (queue.count and any_size)
            continue
        assert 1 <= len(parcel) <= items_max
        size = int(parcel.entries["size"].sum())
        assert size <= bytes_max or (any_size and len(parcel) == 1)
        taken += sequences(parcel)
        assert queue.count == put - len(taken)
    taken += [sequence for parcel in queue.clear() for sequence in sequences(parcel)]
    assert taken == list(range(put))


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 3))), st.lists(st.integers(0, 25)))
def test_a_shelf_gives_what_is_due_earliest_first_and_like_times_in_the_order_of_putting(
    puts: list[tuple[int, int]], nows: list[int]
) -> None:
    shelf = Shelf()
    for number, (at, count) in enumerate(puts):
        shelf.put(at, first_try(entries_of([number] * count)))
    left = sorted((at, number) for number, (at, _) in enumerate(puts))
    for now in nows:
        due = [pair for pair in left if pair[0] <= now]
        left = left[len(due) :]
        assert [sequences(p)[0] for p in shelf.take_until(now)] == [number for _, number in due]
        assert shelf.count == sum(puts[number][1] for _, number in left)
        assert shelf.next_at == (left[0][0] if left else None)
