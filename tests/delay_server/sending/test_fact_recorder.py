"""Outcomes become durable in time, in commits of others where there are any; none is lost."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
import trio
import trio.testing

from delay_server.accepting import commits
from delay_server.sending import fact_recorder
from delay_server.sending.fact_recorder import FactRecorder
from storage.batch.batches import Damage, LogBatch
from storage.batch.columns import RecordKind
from storage.batch.entries import ENTRY
from storage.batch.facts import FactBlock, Outcome, facts_stated
from storage.disk.errors import FatalDiskError
from storage.logs.message_log import MessageLog
from tests.delay_server.accepting.test_commits import Bench, intake_of, open_store, some_items
from tests.delay_server.server_rig import make_item
from tests.simulation.clock import EPOCH_MS
from tests.simulation.disk import SimDisk
from tests.simulation.executor import ExecutorPlan
from tests.simulation.faults import CALM, HARSH, Action, Trap
from tests.storage.small_segments import delivered


class Books(Bench):
    """A FactRecorder beside a Committer, on a message_log of a simulated disk."""

    def __init__(self, *, disk: SimDisk | None = None, sync_s: float = 0.005) -> None:
        plan = ExecutorPlan(delay_s=(sync_s, sync_s), stall_chance=0)
        super().__init__(disk or SimDisk(random.Random(3), plan=CALM), plan=plan)
        self.gate: list[tuple[float, bool]] = []
        """When sending had to pause, and when it might go on."""
        self.settled: list[int] = []
        """Ordinals of rows that are held no longer, since their facts are applied."""
        self.fact_recorder = FactRecorder(
            submit=self.committer.submit,
            sync_ms_max=20,
            settle=lambda rows: self.settled.extend(rows["row"].tolist()),
            on_behind=self._note_gate,
        )

    def _note_gate(self) -> None:
        self.gate.append((trio.current_time(), bool(self.fact_recorder.behind)))

    def cross_off(self, *sequences: int, target: str = "g1") -> None:
        entries = np.zeros(len(sequences), ENTRY)
        entries["sequence"] = sequences
        entries["minute"] = 5
        entries["row"] = sequences
        self.fact_recorder.cross_off(entries, self.clock.now_ms(), target, Outcome.DELIVERED)

    @property
    def blocks(self) -> list[FactBlock]:
        """The facts of each commit that is durable."""
        return facts_of(self.store.message_log)

    @property
    def durable(self) -> list[int]:
        """Sequences with a durable fact, in their order."""
        return [sequence for block in self.blocks for sequence in block.sequence.tolist()]

    @property
    def submitted(self) -> list[int]:
        """Sequences whose facts filing has got."""
        found = (facts_stated(one.header, one.columns) for one in self.desk.submitted)
        return [n for block in found if block is not None for n in block.sequence.tolist()]


def facts_of(log: MessageLog) -> list[FactBlock]:
    found = []
    for batch in log.read(1):
        assert not isinstance(batch, Damage)
        facts = facts_stated(batch.header, batch.columns)
        found += [] if facts is None else [facts]
    return found


@asynccontextmanager
async def books(b: Books) -> AsyncIterator[Books]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(b.committer.run)
        nursery.start_soon(b.fact_recorder.run_gate)
        await trio.testing.wait_all_tasks_blocked()
        yield b
        nursery.cancel_scope.cancel()


def kinds_of(b: Books) -> list[RecordKind]:
    return [kind for kind, *_ in b.log()]


async def test_facts_are_durable_in_time_and_many_share_a_commit() -> None:
    async with books(Books()) as b:
        for number in range(100):
            b.cross_off(number, target=f"g{number % 2}")
        assert b.fact_recorder.waiting == 100
        await trio.sleep(0.020)
        assert b.submitted == b.durable == list(range(100))
        assert b.fact_recorder.waiting == 0
        assert b.committer.seconds.total == 1
        assert b.facts_alone == [True]
        assert b.fact_recorder.outcomes == {Outcome.DELIVERED: 100}
        [facts] = b.blocks
        names = [facts.targets[place] for place in facts.target.tolist()]
        assert names == [f"g{number % 2}".encode() for number in range(100)]
        assert set(facts.at_ms.tolist()) == {EPOCH_MS}
        assert facts.record.tolist() == list(range(2, 102))


async def test_it_is_told_who_has_an_outcome_until_that_is_applied() -> None:
    async with books(Books()) as b:
        b.cross_off(1, 2)
        for seconds in (0, 0.012, 0.1):
            # It waits; it is written; it is durable.
            await trio.sleep(seconds)
            assert b.fact_recorder.having(frozenset({1, 3})) == {1}
        b.fact_recorder.applied_to(b.store.message_log.next_sequence)
        assert not b.fact_recorder.having(frozenset({1, 2, 3}))


async def test_under_load_each_commit_takes_what_gathered_during_the_last() -> None:
    async with books(Books()) as b:
        for number in range(1000):
            b.cross_off(number)
            await trio.sleep(0.001)
        await b.fact_recorder.stop()
        assert b.durable == list(range(1000))
        assert 50 < b.committer.seconds.total < 300


async def test_a_fact_goes_along_with_the_next_commit_and_does_not_linger() -> None:
    async with books(Books()) as b:
        b.cross_off(1)
        await trio.sleep(0.001)
        assert await b.commit_beside(lambda: intake_of(*some_items(1)))
        assert b.fact_recorder.ages.most < 0.01, "half of 20 ms is how long it would linger"
        assert kinds_of(b) == [RecordKind.FACTS, RecordKind.MESSAGE]
        assert b.facts_alone == [False]
        assert b.committer.seconds.total == 1


async def test_facts_do_not_wait_for_the_write_of_many_items() -> None:
    large = [make_item(f"m{n}", EPOCH_MS, attributes={"k": "v" * 30_000}) for n in range(150)]
    async with books(Books()) as b:
        b.cross_off(1)
        await b.commit_beside(lambda: intake_of(*large))
        assert b.committer.seconds.total == 2
        assert kinds_of(b)[0] is RecordKind.FACTS
        assert b.facts_alone == [True, False]
        assert sum(map(len, large)) > commits._ITEMS_BESIDE_FACTS_MAX


async def test_the_callers_array_may_be_used_again() -> None:
    async with books(Books()) as b:
        entries = np.zeros(3, ENTRY)
        entries["sequence"] = [1, 2, 3]
        b.fact_recorder.cross_off(entries, EPOCH_MS, "g1", Outcome.KNOWN)
        entries["sequence"] = 0
        await b.fact_recorder.stop()
        assert b.durable == [1, 2, 3]


async def test_stop_waits_until_every_outcome_is_a_durable_fact_committed_or_not() -> None:
    async with books(Books(disk=SimDisk(random.Random(3), plan=HARSH), sync_s=1.0)) as b:
        b.commit_point.is_sole = False
        b.cross_off(1, 2)
        await trio.sleep(0.5)
        b.cross_off(3)
        with trio.fail_after(10):
            await b.fact_recorder.stop()
        assert b.submitted == []
        b.disk.power_cut()
        facts = facts_of(open_store(b.disk.revive()).message_log)
        assert [n for block in facts for n in block.sequence.tolist()] == [1, 2, 3]
        await b.fact_recorder.stop()


async def test_what_is_durable_is_known_as_not_applied_until_it_is() -> None:
    async with books(Books()) as b:
        b.commit_point.is_sole = False
        for number in range(10):
            b.cross_off(number)
            await trio.sleep(0.030)
        recorder = b.fact_recorder
        assert b.durable == list(range(10))
        assert b.settled == []
        # Sequence 1 is the EPOCH_START, and each has a record of its own.
        assert recorder.unapplied_count(beyond=4) == 7
        recorder.applied_to(4)
        assert b.settled == [0, 1, 2]
        b.cross_off(10)
        assert recorder.unapplied_count(beyond=4) == 8
        recorder.applied_to(100)
        assert recorder.unapplied_count(beyond=0) == 1


async def test_facts_that_find_no_space_wait_and_none_is_lost() -> None:
    async with books(Books()) as b:
        b.disk.arm(*[Trap(action=Action.FULL, kinds={"create", "write"})] * 5)
        b.cross_off(1, 2)
        await trio.sleep(2.5)
        b.cross_off(3)
        await trio.sleep(20)
        assert b.durable == [1, 2, 3]
        assert len(b.disk.fired) == 5


@pytest.mark.parametrize("stands_still", ["filing", "floor", "commit"])
async def test_the_age_of_facts_is_bounded_whatever_holds_messages_up(stands_still: str) -> None:
    async with books(Books()) as b:
        if stands_still == "filing":
            b.desk.has_room = False
        elif stands_still == "floor":
            b.floor_bytes = 10**15
        else:
            b.commit_point.is_sole = False
            b.queue.items_bytes = commits.UNCOMMITTED_BYTES_MAX + 1
        ended: list[bool] = []
        b.committer.submit(lambda: intake_of(*some_items(1)), ended.append)
        for number in range(1000):
            b.cross_off(number)
            await trio.sleep(0.010)
        assert ended == ([False] if stands_still == "floor" else [])
        assert b.fact_recorder.ages.total >= 990
        assert b.fact_recorder.ages.most <= 0.03
        assert b.gate == []


async def test_a_disk_that_is_really_full_keeps_facts_back_only_as_long_as_it_is() -> None:
    async with books(Books()) as b:
        b.disk.capacity_bytes, capacity = b.disk.medium.used, b.disk.capacity_bytes
        b.cross_off(1)
        await trio.sleep(10)
        assert b.durable == []
        assert [is_behind for _, is_behind in b.gate] == [True]
        b.disk.capacity_bytes = capacity
        await trio.sleep(1.1)
        assert b.durable == [1]
        assert [is_behind for _, is_behind in b.gate] == [True, False]


async def test_a_failed_fsync_of_facts_is_fatal() -> None:
    b = Books()
    b.disk.arm(Trap(action=Action.EIO, kinds={"sync"}))
    with pytest.RaisesGroup(FatalDiskError):
        async with books(b):
            b.cross_off(1)
            await trio.sleep(1)
    assert b.submitted == []


async def test_sending_pauses_while_an_outcome_takes_too_long_to_become_durable() -> None:
    async with books(Books(sync_s=5.0)) as b:
        begun = trio.current_time()
        for number in range(1000):
            b.cross_off(number)
            await trio.sleep(0.001)
        assert [is_behind for _, is_behind in b.gate] == [True]
        assert 0.2 <= b.gate[0][0] - begun <= 0.22
        assert "the disk stalls" in b.fact_recorder.behind
        await b.fact_recorder.stop()
        assert b.gate[-1][1] is False
        assert 9.9 < b.gate[-1][0] - begun < 10.5, "two fsyncs"
        assert b.fact_recorder.ages.total == 1000


async def test_sending_pauses_while_too_many_outcomes_are_not_durable() -> None:
    async with books(Books(sync_s=0.1)) as b:
        for first in range(0, 60_000, 1000):
            before = b.fact_recorder.behind
            b.cross_off(*range(first, first + 1000))
            assert bool(b.fact_recorder.behind) == (first + 1000 >= 50_000)
            assert bool(before) == (first >= 50_000)
        await b.fact_recorder.stop()
        assert not b.fact_recorder.behind
        assert [is_behind for _, is_behind in b.gate] == [True, False]


async def test_sending_pauses_while_too_many_outcomes_are_not_applied_and_says_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fact_recorder, "UNAPPLIED_BYTES_MAX", 50 * (2048 + 32))
    async with books(Books()) as b:
        b.commit_point.is_sole = False
        for number in range(50):
            assert not b.fact_recorder.behind
            b.cross_off(number)
            await trio.sleep(0.030)
        assert "add a replica" in b.fact_recorder.behind
        assert "min_isr" in b.fact_recorder.behind
        b.commit_point.commit_to(b.commit_point.durable)
        b.committer.hand_on()
        assert b.submitted == list(range(50))
        b.fact_recorder.applied_to(b.commit_point.committed - 1)
        assert [is_behind for _, is_behind in b.gate] == [True, False]


async def test_outcomes_that_are_durable_in_time_pause_nothing() -> None:
    async with books(Books(sync_s=0.05)) as b:
        for number in range(5000):
            b.cross_off(number)
            await trio.sleep(0.001)
        await b.fact_recorder.stop()
        assert b.gate == []


def test_more_facts_than_a_batch_holds_become_several_drafts() -> None:
    block = delivered(list(range(250_000)))
    drafts = fact_recorder.Facts([block]).drafts()
    assert [draft.count for draft in drafts] == [100_000, 100_000, 50_000]


async def test_facts_are_none_of_the_bytes_that_may_wait_to_be_committed() -> None:
    async with books(Books()) as b:
        b.commit_point.is_sole = False
        for number in range(5):
            b.cross_off(number)
            await trio.sleep(0.030)
        assert b.durable == list(range(5))
        assert b.queue.items_bytes == 0
        b.committer.submit(lambda: intake_of(*some_items(1)), lambda _: None)
        await trio.sleep(1)
        [batch] = b.store.message_log.read(7)
        assert isinstance(batch, LogBatch)
        assert b.queue.items_bytes == batch.header.size
        b.commit_point.commit_to(b.commit_point.durable)
        b.committer.hand_on()
        assert b.queue.items_bytes == 0


async def test_a_commit_of_which_the_facts_alone_are_applied_leaves_no_outcome_behind() -> None:
    async with books(Books()) as b:
        b.cross_off(1, 2)
        await b.commit_beside(lambda: intake_of(*some_items(3)))
        [facts] = b.blocks
        assert facts.record.tolist() == [2, 3], "in front of the messages of their commit"
        b.fact_recorder.applied_to(2)
        assert b.settled == []
        b.fact_recorder.applied_to(3)
        assert b.settled == [1, 2]


async def test_whoever_waits_for_outcomes_is_told_once_they_are_committed() -> None:
    b = Books()
    b.commit_point.is_sole = False
    told: list[str] = []
    async with books(b):
        b.cross_off(1)
        b.fact_recorder.when_committed(lambda: told.append("with the first"))
        await trio.sleep(1)
        # Durable is not enough: the next master may lack it.
        assert b.durable == [1]
        b.fact_recorder.when_committed(lambda: told.append("after the first"))
        b.cross_off(2)
        b.fact_recorder.when_committed(lambda: told.append("with the second"))
        await trio.sleep(1)
        assert (b.durable, told) == ([1, 2], [])
        for batch, words in enumerate((["with the first", "after the first"], ["with the second"])):
            b.commit_point.commit_to(3 + batch)
            b.committer.hand_on()
            assert told == words
            told.clear()
        b.fact_recorder.when_committed(lambda: told.append("at once"))
        assert told == ["at once"]
