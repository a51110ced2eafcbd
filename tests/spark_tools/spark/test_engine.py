"""Spark's workers find what the local engine finds, row for row."""

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from spark_tools.files.errors import RemoteError, SparkFailedError
from spark_tools.hours.by_hour import run_hours
from spark_tools.hours.state_directory import StateDirectory
from spark_tools.judge.account import TaskResult
from spark_tools.repaired.repairs import KINDS, Repairs
from spark_tools.run.local import local_engine
from spark_tools.run.plan import Request, Source, make_plan
from spark_tools.run.reconcile import Engine, reconcile
from spark_tools.run.report import encode_report, report
from spark_tools.spark.engine import packed, spark_engine
from tests.spark_tools.growing_worlds import FAULTS as FAULTS_OF_LIFE
from tests.spark_tools.growing_worlds import Life
from tests.spark_tools.hours_rig import HOURLY, Watcher, check_same_state
from tests.spark_tools.repaired.test_repairs import answers, audited
from tests.spark_tools.run.test_reconcile import at, differing, torn, whole_builder
from tests.spark_tools.s3_server import Store
from tests.spark_tools.worlds import CLOCKS, FAULTS, builder_of, world_of
from tests.storage.plain_logs import batches


@dataclass(frozen=True)
class Weighing:
    """A task of some weight."""

    weight: int

    def __call__(self) -> TaskResult:
        raise ValueError(f"a task of {self.weight} failed")


@given(st.lists(st.integers(0, 100)), st.integers(1, 100))
def test_tasks_are_packed_each_once_and_no_pack_is_too_heavy(weights: list[int], most: int) -> None:
    tasks: list[Any] = [Weighing(weight) for weight in weights]
    packs = list(packed(tasks, most))
    assert [task for pack in packs for task in pack] == tasks
    assert all(len(pack) == 1 or sum(task.weight for task in pack) <= most for pack in packs)
    assert all(packs)


@pytest.mark.spark
def test_spark_on_this_machine_listens_on_loopback_alone(spark: SparkSession) -> None:
    # So it starts, too, where the machine's name has no address.
    assert spark.conf.get("spark.driver.host") in {"localhost", "127.0.0.1"}


def found_by(
    engine: Engine, sources: list[Source], repairs: Repairs | None = None
) -> tuple[bytes, list[dict[str, Any]]]:
    """Return the result, and every finding in order; repairs: the payload is checked, too."""
    request = Request(
        max_late_ms=1000, examples=3, subjects_max=2, check_payload=repairs is not None
    )
    tables: list[pa.Table] = []
    result = reconcile(make_plan(sources, request), engine, tables.append, repairs)
    rows = [row for table in tables for row in table.to_pylist()]
    return encode_report(report(result)), sorted(rows, key=repr)


@pytest.fixture
def sources(tmp_path: Path) -> list[Source]:
    """Everything that may be wrong with logs, in replicas and groups of their own."""
    worlds = [
        builder_of(seed, frozenset(FAULTS)).build(group=f"g{seed}", node=node)
        for seed in (1, 8)
        for node in ("n1", "n2")
    ]
    worlds.append(builder_of(5, frozenset(FAULTS), begin=CLOCKS).build(group="clocks"))
    worlds += [*differing(3, "differing"), torn("torn"), builder_of(1, count=0).build(group="none")]
    for number, prefix in enumerate(("schedule_log", "dispatch_log", "message_log")):
        world = whole_builder().build(group=f"cut{number}")
        path = at(world, prefix)
        world.files[path] = world.files[path][:-9]
        worlds.append(world)
    return [world.written(tmp_path / f"{number}") for number, world in enumerate(worlds)]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.usefixtures("new_york")
