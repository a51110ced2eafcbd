"""Numbers are sorted and told apart as numpy does it."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.disk.sorting import each_once


@given(
    st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 5), max_size=40),
    st.sampled_from([np.int64, np.uint32, np.uint64]),
)
def test_each_number_is_there_once_in_ascending_order(numbers: list[int], kind: type) -> None:
    given_numbers: npt.NDArray[Any] = np.array(numbers, kind)
    before = given_numbers.copy()
    found = each_once(given_numbers)
    assert found.tolist() == sorted(set(numbers))
    assert found.dtype == kind
    assert np.array_equal(given_numbers, before)


@pytest.mark.parametrize("step", [1, 3])
def test_a_column_of_a_table_can_be_given(step: int) -> None:
    table = np.zeros(6, [("a", np.int64), ("b", np.uint32)])
    table["b"] = [5, 1, 5, 3, 1, 9]
    assert each_once(table["b"][::step]).tolist() == sorted(set(table["b"][::step].tolist()))
