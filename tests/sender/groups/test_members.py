"""Promise: a message that may end its receiver has it alone, and holds up nobody else for long."""

from typing import Any, cast

import numpy as np
import pytest

from delay_protocol.receivers.attaching import CREDIT_BYTES_MIN, Attach, Flow
from sender.groups.members import KEPT_S, Alone, Attachment
from sender.groups.taking import PatternSet, Takers
from sender.queues.parcels import Batch, first_try
from storage.batch.entries import ENTRY


class Rig:
    """Members of one name, and messages that go out alone."""

    def __init__(self, members: int) -> None:
        self.alone = Alone(turn_items=100)
        self.members = [self.member() for _ in range(members)]
        self.now_ms = 0

    def member(self, brought: PatternSet | None = None) -> Attachment:
        connection = cast("Any", type("Line", (), {"unsent_bytes": 0})())
        attach = Attach(name="r", instance=b"i" * 16)
        brought = brought or PatternSet(())
        brought.is_known = True
        credit = Flow(items=10, bytes=CREDIT_BYTES_MIN)
        return Attachment(connection, attach, brought, 1e9, credit)

    def wait(self, *sequences: int, takers: Takers = None) -> None:
        entries = np.zeros(len(sequences), ENTRY)
        entries["sequence"] = sequences
        self.alone.queues[takers].append(first_try(entries))

    def deliver(self, *ready: Attachment) -> tuple[Attachment, int] | None:
        """Deliver the next message that goes alone; return whose it is, and its sequence."""
        found = self.alone.choose(ready or self.members, self.now_ms)
        if found is None:
            return None
        member, queue = found
        batch = queue.take(items_max=1, bytes_max=1000, any_size=True)
        assert batch is not None
        (sequence,) = batch.entries["sequence"].tolist()
        batch.sent_ms = self.now_ms
        member.unsettled[sequence] = batch, 0
        return member, sequence

    @property
    def kept(self) -> Attachment | None:
        return self.alone.member

    def settle(self, member: Attachment, sequence: int) -> None:
        del member.unsettled[sequence]


def hold(member: Attachment, *sequences: int) -> None:
    """Let a member have messages that came beside each other, at 0 ms."""
    batch = Batch(np.zeros(1, ENTRY), np.zeros(1, np.uint32), [(0, 1)])
    member.unsettled.update(dict.fromkeys(sequences, (batch, 0)))


def test_one_member_is_kept_free_until_it_holds_nothing_and_has_the_message_alone() -> None:
    rig = Rig(3)
    busy, other, _ = rig.members
    hold(busy, 1, 2, 3)
    hold(other, 4)
    hold(rig.members[2], 5, 6)
    rig.wait(7, 8)
    assert rig.deliver() is None
    assert rig.kept is other, "who holds least is kept free"
    rig.settle(other, 4)
    assert rig.deliver() == (other, 7)
    assert rig.deliver() is None, "nothing goes beside it, and no second one elsewhere"
    assert rig.kept is other
    rig.settle(other, 7)
    assert rig.deliver() is None, "others have a turn"
    assert rig.kept is None


def test_others_have_a_turn_between_two_that_go_alone() -> None:
    rig = Rig(1)
    rig.wait(1, 2)
    (member,) = rig.members
    assert rig.deliver() == (member, 1)
    rig.settle(member, 1)
    assert rig.deliver() is None
    assert rig.alone.others_had_turn(), "now one may go alone"
    assert not rig.alone.others_had_turn()
    assert rig.deliver() == (member, 2)
    rig.settle(member, 2)
    assert rig.deliver() is None
    rig.alone.others_had_turn()
    assert rig.deliver() is None
    assert not rig.alone.queues


def test_a_handler_that_takes_long_holds_up_the_others_once_for_so_long() -> None:
    rig = Rig(1)
    (member,) = rig.members
    hold(member, 1)
    rig.wait(2, 3, 4)
    kept_ms = round(KEPT_S * 1000)
    rig.now_ms = kept_ms - 100
    assert rig.deliver() is None
    assert member.free_in_s(rig.now_ms) == pytest.approx(0.1)
    rig.now_ms = kept_ms
    assert rig.deliver() == (member, 2), "it is waited for no longer"
    assert rig.deliver() is None
    rig.settle(member, 2)
    assert rig.deliver() is None
    assert rig.kept is None
    rig.alone.others_had_turn()
    assert rig.deliver() == (member, 3), "nor is it waited for again"
    rig.now_ms += kept_ms
    assert rig.deliver() is None
    assert rig.kept is None, "others get theirs, though it is not settled"


def test_a_clock_that_is_set_back_holds_up_nobody_for_as_long() -> None:
    (member,) = Rig(1).members
    hold(member, 1)
    assert member.free_in_s(-3_600_000) == 0
    assert all(member.free_in_s(ms) <= KEPT_S for ms in range(-60_000, 60_000, 500))


def test_nobody_is_kept_free_for_what_was_taken_back() -> None:
    rig = Rig(1)
    (member,) = rig.members
    hold(member, 1)
    rig.wait(2)
    assert rig.deliver() is None
    assert rig.kept is member
    rig.alone.queues.clear()
    assert rig.deliver() is None
    assert rig.kept is None


@pytest.mark.parametrize("is_out", [False, True])
def test_a_member_that_leaves_is_followed_by_another(is_out: bool) -> None:
    rig = Rig(2)
    gone, other = rig.members
    hold(other, 1)
    if not is_out:
        hold(gone, 2)
        hold(other, 3)
    rig.wait(4, 5)
    assert rig.deliver() == ((gone, 4) if is_out else None)
    assert rig.kept is gone
    gone.unsettled.clear()
    other.unsettled.clear()
    if is_out:
        assert rig.deliver(other) is None, "others have a turn"
        rig.alone.others_had_turn()
    assert rig.deliver(other) == (other, 5 if is_out else 4)


def test_only_who_takes_a_message_is_kept_free_for_it_and_queues_have_turns() -> None:
    rig = Rig(1)
    one, both = PatternSet(("a",)), PatternSet(("a", "b"))
    first, second = rig.member(one), rig.member(both)
    hold(second, 1)
    rig.wait(2, 3, takers=frozenset({both}))
    assert (rig.deliver(first), rig.kept) == (None, None)
    assert (rig.deliver(first, second), rig.kept) == (None, second)
    rig.settle(second, 1)
    rig.wait(4, takers=frozenset({one, both}))
    for sequence in (2, 4, 3):
        assert rig.deliver(second) == (second, sequence)
        rig.settle(second, sequence)
        assert rig.deliver(second) is None
        rig.alone.others_had_turn()
