"""What is refused for good often enough is given up; its neighbours are not."""

from dataclasses import replace

import numpy as np
import trio
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol.basics.codes import ItemCode
from sender.outcomes.dead import Refusals
from sender.queues.parcels import first_try, joined
from tests.brokers import Received
from tests.sender.broker_rig import ENTRY, QUICK, Reply, refuse, rig_of, stay_silent

FAST = replace(QUICK, refused_base_s=0.1, refused_max_s=1.0)


def note(
    refusals: Refusals,
    sequences: list[int],
    group: str,
    *,
    tries_max: int = 2,
    has_others: bool = False,
    code: int = 3,
) -> list[int]:
    """Note a refusal of these; return those that are given up."""
    entries = np.zeros(len(sequences), ENTRY)
    entries["sequence"] = sequences
    codes = np.full(len(sequences), code, np.int32)
    batch = joined([first_try(entries)])
    given_up, last = refusals.note(
        batch, codes, group=group, at_ms=1, tries_max=tries_max, has_others=has_others
    )
    found = [sequence for sequence, is_dead in zip(sequences, given_up, strict=True) if is_dead]
    assert len(last) == len(found)
    return found


def test_what_was_refused_together_shares_what_is_kept_of_it() -> None:
    refusals = Refusals(tracked_max=100)
    entries = np.zeros(4, ENTRY)
    entries["sequence"] = range(4)
    batch, codes = joined([first_try(entries)]), np.array([3, 3, 5, 3], np.int32)
    refusals.note(batch, codes, group="g", at_ms=1, tries_max=2, has_others=False)
    given_up, last = refusals.note(batch, codes, group="g", at_ms=1, tries_max=2, has_others=False)
    assert given_up.all()
    assert last[0] is last[1] is last[3]
    assert [(one.code, one.earlier and one.earlier.code) for one in last[1:3]] == [(3, 3), (5, 5)]


def test_what_was_taken_meanwhile_begins_anew() -> None:
    refusals = Refusals(tracked_max=100)
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
    st.integers(1, 10) | st.just(31),
)
def test_never_is_more_known_than_may_be_and_none_is_given_up_too_soon(
    rounds: list[tuple[list[int], str]], tries_max: int, tracked_max: int
) -> None:
    refusals = Refusals(tracked_max=tracked_max)
    seen: dict[int, int] = {}
    for sequences, group in rounds:
        for sequence in sequences:
            seen[sequence] = seen.get(sequence, 0) + 1
        for sequence in note(refusals, sequences, group, tries_max=tries_max):
            assert seen.pop(sequence) >= tries_max
        assert len(refusals) <= tracked_max
        entries = np.zeros(31, ENTRY)
        entries["sequence"] = range(31)
        for times in (1, 2):
            noted = refusals.noted(entries, times)
            often = {one for one in range(31) if seen.get(one, 0) >= times}
            found = set() if noted is None else set(np.flatnonzero(noted).tolist())
            assert found == often if tracked_max >= 31 else found <= often


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

    async with rig_of(config=FAST) as rig:
        rig.brokers[0].script = script
        rig.sender.gives_up = True
        rig.offer(5)
        await trio.sleep(300)
        assert rig.dead == {}
        assert rig.sender.unsent().total == 5


async def test_while_no_more_may_be_given_up_it_is_tried_on() -> None:
    async with rig_of(config=FAST) as rig:
        rig.brokers[0].script = lambda request: refuse(ItemCode.BLOCK, *request.ids)
        rig.offer(5)
        await trio.sleep(60)
        assert rig.dead == {}
        rig.sender.gives_up = True
        await trio.sleep(60)
        assert sorted(rig.dead) == [0, 1, 2, 3, 4]


async def test_what_was_in_doubt_is_not_any_more_once_it_is_given_up() -> None:
    async with rig_of(config=FAST) as rig:
        rig.brokers[0].script = stay_silent
        rig.sender.gives_up = True
        rig.offer(3)
        await trio.sleep(0.1)
        await rig.brokers[0].hang_up()
        rig.brokers[0].script = lambda request: refuse(ItemCode.BLOCK, *request.ids)
        await trio.sleep(0.001)
        assert rig.sender.unsent().in_doubt == 3
        await trio.sleep(60)
        assert (rig.sender.unsent().total, rig.sender.unsent().in_doubt) == (0, 0)
        assert rig.facts == []
