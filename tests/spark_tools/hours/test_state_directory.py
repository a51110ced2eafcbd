"""A run that is killed anywhere, and run again, leaves the state directory of one that was not."""

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_tools.hours.by_hour import Outcome, run_hours
from spark_tools.hours.state_directory import StateDirectory, hour_name
from spark_tools.judge.account import TaskResult
from spark_tools.run.plan import Source
from spark_tools.run.reconcile import Task
from storage.disk.disk import DirectoryDisk
from tests.spark_tools.growing_worlds import FAULTS, Life
from tests.spark_tools.hours_rig import HOURLY, Watcher

STEPS: tuple[tuple[Any, str], ...] = (
    (Path, "mkdir"),
    (Path, "rename"),
    (Path, "replace"),
    (Path, "write_bytes"),
    (DirectoryDisk, "sync_directory"),
    (shutil, "rmtree"),
)
"""Functions that change something, or make it durable."""


class Death(BaseException):
    """A run is dead; a BaseException, so that nobody goes on."""


class Steps:
    """Counts what a run does, and lets it die before one step, once. left: steps until then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.left: int | None = None
        for owner, name in STEPS:
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 (whatever it is)
            self.count += 1
            if self.left == 0:
                self.left = None
                raise Death
            if self.left is not None:
                self.left -= 1
            return function(*args, **kwargs)

        return step


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    """Files that are seen at two moments; some hours are done twice, pieces leave."""
    root, life = tmp_path_factory.mktemp("logs"), Life(3, frozenset(FAULTS), share=0.2)
    return [
        life.at(190).written(root / "first"),
        life.at(260, trimmed=5).written(root / "second"),
    ]


def done(outcome: Outcome) -> list[tuple[int, str, str]]:
    return [(entry.hour, entry.state, entry.verdict) for entry in outcome.done]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_run_that_dies_anywhere_is_taken_up_by_the_next(
    is_first: bool, sources: list[Source], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, base = sources[0], Watcher(tmp_path / "base")
    if not is_first:
        base.run(source)
        source = sources[1]
    shutil.copytree(base.root, tmp_path / "whole")
    whole = Watcher(tmp_path / "whole")
    steps = Steps(monkeypatch)
    wanted = done(whole.run(source))
    total = steps.count
    assert len(wanted) >= 2
    assert total > 25
    chance = random.Random(total)
    for number in range(9):
        shutil.copytree(base.root, tmp_path / f"{number}")
        watcher = Watcher(tmp_path / f"{number}")
        for left in (chance.randrange(total), chance.randrange(total), None):
            steps.left = left
            is_ended = watcher.contents() == whole.contents()
            try:
                told = done(watcher.run(source))
            except Death:
                continue
            if left is not None:
                # It had less to do than one that nobody had begun.
                steps.left = None
            # Whoever hears of the hours hears of all of them, though a run died behind some.
            assert is_ended or told == wanted
            break
        assert watcher.contents() == whole.contents(), f"number {number}"


def test_hours_that_a_killed_run_has_done_are_told_of_and_not_done_again(
    sources: list[Source], tmp_path: Path
) -> None:
    def nothing_to_do(tasks: Sequence[Task]) -> Iterator[TaskResult]:
        raise AssertionError(f"{len(tasks)} task(s)")

    watcher = Watcher(tmp_path / "state")
    wanted = [one for one in done(watcher.run(sources[0])) if one[1] == "final"]
    assert wanted
    (watcher.root / "summary.json").unlink()
    kept = {hour_name(hour) for hour, *_ in wanted}
    for path in (watcher.root / "hours").iterdir():
        if path.name not in kept:
            shutil.rmtree(path)
    late = replace(HOURLY, open_hours=1000)
    outcome = run_hours(StateDirectory(watcher.root), lambda _: sources[:1], late, nothing_to_do)
    assert done(outcome) == wanted
