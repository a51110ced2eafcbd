"""Promise: what is sent is what was lost, byte for byte; what is not whole, or not lost, is not."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_tools.files.errors import ReconcileError
from spark_tools.judge.account import FINDINGS_SCHEMA
from spark_tools.repair.repair import LeftOut, Message, Repair, RepairRequest, Sent, Why
from spark_tools.repaired.repairs import KINDS, LOST, MISSING, LogName
from spark_tools.run.plan import Request, Source
from storage.batch.facts import Outcome
from storage.disk.spans import SegmentKey, Span
from tests.seeds import examples
from tests.spark_tools.repair_worlds import BEFORE, builder_of, run, sealed_builder
from tests.spark_tools.worlds import FAULTS, T0, Builder, Fact

WHOLE = [one for one in FAULTS if one not in {"altered", "unlogged"}]
"""Faults that leave rows whole; those of the others are of other messages than they say."""
EVERYTHING = RepairRequest(kinds=KINDS, final=True)


def repaired(
    source: Source,
    details: Path,
    request: RepairRequest = EVERYTHING,
    sent: Sent | None = None,
) -> tuple[list[Message], list[LeftOut]]:
    found = list(Repair([source], request, sent or Sent()).messages(details))
    return (
        [one for one in found if isinstance(one, Message)],
        [one for one in found if isinstance(one, LeftOut)],
    )


def whys(left: list[LeftOut]) -> Counter[Why]:
    return Counter(one.why for one in left)


def log_of(source: Source) -> LogName:
    manifest = source.manifest
    return LogName(manifest.cluster, manifest.group, manifest.log_uuid)


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
        details = Path(root, "details")
        run(source, details, Request(final=final))
        findings = pq.read_table(details / "findings.parquet").to_pylist()
        wanted = Counter(
            (row["class"], row["sequence"]) for row in findings if row["class"] in KINDS
        )
        messages, left = repaired(source, details)
        done = {Why.TWICE, Why.SETTLED}
        assert whys(left).keys() <= done, left
        assert (
            Counter((one.wanted.kind, one.wanted.sequence) for one in messages)
            + Counter((one.wanted.kind, one.wanted.sequence) for one in left)
            == wanted
        )
        sequences = [(one.wanted.kind, one.wanted.sequence) for one in messages]
        assert len(set(sequences)) == len(sequences)
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
    result = run(source, tmp_path / "details")
    assert (result.findings["lost"], result.findings["missing"]) == (3, 2)
    messages, left = repaired(source, tmp_path / "details", RepairRequest())
    assert [one.item for one in messages] == [one.item for one in builder.messages[2:5]]
    assert left == []
    messages, _ = repaired(source, tmp_path / "details", RepairRequest(kinds=KINDS))
    assert {one.item for one in messages} == {one.item for one in builder.messages[:5]}
    [one] = [one for one in messages if one.wanted.sequence == builder.messages[0].sequence]
    assert (one.subject, one.message_id) == (
        builder.messages[0].subject.decode(),
        f"id-{builder.messages[0].sequence}",
    )
    assert one.log == log_of(source)


def test_what_has_a_fact_or_a_row_by_now_is_left_out(tmp_path: Path) -> None:
    run(sealed_builder(lost=3, missing=2).build().written(tmp_path / "then"), tmp_path / "details")
    now = sealed_builder(lost=2, missing=0).build().written(tmp_path / "now")
    messages, left = repaired(now, tmp_path / "details")
    assert messages == []
    assert whys(left) == {Why.SETTLED: 3, Why.FILED: 2}


def test_what_a_record_before_the_end_of_the_log_settles_is_not_sent(tmp_path: Path) -> None:
    builder = sealed_builder(lost=3)
    run(builder.build().written(tmp_path / "then"), tmp_path / "details")
    builder.unfiled = [
        Fact(one.sequence, BEFORE, one.due_ms + 5, b"g1", Outcome.DELIVERED)
        for one in builder.messages[:2]
    ]
    world = builder.build()
    sequence = world.manifest.log_next_sequence - 1
    world.manifest = msgspec.structs.replace(world.manifest, sequence=sequence)
    source = world.written(tmp_path / "now")
    _, left = repaired(source, tmp_path / "details")
    settled = [one.wanted.sequence for one in left if one.why is Why.SETTLED]
    assert settled == [one.sequence for one in builder.messages[:2]]
    assert run(source, tmp_path / "again").findings["lost"] == 1


@pytest.mark.parametrize("where", ["tail", "filed"])
def test_a_fact_of_a_missing_record_is_enough(where: str, tmp_path: Path) -> None:
    builder = sealed_builder(lost=0, missing=1)
    source = builder.build().written(tmp_path / "then")
    run(source, tmp_path / "details")
    one = builder.messages[0]
    fact = Fact(one.sequence, BEFORE, one.due_ms + 1, b"g1", Outcome.DELIVERED)
    if where == "tail":
        builder.unfiled.append(fact)
    else:
        [facts] = builder.filed.values()
        facts.append(fact)
        # Manifests name segments that are not sealed first: here one of a later minute.
        builder.rows[SegmentKey(T0 + 3, Span.MINUTE)] = builder.messages[-1:]
    messages, left = repaired(builder.build().written(tmp_path / "now"), tmp_path / "details")
    assert messages == []
    assert whys(left) == {Why.SETTLED: 1}


def test_what_its_node_still_owes_is_sent_only_if_nothing_runs_any_more(tmp_path: Path) -> None:
    builder = sealed_builder(lost=3)
    builder.sealed.clear()
    source = builder.build().written(tmp_path / "data")
    assert run(source, tmp_path / "details").findings["overdue"] == 3
    assert repaired(source, tmp_path / "details") == ([], [])
    assert run(source, tmp_path / "details", Request(final=True)).findings["lost"] == 3
    messages, left = repaired(source, tmp_path / "details", RepairRequest())
    assert messages == []
    assert whys(left) == {Why.OWED: 3}
    messages, _ = repaired(source, tmp_path / "details")
    assert len(messages) == 3


def test_what_no_segment_has_yet_is_read_from_the_message_log(tmp_path: Path) -> None:
    builder = sealed_builder(lost=12, count=12)
    builder.rows.clear()
    builder.filed.clear()
    builder.sealed.clear()
    builder.filed_sequence = 1
    source = builder.build().written(tmp_path / "data")
    count = len(builder.messages)
    assert run(source, tmp_path / "details", Request(final=True)).findings["lost"] == count
    messages, left = repaired(source, tmp_path / "details")
    assert [one.item for one in messages] == [one.item for one in builder.messages]
    assert left == []
    _, left = repaired(source, tmp_path / "details", RepairRequest())
    assert whys(left) == {Why.OWED: count}


def test_what_was_acknowledged_before_or_is_too_old_is_left_out(tmp_path: Path) -> None:
    builder = sealed_builder(lost=3)
    source = builder.build().written(tmp_path / "data")
    run(source, tmp_path / "details")
    first, second, third = builder.messages[:3]
    sent = Sent()
    sent.add(log_of(source), LOST, first.sequence)
    sent.add(log_of(source), MISSING, second.sequence)
    request = RepairRequest(due_from_ms=third.due_ms)
    messages, left = repaired(source, tmp_path / "details", request, sent)
    assert [one.wanted.sequence for one in messages] == [third.sequence]
    assert {one.wanted.sequence: one.why for one in left} == {
        first.sequence: Why.SENT_BEFORE,
        second.sequence: Why.OLD,
    }


# -- what cannot be read ----------------------------------------------------------------------


def unreadable(source: Source, details: Path, *, count: int) -> set[str]:
    """Return why findings cannot be read; nothing may be sent."""
    messages, left = repaired(source, details)
    assert messages == []
    assert whys(left) == {Why.UNREADABLE: count}
    return {one.detail for one in left}


def test_a_damaged_item_is_named_and_not_sent(tmp_path: Path) -> None:
    builder = sealed_builder(lost=3)
    world = builder.build()
    source = world.written(tmp_path / "data")
    run(source, tmp_path / "details")
    item = builder.messages[1].item
    [seal] = world.manifest.sealed
    data = world.files[seal.file]
    at = data.index(item) + len(item) - 1
    Path(source.root, seal.file).write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    messages, left = repaired(source, tmp_path / "details")
    assert whys(left)[Why.UNREADABLE] >= 1
    assert builder.messages[1].sequence in {one.wanted.sequence for one in left}
    assert all(one.item in {each.item for each in builder.messages} for one in messages)


@pytest.mark.parametrize("what", ["rows", "facts"])
def test_files_that_are_gone_are_named_and_nothing_is_sent(what: str, tmp_path: Path) -> None:
    world = sealed_builder(lost=3).build()
    source = world.written(tmp_path / "data")
    run(source, tmp_path / "details")
    [seal] = world.manifest.sealed
    path = seal.file if what == "rows" else seal.facts_file
    Path(source.root, path).unlink()
    [detail] = unreadable(source, tmp_path / "details", count=3)
    assert path in detail


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"sealed": ()}, "does not name the file"), ({"node_id": "n9"}, "node n1")],
    ids=["file", "node"],
)
def test_a_file_or_a_node_that_no_manifest_names_any_more_is_told(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    source = sealed_builder(lost=3).build().written(tmp_path / "data")
    run(source, tmp_path / "details")
    changed = Source(msgspec.structs.replace(source.manifest, **changes), source.root)
    [detail] = unreadable(changed, tmp_path / "details", count=3)
    assert said in detail


def test_names_that_no_node_takes_are_told(tmp_path: Path) -> None:
    builder = sealed_builder(lost=1)
    builder.messages[0].subject = b"caf\xe9"
    source = builder.build().written(tmp_path / "data")
    run(source, tmp_path / "details")
    [detail] = unreadable(source, tmp_path / "details", count=1)
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
    then = sealed_builder(lost=1).build().written(tmp_path / "then")
    run(then, tmp_path / "details")
    builder = sealed_builder(lost=1)
    change(builder, name)
    now = builder.build().written(tmp_path / "now")
    [detail] = unreadable(now, tmp_path / "details", count=1)
    assert "another message" in detail


def test_a_message_elsewhere_in_the_file_is_not_taken_for_the_one_that_was_found(
    tmp_path: Path,
) -> None:
    source = sealed_builder(lost=1).build().written(tmp_path / "data")
    run(source, tmp_path / "details")
    file = tmp_path / "details" / "findings.parquet"
    rows = pq.read_table(file).to_pylist()
    for row in rows:
        row["position"] += 1
    pq.write_table(pa.Table.from_pylist(rows, FINDINGS_SCHEMA), file)
    [detail] = unreadable(source, tmp_path / "details", count=1)
    assert "not where it was found" in detail


def test_what_is_no_details_directory_is_an_error(tmp_path: Path) -> None:
    source = sealed_builder().build().written(tmp_path / "data")
    with pytest.raises(FileNotFoundError):
        repaired(source, tmp_path)
    file = tmp_path / "findings.parquet"
    file.write_bytes(b"PAR1 it is not")
    with pytest.raises(ReconcileError, match="no Parquet file"):
        repaired(source, tmp_path)
    pq.write_table(pa.table({"class": ["lost"]}), file)
    with pytest.raises(ReconcileError, match="no column"):
        repaired(source, tmp_path)
    row = dict.fromkeys(FINDINGS_SCHEMA.names) | {"class": "lost"}
    pq.write_table(pa.Table.from_pylist([row], FINDINGS_SCHEMA), file)
    with pytest.raises(ReconcileError, match="cannot be repaired"):
        repaired(source, tmp_path)
