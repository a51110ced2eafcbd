"""Facts keep their meaning through columns, slices, joins and sorting by minute."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from storage.batch.columns import RecordKind, decode_columns
from storage.batch.facts import FactBlock, Outcome, facts_of_columns, join_facts
from tests.storage.small_segments import delivered

Fact = tuple[int, int, int, bytes, int]

blocks = st.builds(
    delivered,
    st.lists(st.integers(1, 2**62), min_size=1, max_size=9),
    minute=st.integers(0, 2**32 - 1),
    at_ms=st.integers(0, 2**50),
    outcome=st.sampled_from(Outcome),
    target=st.sampled_from([b"g1", b"g2", b"a group with a longer name"]),
)


def told(block: FactBlock) -> list[Fact]:
    """Return what the block says, fact by fact."""
    return [
        (
            int(block.sequence[place]),
            int(block.minute[place]),
            int(block.at_ms[place]),
            block.targets[int(block.target[place])],
            int(block.outcome[place]),
        )
        for place in range(len(block))
    ]


@given(blocks)
def test_columns_bring_facts_back(block: FactBlock) -> None:
    columns = decode_columns(RecordKind.FACTS, len(block), block.encode())
    assert told(facts_of_columns(columns)) == told(block)


@given(st.lists(blocks, min_size=1, max_size=6))
def test_joined_facts_keep_order_and_targets(parts: list[FactBlock]) -> None:
    joined = join_facts(parts)
    assert told(joined) == [fact for part in parts for fact in told(part)]
    assert len(set(joined.targets)) == len(joined.targets)


@given(st.lists(blocks, min_size=1, max_size=6))
def test_sorting_by_minute_keeps_every_fact_and_the_order_within_a_minute(
    parts: list[FactBlock],
) -> None:
    joined = join_facts(parts)
    by_minute = dict(joined.split_by_minute())
    assert list(by_minute) == sorted({fact[1] for fact in told(joined)})
    for minute, part in by_minute.items():
        assert told(part) == [fact for fact in told(joined) if fact[1] == minute]


def test_a_slice_ends_where_the_block_ends() -> None:
    block = delivered([1, 2, 3])
    assert told(block.slice(1, 99)) == told(block)[1:]
    assert told(block.take(np.array([2, 0]))) == [told(block)[2], told(block)[0]]
    assert list(delivered([]).split_by_minute()) == []


def test_the_numbers_of_outcomes_are_those_on_disk() -> None:
    assert [outcome.name for outcome in Outcome] == [
        "DELIVERED",
        "KNOWN",
        "DEAD",
        "CANCELLED",
        "MOVED",
        "EXPIRED",
        "DROPPED",
    ]
    assert [int(outcome) for outcome in Outcome] == [1, 2, 3, 4, 5, 6, 7]
