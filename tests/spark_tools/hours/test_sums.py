"""Tables of hours are added up: counts by addition, the largest lateness by the larger one."""

from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_tools.hours.sums import Sums
from spark_tools.judge.account import LATEST, SUBJECT_MEASURES, lateness_tally
from spark_tools.judge.lateness import bucket_from_ms, buckets_of
from spark_tools.judge.tasks import GroupName
from spark_tools.run.report import lateness_of, with_group

GROUP = GroupName("c", "g")
HOURS = st.lists(st.lists(st.integers(0, 10**7), max_size=20), min_size=1, max_size=5)


def table_of(late: list[int]) -> pa.Table:
    """Return the table of one hour, a row for each delivery."""
    tally = lateness_tally({"target": pa.string()})
    bucket = buckets_of(np.array(late, np.int64)).tolist()
    rows = [
        {"target": "t", "bucket": one, "count": 1, LATEST: ms}
        for one, ms in zip(bucket, late, strict=True)
    ]
    tally.add(pa.Table.from_pylist(rows, schema=tally.schema))
    return with_group(GROUP, tally.table())


def summed(tables: list[pa.Table]) -> list[dict[str, int]]:
    sums = Sums()
    for table in tables:
        sums.add("target_lateness", table)
    rows: list[dict[str, int]] = dict(sums.tables())["target_lateness"].to_pylist()
    return rows


@given(HOURS)
def test_the_latest_of_all_hours_is_the_latest_of_any(hours: list[list[int]]) -> None:
    rows = summed([table_of(late) for late in hours])
    every = [late for hour in hours for late in hour]
    assert sum(row["count"] for row in rows) == len(every)
    wanted: dict[int, int] = {}
    for late in every:
        bucket = int(buckets_of(np.array([late]))[0])
        wanted[bucket] = max(late, wanted.get(bucket, 0))
    assert {row["bucket"]: row[LATEST] for row in rows} == wanted
    found = lateness_of(rows)
    assert found["max"] == max(every, default=None)
    assert all(found[name] is None or found[name] <= found["max"] for name in ("p50", "p999"))


def test_what_an_older_version_did_not_count_is_nothing() -> None:
    measures = [name for name in SUBJECT_MEASURES if name != "sent_past_due"]
    old = pa.table({"subject": ["a"], **{name: [3] for name in measures}})
    sums = Sums()
    for table in (old, old.append_column("sent_past_due", pa.array([2]))):
        sums.add("subjects", with_group(GroupName("c", "g"), table))
    [row] = dict(sums.tables())["subjects"].to_pylist()
    assert (row["delivered"], row["sent_past_due"]) == (6, 2)


def test_of_what_an_older_version_wrote_the_latest_is_the_end_of_its_bucket() -> None:
    old = table_of([1000]).drop_columns([LATEST])
    bucket = int(buckets_of(np.array([1000]))[0])
    assert summed([old])[0][LATEST] == bucket_from_ms(bucket + 1) - 1
    assert Counter(row[LATEST] for row in summed([old, table_of([5, 7])])) == Counter(
        [5, 7, bucket_from_ms(bucket + 1) - 1]
    )
