"""What is due is offered at once and in order, never before; its outcome becomes a durable fact."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from uuid import UUID

import numpy as np
import pytest
import trio

from delay_server.clock.clock_guard import ClockGuard
from delay_server.clock.pace import Pacer
from delay_server.holding import sorted_runs, wheel
from delay_server.holding.wheel import Wheel
from delay_server.lanes.lanes import Lanes
from delay_server.sending.dispatch import Dispatch
from storage.batch.entries import ENTRY, Entries
from tests.delay_server.lanes.left_on_disk import LeftOnDisk
from tests.simulation.clock import EPOCH_MS, EventClock, SimClock

UUID_OF_LOG = UUID(int=7)


def entries_of(due_ms: Sequence[int], *, first: int = 1) -> Entries:
    entries = np.zeros(len(due_ms), ENTRY)
    entries["sequence"] = np.arange(first, first + len(due_ms))
    entries["due_ms"] = due_ms
    entries["minute"] = np.array(due_ms, np.int64) // 60_000
    return entries


class Bench:
    """A Dispatch before a sender that only takes notes."""

    def __init__(self) -> None:
        self.clock = SimClock(is_synchronised=False)
        self.wheel = Wheel()
        self.pacer = Pacer(self.clock, ClockGuard(step_forward_ms_max=60_000))
        self.offers: list[tuple[int, list[int], list[int]]] = []
        self.lanes: list[int] = []
        """The lane of each offer."""
        self.late: list[bool] = []
        """Whether it was offered as late."""
        self.room = 1_000_000
        self.is_hungry = True
        """Whether a group has use for more of a backlog."""
        self.on_popped: Callable[[], object] = lambda: None
        self.dispatch = Dispatch(
            wheel=self.wheel,
            pacer=self.pacer,
            lanes=Lanes(on_disk=LeftOnDisk(), lane_entries_min=2000, lanes_max=256),
            offer=self._offer,
            room=lambda: self.room,
            is_hungry=lambda: self.is_hungry,
            on_popped=self._popped,
        )

    def _popped(self) -> None:
        self.on_popped()

    def _offer(self, entries: Entries, *, lane: int, late: bool = False) -> None:
        self.lanes.append(lane)
        self.late.append(late)
        now_ms = self.clock.now_ms()
        assert len(entries)
        assert entries["due_ms"].max() <= now_ms, "early"
        self.room -= len(entries)
        self.offers.append((now_ms, entries["sequence"].tolist(), entries["due_ms"].tolist()))

    def add(self, *due_ms: int, first: int = 1) -> None:
        self.wheel.add(entries_of(due_ms, first=first))
        self.dispatch.wheel_has_grown()

    @property
    def offered(self) -> list[int]:
        """Sequences in the order of their offer."""
        return [sequence for _, sequences, _ in self.offers for sequence in sequences]


class Steps(trio.abc.Instrument):
    """Notes how many offers there were at the end of each step of a task."""

    def __init__(self, b: Bench) -> None:
        self._bench = b
        self.ended_at: set[int] = set()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002 (trio's signature)
        self.ended_at.add(len(self._bench.offers))


def take_steps_of(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have others run after so many rows of a backlog were looked at."""
    monkeypatch.setattr(sorted_runs, "STEP_ROWS", rows)
    monkeypatch.setattr(wheel, "STEP_ROWS", rows)


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    b = Bench()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(b.dispatch.run)
        await trio.testing.wait_all_tasks_blocked()
        yield b
        nursery.cancel_scope.cancel()


async def test_each_message_is_offered_in_the_millisecond_in_which_it_is_due() -> None:
    async with bench() as b:
        times = [EPOCH_MS + delay for delay in (5000, 1, 0, 250_000, 5000, 77)]
        b.add(*times)
        await trio.sleep(300)
        assert [(now, due) for now, _, dues in b.offers for due in dues] == [
            (due, due) for due in sorted(times)
        ]
        assert b.offered == [3, 2, 6, 1, 5, 4]


