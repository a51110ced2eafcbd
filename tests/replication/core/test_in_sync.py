"""Who is in sync, who is waited for, who is dropped, and the sentences that say why."""

from uuid import UUID

import pytest

from replication.core.commit_point import CommitPoint
from replication.core.in_sync import InSyncSet, Proposal, ProtocolFaultError, Standing
from replication.core.record import Member, Record, Start

A, B, C = (Member(name, UUID(int=number)) for number, name in enumerate("abc", 1))
START = 10
"""The sequence of EPOCH_START."""


class Rig:
    """A master `a`, its commit point, and slaves that answer when they are told to."""

    def __init__(self, *members: Member, min_isr: int = 1, committed: int = START) -> None:
        self.now = 100.0
        self.point = CommitPoint(durable=START, committed=committed, is_sole=False)
        record = Record(
            epoch=3, version=7, master=("a", 1), in_sync=frozenset(members), min_isr=min_isr
        )
        self.set = InSyncSet(A, record, self.point, start=START, lag_s_max=2.5, now=self.now)
        self.write(START + 1)

    def write(self, end: int) -> None:
        """Have the log end there, durably."""
        self.set.written(end, self.now)
        self.set.durable(end)

    def connect(self, member: Member, connection: int = 1, sequence: int = 1) -> None:
        """Have a slave connect, and be sent everything."""
        start = Start(member, 1, UUID(int=99))
        self.set.connected(start, connection, sequence=sequence, now=self.now)
        self.set.sent(member, connection, self.set.end)

    def ack(self, member: Member, end: int, connection: int = 1) -> None:
        """Have a slave acknowledge."""
        self.set.sent(member, connection, self.set.end)
        self.set.acknowledged(member, connection, end=end, applied=end, echo=self.now, now=self.now)

    def record(self, *members: Member) -> None:
        """Have the meta server confirm a set."""
        old = self.set.record
        new = Record(
            epoch=old.epoch,
            version=old.version + 1,
            master=old.master,
            in_sync=frozenset(members),
            min_isr=old.min_isr,
        )
        self.set.recorded(new, self.now)

    def told(self, member: Member) -> tuple[Standing, str]:
        """Return how a disk stands, and why."""
        return next(
            (one.standing, one.sentence)
            for one in self.set.decisions(self.now)
            if one.member == member
        )


def test_alone_all_that_is_durable_is_committed() -> None:
    rig = Rig(A)
    rig.write(50)
    assert (rig.point.committed, rig.set.is_alone) == (50, True)
    assert rig.set.look(rig.now) is None


def test_what_is_committed_is_on_every_disk_that_is_needed() -> None:
    rig = Rig(A, B, C)
    rig.connect(B, 1)
    rig.connect(C, 2)
    rig.write(50)
    rig.ack(B, 50)
    assert rig.point.committed == START
    rig.ack(C, 30, 2)
    assert rig.point.committed == 30
    rig.ack(C, 50, 2)
    assert rig.point.committed == 50


def test_nothing_is_committed_before_the_beginning_of_the_epoch_is() -> None:
    rig = Rig(A, B)
    rig.connect(B)
    rig.ack(B, START)
    assert rig.point.committed == START
    rig.ack(B, START + 1)
    assert rig.point.committed == START + 1


def test_an_acknowledgement_from_before_the_epoch_commits_nothing() -> None:
    rig = Rig(A, B, committed=4)
    rig.connect(B)
    rig.ack(B, START - 2)
    assert rig.point.committed == 4
    rig.ack(B, START + 1)
    assert rig.point.committed == START + 1


def test_a_slave_that_is_nearly_there_is_waited_for_proposed_and_recorded() -> None:
    rig = Rig(A)
    rig.connect(B)
    rig.now += 1
    for number in range(20):
        rig.now += 0.02
        rig.write(100 + number * 60)
    rig.ack(B, 500)
    assert rig.told(B)[0] is Standing.CATCHING_UP
    assert rig.point.committed == 1240
    rig.ack(B, 1200)
    assert rig.told(B)[0] is Standing.WAITED_FOR
    rig.write(1300)
    assert rig.point.committed == 1240, "from now on commits wait for it"
    assert rig.set.look(rig.now) is None
    rig.ack(B, 1300)
    assert rig.point.committed == 1300
    assert rig.set.look(rig.now) == Proposal(3, 7, frozenset({A, B}))
    assert rig.told(B) == (Standing.PROPOSED, "takes b in sync: its log is at the commit")
    assert rig.set.look(rig.now + 1) == Proposal(3, 7, frozenset({A, B})), "again and again"
    rig.record(A, B)
    assert rig.set.look(rig.now) is None
    assert rig.told(B) == (Standing.IN_SYNC, "keeps b in sync: 0.0 s behind, limit 2.5 s")