def test_what_spark_finds_is_what_the_local_engine_finds(
    spark: SparkSession, sources: list[Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        here = found_by(local_engine(1), sources)
    time.tzset()
    assert time.tzname == ("EST", "EDT")
    assert len(here[1]) > 50
    document = json.loads(here[0])
    told = "".join(one["problem"] for one in document["problems"])
    assert all(f"{kind}_log/" in told for kind in ("schedule", "dispatch", "message"))
    assert document["findings"]["replica_differs"] == 2
    states = Counter[str]()
    for group in document["groups"]:
        states.update(group["states"])
    assert all(states[name] for name in ("cancelled", "expired", "dead", "lost", "waiting"))
    # Many waves of partitions of one task each, and a single one.
    for most in (1, 2**30):
        assert found_by(spark_engine(spark, partition_bytes=most), sources) == here


@pytest.mark.spark
@pytest.mark.long
def test_hours_on_spark_leave_the_state_of_the_local_engine(
    spark: SparkSession, tmp_path: Path
) -> None:
    life = Life(3, frozenset(FAULTS_OF_LIFE))
    here, there = Watcher(tmp_path / "here"), Watcher(tmp_path / "there")
    # The second run reads no more of the message_log than is new.
    for moment in (130, 190):
        source = life.at(moment).written(tmp_path / f"{moment}")
        assert here.run(source).done
        engine = spark_engine(spark, partition_bytes=1)
        state = StateDirectory(there.root)
        run_hours(state, lambda _, source=source: [source], HOURLY, engine)  # type: ignore[misc]
        check_same_state(here, there)
    assert any(path.startswith("index/") for path in there.contents())


@pytest.mark.spark
@pytest.mark.long
def test_spark_finds_what_was_repaired_damaged_payload_and_nothing_in_nothing(
    spark: SparkSession, tmp_path: Path, sources: list[Source]
) -> None:
    lost = [one for one in found_by(local_engine(1), sources)[1] if one["class"] in KINDS]
    lines = [
        line
        for one in lost
        if one["group"] == "g1"
        for line in answers(sources[0], one["class"], [(one["sequence"], one["filed_minute"])])
    ]
    world = whole_builder().build(group="payload")
    [seal] = world.manifest.sealed
    data = world.files[seal.file]
    position, size = max(batches(data, len(data)), key=lambda one: one[1])
    end = position + size - 3
    world.files[seal.file] = data[:end] + bytes([data[end] ^ 1]) + data[end + 1 :]
    given = [*sources[:2], world.written(tmp_path / "payload")]
    repairs = audited(tmp_path / "audit", lines)
    here = found_by(local_engine(1), given, repairs)
    document = json.loads(here[0])
    [group] = [one for one in document["groups"] if one["group"] == "g1"]
    assert group["states"]["repaired"]
    assert any(one["group"] == "payload" for one in document["problems"])
    assert found_by(spark_engine(spark), given, repairs) == here
    empty = [builder_of(1, count=0).build().written(tmp_path / "empty")]
    alone = found_by(spark_engine(spark), empty)
    assert alone == found_by(local_engine(1), empty)
    assert json.loads(alone[0])["verdict"] == "clean"


@pytest.mark.spark
@pytest.mark.long
def test_workers_read_from_an_object_store_or_say_why_not(
    spark: SparkSession, s3: Store, tmp_path: Path
) -> None:
    world = world_of(6, frozenset(FAULTS))
    world.written(s3.root / "engine" / "node")
    source = Source(world.manifest, "s3://engine/node")
    there = found_by(spark_engine(spark), [source])
    here = found_by(local_engine(1), [world.written(tmp_path)])
    assert there[0].replace(source.root.encode(), str(tmp_path).encode()) == here[0]
    assert there[1] == here[1]
    plan = make_plan([source], Request())
    s3.failing["minute"] = HTTPStatus.FORBIDDEN
    try:
        with pytest.raises(RemoteError, match="may not be read with these cred") as error:
            reconcile(plan, spark_engine(spark), lambda _: None)
    finally:
        s3.failing.clear()
    assert "\n" not in str(error.value)


@pytest.mark.spark
def test_a_task_that_fails_ends_the_run_with_what_it_said(spark: SparkSession) -> None:
    failing: Any = [Weighing(5)]
    run: Callable[[Any], Any] = spark_engine(spark)
    with pytest.raises(SparkFailedError, match="a task of 5 failed"):
        list(run(failing))