async def test_what_arrives_for_an_earlier_time_ends_the_sleep() -> None:
    async with bench() as b:
        b.add(EPOCH_MS + 50_000)
        await trio.sleep(1)
        b.add(EPOCH_MS + 3000, first=2)
        b.add(EPOCH_MS + 90_000, first=3)
        await trio.sleep(1)
        b.add(EPOCH_MS - 1000, first=4)
        await trio.sleep(100)
        assert b.offered == [4, 2, 1, 3]
        assert [now - EPOCH_MS for now, _, _ in b.offers] == [2000, 3000, 50_000, 90_000]


async def test_a_clock_set_back_delays() -> None:
    async with bench() as b:
        b.add(EPOCH_MS + 10_000)
        await trio.sleep(5)
        b.clock.step(-30_000)
        await trio.sleep(34)
        assert b.offers == []
        await trio.sleep(2)
        assert [now for now, _, _ in b.offers] == [EPOCH_MS + 10_000]


async def test_a_small_step_forward_is_followed_within_a_minute() -> None:
    async with bench() as b:
        b.add(EPOCH_MS + 200_000)
        await trio.sleep(10)
        b.clock.step(50_000)
        await trio.sleep(151)
        assert b.offered == [1]


async def test_a_large_step_forward_holds_everything_until_somebody_vouches_for_it() -> None:
    async with bench() as b:
        b.add(EPOCH_MS + 10_000, EPOCH_MS + 3_000_000)
        await trio.sleep(1)
        b.clock.step(3_600_000)
        await trio.sleep(1000)
        assert b.offers == []
        b.pacer.accept()
        await trio.sleep(1)
        assert b.offered == [1, 2]


async def test_a_step_forward_that_is_taken_back_sends_nothing_early() -> None:
    async with bench() as b:
        b.add(EPOCH_MS + 100_000, EPOCH_MS + 3_000_000)
        await trio.sleep(1)
        b.clock.step(3_600_000)
        await trio.sleep(70)
        b.clock.step(-3_600_000)
        await trio.sleep(60)
        assert [(now, sequences) for now, sequences, _ in b.offers] == [(EPOCH_MS + 100_000, [1])]


async def test_what_the_sender_has_no_room_for_stays_in_the_wheel_in_order() -> None:
    async with bench() as b:
        b.room = 3
        b.add(*(EPOCH_MS + number for number in range(10)))
        await trio.sleep(5)
        assert b.offered == [1, 2, 3]
        assert len(b.wheel) == 7
        b.room = 5
        b.dispatch.room_has_grown()
        await trio.sleep(1)
        assert b.offered == list(range(1, 9))
        b.room = 100
        # Though nobody says so.
        await trio.sleep(6)
        assert b.offered == list(range(1, 11))


async def test_others_run_between_the_slices_of_a_burst() -> None:
    async with bench() as b:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while len(b.wheel):
                turns += 1
                await trio.lowlevel.checkpoint()

        b.add(*[EPOCH_MS] * 20_000)
        await other()
        assert len(b.offered) == 20_000
        assert turns >= 9
        assert max(len(sequences) for _, sequences, _ in b.offers) <= 2048


async def test_what_is_due_now_goes_before_a_backlog_which_is_offered_as_late() -> None:
    async with bench() as b:
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, EventClock)
        # A slice takes its time.
        b.on_popped = lambda: clock.leap(0.002)
        first_ms = EPOCH_MS + 1000
        burst = entries_of([first_ms] * 50_000)
        burst["subject"] = 1 + burst["sequence"] % 1000
        b.wheel.add(burst)
        # Those of the same millisecond come last by their sequence.
        b.add(*range(first_ms, first_ms + 40), first=50_001)
        await trio.sleep(3)
        assert len(b.offered) == 50_040
        late_by = [
            now - due
            for (now, sequences, dues) in b.offers
            for sequence, due in zip(sequences, dues, strict=True)
            if sequence > 50_000
        ]
        assert max(late_by) <= 4, "behind the backlog it would be 50 ms"
        at_once = sum(
            dues.count(first_ms)
            for late, (_, _, dues) in zip(b.late, b.offers, strict=True)
            if not late
        )
        assert at_once <= 2 * 2048, "the others of the burst are late"
        on_time = [
            late for late, (_, _, dues) in zip(b.late, b.offers, strict=True) if dues[0] > first_ms
        ]
        assert on_time
        assert not any(on_time)


