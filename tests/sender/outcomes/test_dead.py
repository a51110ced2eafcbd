"""What is refused for good often enough is given up; its neighbours are not."""

from dataclasses import replace

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol.basics.codes import ItemCode
from sender.outcomes.dead import Refusals
from sender.queues.parcels import first_try, joined
from tests.brokers import Received
from tests.sender.broker_rig import ENTRY, QUICK, Reply, Rig, refuse, rig_of, stay_silent

FAST = replace(QUICK, refused_base_s=0.1, refused_max_s=1.0)


def note(
    refusals: Refusals, sequences: list[int], group: str, *, has_others: bool = False, code: int = 3
) -> list[int]:
    """Note a refusal of these; return those that are given up."""
    entries = np.zeros(len(sequences), ENTRY)
    entries["sequence"] = sequences
    codes = np.full(len(sequences), code, np.int32)
    batch = joined([first_try(entries)])
    given_up, last = refusals.note(batch, codes, group=group, at_ms=1, has_others=has_others)
    found = [sequence for sequence, is_dead in zip(sequences, given_up, strict=True) if is_dead]
    assert len(last) == len(found)
    return found


def test_one_is_given_up_at_its_third_refusal_whatever_befalls_others() -> None:
    refusals = Refusals(tries_max=3, tracked_max=100)
    assert note(refusals, [1, 2], "g") == []
    assert note(refusals, [1], "g") == []
    assert note(refusals, [2, 1, 3], "g") == [1]
    assert note(refusals, [2], "g") == [2]
    assert len(refusals) == 1


def test_where_there_are_several_groups_two_have_to_refuse_it_or_one_twice_as_often() -> None:
    refusals = Refusals(tries_max=3, tracked_max=100)
    for _ in range(5):
        assert note(refusals, [1], "g", has_others=True) == []
    assert note(refusals, [1], "g", has_others=True) == [1]
    for group in ("g", "g"):
        assert note(refusals, [2], group, has_others=True) == []
    assert note(refusals, [2], "h", has_others=True) == [2]


def test_what_was_refused_together_shares_what_is_kept_of_it() -> None:
    refusals = Refusals(tries_max=2, tracked_max=100)
    entries = np.zeros(4, ENTRY)
    entries["sequence"] = range(4)
    batch, codes = joined([first_try(entries)]), np.array([3, 3, 5, 3], np.int32)
    refusals.note(batch, codes, group="g", at_ms=1, has_others=False)
    given_up, last = refusals.note(batch, codes, group="g", at_ms=1, has_others=False)
    assert given_up.all()
    assert last[0] is last[1] is last[3]
    assert [(one.code, one.earlier and one.earlier.code) for one in last[1:3]] == [(3, 3), (5, 5)]


def test_what_was_taken_meanwhile_begins_anew() -> None:
    refusals = Refusals(tries_max=2, tracked_max=100)
    note(refusals, [1], "g")
    entries = np.zeros(1, ENTRY)
    entries["sequence"] = 1
    refusals.forget(entries)
    assert len(refusals) == 0
    assert note(refusals, [1], "g") == []


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 30), min_size=1, unique=True), st.sampled_from("ab")),
        max_size=60,
    ),
    st.integers(1, 4),
    st.integers(1, 10),
)
def test_never_is_more_known_than_may_be_and_none_is_given_up_too_soon(
    rounds: list[tuple[list[int], str]], tries_max: int, tracked_max: int
) -> None:
    refusals = Refusals(tries_max=tries_max, tracked_max=tracked_max)
    seen: dict[int, int] = {}
    for sequences, group in rounds:
        for sequence in sequences:
            seen[sequence] = seen.get(sequence, 0) + 1
        for sequence in note(refusals, sequences, group):
            assert seen.pop(sequence) >= tries_max
        assert len(refusals) <= tracked_max


@pytest.mark.parametrize("code", [ItemCode.SUBJECT_NOT_ASSIGNED, ItemCode.BLOCK])
async def test_a_poisonous_item_is_given_up_with_its_history_and_its_neighbours_are_taken(
    code: int,
) -> None:
    tries: list[list[bytes]] = []

    def script(request: Received) -> Reply:
        tries.append(list(request.ids))
        return refuse(code, b"m5") if b"m5" in request.ids else Reply()

    def setup(rig: Rig) -> None:
        rig.brokers[0].script = script
        rig.sender.gives_up = True

    async with rig_of(setup=setup, config=FAST) as rig:
        rig.offer(10)
        await trio.sleep(60)
        assert sorted(fact.sequence for fact in rig.facts) == [n for n in range(10) if n != 5]
        assert tries[1:] == [[b"m5"], [b"m5"]]
        [(sequence, (last, count))] = rig.dead.items()
        assert (sequence, count, last.number) == (5, 3, 3)
        assert [(one.group, one.code) for one in last.all()] == [("g-b0", code)] * 3
        times = [one.at_ms for one in last.all()]
        assert times == sorted(times)
        assert rig.sender.unsent().total == 0


async def test_other_groups_are_asked_before_it_is_given_up() -> None:
    def setup(rig: Rig) -> None:
        for broker in rig.brokers:
            broker.script = lambda request: refuse(ItemCode.BLOCK, *request.ids)
        rig.sender.gives_up = True

    async with rig_of(2, setup=setup, config=FAST) as rig:
        rig.offer(1)
        await trio.sleep(60)
        [(last, _)] = rig.dead.values()
        assert {one.group for one in last.all()} == {"g-b0", "g-b1"}


async def test_refused_requests_busy_brokers_and_untold_items_are_never_given_up() -> None:
    replies = iter(range(10**9))

    def script(request: Received) -> Reply:
        match next(replies) % 3:
            case 0:
                return Reply(code=51)
            case 1:
                return refuse(ItemCode.BROKER_BUSY, *request.ids)
            case _:
                return refuse(ItemCode.BLOCK, b"nobody's")

    def setup(rig: Rig) -> None:
        rig.brokers[0].script = script
        rig.sender.gives_up = True

    async with rig_of(setup=setup, config=FAST) as rig:
        rig.offer(5)
        await trio.sleep(300)
        assert rig.dead == {}
        assert rig.sender.unsent().total == 5


async def test_while_no_more_may_be_given_up_it_is_tried_on() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda request: refuse(ItemCode.BLOCK, *request.ids)

    async with rig_of(setup=setup, config=FAST) as rig:
        rig.offer(5)
        await trio.sleep(60)
        assert rig.dead == {}
        rig.sender.gives_up = True
        await trio.sleep(60)
        assert sorted(rig.dead) == [0, 1, 2, 3, 4]


async def test_what_was_in_doubt_is_not_any_more_once_it_is_given_up() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].script = stay_silent
        rig.sender.gives_up = True

    async with rig_of(config=FAST, setup=setup) as rig:
        rig.offer(3)
        await trio.sleep(0.1)
        await rig.brokers[0].hang_up()
        rig.brokers[0].script = lambda request: refuse(ItemCode.BLOCK, *request.ids)
        await trio.sleep(0.001)
        assert rig.sender.unsent().in_doubt == 3
        await trio.sleep(60)
        assert (rig.sender.unsent().total, rig.sender.unsent().in_doubt) == (0, 0)
        assert rig.facts == []
