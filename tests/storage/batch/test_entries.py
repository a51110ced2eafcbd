"""A message takes 40 bytes in the wheel; a subject keeps its number while anything holds it."""

import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from storage.batch.entries import ENTRY, SUBJECT_BYTES, SubjectTable, no_entries
from tests.seeds import each_seed


def held(table: SubjectTable, numbers: Sequence[int] = ()) -> npt.NDArray[np.bool_]:
    """Return the mask of these numbers."""
    mask = np.zeros(len(table.names), np.bool_)
    mask[list(numbers)] = True
    return mask


def test_an_entry_takes_40_bytes() -> None:
    assert ENTRY.itemsize == 40
    assert no_entries().dtype == ENTRY
    assert len(no_entries()) == 0


def test_a_subject_keeps_its_number() -> None:
    table = SubjectTable()
    assert [table.number(name) for name in (b"a", b"b", b"a", b"")] == [0, 1, 0, 2]
    assert table.names == [b"a", b"b", b""]
    assert len(table) == 3


def test_the_numbers_of_a_batch_s_table_come_in_its_order() -> None:
    table = SubjectTable()
    table.number(b"known")
    assert table.numbers([b"new", b"known", b"newer"]).tolist() == [1, 0, 2]
    assert table.numbers([b"newer", b"known"]).tolist() == [2, 0]
    assert table.numbers([]).tolist() == []


def test_the_empty_name_is_one_like_any_other() -> None:
    table = SubjectTable()
    table.numbers([b"a", b""])
    table.condemn(held(table, [1]))
    assert table.sweep(10)
    assert table.ids == {b"": 1}


def test_a_collection_is_wanted_when_a_part_of_the_bound_has_come_anew() -> None:
    table = SubjectTable(bytes_max=80 * (SUBJECT_BYTES + 3))
    wanted = []
    for number in range(10):
        wanted.append(table.wants_collection)
        table.number(b"%03d" % number)
    wanted.append(table.wants_collection)
    assert wanted == [False] * 10 + [True]
    table.condemn(held(table, range(10)))
    table.sweep(10)
    wanted = [table.wants_collection]
    table.numbers([b"%03d" % number for number in range(80)])
    full = [table.is_full]
    table.number(b"one more")
    full.append(table.is_full)
    # What cannot be helped does not stop those who ask for names.
    table.condemn(held(table, range(81)))
    table.sweep(100)
    full.append(table.is_full)
    assert (wanted, full) == ([False], [False, True, False])


@each_seed(20)
def test_whatever_is_held_keeps_its_name_and_the_rest_goes(seed: int) -> None:
    chance = random.Random(seed)
    table = SubjectTable(bytes_max=4096)
    holders: dict[int, bytes] = {}
    sweeping = False
    for step in range(2000):
        action = chance.random()
        if action < 0.5:
            fresh = b"%d" % step if chance.random() < 0.5 else b"s%d" % chance.randrange(30)
            names = [fresh, *chance.sample(list(holders.values()), min(2, len(holders)))]
            for number, name in zip(table.numbers(names).tolist(), names, strict=True):
                assert holders.get(number, name) == name
                holders[number] = name
        elif action < 0.85:
            for number in chance.sample(list(holders), min(3, len(holders))):
                del holders[number]
        elif sweeping:
            sweeping = not table.sweep(chance.choice([1, 5, 100]))
        else:
            table.condemn(held(table, list(holders)))
            sweeping = True
        assert all(table.names[number] == name for number, name in holders.items())
        assert table.bytes_held == sum(len(name) + SUBJECT_BYTES for name in table.ids)
    if sweeping:
        table.sweep(10**6)
    table.condemn(held(table, list(holders)))
    table.sweep(10**6)
    assert table.ids == {name: number for number, name in holders.items()}
    assert len(table.names) < 300
