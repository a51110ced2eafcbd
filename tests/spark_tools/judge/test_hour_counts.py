"""A histogram of cells is what a loop over the records counts, however large the values are."""

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_tools.judge.hour_counts import Cells
from spark_tools.judge.lateness import buckets_of

RECORDS = st.lists(
    st.tuples(
        st.integers(0, 4000),
        st.integers(-1, 5),
        st.one_of(st.integers(0, 20), st.integers(0, 2**62)),
    ),
    max_size=40,
)


@given(RECORDS)
def test_a_histogram_has_every_record_and_the_largest_of_each_bucket(
    records: list[tuple[int, int, int]],
) -> None:
    hours, numbers, values = (
        np.array([one[place] for one in records], np.int64) for place in range(3)
    )
    names = [f"n{number}" for number in range(6)]
    table = Cells(hours * 60, numbers).histogram("name", names, values, buckets_of, "largest")
    wanted: dict[tuple[int, str | None, int], list[int]] = defaultdict(list)
    for hour, number, value in records:
        name = None if number < 0 else names[number]
        wanted[hour * 60, name, int(buckets_of(np.array([value]))[0])].append(value)
    found = {
        (row["hour"], row["name"], row["bucket"]): (row["count"], row["largest"])
        for row in table.to_pylist()
    }
    assert table.num_rows == len(found)
    assert found == {place: (len(some), max(some)) for place, some in wanted.items()}
