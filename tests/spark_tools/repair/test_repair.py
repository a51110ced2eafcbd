"""Promise: what is sent is what was lost, byte for byte; what is not whole, or not lost, is not."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_tools.judge.account import FINDINGS_SCHEMA
from spark_tools.repair import repair
from spark_tools.repair.repair import LeftOut, Message, Why, messages_of
from spark_tools.repaired.repairs import KINDS, LOST, LogName, Repaired, Repairs
from spark_tools.run.local import local_engine
from spark_tools.run.plan import Request, Source
from spark_tools.run.reconcile import Result
from storage.batch.facts import Outcome
from storage.readers.manifest import Fault
from storage.state.checkpoint import CHECKPOINT_PATH
from tests.seeds import examples
from tests.spark_tools.repair_worlds import BEFORE, builder_of, sealed_builder
from tests.spark_tools.worlds import FAULTS, Builder, Fact

WHOLE = [one for one in FAULTS if one not in {"altered", "unlogged"}]
"""Faults that leave rows whole; those of the others are of other messages than they say."""
Found = tuple[Result, pa.Table]


def found_in(source: Source, *, final: bool = False, repairs: Repairs | None = None) -> Found:
    return repair.found_in([source], Request(final=final), local_engine(1), repairs or Repairs())


def repaired(
    source: Source,
    found: Found | None = None,
    *,
    kinds: Sequence[str] = KINDS,
    due_from_ms: int | None = None,
) -> tuple[list[Message], list[LeftOut]]:
    result, findings = found or found_in(source)
    every = list(messages_of([source], result, findings, kinds=kinds, due_from_ms=due_from_ms))
    return (
        [one for one in every if isinstance(one, Message)],
        [one for one in every if isinstance(one, LeftOut)],
    )


def whys(left: list[LeftOut]) -> Counter[Why]:
    return Counter(one.why for one in left)


@examples(15)
@given(
    seed=st.integers(0, 2**32),
    faults=st.frozensets(st.sampled_from(WHOLE)),
    final=st.booleans(),
)
def test_what_is_found_is_sent_byte_for_byte_and_once(
    seed: int, faults: frozenset[str], final: bool
) -> None:
    with TemporaryDirectory() as root:
        builder = builder_of(seed, faults | {"no_fact", "missing"})
        source = builder.build().written(Path(root, "data"))
        found = found_in(source, final=final)
        # A row that is there twice is lost twice, and sent once.
        wanted = Counter(
            {
                (row["class"], row["sequence"])
                for row in found[1].to_pylist()
                if row["class"] in KINDS
            }
        )
        messages, left = repaired(source, found)
        is_complete = not found[0].problems
        done = {Why.SETTLED} if is_complete else {Why.SETTLED, Why.UNREADABLE}
        assert whys(left).keys() <= done, left
        assert is_complete or all(one.wanted.kind == LOST for one in messages)
        assert (
            Counter(
                (one.kind, one.sequence)
                for one in [*(each.wanted for each in messages), *(each.wanted for each in left)]
            )
            == wanted
        )
        items = {one.sequence: one.item for one in builder.messages}
        assert all(one.item == items[one.wanted.sequence] for one in messages)
        # A message with a fact may have none of its own: a phantom's, or one that strayed.
        facts = {one.sequence for told in builder.filed.values() for one in told}
        facts |= {one.sequence for one in builder.unfiled}
        settled = {one.wanted.sequence for one in left if one.why is Why.SETTLED}
        assert settled <= facts


def test_lost_is_sent_and_missing_only_if_asked_for(tmp_path: Path) -> None:
    builder = sealed_builder(lost=3, missing=2)
    source = builder.build().written(tmp_path / "data")
    messages, left = repaired(source, kinds=(LOST,))
    assert [one.item for one in messages] == [one.item for one in builder.messages[2:5]]
    assert left == []
    messages, _ = repaired(source)
    assert {one.item for one in messages} == {one.item for one in builder.messages[:5]}
    [one] = [one for one in messages if one.wanted.sequence == builder.messages[0].sequence]
    assert (one.subject, one.message_id) == (
        builder.messages[0].subject.decode(),
        f"id-{builder.messages[0].sequence}",
    )
    assert one.log_uuid == source.manifest.log_uuid


@pytest.mark.parametrize("where", ["log", "filed"])
def test_a_fact_of_a_missing_record_is_enough(where: str, tmp_path: Path) -> None:
    builder = sealed_builder(lost=0, missing=1)
    one = builder.messages[0]
    fact = Fact(one.sequence, BEFORE, one.due_ms + 1, b"g1", Outcome.DELIVERED)
    if where == "log":
        builder.unfiled.append(fact)
    else:
        [facts] = builder.filed.values()
        facts.append(fact)
    messages, left = repaired(builder.build().written(tmp_path / "now"))
    assert messages == []
    assert whys(left) == {Why.SETTLED: 1}


def test_what_its_node_still_owes_is_sent_only_if_nothing_runs_any_more(tmp_path: Path) -> None:
    builder = sealed_builder(lost=3)
    builder.sealed.clear()
    source = builder.build().written(tmp_path / "data")
    found = found_in(source)
    assert found[0].findings["overdue"] == 3
    assert repaired(source, found) == ([], [])
    messages, _ = repaired(source, found_in(source, final=True))
    assert len(messages) == 3


def test_what_no_segment_has_yet_is_read_from_the_message_log(tmp_path: Path) -> None:
    builder = sealed_builder(lost=12, count=12)
    builder.rows.clear()
    builder.filed.clear()
    builder.sealed.clear()
    builder.filed_sequence = 1
    source = builder.build().written(tmp_path / "data")
    messages, left = repaired(source, found_in(source, final=True))
    assert [one.item for one in messages] == [one.item for one in builder.messages]
    assert left == []
    assert repaired(source) == ([], []), "it is overdue"


def test_what_was_acknowledged_before_is_not_sent_and_what_is_too_old_left_out(
    tmp_path: Path,
) -> None:
    builder = sealed_builder(lost=3)
    source = builder.build().written(tmp_path / "data")
    first, second, third = builder.messages[:3]
    log = LogName(source.manifest.cluster, source.manifest.group, source.manifest.log_uuid)
    known = Repaired.of(*(np.array([value], np.int64) for value in (BEFORE, first.sequence)))
    found = found_in(source, repairs=Repairs(rows={log: known}))
    messages, left = repaired(source, found, due_from_ms=third.due_ms)
    assert [one.wanted.sequence for one in messages] == [third.sequence]
    assert {one.wanted.sequence: one.why for one in left} == {second.sequence: Why.OLD}


# -- what cannot be read ----------------------------------------------------------------------


def unreadable(source: Source, found: Found | None = None, *, count: int) -> set[str]:
    """Return why findings cannot be read; nothing may be sent."""
    messages, left = repaired(source, found)
    assert messages == []
    assert whys(left) == {Why.UNREADABLE: count}
    return {one.detail for one in left}


def test_a_damaged_item_is_named_and_not_sent(tmp_path: Path) -> None:
    builder = sealed_builder(lost=3)
    world = builder.build()
    source = world.written(tmp_path / "data")
    found = found_in(source)
    item = builder.messages[1].item
    [seal] = world.manifest.sealed
    data = world.files[seal.file]
    at = data.index(item) + len(item) - 1
    Path(source.root, seal.file).write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    messages, left = repaired(source, found)
    assert whys(left)[Why.UNREADABLE] >= 1
    assert builder.messages[1].sequence in {one.wanted.sequence for one in left}
    assert all(one.item in {each.item for each in builder.messages} for one in messages)


def test_a_file_that_is_gone_is_named_and_nothing_is_sent(tmp_path: Path) -> None:
    world = sealed_builder(lost=3).build()
    source = world.written(tmp_path / "data")
    found = found_in(source)
    [seal] = world.manifest.sealed
    Path(source.root, seal.file).unlink()
    [detail] = unreadable(source, found, count=3)
    assert seal.file in detail
    world.written(tmp_path / "data")
    Path(source.root, seal.facts_file).unlink()
    assert repaired(source) == ([], []), "without facts nothing is known to be lost"


def test_with_a_checkpoint_that_is_not_whole_nothing_is_sent(tmp_path: Path) -> None:
    source = sealed_builder(lost=3).build().written(tmp_path / "data")
    fault = Fault(file=CHECKPOINT_PATH, position=0, reason="torn")
    manifest = msgspec.structs.replace(source.manifest, faults=(fault,))
    [detail] = unreadable(Source(manifest, source.root), count=3)
    assert CHECKPOINT_PATH in detail


def test_what_is_missing_is_sent_only_if_all_of_the_input_can_be_read(tmp_path: Path) -> None:
    source = sealed_builder(lost=0, missing=2).build().written(tmp_path / "data")
    manifest = msgspec.structs.replace(source.manifest, quarantined=("dispatch_log/x",))
    [detail] = unreadable(Source(manifest, source.root), count=2)
    assert "dispatch_log/x was put aside" in detail


def test_names_that_no_node_takes_are_told(tmp_path: Path) -> None:
    builder = sealed_builder(lost=1)
    builder.messages[0].subject = b"caf\xe9"
    source = builder.build().written(tmp_path / "data")
    [detail] = unreadable(source, count=1)
    assert "no UTF-8" in detail


def change(builder: Builder, name: str) -> None:
    """Have the first row differ from what was found, or from its own item."""
    [rows] = builder.rows.values()
    one = rows[0]
    changed = {
        "id_hash": replace(one, id_hash=one.id_hash ^ 1),
        "due_ms": replace(one, due_ms=one.due_ms + 1),
        "subject": replace(one, subject=b"another"),
    }
    rows[0] = changed[name]


@pytest.mark.parametrize("name", ["id_hash", "due_ms", "subject"])
def test_a_row_that_is_not_what_was_found_is_not_sent(name: str, tmp_path: Path) -> None:
    found = found_in(sealed_builder(lost=1).build().written(tmp_path / "then"))
    builder = sealed_builder(lost=1)
    change(builder, name)
    now = builder.build().written(tmp_path / "now")
    [detail] = unreadable(now, found, count=1)
    assert "another message" in detail


def test_a_message_elsewhere_in_the_file_is_not_taken_for_the_one_that_was_found(
    tmp_path: Path,
) -> None:
    source = sealed_builder(lost=1).build().written(tmp_path / "data")
    result, findings = found_in(source)
    rows = [{**row, "position": row["position"] + 1} for row in findings.to_pylist()]
    moved = pa.Table.from_pylist(rows, FINDINGS_SCHEMA)
    [detail] = unreadable(source, (result, moved), count=1)
    assert "not where it was found" in detail
