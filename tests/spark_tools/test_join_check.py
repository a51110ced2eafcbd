"""Joins find what the tasks find, whatever is wrong with the logs, and notice if they do not."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_tools.account import Account
from spark_tools.errors import ReconcileError
from spark_tools.join_check import check_by_join
from spark_tools.local import local_engine
from spark_tools.plan import Request, Source, make_plan
from spark_tools.reconcile import Result, reconcile
from storage.checkpoint import CHECKPOINT_PATH
from tests.spark_tools.test_plan import SEALS, without_seals
from tests.spark_tools.test_reading import hurt
from tests.spark_tools.test_reconcile import whole
from tests.spark_tools.worlds import FAULTS, T0, builder_of

pytestmark = pytest.mark.spark
EVERYTHING = Request(max_late_ms=1000, subjects_max=2)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    """Groups with some faults each, others whose files are damaged as well, and a replica."""
    chance, found = random.Random(3), []
    root = tmp_path_factory.mktemp("worlds")
    for seed in range(12):
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
    found.append(builder_of(0).build(group="twice", node="n1").written(root / "a"))
    found.append(builder_of(0).build(group="twice", node="n2").written(root / "b"))
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
        replace(EVERYTHING, from_minute=T0 - 3, to_minute=T0 + 90, final=True),
    ],
    ids=["everything", "hours"],
)
def test_joins_find_what_tasks_find(
    request_: Request, spark: SparkSession, sources: list[Source]
) -> None:
    result = result_of(sources, request_)
    totals = sum((group.account.totals for group in result.groups), start=Account().totals)
    wanted = {"accepted", "delivered", "phantom", "duplicate", "repeated", "other"}
    if request_ is EVERYTHING:
        # All that there is to be found is there.
        wanted |= {"unknown", "unexplained", "overdue", "lost", "waiting", "early", "misfiled"}
        assert result.findings["late"]
        assert result.problems
    assert all(totals[name] for name in wanted), totals
    check_by_join(spark, result)


def test_whatever_differs_is_an_error_with_both_figures(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [
        builder_of(seed).build(group=group).written(tmp_path / group)
        for seed, group in enumerate(["total", "hour", "target", "bucket", "whole"])
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
    late = result.findings["late"]
    result.findings["late"] += 7
    monkeypatch.setattr("spark_tools.join_check._SHOWN", 100)
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
    assert f"late: {late + 7} by tasks, {late} by joins" in text
    assert "9 figure(s) differ" in text
    assert "c.whole" not in text


def _swap(account: Account, tally: str, name: str) -> None:
    """Exchange a measure of the first two cells that do not have the same."""
    table = getattr(account, tally).table()
    values = table[name].to_pylist()
    first = next(place for place, value in enumerate(values) if value != values[0])
    values[0], values[first] = values[first], values[0]
    place = table.schema.get_field_index(name)
    getattr(account, tally)._parts = [table.set_column(place, table.schema.field(name), [values])]