async def test_what_is_on_time_can_be_delivered_before_more_of_a_backlog_is_offered() -> None:
    async with bench() as b:
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, EventClock)
        b.on_popped = lambda: clock.leap(0.002)
        first_ms = EPOCH_MS + 1000
        burst = entries_of([first_ms] * 20_000)
        burst["subject"] = 1 + burst["sequence"] % 1000
        b.wheel.add(burst)
        b.add(*range(first_ms, first_ms + 40), first=20_001)
        steps = Steps(b)
        trio.lowlevel.add_instrument(steps)
        await trio.sleep(3)
        assert len(b.offered) == 20_040
        backlog_next = {
            place for place, pair in enumerate(pairwise(b.late), 1) if pair == (False, True)
        }
        assert len(backlog_next) > 5
        assert backlog_next <= steps.ended_at, "both were offered in one step"


async def test_a_backlog_of_which_nobody_wants_more_trickles_and_what_is_on_time_leaves() -> None:
    async with bench() as b:
        b.is_hungry = False
        due_ms = EPOCH_MS + 1000
        burst = entries_of([due_ms] * 50_000)
        burst["subject"] = 1
        b.wheel.add(burst)
        later = entries_of([due_ms + 10 * n for n in range(1, 11)], first=50_001)
        later["subject"] = 2 + np.arange(10)
        b.wheel.add(later)
        b.dispatch.wheel_has_grown()
        await trio.sleep(1.1)
        trickled = len(b.offered)
        # 128 each ms: others of it may be for groups that want more.
        assert 10_000 <= trickled <= 14_000
        late_by = {
            sequence: now - due
            for (now, sequences, dues) in b.offers
            for sequence, due in zip(sequences, dues, strict=True)
            if sequence > 50_000
        }
        assert sorted(late_by) == list(range(50_001, 50_011))
        assert max(late_by.values()) <= 1
        # As soon as somebody wants more it leaves at once.
        b.is_hungry = True
        await trio.sleep(0.01)
        assert len(b.offered) == 50_010


async def test_a_backlog_that_has_left_makes_nothing_late_that_comes_after_it() -> None:
    async with bench() as b:
        b.add(*[EPOCH_MS + 1000] * 5000)
        await trio.sleep(2)
        b.add(EPOCH_MS + 3000, EPOCH_MS + 4000, first=5001)
        await trio.sleep(3)
        assert b.offered[-2:] == [5001, 5002]
        assert b.late[-2:] == [False, False]


@pytest.mark.parametrize("stopped_at", [0, 1])
async def test_a_dispatch_that_is_stopped_between_two_steps_leaves_all_in_the_wheel_or_offered(
    stopped_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_steps_of(100, monkeypatch)
    b = Bench()
    due_ms = b.clock.now_ms() + 1000
    for first in range(1, 5001, 50):
        b.add(*[due_ms] * 50, first=first)
    popped = b.wheel.pop_between
    steps: list[int] = []
    with trio.move_on_after(10) as scope:

        def stopping(*span: int) -> Iterator[Entries | None]:
            for step, due in enumerate(popped(*span)):
                steps.append(step)
                if step == stopped_at:
                    scope.cancel()
                yield due

        monkeypatch.setattr(b.wheel, "pop_between", stopping)
        await b.dispatch.run()
    assert max(steps) > stopped_at
    assert not b.wheel.is_popping
    assert len(b.wheel) + len(b.offered) == 5000
    assert b.wheel.next_due_ms() == due_ms


async def test_a_subject_with_a_lane_of_its_own_has_no_second_one_for_what_is_late() -> None:
    async with bench() as b:
        b.add(*[EPOCH_MS + 1000] * 50_000)
        await trio.sleep(2)
        assert {(lane > 0, late) for lane, late in zip(b.lanes, b.late, strict=True)} == {
            (True, False)
        }
