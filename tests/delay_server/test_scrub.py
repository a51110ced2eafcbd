"""All files are looked through once in a week, slowly, and what is damaged is told."""

import itertools
import random
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

import pytest
import trio

from delay_server import scrub as scrub_module
from delay_server.scrub import FIRST_S, REST_FACTOR, ROUND_S, SCRUB_WORKER, Scrub
from storage.batch.batches import Damage
from storage.node import scrub as files_module
from storage.node.scrub import Look, files_to_look_through
from storage.node.store import Store
from tests.simulation.disk import SimDisk
from tests.storage.node.test_snapshot import master_of

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
STEP_S = 0.01
"""How long each job of the executor takes."""


class SlowExecutor:
    """Runs jobs one after another, each in a while."""

    def __init__(self) -> None:
        self.reads: list[float] = []
        """When something of a file was read."""

    async def run(self, worker: str, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        await trio.sleep(STEP_S)
        if getattr(fn, "__func__", None) is Look.go_on:
            assert worker == SCRUB_WORKER
            self.reads.append(trio.current_time())
        return fn(*args)


class Scrubbed:
    """A store, and its scrub."""

    def __init__(self) -> None:
        self.store: Store = master_of(5)
        self.executor = SlowExecutor()
        self.backlog = 0
        self.damages: list[Damage] = []
        self.store.schedule.on_damage = self.damages.append
        self.scrub = Scrub(
            self.store,
            executor=self.executor,
            backlog_bytes=lambda: self.backlog,
            chance=random.Random(1),
        )

    async def run_for(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self.scrub.run()

    def strike(self, *, path: str = "") -> str:
        """Damage a file; return its path."""
        files = files_to_look_through(self.store)
        path = path or max(files, key=lambda one: files[one].length)
        assert isinstance(self.store.disk, SimDisk)
        self.store.disk.damage(path, 100, b"\xff\x00\xff")
        return path


async def test_it_rests_a_hundred_times_as_long_as_it_reads_and_begins_again_each_week(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(files_module, "PIECE_BYTES", 200)
    scrubbed = Scrubbed()
    began = trio.current_time()
    await scrubbed.run_for(ROUND_S * 1.5)
    reads = [at - began for at in scrubbed.executor.reads]
    steps = [after - before for before, after in itertools.pairwise(reads)]
    assert reads[0] > FIRST_S
    assert len(steps) > 20
    assert min(steps) > REST_FACTOR * STEP_S
    assert not [at for at in reads if ROUND_S / 2 < at < ROUND_S]
    assert (scrubbed.scrub.rounds, scrubbed.damages) == (2, [])


async def test_it_reads_so_many_bytes_in_a_second_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scrub_module, "REST_FACTOR", 0)
    monkeypatch.setattr(scrub_module, "BYTES_PER_S_MAX", 100)
    scrubbed = Scrubbed()
    size = sum(file.length for file in files_to_look_through(scrubbed.store).values())
    most = max(file.length for file in files_to_look_through(scrubbed.store).values())
    await scrubbed.run_for(ROUND_S)
    began, ended = scrubbed.executor.reads[0], scrubbed.executor.reads[-1]
    # The header of a file is not counted.
    assert ended - began > (size - most) / 100 * 0.8


async def test_it_waits_while_much_is_to_be_filed() -> None:
    scrubbed = Scrubbed()
    scrubbed.backlog = scrub_module.BUSY_BYTES + 1
    await scrubbed.run_for(3600)
    assert scrubbed.executor.reads == []
    scrubbed.backlog = 0
    await scrubbed.run_for(3600)
    assert scrubbed.scrub.rounds == 1


async def test_what_is_damaged_is_told_once_and_files_that_are_whole_are_not() -> None:
    scrubbed = Scrubbed()
    path = scrubbed.strike()
    await scrubbed.run_for(3600)
    assert {damage.path for damage in scrubbed.damages} == {path}


async def test_a_file_that_is_gone_is_told() -> None:
    scrubbed = Scrubbed()
    first = scrubbed.store.message_log.files()[0].path
    assert len(scrubbed.store.message_log.files()) > 1
    scrubbed.store.disk.unlink(first)
    await scrubbed.run_for(3600)
    assert {damage.path for damage in scrubbed.damages} == {first}


async def test_a_file_that_is_needed_no_more_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    scrubbed = Scrubbed()
    path = scrubbed.strike()
    listed = iter([True, True])

    def files(store: Store) -> dict[str, Any]:
        found = files_to_look_through(store)
        return found if next(listed, False) else {one: found[one] for one in found if one != path}

    monkeypatch.setattr(scrub_module, "files_to_look_through", files)
    await scrubbed.run_for(3600)
    assert scrubbed.damages == []
