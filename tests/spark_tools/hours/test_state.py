"""A run that is killed anywhere, and run again, leaves the state directory of one that was not."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from spark_tools.hours.by_hour import Outcome, run_hours
from spark_tools.hours.state import hour_of_name
from spark_tools.judge.account import TaskResult
from spark_tools.run.plan import Source
from spark_tools.run.reconcile import Task
from tests.simulation.disk import SimDisk
from tests.simulation.faults import Action, Death, Stage, Trap
from tests.spark_tools.growing_worlds import FAULTS, Life
from tests.spark_tools.hours_rig import HOURLY, Watcher
from tests.spark_tools.worlds import T0

KINDS = ("make_directory", "create", "write", "sync", "rename", "sync_directory", "unlink")
"""Operations that change something."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    """What there is to be seen at two moments; some hours are done twice, pieces leave."""
    root, life = tmp_path_factory.mktemp("logs"), Life(3, frozenset(FAULTS), share=0.2)
    return [
        life.at(190).written(root / "first"),
        life.at(260, trimmed=5).written(root / "second"),
    ]


def copy_of(disk: SimDisk, seed: int) -> SimDisk:
    """Return a disk on which the same files are durable."""
    copy = SimDisk(random.Random(seed))
    for path, data in disk.contents().items():
        directory = path.rpartition("/")[0]
        copy.make_directory(directory)
        file = copy.open(path, create=True)
        file.write_at(0, [data])
        file.sync()
        file.close()
        for name in (directory, directory.rpartition("/")[0], ""):
            copy.sync_directory(name)
    return copy


def done(outcome: Outcome) -> list[tuple[int, int, str]]:
    return [(entry.hour, entry.tries, entry.verdict) for entry in outcome.done]


def operations(disk: SimDisk) -> int:
    return sum(disk.counts.get(kind, 0) for kind in KINDS)


@pytest.mark.parametrize("action", [Action.KILL, Action.POWER_CUT])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_run_that_dies_anywhere_is_taken_up_by_the_next(
    action: Action, is_first: bool, sources: list[Source]
) -> None:
    source, base = sources[0], Watcher()
    if not is_first:
        base.run(source)
        source = sources[1]
    whole = Watcher(disk=copy_of(base.disk, 0))
    before = operations(whole.disk)
    wanted = done(whole.run(source))
    states = {entry[1] for entry in wanted}
    assert states == {1} if is_first else states == {1, 2}
    total = operations(whole.disk) - before
    assert total > 40
    for seed in range(9):
        chance = random.Random(seed)
        watcher = Watcher(disk=copy_of(base.disk, seed))
        told: list[tuple[int, int, str]] = []
        # One life after the other, until one has not died.
        for skip in (chance.randrange(total), chance.randrange(total), None):
            if skip is not None:
                watcher.disk.arm(Trap(action=action, kinds=KINDS, skip=skip))
            try:
                told = done(watcher.run(source)) or told
            except Death:
                watcher.disk = watcher.disk.revive()
            else:
                watcher.disk.disarm()
        assert watcher.disk.contents() == whole.disk.contents(), f"seed {seed}"
        # Whoever hears of the hours hears of all of them, though a run died behind some.
        assert told in (wanted, []), f"seed {seed}"
        assert durable(watcher.disk) == durable(whole.disk), f"seed {seed}"
        assert durable(whole.disk).keys() == whole.disk.contents().keys() - {"lock"}


def durable(disk: SimDisk) -> dict[str, bytes]:
    """Return what a power cut would leave; nobody cares whether the lock's name stays."""
    found = disk.contents(durable=True)
    return {path: data for path, data in found.items() if path != "lock"}


def killed_before_the_ledger(watcher: Watcher, source: Source, *, skip: int = 0) -> None:
    """Run, and die when the hours are done and the ledger is not replaced yet."""
    trap = Trap(
        action=Action.KILL,
        stage=Stage.BEFORE,
        kinds={"rename"},
        when=lambda _, path, __: path.startswith("ledger"),
        skip=skip,
    )
    watcher.disk.arm(trap)
    with pytest.raises(Death):
        watcher.run(source)
    watcher.disk = watcher.disk.revive()


def test_hours_that_a_killed_run_has_done_are_told_of_and_not_done_again(
    sources: list[Source],
) -> None:
    def nothing_to_do(tasks: Sequence[Task]) -> Iterator[TaskResult]:
        raise AssertionError(f"{len(tasks)} task(s)")

    whole, watcher = Watcher(), Watcher()
    wanted = done(whole.run(sources[0]))
    killed_before_the_ledger(watcher, sources[0], skip=1)
    outcome = run_hours(watcher.state, lambda _: sources[:1], watcher.request, nothing_to_do)
    assert done(outcome) == wanted
    assert watcher.disk.contents() == whole.disk.contents()


def test_where_runs_begin_does_not_depend_on_a_kill(sources: list[Source]) -> None:
    watcher = Watcher(replace(HOURLY, back_hours=1))
    killed_before_the_ledger(watcher, sources[0], skip=1)
    assert watcher.run(sources[1]).ledger.covered_from == T0 + 120


def test_names_of_hours_are_read_and_others_are_not_ours() -> None:
    assert hour_of_name("20131127T0000Z.json") == 23_091_840
    assert hour_of_name("20131127T0000Z-2-findings.parquet") == 23_091_840
    for name in ("notes.txt", "20131127T0000", "20131327T0000Z.json", ""):
        assert hour_of_name(name) is None
