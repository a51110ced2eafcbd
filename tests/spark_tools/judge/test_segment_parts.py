"""However a segment is cut into parts, the same is found, and no part holds more than it may."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from spark_tools.judge.segment_parts import parts_of
from spark_tools.judge.segments import SegmentTask
from spark_tools.judge.tasks import WHOLE
from spark_tools.run.local import local_engine
from spark_tools.run.plan import Request, Source, make_plan
from spark_tools.run.reconcile import reconcile
from spark_tools.run.report import encode_report, report
from tests.spark_tools.worlds import FAULTS, World, builder_of, world_of
from tests.storage.plain_logs import batches, plain_rows

REQUEST = Request(max_late_ms=1000, examples=3)


def found(source: Source, rows_at_once: int, *others: Source) -> tuple[bytes, Counter[Any], int]:
    """Return the result, all findings, and into how many tasks segments were cut."""
    plan = make_plan([source, *others], replace(REQUEST, rows_at_once=rows_at_once))
    tables: list[pa.Table] = []
    tasks = sum(isinstance(task, SegmentTask) for group in plan.groups for task in group.tasks)
    result = encode_report(report(reconcile(plan, local_engine(1), tables.append)))
    rows = [tuple(row.values()) for table in tables for row in table.to_pylist()]
    return result, Counter(rows), tasks


@pytest.mark.parametrize("seed", range(4))
def test_parts_of_any_size_find_what_the_whole_segment_does(seed: int, tmp_path: Path) -> None:
    source = world_of(seed, frozenset(FAULTS)).written(tmp_path)
    whole, named, least = found(source, 10**6)
    for rows_at_once in (1, 3, 10):
        result, again, tasks = found(source, rows_at_once)
        assert result == whole
        assert again == named
        assert tasks > least or rows_at_once > 1, "nothing was cut"


def test_replicas_are_compared_alike_in_parts(tmp_path: Path) -> None:
    builder = builder_of(4)
    first = builder.build(node="n2").written(tmp_path / "a")
    key = max(builder.sealed, key=lambda one: len(builder.rows[one]))
    message = builder.rows[key][-1]
    builder.rows[key][-1] = replace(message, id_hash=message.id_hash ^ 1)
    second = builder.build(node="n1").written(tmp_path / "b")
    whole = found(first, 10**6, second)
    assert b"replica_differs" in whole[0]
    assert found(first, 2, second)[:2] == whole[:2]


@pytest.mark.parametrize("prefix", ["schedule_log", "dispatch_log"])
@pytest.mark.parametrize("what", ["flipped", "cut", "gone"])
def test_damage_is_counted_once_however_many_parts_meet_it(
    prefix: str, what: str, tmp_path: Path
) -> None:
    world = world_of(2, count=120)
    largest = max(world.manifest.sealed, key=lambda one: one.rows)
    path = largest.file if prefix == "schedule_log" else largest.facts_file
    data = world.files[path]
    positions = [position for position, _ in batches(data, len(data))]
    middle = positions[len(positions) // 2]
    if what == "gone":
        del world.files[path]
    elif what == "cut":
        world.files[path] = data[: middle + 85]
    else:
        world.files[path] = data[:middle] + b"XXXX" + data[middle + 4 :]
    source = world.written(tmp_path)
    whole = found(source, 10**6)
    assert b'"verdict": "clean"' not in whole[0]
    for rows_at_once in (1, 4):
        assert found(source, rows_at_once)[:2] == whole[:2]


def test_what_a_manifest_counts_wrongly_is_told_once(tmp_path: Path) -> None:
    world = world_of(2, count=120)
    largest = max(world.manifest.sealed, key=lambda one: one.rows)
    wrong = msgspec.structs.replace(largest, rows=largest.rows + 1)
    sealed = tuple(wrong if one is largest else one for one in world.manifest.sealed)
    world.manifest = msgspec.structs.replace(world.manifest, sealed=sealed)
    source = world.written(tmp_path)
    whole = found(source, 10**6)
    assert whole[0].count(b"rows, not") == 1
    assert found(source, 2)[:2] == whole[:2]


def large_segment(root: Path) -> tuple[World, SegmentTask]:
    """Return the task of the segment with most rows, in batches of one to three."""
    builder = builder_of(9, count=200)

    class Small(random.Random):
        def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
            most = 4 if stop is None else min(stop, 4)
            return super().randrange(start, most, step)

    builder.chance = Small(1)
    world = builder.build()
    plan = make_plan([world.written(root)], REQUEST)
    tasks = [task for task in plan.groups[0].tasks if isinstance(task, SegmentTask)]
    return world, max(tasks, key=lambda task: 0 if task.extent is None else task.extent.rows)


@pytest.mark.parametrize("rows_at_once", [3, 5, 8])
def test_no_part_holds_more_than_it_may_and_together_they_hold_all(
    rows_at_once: int, tmp_path: Path
) -> None:
    world, task = large_segment(tmp_path)
    extent = task.extent
    assert extent is not None
    assert extent.rows > 3 * rows_at_once
    rows = plain_rows(extent.file, world.files[extent.file], extent.length)
    sequences = np.array(sorted(int(str(row["sequence"])) for row in rows), np.int64)
    parts = parts_of(task.node, extent, rows_at_once)
    held = [sequences[part.holds(sequences)] for part in parts]
    facts_share = extent.rows / max(extent.rows, extent.facts)
    assert max(map(len, held)) <= max(rows_at_once * facts_share, 3)
    assert np.concatenate(held).tolist() == sequences.tolist()
    # What is nobody's is in some part as well: a fact may tell of any sequence.
    far = np.array([-(2**63), -1, 0, 2**63 - 1], np.int64)
    assert np.sum([part.holds(far) for part in parts], axis=0).tolist() == [1, 1, 1, 1]


def test_a_small_segment_is_not_even_opened_to_be_cut(tmp_path: Path) -> None:
    _, task = large_segment(tmp_path)
    assert task.extent is not None
    nowhere = replace(task.node, root=str(tmp_path / "nowhere"), log_uuid=UUID(int=1))
    assert parts_of(nowhere, task.extent, task.extent.rows * 2) == [WHOLE]
    # Nothing can be read there, so its cuts are guessed, and still leave nothing out.
    assert len(parts_of(nowhere, task.extent, 3)) > 2
