"""A run counts and names exactly what a slow loop over the same files does, whatever is wrong.

`tests/spark_tools/oracle.py` is that loop; damage, which it cannot read, has tests of its own.
"""

import pickle
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_tools.files.columns import ORIGINS
from spark_tools.files.errors import ReconcileError
from spark_tools.files.times import minute_text
from spark_tools.judge.account import FACT_CLASSES, STATES, TaskResult
from spark_tools.judge.lateness import buckets_of
from spark_tools.judge.segments import SegmentTask
from spark_tools.run.local import local_engine
from spark_tools.run.plan import Request, Source, make_plan
from spark_tools.run.reconcile import Result, Task, Verdict, reconcile
from spark_tools.run.report import encode_report, report
from storage.batch.columns import RecordKind
from storage.batch.facts import Outcome
from storage.batch.rows import Origin
from storage.disk.spans import MINUTE_MS, SegmentKey, Span
from storage.readers.manifest import Fault as ManifestFault
from storage.readers.manifest import read_manifest
from tests.seeds import examples
from tests.spark_tools.oracle import Truth, truth
from tests.spark_tools.worlds import (
    FAULTS,
    T0,
    TOTALS,
    Builder,
    Fact,
    Message,
    World,
    builder_of,
    world_of,
)
from tests.storage.dead_rig import DeadRig
from tests.storage.plain_logs import batches
from tests.storage.store_rig import StoreRig

REQUEST = Request(max_late_ms=1000, examples=3)


def run(sources: Sequence[Source], request: Request = REQUEST) -> tuple[Result, pa.Table]:
    """Reconcile; return the result and every finding."""
    found: list[pa.Table] = []
    result = reconcile(make_plan(sources, request), local_engine(1), found.append)
    return result, pa.concat_tables([result.examples.slice(0, 0), *found])


def truth_of(world: World, request: Request) -> Truth:
    return truth(
        world.files,
        world.manifest,
        begin=request.from_minute,
        end=request.to_minute,
        watermark_ms=world.manifest.made_ms - request.grace_ms,
        final=request.final,
        max_late_ms=request.max_late_ms,
    )


def named(table: pa.Table) -> Counter[tuple[Any, ...]]:
    """Return findings as the oracle names them, but for doubled: which of the two is no matter."""
    columns = ("class", "sequence", "message_id", "due_ms", "at_ms", "file", "position")
    rows = zip(*(table[name].to_pylist() for name in columns), strict=True)
    return Counter(row for row in rows if row[0] != "doubled")


def compare(result: Result, findings: pa.Table, wanted: Truth) -> None:
    [group] = result.groups
    totals = group.account.totals
    assert {name: totals[name] for name in TOTALS} == {name: wanted.totals[name] for name in TOTALS}
    assert named(findings) == wanted.findings
    for tally, cells, key in (
        (group.account.subjects, wanted.subjects, "subject"),
        (group.account.targets, wanted.targets, "target"),
    ):
        rows = {(row["hour"], row[key]): row for row in tally.table().to_pylist()}
        assert rows.keys() == cells.keys()
        for place, cell in cells.items():
            got = {name: rows[place][name] for name in cell}
            assert got == dict(cell)
    buckets, latest = Counter[tuple[int, str, int]](), dict[tuple[int, str, int], int]()
    for (hour, subject, late), count in wanted.lateness.items():
        bucket = hour, subject, int(buckets_of(np.array([late]))[0])
        buckets[bucket] += count
        latest[bucket] = max(latest.get(bucket, 0), late)
    assert {
        (row["hour"], row["subject"], row["bucket"]): (row["count"], row["latest_ms"])
        for row in group.account.subject_lateness.table().to_pylist()
    } == {one: (count, latest[one]) for one, count in buckets.items()}
    every = [late for *_, late in wanted.lateness]
    assert report(result)["groups"][0]["lateness_ms"]["max"] == max(every, default=None)


def check(world: World, root: Path, request: Request = REQUEST) -> Result:
    result, findings = run([world.written(root)], request)
    compare(result, findings, truth_of(world, request))
    return result


