"""What is committed is durable, grows only, and on a sole node is all that is durable."""

from hypothesis import given
from hypothesis import strategies as st

from replication.core.commit_point import CommitPoint

ENDS = st.integers(1, 50)


@given(ENDS, ENDS, st.lists(st.tuples(st.sampled_from(["durable", "commit"]), ENDS), max_size=20))
def test_the_committed_part_is_durable_and_never_taken_back(
    durable: int, committed: int, steps: list[tuple[str, int]]
) -> None:
    point = CommitPoint(durable=durable, committed=committed, is_sole=False)
    told = min(committed, durable)
    for what, end in steps:
        before = point.committed, point.durable
        if what == "durable":
            point.durable_to(end)
        else:
            point.commit_to(end)
            told = max(told, min(end, point.durable))
        assert point.committed >= before[0]
        assert point.durable == (max(before[1], end) if what == "durable" else before[1])
        assert point.committed <= point.durable
    assert point.committed == told


@given(ENDS, st.lists(ENDS, max_size=10))
def test_alone_all_that_is_durable_is_committed_in_the_same_step(
    durable: int, ends: list[int]
) -> None:
    point = CommitPoint(durable=durable)
    assert point.committed == durable
    for end in ends:
        point.durable_to(end)
        assert point.committed == point.durable
