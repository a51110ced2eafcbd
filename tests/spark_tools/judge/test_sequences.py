"""Sets of sequences know in which block one came twice, however they were added up."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_tools.judge.sequences import BLOCK, Sequences

PARTS = st.lists(
    st.lists(st.one_of(st.integers(0, 3 * BLOCK), st.integers(BLOCK - 3, BLOCK + 3)), max_size=20),
    max_size=5,
)


@given(PARTS, st.integers(0, 2), st.booleans())
def test_a_block_is_named_exactly_if_a_sequence_in_it_came_twice(
    parts: list[list[int]], dense: int, merges: bool
) -> None:
    if dense:
        parts = [*parts, list(range(BLOCK // 2, BLOCK // 2 + dense * 3000, dense))]
    found, seen, wanted = Sequences(), set[int](), set[int]()
    for part in parts:
        ascending = np.array(sorted(part), np.int64)
        if merges:
            other = Sequences()
            other.add(ascending)
            found.merge(other)
        else:
            found.add(ascending)
        for one in part:
            if one in seen:
                wanted.add(one // BLOCK)
            seen.add(one)
    assert found.doubled == wanted
    kept = set()
    for number, block in found.blocks.items():
        is_bits = block.dtype == np.uint8
        places = np.flatnonzero(np.unpackbits(block.view(np.uint8))) if is_bits else block
        kept |= {number * BLOCK + place for place in places.tolist()}
    assert kept == seen