RANGES = [(0, 10**9), (T0 - 3, T0 + 2), (T0 - 60, T0), (T0, T0 + 90), (T0 + 100, T0 + 3000)]


@examples(40)
@given(
    seed=st.integers(0, 2**32),
    faults=st.frozensets(st.sampled_from(FAULTS)),
    limits=st.sampled_from(RANGES),
    final=st.booleans(),
)
@example(
    seed=13837,
    faults=frozenset({"no_fact", "repeated"}),
    limits=(T0 - 3, T0 + 2),
    final=False,
)
def test_what_is_found_is_what_a_slow_loop_finds(
    seed: int, faults: frozenset[str], limits: tuple[int, int], final: bool
) -> None:
    request = Request(
        from_minute=limits[0], to_minute=limits[1], final=final, max_late_ms=1000, examples=3
    )
    with TemporaryDirectory() as root:
        check(world_of(seed, faults), Path(root), request)


def test_a_record_in_no_segment_counts_by_its_filed_minute(tmp_path: Path) -> None:
    late = Message(2, (T0 - 10) * MINUTE_MS, T0 - 2, b"gate", 1, b"")
    builder = Builder(random.Random(0), filed_sequence=1, log_next=3)
    builder.messages = [late]
    builder.batches = [(RecordKind.MESSAGE, late.floor, [late])]
    builder.unfiled = [Fact(2, late.minute, late.due_ms + 5, b"g1", Outcome.DELIVERED)]
    world = builder.build()
    for first, after, count in ((T0 - 5, T0, 1), (T0 - 11, T0 - 5, 0)):
        request = replace(REQUEST, from_minute=first, to_minute=after)
        totals = check(world, tmp_path / f"{count}", request).groups[0].account.totals
        assert (totals["accepted"], totals["delivered"], totals["facts"]) == (count,) * 3


@pytest.mark.parametrize(
    ("ends", "kind"),
    [
        ((Outcome.MOVED, Outcome.MOVED), "settled_twice"),
        ((Outcome.DELIVERED, Outcome.MOVED), "settled_twice"),
        ((Outcome.DEAD, Outcome.KNOWN), "settled_twice"),
        ((Outcome.DELIVERED, Outcome.KNOWN), "other"),
    ],
)
@pytest.mark.parametrize("apart_ms", [0, 7])
def test_a_row_that_two_records_settle_is_a_finding(
    ends: tuple[Outcome, Outcome], kind: str, apart_ms: int, tmp_path: Path
) -> None:
    builder = whole_builder()
    [facts] = builder.filed.values()
    first = replace(facts[5], outcome=ends[0], target=b"")
    facts[5:6] = [first, replace(first, outcome=ends[1], at_ms=first.at_ms + apart_ms)]
    source = builder.build().written(tmp_path)
    result, findings = run([source])
    assert result.groups[0].account.totals[kind] == 1
    assert findings["sequence"].to_pylist() == [first.sequence] * (kind == "settled_twice")
    assert result.verdict is (Verdict.FINDINGS if kind == "settled_twice" else Verdict.CLEAN)


def test_a_copy_without_a_row_is_missing_and_is_no_accepted_message(tmp_path: Path) -> None:
    builder = whole_builder()
    [(key, rows)] = builder.rows.items()
    copies = [one for one in builder.messages if one.origin is Origin.COPY]
    lost = copies[0]
    rows.remove(lost)
    builder.filed[key] = [one for one in builder.filed[key] if one.sequence != lost.sequence]
    result, findings = run([builder.build().written(tmp_path)])
    assert findings["class"].to_pylist() == ["missing"]
    assert findings["sequence"].to_pylist() == [lost.sequence]
    totals = result.groups[0].account.totals
    assert totals["accepted"] == len(builder.messages) - len(copies)
    assert totals["copies"] == len(copies) - 1


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_alone_is_found(fault: str, tmp_path: Path) -> None:
    struck = 0
    for seed in range(2):
        whole = check(world_of(seed), tmp_path / f"{seed}")
        result = check(world_of(seed, frozenset({fault})), tmp_path / f"{seed}-{fault}")
        struck += result.findings != whole.findings or result.problems != whole.problems
        struck += result.groups[0].account.totals != whole.groups[0].account.totals
    assert struck or fault == "trimmed_log"


