"""Large requests are made one in a round of the loop, by all groups in turn."""

from collections import Counter
from collections.abc import Callable

import trio
import trio.testing

from sender.queues.bulk_turns import BulkTurns


class Groups:
    """Groups that have much to send, and when each had its turn."""

    def __init__(self) -> None:
        self.turns = BulkTurns()
        self.round = 0
        self.had: list[tuple[int, int]] = []
        """For each turn the round and the group."""

    async def count_rounds(self) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            self.round += 1

    async def send(self, number: int, times: int, *, small: Callable[[], bool]) -> None:
        """Use so many turns, as a group does: ask, and ask again when woken."""
        woken = trio.Event()

        def wake() -> None:
            woken.set()

        while times:
            now = trio.current_time()
            if small():
                self.turns.small_sent(now)
            if self.turns.take(number, now, wake):
                self.had.append((self.round, number))
                times -= 1
                await trio.lowlevel.checkpoint()
            else:
                await woken.wait()
                woken = trio.Event()


async def play(groups: Groups, *asking: int, times: int, small: bool) -> None:
    with trio.fail_after(5):
        async with trio.open_nursery() as beside:
            beside.start_soon(groups.turns.run)
            beside.start_soon(groups.count_rounds)
            async with trio.open_nursery() as nursery:
                for number in asking:
                    nursery.start_soon(lambda n: groups.send(n, times, small=lambda: small), number)
            beside.cancel_scope.cancel()


async def test_groups_have_turns_one_in_a_round_and_each_as_many() -> None:
    groups = Groups()
    await play(groups, 0, 1, 2, 3, times=50, small=True)
    rounds = Counter(at for at, _ in groups.had)
    # The count of rounds is a task like others, so a turn may be counted in the one before.
    in_two = Counter(at // 2 for at, _ in groups.had)
    assert max(rounds.values()) <= 2
    assert max(in_two.values()) <= 3
    # It is not much slower than one in each round.
    assert groups.had[-1][0] - groups.had[0][0] <= 2 * len(groups.had)
    for count in range(4, 200, 4):
        shares = Counter(number for _, number in groups.had[:count])
        assert max(shares.values()) - min(shares[n] for n in range(4)) <= 2, groups.had[:count]


async def test_a_group_alone_waits_for_nobody() -> None:
    groups = Groups()
    await play(groups, 7, times=50, small=True)
    assert groups.had[-1][0] - groups.had[0][0] <= 51
    # Another one had the latest turn, so it waits, once, for a round or two.
    await play(groups, 8, times=50, small=True)
    assert groups.had[-1][0] - groups.had[50][0] <= 55


async def test_without_small_requests_beside_them_large_ones_wait_for_nothing() -> None:
    groups = Groups()
    await play(groups, 0, 1, 2, 3, times=50, small=False)
    assert groups.had[-1][0] - groups.had[0][0] <= 55


async def test_nobody_waits_for_a_group_that_asked_and_went_away() -> None:
    groups = Groups()
    woken: list[int] = []
    now = trio.current_time()
    groups.turns.small_sent(now)
    assert groups.turns.take(0, now, lambda: None)
    for number in (1, 2):
        assert not groups.turns.take(number, now, lambda number=number: woken.append(number))  # type: ignore[misc]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(groups.turns.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    # Neither has asked again: the other one can all the same, and a third is not kept either.
    assert woken == [1, 2]
    assert groups.turns.take(2, now, lambda: None)
    assert groups.turns.take(1, now, lambda: None)
    assert not groups.turns.take(1, now, lambda: None), "it has had its turn"


async def test_of_a_group_that_is_gone_nothing_is_kept() -> None:
    turns = BulkTurns()
    now = trio.current_time()
    turns.small_sent(now)
    woken: list[int] = []
    assert turns.take(0, now, lambda: None)
    assert not turns.take(1, now, lambda: woken.append(1))
    assert not turns.take(2, now, lambda: woken.append(2))
    turns.forget(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert woken == [2]


def test_whoever_had_the_latest_turn_goes_behind_those_that_wait() -> None:
    turns = BulkTurns()
    turns.small_sent(0.0)
    assert [turns.take(number, 0.0, lambda: None) for number in (1, 2, 1)] == [True, False, False]