def test_a_slave_that_does_not_get_there_is_not_waited_for_any_more() -> None:
    rig = Rig(A)
    rig.connect(B)
    rig.ack(B, START + 1)
    rig.set.look(rig.now)
    rig = Rig(A)
    rig.connect(B)
    rig.ack(B, START + 1)
    rig.write(50)
    # It is at the commit and would be proposed: an answer of the meta server does not come.
    assert rig.told(B)[0] is Standing.WAITED_FOR
    rig.now += 0.5
    rig.ack(B, 40)
    rig.write(90)
    rig.now += 0.6
    assert rig.point.committed == 40
    assert rig.set.look(rig.now) is None
    assert rig.point.committed == 90, "the commit goes on without it"
    rig.ack(B, 90)
    standing, sentence = rig.told(B)
    assert standing is Standing.PAUSED
    assert sentence == "b is not taken in sync yet: next try in 5.0 s"
    rig.now += 5.1
    rig.ack(B, 90)
    assert rig.told(B)[0] is Standing.WAITED_FOR


def test_a_member_that_answers_and_gets_no_further_is_dropped() -> None:
    rig = Rig(A, B)
    rig.connect(B)
    rig.ack(B, START + 1)
    rig.write(50)
    for _ in range(4):
        assert rig.set.look(rig.now) is None
        rig.now += 0.5
        rig.ack(B, START + 1)
    assert rig.set.look(rig.now) is None
    assert rig.told(B) == (Standing.IN_SYNC, "keeps b in sync: 2.0 s behind, limit 2.5 s")
    rig.now += 0.6
    rig.ack(B, START + 1)
    assert rig.set.look(rig.now) == Proposal(3, 7, frozenset({A}))
    assert rig.told(B) == (Standing.DROPPED, "drops b: 2.6 s behind, limit 2.5 s")
    assert rig.point.committed == START + 1, "it is needed until the meta server has answered"
    rig.record(A)
    assert rig.point.committed == 50


def test_a_member_that_is_slow_but_gets_on_is_kept() -> None:
    rig = Rig(A, B)
    rig.connect(B)
    for number in range(100):
        # Each acknowledgement is of what was the end a second ago.
        rig.now += 0.5
        rig.write(100 + number)
        rig.ack(B, 98 + number)
    assert rig.set.look(rig.now) is None
    assert rig.told(B)[0] is Standing.IN_SYNC


def test_who_is_silent_is_dropped_where_nothing_is_written_too() -> None:
    rig = Rig(A, B, C, min_isr=2)
    rig.connect(B, 1)
    rig.connect(C, 2)
    rig.ack(B, START + 1)
    rig.ack(C, START + 1, 2)
    rig.now += 2
    rig.ack(B, START + 1)
    rig.now += 0.5
    assert rig.set.look(rig.now) is None
    rig.now += 0.1
    assert rig.set.look(rig.now) == Proposal(3, 7, frozenset({A, B}))
    assert rig.told(C) == (Standing.DROPPED, "drops c: nothing came from it for 2.6 s")


@pytest.mark.parametrize(("min_isr", "dropped"), [(1, True), (2, False)])
def test_all_silent_ones_are_dropped_at_once_or_none(min_isr: int, *, dropped: bool) -> None:
    rig = Rig(A, B, C, min_isr=min_isr)
    rig.connect(B, 1)
    rig.connect(C, 2)
    rig.now += 3
    found = rig.set.look(rig.now)
    assert found == (Proposal(3, 7, frozenset({A})) if dropped else None)


def test_who_has_not_promised_is_not_proposed() -> None:
    rig = Rig(A)
    rig.connect(B)
    rig.set.acknowledged(B, 1, end=START + 1, applied=1, echo=None, now=rig.now)
    assert rig.set.look(rig.now) is None
    assert rig.told(B)[0] is Standing.WAITED_FOR
    assert rig.set.unpromised(rig.now) == [], "who is waited for need not promise"
    rig.ack(B, START + 1)
    assert rig.set.look(rig.now) == Proposal(3, 7, frozenset({A, B}))
    assert rig.set.unpromised(rig.now + 3) == ["b"], "who is proposed has to"


def test_an_idle_group_has_no_lag() -> None:
    rig = Rig(A, B)
    rig.connect(B)
    for _ in range(3600):
        rig.ack(B, START + 1)
        rig.now += 1
    assert rig.set.look(rig.now) is None
    assert rig.told(B) == (Standing.IN_SYNC, "keeps b in sync: 0.0 s behind, limit 2.5 s")