# -- directories that a server would leave ---------------------------------------------------


def rig_source(rig: StoreRig, root: Path) -> tuple[World, Source]:
    manifest = read_manifest(rig.disk, now_ms=rig.now_ms)
    assert manifest.faults == ()
    world = World(rig.disk.contents(), manifest)
    return world, world.written(root)


@pytest.mark.parametrize("rig_class", [StoreRig, DeadRig])
@pytest.mark.parametrize("seed", range(4))
def test_what_a_node_leaves_at_any_moment_has_no_findings(
    seed: int, rig_class: type[StoreRig], tmp_path: Path
) -> None:
    rig = rig_class(seed)
    rig.open()
    for turn in range(3):
        for _ in range(rig.chance.randrange(50, 250)):
            rig.random_step()
        world, source = rig_source(rig, tmp_path / f"{turn}")
        request = Request(grace_ms=10**9)
        result, findings = run([source], request)
        compare(result, findings, truth_of(world, request))
        assert result.verdict is Verdict.CLEAN, (result.findings, result.problems)
        totals = result.groups[0].account.totals
        before = {one for one in rig.memory.accepted if one < world.manifest.log_next_sequence}
        assert totals["accepted"] + totals["retries"] == len(before)
        assert totals["missing"] == totals["unlogged"] == totals["misfiled_in_log"] == 0


def test_an_empty_cluster_is_clean(tmp_path: Path) -> None:
    rig = StoreRig(1)
    rig.open()
    _, source = rig_source(rig, tmp_path)
    result, findings = run([source])
    assert result.verdict is Verdict.CLEAN
    assert findings.num_rows == 0
    assert result.groups[0].account.totals["accepted"] == 0


# -- what is not whole -----------------------------------------------------------------------


def whole(seed: int = 3) -> World:
    """Return a world in which every message is sealed, delivered and on time."""
    return whole_builder(seed).build()


def whole_builder(seed: int = 3) -> Builder:
    """Return what makes such a world."""
    builder = Builder(random.Random(seed))
    builder.accept(40)
    for message in builder.messages:
        key = SegmentKey(T0 + 10, Span.MINUTE)
        message.due_ms, message.floor = key.start * MINUTE_MS + message.sequence, 0
        builder.rows[key].append(message)
        builder.filed[key].append(
            Fact(message.sequence, key.start, message.due_ms + 5, b"g1", Outcome.DELIVERED)
        )
        builder.sealed.add(key)
    builder.batches = [(kind, 0, batch) for kind, _, batch in builder.batches]
    builder.filed_sequence = builder.log_next - 1
    return builder


def differing(seed: int, group: str) -> list[World]:
    """Return two replicas that differ in one row and one fact; the first is the authority."""
    builder = whole_builder(seed)
    worlds = [builder.build(node="n2", group=group)]
    [key] = builder.rows
    message, fact = builder.rows[key][-1], builder.filed[key][-1]
    builder.rows[key][-1] = replace(message, id_hash=message.id_hash ^ 1)
    builder.filed[key][-1] = replace(fact, at_ms=fact.at_ms + 1)
    return [*worlds, builder.build(node="n1", group=group)]


def torn(group: str) -> World:
    """Return a whole world in which each log has a tail that a crash has left."""
    world = whole_builder().build(group=group)
    for prefix in ("schedule_log", "dispatch_log", "message_log"):
        world.files[at(world, prefix)] += b"DWB1 what a crash has left"
    return world


def at(world: World, prefix: str) -> str:
    """Return the first file of a directory that counts."""
    paths = [one.file for one in world.manifest.message_log]
    paths += [path for one in world.manifest.sealed for path in (one.file, one.facts_file)]
    return min(path for path in paths if path.startswith(prefix))


