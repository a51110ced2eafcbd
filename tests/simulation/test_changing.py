"""The judge of changes has something to say of each answer that is not true."""

import pytest
import trio

from delay_protocol.messages.changes import Change, ChangeResult, ChangeState
from tests.simulation.changing import Fates, Sent

M = Sent("m", "a.b", 5000)
CANCEL, MOVE = Change("a.b", "m", 5000), Change("a.b", "m", 5000, 9000)
STATES = ChangeState


def judge() -> tuple[Fates, list[str]]:
    """Return a judge of a message that was sent and acknowledged long ago, and its complaints."""
    found: list[str] = []
    fates = Fates(complain=found.append, put_off=lambda _: False)
    fates.sent("m")
    fates.acknowledged("m", 0.0)
    return fates, found


async def change(fates: Fates, change: Change, state: ChangeState) -> None:
    await trio.sleep(60)
    due_ms = change.to_ms if state is STATES.MOVED else change.due_ms
    fates.answered(fates.asked(M, change), ChangeResult(item=0, state=state, due_ms=due_ms))
    await trio.sleep(1)


def come(fates: Fates, due_ms: int = 5000) -> None:
    fates.came("m", due_ms, since_s=trio.current_time())


@pytest.mark.parametrize(
    ("wanted", "state", "due_ms", "what"),
    [
        (CANCEL, STATES.CANCELLED, 5000, "cancelled"),
        (MOVE, STATES.MOVED, 5000, "moved elsewhere"),
        (MOVE, STATES.MOVED, 9000, ""),
        (CANCEL, STATES.UNKNOWN, 5000, "unknown"),
        (CANCEL, STATES.SENDING, 5000, ""),
    ],
)
async def test_what_comes_though_an_answer_excluded_it_is_noticed(
    wanted: Change, state: ChangeState, due_ms: int, what: str
) -> None:
    fates, found = judge()
    await change(fates, wanted, state)
    come(fates, due_ms)
    assert len(found) == bool(what)
    assert not what or f"was answered to be {what}" in found[0]


@pytest.mark.parametrize(
    ("wanted", "state", "why"),
    [
        (CANCEL, STATES.DELIVERED, "has come to nobody"),
        (CANCEL, STATES.CHANGED_BEFORE, "nobody else asked for it"),
        (CANCEL, STATES.MOVED, "was to be moved to None"),
        (MOVE, STATES.CANCELLED, "was to be moved"),
    ],
)
async def test_an_answer_without_cause_is_noticed(
    wanted: Change, state: ChangeState, why: str
) -> None:
    fates, found = judge()
    await change(fates, wanted, state)
    assert len(found) == 1
    assert found[0].endswith(why)


async def test_what_may_be_under_way_from_a_life_before_is_excused() -> None:
    fates, found = judge()
    await change(fates, CANCEL, STATES.CANCELLED)
    fates.came("m", 5000, since_s=trio.current_time() - 2)
    assert found == []


async def test_what_was_cancelled_need_not_come_until_it_is_sent_again() -> None:
    fates, found = judge()
    assert not fates.may_stay("m")
    await change(fates, CANCEL, STATES.CANCELLED)
    assert fates.may_stay("m")
    assert fates.is_cancelled("m")
    began_s = trio.current_time()
    fates.sent("m")
    fates.acknowledged("m", began_s)
    assert not fates.may_stay("m")
    come(fates)
    assert found == []


async def test_a_change_without_an_answer_allows_both() -> None:
    fates, found = judge()
    await trio.sleep(60)
    fates.unanswered(fates.asked(M, CANCEL))
    assert fates.may_stay("m")
    come(fates)
    assert found == []
    moved, _ = judge()
    moved.unanswered(moved.asked(M, MOVE))
    assert not moved.may_stay("m")