def test_a_broken_connection_has_half_a_second_to_come_back() -> None:
    rig = Rig(A, B)
    rig.connect(B)
    rig.ack(B, START + 1)
    rig.set.disconnected(B, 1, rig.now)
    rig.now += 0.4
    assert rig.set.look(rig.now) is None
    rig.connect(B, 2)
    rig.now += 0.4
    assert rig.set.look(rig.now) is None
    rig.set.disconnected(B, 2, rig.now)
    rig.now += 0.6
    assert rig.set.look(rig.now) == Proposal(3, 7, frozenset({A}))
    assert rig.told(B) == (Standing.DROPPED, "drops b: its connection broke 0.6 s ago")


def test_who_says_that_it_cannot_append_is_dropped_at_once() -> None:
    rig = Rig(A, B)
    rig.connect(B)
    rig.ack(B, START + 1)
    rig.set.leaves(B, 1, "its disk is full")
    assert rig.set.look(rig.now) == Proposal(3, 7, frozenset({A}))
    assert rig.told(B) == (Standing.DROPPED, "drops b: its disk is full")


def test_the_set_does_not_get_smaller_than_min_isr() -> None:
    rig = Rig(A, B, min_isr=2)
    rig.connect(B)
    rig.ack(B, START + 1)
    rig.set.leaves(B, 1, "its disk is full")
    assert rig.set.look(rig.now) is None
    assert rig.told(B) == (
        Standing.KEPT,
        "keeps b in sync, since min_isr is 2: its disk is full",
    )


def test_a_member_waits_for_30_s_after_its_third_drop_in_ten_minutes_and_each_further_one() -> None:
    rig = Rig(A, B)
    pauses = []
    for connection in range(1, 7):
        rig.connect(B, connection)
        rig.now += 100 if connection > 3 else 1
        rig.ack(B, START + 1, connection)
        rig.record(A, B)
        rig.set.leaves(B, connection, "it stops")
        rig.set.look(rig.now)
        rig.record(A)
        rig.connect(B, connection)
        rig.ack(B, START + 1, connection)
        standing, sentence = rig.told(B)
        pauses.append(sentence if standing is Standing.PAUSED else "")
    often = "b is not taken in sync yet: it was dropped {} times in 600 s, next try in 30.0 s"
    assert pauses == ["", "", *(often.format(n) for n in (3, 4, 5, 6))]
    rig.now += 600
    rig.connect(B, 7)
    rig.ack(B, START + 1, 7)
    rig.record(A, B)
    rig.set.leaves(B, 7, "it stops")
    rig.set.look(rig.now)
    rig.record(A)
    rig.connect(B, 7)
    rig.ack(B, START + 1, 7)
    assert rig.told(B)[0] is not Standing.PAUSED


def test_messages_are_appended_only_while_enough_members_are_heard() -> None:
    rig = Rig(A, B, min_isr=2)
    rig.connect(B)
    rig.ack(B, START + 1)
    rig.now += 1.4
    assert rig.set.why_not_append(rig.now) == ""
    rig.now += 0.2
    assert rig.set.why_not_append(rig.now) == (
        "2 disks must be in sync, and 1 are heard; nothing was heard of b for 1.5 s"
    )


def test_an_acknowledgement_beyond_what_was_sent_counts_for_nothing() -> None:
    rig = Rig(A, B)
    rig.connect(B)
    rig.write(50)
    rig.set.sent(B, 1, 30)
    with pytest.raises(ProtocolFaultError, match="b acknowledged record 39, and was sent up to 29"):
        rig.set.acknowledged(B, 1, end=40, applied=1, echo=None, now=rig.now)
    assert rig.set.end_of(B) == 0


def test_an_acknowledgement_of_another_connection_is_ignored() -> None:
    rig = Rig(A, B)
    rig.connect(B, 1)
    rig.connect(B, 2)
    rig.ack(B, START + 1, 1)
    assert rig.point.committed == START
    rig.ack(B, START + 1, 2)
    assert rig.point.committed == START + 1


def test_another_disk_of_a_node_is_needed_beside_the_old_one_until_it_is_recorded() -> None:
    other = Member("b", UUID(int=77))
    rig = Rig(A, B, min_isr=2)
    rig.connect(other, 5)
    rig.ack(other, START + 1, 5)
    assert rig.set.look(rig.now) == Proposal(3, 7, frozenset({A, other}))
    assert rig.set.needed() == {A, B, other}
    rig.write(50)
    rig.ack(other, 50, 5)
    assert rig.point.committed == START
    rig.record(A, other)
    assert rig.point.committed == 50


def test_a_decision_is_told_when_its_kind_changes() -> None:
    rig = Rig(A, B)
    rig.connect(B)
    rig.ack(B, START + 1)
    assert [one.sentence for one in rig.set.changed(rig.now)] == [
        "keeps b in sync: 0.0 s behind, limit 2.5 s"
    ]
    rig.write(50)
    rig.now += 1
    assert not list(rig.set.changed(rig.now))
    rig.now += 2
    assert [one.standing for one in rig.set.changed(rig.now)] == [Standing.DROPPED]