@pytest.mark.parametrize("prefix", ["schedule_log", "dispatch_log", "message_log"])
def test_a_torn_tail_behind_what_counts_is_nothing(prefix: str, tmp_path: Path) -> None:
    world = whole()
    world.files[at(world, prefix)] += b"DWB1 what a crash has left"
    result, _ = run([world.written(tmp_path)])
    assert result.verdict is Verdict.CLEAN, result.problems


@pytest.mark.parametrize("prefix", ["schedule_log", "dispatch_log", "message_log"])
@pytest.mark.parametrize("what", ["flipped", "cut", "gone"])
def test_damage_is_incomplete_and_never_a_finding_or_no_loss(
    prefix: str, what: str, tmp_path: Path
) -> None:
    world = whole()
    path = at(world, prefix)
    data = world.files[path]
    positions = [position for position, _ in batches(data, len(data))]
    position = positions[len(positions) // 2]
    if what == "gone":
        del world.files[path]
    elif what == "cut":
        world.files[path] = data[: position + 85]
    else:
        world.files[path] = data[: position + 90] + b"\xff\xfe" + data[position + 92 :]
    result, _ = run([world.written(tmp_path)])
    assert result.verdict is Verdict.INCOMPLETE, result.findings
    assert any(path in problem for _, _, _, problem in result.problems)
    totals = result.groups[0].account.totals
    assert totals["lost"] == totals["phantom"] == totals["missing"] == totals["unlogged"] == 0
    [seal] = world.manifest.sealed
    if prefix == "schedule_log":
        assert totals["accepted"] < seal.rows
        assert totals["unexplained"] + totals["unchecked"] > 0
    elif prefix == "dispatch_log":
        assert totals["unknown"] > 0


def test_a_file_with_fewer_rows_or_facts_than_the_manifest_says_is_incomplete(
    tmp_path: Path,
) -> None:
    world = whole()
    [seal] = world.manifest.sealed
    for number, changed in enumerate(
        (
            msgspec.structs.replace(seal, rows=seal.rows + 1),
            msgspec.structs.replace(seal, outcomes={"delivered": seal.rows + 1}),
        )
    ):
        world.manifest = msgspec.structs.replace(world.manifest, sealed=(changed,))
        result, _ = run([world.written(tmp_path / f"{number}")])
        assert result.verdict is Verdict.INCOMPLETE
        assert not any(result.findings.values())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"faults": (ManifestFault(file="seals", position=3, reason="bad"),)}, "seals at 3: bad"),
        ({"quarantined": ("schedule_log/x",)}, "schedule_log/x was put aside"),
        (
            {"deleted_from_minute": T0, "made_ms": (T0 + 1441) * 60_000},
            f"ended by {minute_text(T0)}: make it with --deleted-days {T0 // 1440 + 2}, or",
        ),
    ],
)
def test_a_manifest_that_does_not_tell_all_is_incomplete(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    world = whole()
    world.manifest = msgspec.structs.replace(world.manifest, **change)
    result, _ = run([world.written(tmp_path)])
    assert result.verdict is Verdict.INCOMPLETE
    assert any(said in problem for _, _, _, problem in result.problems)


def test_a_range_behind_what_the_manifest_does_not_tell_of_is_complete(tmp_path: Path) -> None:
    world = whole()
    world.manifest = msgspec.structs.replace(world.manifest, deleted_from_minute=T0)
    result, _ = run([world.written(tmp_path)], Request(from_minute=T0, to_minute=T0 + 60))
    assert result.verdict is Verdict.CLEAN


def test_a_group_that_is_not_there_is_incomplete(tmp_path: Path) -> None:
    result, _ = run([whole().written(tmp_path)], Request(expected_groups=("g", "h")))
    assert result.verdict is Verdict.INCOMPLETE
    assert [problem for *_, problem in result.problems] == [
        "group h is expected, and none of the manifests is of it"
    ]


def test_findings_come_before_what_is_incomplete_and_both_are_told(tmp_path: Path) -> None:
    world = world_of(1, frozenset({"no_fact"}))
    result, _ = run([world.written(tmp_path)], Request(expected_groups=("h",)))
    assert result.verdict is Verdict.FINDINGS
    assert result.problems


# -- replicas, groups, engines ---------------------------------------------------------------


def replica_of(builder: Builder, node: str = "n2") -> World:
    return builder.build(node=node)


def test_replicas_are_compared_and_not_added(tmp_path: Path) -> None:
    builder = builder_of(4)
    first, second = builder.build(), replica_of(builder)
    alone, _ = run([first.written(tmp_path / "a")])
    both, _ = run([first.written(tmp_path / "a"), second.written(tmp_path / "b")])
    assert both.groups[0].account.totals == alone.groups[0].account.totals
    assert both.findings == alone.findings
    assert both.groups[0].plan.node.node_id == "n2", "of equals the last by name"


@pytest.mark.parametrize("what", ["rows", "facts"])
def test_a_replica_with_something_else_is_named_by_hour(what: str, tmp_path: Path) -> None:
    builder = builder_of(4)
    first = builder.build(node="n2")
    key = max(builder.sealed, key=lambda one: len(builder.rows[one]))
    if what == "rows":
        message = builder.rows[key][-1]
        builder.rows[key][-1] = replace(message, id_hash=message.id_hash ^ 1)
    else:
        fact = builder.filed[key][-1]
        builder.filed[key][-1] = replace(fact, at_ms=fact.at_ms + 1)
    second = builder.build(node="n1")
    result, _ = run([first.written(tmp_path / "a"), second.written(tmp_path / "b")])
    differing = result.groups[0].differing
    unsealed = {one.start // 60 * 60 for one in builder.rows.keys() - builder.sealed}
    if what == "facts" and key.start // 60 * 60 in unsealed:
        assert differing == []
    else:
        assert [(one.node_id, one.hour, one.what) for one in differing] == [
            ("n1", key.start // 60 * 60, what)
        ]
        assert result.verdict is Verdict.FINDINGS


@pytest.mark.parametrize("node", ["n1", "n2"], ids=["replica", "authority"])
@pytest.mark.parametrize("prefix", ["schedule_log", "dispatch_log", "message_log"])
@pytest.mark.parametrize("what", ["flipped", "gone"])
def test_a_damaged_replica_is_incomplete_and_does_not_differ(
    what: str, prefix: str, node: str, tmp_path: Path
) -> None:
    builder = whole_builder()
    if prefix == "message_log":
        # What is not filed yet is in it alone.
        builder = builder_of(2)
        builder.filed_sequence = 0
        builder.rows.clear()
        builder.filed.clear()
        builder.sealed.clear()
    worlds = [builder.build(node=name) for name in ("n1", "n2")]
    hurt = worlds[node == "n2"]
    path = at(hurt, prefix)
    data = hurt.files.pop(path)
    if what == "flipped":
        position = [position for position, _ in batches(data, len(data))][-1]
        hurt.files[path] = data[: position + 90] + b"\xff\xfe" + data[position + 92 :]
    sources = [one.written(tmp_path / one.manifest.node_id) for one in worlds]
    result, findings = run(sources, Request(grace_ms=10**9))
    assert result.verdict is Verdict.INCOMPLETE, findings.to_pylist()
    assert {node for _, _, node, _ in result.problems} - {""} == {node}


def test_groups_are_counted_apart(tmp_path: Path) -> None:
    worlds = [builder_of(seed, frozenset({"no_fact"})).build(group=f"g{seed}") for seed in (1, 2)]
    sources = [world.written(tmp_path / world.manifest.group) for world in worlds]
    result, _ = run(sources)
    for group, world in zip(result.groups, worlds, strict=True):
        wanted = truth_of(world, Request(max_late_ms=1000))
        got = {name: group.account.totals[name] for name in TOTALS}
        assert got == {name: wanted.totals[name] for name in TOTALS}


def test_processes_of_their_own_find_the_same(tmp_path: Path) -> None:
    source = world_of(5, frozenset(FAULTS)).written(tmp_path)
    here, _ = run([source])
    found: list[pa.Table] = []
    plan = make_plan([source], REQUEST)
    there = reconcile(plan, local_engine(2), found.append)
    assert encode_report(report(there)) == encode_report(report(here))


@pytest.mark.parametrize("seed", [0, 1])
def test_the_order_of_tasks_changes_nothing(seed: int, tmp_path: Path) -> None:
    source = world_of(6, frozenset(FAULTS)).written(tmp_path)
    here, _ = run([source], replace(REQUEST, subjects_max=2))

    def shuffled(tasks: Sequence[Task]) -> Iterator[TaskResult]:
        mixed = list(tasks)
        random.Random(seed).shuffle(mixed)
        return (pickle.loads(pickle.dumps(task))() for task in mixed)  # noqa: S301

    plan = make_plan([source], replace(REQUEST, subjects_max=2))
    there = reconcile(plan, shuffled, lambda _: None)
    assert encode_report(report(there)) == encode_report(report(here))
    names = {row["subject"] for row in report(here)["groups"][0]["by_subject"]}
    assert names == {"boarding", "caf\\xe9", "(other)"}


@pytest.mark.parametrize(
    ("name", "book"),
    [
        *((name, "rows by state") for name in ("rows", *STATES)),
        *((name, "rows by origin") for name in ("rows", *ORIGINS)),
        *((name, f"{name} by hour") for name in ("early", "sent_past_due", "misfiled", "bytes")),
        ("missing total", "missing by hour"),
        ("early", "lateness, early and sent past due"),
        *((name, "facts by class") for name in ("facts", *FACT_CLASSES)),
        ("first", "rows with a fact, and first facts"),
        *((name, f"{name} by hour") for name in ("facts", *FACT_CLASSES)),
        ("subject_lateness", "lateness, early and sent past due"),
        ("target_lateness", "lateness by broker group, early and sent past due"),
        ("subjects", "accepted by hour"),
        ("targets", "facts by hour"),
        ("missing cells", "missing by hour"),
    ],
)
def test_books_that_do_not_balance_are_an_error(name: str, book: str, tmp_path: Path) -> None:
    source = world_of(1, frozenset({"missing"})).written(tmp_path)

    def crooked(tasks: Sequence[Task]) -> Iterator[TaskResult]:
        for task in tasks:
            result = task()
            tally = getattr(result.account, name.removesuffix(" cells"), None)
            total = name.removesuffix(" total")
            if tally is not None and (table := tally.table()).num_rows:
                # As if a cell had been counted twice.
                tally.add(table.slice(0, 1))
            elif tally is None:
                result.account.totals[total] += isinstance(task, SegmentTask)
            yield result

    with pytest.raises(ReconcileError, match=rf"do not balance.*{book}: (\d+), not \d+"):
        reconcile(make_plan([source], REQUEST), crooked, lambda _: None)


def test_the_watermark_is_that_of_the_oldest_manifest(tmp_path: Path) -> None:
    hour_ms = 60 * MINUTE_MS
    found = []
    for group, made_ms in (("early", T0 * MINUTE_MS), ("late", T0 * MINUTE_MS + 2 * hour_ms)):
        builder = whole_builder()
        # All of it is due ten minutes after the first manifest was made, and nothing is told of it.
        builder.sealed.clear()
        builder.filed.clear()
        found.append(builder.build(group=group, made_ms=made_ms).written(tmp_path / group))
    for sources in (found, found[::-1]):
        both, _ = run(sources)
        assert both.plan.watermark_ms == T0 * MINUTE_MS - REQUEST.grace_ms
        assert (both.verdict, len(both.groups)) == (Verdict.CLEAN, 2)
        for one in both.groups:
            assert one.account.totals["waiting"] == one.account.totals["rows"] > 0
    alone, _ = run(found[1:])
    totals = alone.groups[0].account.totals
    assert alone.findings["overdue"] == totals["overdue"] == totals["rows"]
