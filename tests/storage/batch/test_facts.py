"""Facts keep their meaning through columns, slices, joins and sorting; what states them is told."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.batch.batches import DEAD_MINUTES
from storage.batch.columns import LAYOUTS, Array, Columns, RecordKind, decode_columns
from storage.batch.facts import (
    STATING_KINDS,
    FactBlock,
    Outcome,
    fact_drafts,
    facts_stated,
    filed_facts_of,
    join_facts,
)
from storage.disk.spans import DEAD_MINUTES_FROM
from tests.storage.small_logs import NOW_MS, facts_batch, log_batch
from tests.storage.small_segments import KEY, delivered, example_files
from tests.storage.worked_examples import worked_examples

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
def test_columns_of_a_segments_file_bring_facts_back(block: FactBlock) -> None:
    [draft] = fact_drafts(block, first_number=1, epoch=1, append_ms=0, floor_minute=0)
    found = filed_facts_of(decode_columns(RecordKind.FACTS, len(block), draft.columns))
    assert told(found) == told(block)
    assert found.record.tolist() == [0] * len(block), "no file says which record stated it"


@given(blocks, st.integers(1, 2**62))
def test_each_fact_of_the_message_log_is_a_record(block: FactBlock, first: int) -> None:
    batch = facts_batch(first, block)
    found = facts_stated(batch.header, batch.columns)
    assert found is not None
    assert told(found) == told(block)
    assert found.record.tolist() == list(range(first, first + len(block)))
    last = first + len(block) - 1
    assert told(found.above(first)) == told(block)[1:]
    assert [len(found.above(record)) for record in (first - 1, last)] == [len(block), 0]


@pytest.mark.parametrize(
    ("kind", "outcomes"),
    [
        (RecordKind.DEAD, (Outcome.DEAD, Outcome.DEAD)),
        (RecordKind.MOVE, (Outcome.MOVED, Outcome.MOVED)),
        (RecordKind.CANCEL, (Outcome.CANCELLED, Outcome.DROPPED)),
    ],
)
def test_what_names_an_older_message_states_a_fact_about_it(
    kind: RecordKind, outcomes: tuple[Outcome, ...]
) -> None:
    minutes = [KEY.start, DEAD_MINUTES_FROM + 16_000]
    arrays: dict[str, Array] = {name: np.zeros(2, type_) for name, type_ in LAYOUTS[kind]}
    arrays["old_sequence"] = np.array([5, 9], np.int64)
    arrays["old_minute"] = np.array(minutes, np.uint32)
    columns = Columns(names=[b"boarding"], arrays=arrays)
    batch = log_batch(kind, 40, floor_minute=KEY.start, columns=columns, append_ms=NOW_MS + 9)
    found = facts_stated(batch.header, batch.columns)
    assert found is not None
    assert told(found) == [
        (sequence, minute, NOW_MS + 9, b"", outcome)
        for sequence, minute, outcome in zip([5, 9], minutes, outcomes, strict=True)
    ]
    assert found.record.tolist() == [40, 41]


@pytest.mark.parametrize("kind", [RecordKind.EPOCH_START, RecordKind.FLOOR])
def test_other_records_state_none(kind: RecordKind) -> None:
    batch = log_batch(kind, 40, floor_minute=KEY.start)
    assert facts_stated(batch.header, batch.columns) is None
    assert kind not in STATING_KINDS


def test_facts_of_one_batch_too_many_are_filed_in_two() -> None:
    block = delivered(list(range(1, 100_002)))
    first, second = fact_drafts(block, first_number=7, epoch=1, append_ms=0, floor_minute=0)
    assert (first.base_sequence, first.count) == (7, 100_000)
    assert (second.base_sequence, second.count) == (100_007, 1)


@pytest.mark.parametrize(("minute", "features"), [(0, 0), (DEAD_MINUTES_FROM, DEAD_MINUTES)])
def test_older_versions_refuse_facts_about_dead_letters(minute: int, features: int) -> None:
    block = join_facts([delivered([1]), delivered([2], minute=minute)])
    [draft] = fact_drafts(block, first_number=1, epoch=1, append_ms=0, floor_minute=0)
    assert draft.features == features


@given(st.lists(blocks, min_size=1, max_size=6))
def test_joined_facts_keep_order_and_targets(parts: list[FactBlock]) -> None:
    joined = join_facts(parts)
    assert told(joined) == [fact for part in parts for fact in told(part)]
    assert len(set(joined.targets)) == len(joined.targets)


@given(st.lists(blocks, min_size=1, max_size=6))
def test_sorting_by_code_keeps_every_fact_and_the_order_within_a_code(
    parts: list[FactBlock],
) -> None:
    joined = join_facts(parts)
    by_minute = dict(joined.split_by(joined.minute.astype(np.int64)))
    assert list(by_minute) == sorted({fact[1] for fact in told(joined)})
    for minute, part in by_minute.items():
        assert told(part) == [fact for fact in told(joined) if fact[1] == minute]


def test_a_slice_ends_where_the_block_ends() -> None:
    block = delivered([1, 2, 3])
    assert told(block.slice(1, 99)) == told(block)[1:]
    assert told(block.take(np.array([2, 0]))) == [told(block)[2], told(block)[0]]
    assert block.take(np.array([2, 0])).record.tolist() == [5, 3]
    assert list(delivered([]).split_by(np.empty(0, np.int64))) == []


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


def test_the_worked_example_is_what_the_code_writes() -> None:
    assert worked_examples("dispatch_log.md") == [example_files()["dispatch_log.md"]]
