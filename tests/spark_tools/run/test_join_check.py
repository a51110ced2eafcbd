"""Joins find what the tasks find, whatever is wrong with the logs, and notice if they do not."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_tools.files.errors import ReconcileError
from spark_tools.judge.account import Account
from spark_tools.run.join_check import check_by_join
from spark_tools.run.local import local_engine
from spark_tools.run.plan import Request, Source, make_plan
from spark_tools.run.reconcile import FINDING_CLASSES, Result, reconcile
from storage.batch.facts import Outcome
from storage.state.checkpoint import CHECKPOINT_PATH
from tests.spark_tools.repair_worlds import BEFORE, sealed_builder
from tests.spark_tools.run.test_plan import SEALS, without_seals
from tests.spark_tools.run.test_reconcile import differing, torn, whole
from tests.spark_tools.source.test_reader import hurt, hurt_at
from tests.spark_tools.worlds import CLOCKS, FAULTS, T0, Fact, builder_of
from tests.storage.plain_logs import batches

pytestmark = pytest.mark.spark
WHAT = ("rows", "facts")
OF_LOG = ("doubled", "missing", "unlogged", "altered", "misfiled_in_log", "unchecked", "records")
EVERYTHING = Request(max_late_ms=1000, subjects_max=2)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    """Groups with some faults each, others whose files are damaged as well, and a replica."""
    chance, found = random.Random(4), []
    root = tmp_path_factory.mktemp("worlds")
    for seed in (0, 1, 4, 5):
        faults = frozenset(name for name in FAULTS if chance.random() < 0.7)
        world = builder_of(seed, faults).build(group=f"g{seed}")
        if seed % 3 == 2:
            kinds = {path.partition("/")[0] for path in world.files}
            for kind in sorted(kinds & {"schedule_log", "dispatch_log", "message_log"}):
                paths = [
                    path
                    for path, data in world.files.items()
                    if path.startswith(kind) and len(data) > 200 and path.count("durable") == 0
                ]
                for path in chance.sample(sorted(paths), 2):
                    hurt(world, path, chance)
        found.append(world.written(root / f"{seed}"))
    for number, world in enumerate([*differing(3, "twice"), *differing(4, "again")]):
        found.append(world.written(root / f"twice{number}"))
    # Many hours that both have, some sealed and some not, and one without seals.
    pair = builder_of(0, frozenset(FAULTS)), builder_of(0, frozenset({"clock_set"}))
    for number, builder in enumerate(pair):
        world = builder.build(group="many", node=f"n{number}")
        found.append(world.written(root / f"many{number}"))
    alike = [builder_of(9).build(group="alike", node=name) for name in ("n1", "n2")]
    found.append(alike[0].written(root / "alike"))
    found.append(without_seals(alike[1], chance, SEALS).written(root / "unlike"))
    # Replicas that differ in nothing but damage, of one or the other.
    for number, prefix in enumerate(("schedule_log", "dispatch_log", "message_log")):
        builder = builder_of(9)
        worlds = [builder.build(group=f"damaged{number}", node=name) for name in ("n1", "n2")]
        path = max(
            (one for one in worlds[0].files if one.startswith(prefix) and "durable" not in one),
            key=lambda one: len(worlds[0].files[one]),
        )
        hurt(worlds[number % 2], path, chance)
        found += [one.written(root / f"damaged{number}{one.manifest.node_id}") for one in worlds]
    for seed, where in enumerate(("whole", "damaged")):
        builder = sealed_builder(lost=3, count=30)
        builder.unfiled = [
            Fact(one.sequence, BEFORE, one.due_ms + 5, b"g1", Outcome.DELIVERED)
            for one in builder.messages[:2]
        ]
        builder.filed_sequence = builder.log_next - 1 - seed
        world = builder.build(group=f"lost-{where}")
        if where == "damaged":
            log = world.manifest.message_log[0]
            hurt_at(world, log.file, next(batches(world.files[log.file], log.length))[0])
        found.append(world.written(root / where))
    found.append(torn("torn").written(root / "torn"))
    clocks = builder_of(5, frozenset(FAULTS), begin=CLOCKS).build(group="clocks")
    found.append(clocks.written(root / "clocks"))
    for seed, file in enumerate((SEALS, SEALS, CHECKPOINT_PATH)):
        world = builder_of(seed, frozenset(FAULTS)).build(group=f"lacking{seed}")
        found.append(without_seals(world, chance, file).written(root / f"lacking{seed}"))
    empty = builder_of(1, count=0).build(group="empty")
    return [*found, whole().written(root / "whole"), empty.written(root / "empty")]


def result_of(sources: Sequence[Source], request: Request) -> Result:
    return reconcile(make_plan(sources, request), local_engine(1), lambda _: None)


@pytest.mark.parametrize(
    "request_",
    [
        EVERYTHING,
        replace(EVERYTHING, from_minute=CLOCKS - 3, to_minute=T0 + 90, final=True),
    ],
    ids=["everything", "hours"],
)
@pytest.mark.long
@pytest.mark.usefixtures("new_york")
def test_joins_find_what_tasks_find(
    request_: Request, spark: SparkSession, sources: list[Source]
) -> None:
    result = result_of(sources, request_)
    totals = sum((group.account.totals for group in result.groups), start=Account().totals)
    wanted = {"accepted", "delivered", "phantom", "duplicate", "repeated", "other"}
    wanted.add("settled_twice")
    wanted |= {"cancelled", "expired", "dead", "moved", "dropped", "known"}
    wanted |= {"doubled", "missing", "unlogged", "altered", "misfiled_in_log", "unchecked"}
    if request_ is EVERYTHING:
        # All that there is to be found is there.
        wanted |= {"unknown", "unexplained", "overdue", "lost", "waiting", "early", "misfiled"}
        assert result.findings["late"]
        assert result.problems
    assert not [name for name in sorted(wanted) if not totals[name]]
    differing_hours = {
        (group.plan.name.group, one.what) for group in result.groups for one in group.differing
    }
    assert differing_hours >= {(name, what) for name in ("twice", "again") for what in WHAT}
    assert ("many", "rows") in differing_hours
    assert not [name for name, _ in differing_hours if name.startswith("damaged")]
    check_by_join(spark, result)


@pytest.mark.long
def test_whatever_differs_is_an_error_with_both_figures(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [
        builder_of(seed).build(group=group).written(tmp_path / group)
        for seed, group in enumerate(["total", "hour", "target", "bucket", "whole", "log"])
    ]
    sources += [
        world.written(tmp_path / f"{group}{number}")
        for group in ("less", "more")
        for number, world in enumerate(differing(3, group))
    ]
    result = result_of(sources, EVERYTHING)
    found = {group.plan.name.group: group.account for group in result.groups}
    # Each as if the tasks had counted something wrong that still adds up.
    totals = found["total"].totals
    totals["first"] -= 1
    totals["duplicate"] += 1
    _swap(found["hour"], "subjects", "delivered")
    _swap(found["target"], "targets", "facts")
    _swap(found["bucket"], "subject_lateness", "count")
    for name in OF_LOG:
        found["log"].totals[name] += 5
    hours = {group.plan.name.group: group.differing for group in result.groups}
    [of_rows, of_facts] = hours["less"]
    del hours["less"][1]
    hours["more"][0] = replace(hours["more"][0], replica_count=7)
    named = dict(result.findings)
    for name in FINDING_CLASSES:
        result.findings[name] = named.get(name, 0) + 7
    monkeypatch.setattr("spark_tools.run.join_check._SHOWN", 100)
    with pytest.raises(ReconcileError) as error:
        check_by_join(spark, result)
    text = str(error.value)
    assert f"c.total: first: {totals['first']} by tasks, {totals['first'] + 1} by joins" in text
    for name, what in (
        ("hour", "delivered of hour"),
        ("target", "facts of hour"),
        ("bucket", "count of hour"),
    ):
        assert text.count(f"c.{name}: {what}") == 2, text
    for name in FINDING_CLASSES:
        if name != "log_differs":
            had = named.get(name, 0)
            assert f"findings {name}: {had + 7} by tasks, {had} by joins" in text
    for name in OF_LOG:
        total = found["log"].totals[name]
        assert f"c.log: {name}: {total} by tasks, {total - 5} by joins" in text
    assert f"c.less: replica n1: facts of hour {of_facts.hour} differ by joins only" in text
    assert f"c.more: replica n1: rows of hour {of_rows.hour} differ by tasks only: 42, 7" in text
    assert "c.more: replica n1: facts" not in text
    assert f"{2 + 2 * 3 + len(OF_LOG) + 3 + len(FINDING_CLASSES) - 1} figure(s) differ" in text
    assert "c.whole" not in text


def _swap(account: Account, tally: str, name: str) -> None:
    """Exchange a measure of the first two cells that do not have the same."""
    table = getattr(account, tally).table()
    values = table[name].to_pylist()
    first = next(place for place, value in enumerate(values) if value != values[0])
    values[0], values[first] = values[first], values[0]
    place = table.schema.get_field_index(name)
    getattr(account, tally)._parts = [table.set_column(place, table.schema.field(name), [values])]
