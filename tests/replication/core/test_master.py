"""When a master may append, send and acknowledge, and how it hands over."""

from uuid import UUID

import pytest

from replication.core.commit_point import CommitPoint
from replication.core.handover import HandoverRequest
from replication.core.in_sync import Proposal
from replication.core.leases import FollowerPromise
from replication.core.master import Master
from replication.core.outcome_lag import OutcomeLag
from replication.core.record import Member, Record, Start

A, B, C = (Member(name, UUID(int=number)) for number, name in enumerate("abc", 1))


class Rig:
    """A master `a` whose epoch began at record 1, and its slaves."""

    def __init__(self, *members: Member) -> None:
        self.now = 100.0
        self.point = CommitPoint(durable=1, committed=1, is_sole=False)
        record = Record(epoch=3, version=7, master=("a", 1), in_sync=frozenset(members), min_isr=1)
        self.master = Master(A, record, self.point, start=1, lag_s_max=2.5, now=self.now)
        for connection, member in enumerate(members):
            if member != A:
                start = Start(member, 1, UUID(int=9))
                self.master.members.connected(start, connection, sequence=1, now=self.now)
        self.connections = {member: number for number, member in enumerate(members)}
        self.write(2)

    def write(self, end: int) -> None:
        """Have the log end there, durably, and be sent."""
        members = self.master.members
        members.written(end, self.now)
        members.durable(end)
        for member, connection in self.connections.items():
            if member != A:
                members.sent(member, connection, end)

    def ack(self, member: Member, end: int, echo: float | None = None) -> None:
        """Have a slave acknowledge."""
        self.master.members.acknowledged(
            member, self.connections[member], end=end, applied=end, echo=echo, now=self.now
        )

    def outcomes(self, end: int, count: int) -> None:
        """Have a record of outcomes become durable."""
        self.write(end)
        self.master.outcomes.durable(end, count, self.now)


def test_alone_in_sync_a_master_needs_no_promise() -> None:
    rig = Rig(A)
    assert (rig.master.why_not_act(rig.now), rig.master.why_not_send(rig.now)) == ("", "")


def test_with_others_that_may_be_elected_it_needs_the_promise_of_each() -> None:
    rig = Rig(A, B, C)
    assert rig.master.why_not_act(rig.now).startswith("b, c may be elected and did not promise")
    rig.ack(B, 2, echo=rig.now)
    assert rig.master.why_not_act(rig.now).startswith("c may be elected"), "one is not enough"
    rig.ack(C, 2, echo=rig.now - 1)
    assert rig.master.why_not_act(rig.now + 1.9) == ""
    assert rig.master.why_not_act(rig.now + 1.95) != "", "counted from the echo, less the drift"


def test_it_says_since_when_it_lacks_promises() -> None:
    rig = Rig(A, B)
    rig.ack(B, 2, echo=rig.now)
    rig.master.look(rig.now, in_flight=0)
    assert rig.master.lacks_promises_s(rig.now) is None
    rig.now += 3
    assert rig.master.members.hears_nobody(rig.now)
    rig.master.look(rig.now, in_flight=0)
    assert rig.master.lacks_promises_s(rig.now + 1) == 1.0
    rig.ack(B, 2, echo=rig.now)
    rig.master.look(rig.now, in_flight=0)
    assert rig.master.lacks_promises_s(rig.now) is None


def test_where_an_fsync_takes_longer_than_ten_seconds_it_may_not_send() -> None:
    rig = Rig(A, B)
    members, master = rig.master.members, rig.master
    hangs = "nothing became durable for 10 s: its disk hangs"

    def at(now: float) -> str:
        rig.now = now
        rig.ack(B, 2, echo=now)
        return master.why_not_act(now)

    for now in range(100, 120):
        # A busy disk is behind with something all the time.
        members.commits_since = now
        assert at(now) == ""
    members.commits_since = None
    assert at(130.0) == ""
    members.commits_since = 120.0
    assert at(130.0) == ""
    assert at(130.1) == hangs
    master.look(130.1, in_flight=0)
    assert master.lacks_promises_s(133.1) == pytest.approx(3.0)
    members.commits_since = None
    assert at(133.2) == ""
    master.look(133.2, in_flight=0)
    assert master.lacks_promises_s(133.3) is None


def test_alone_in_sync_it_goes_on_though_an_fsync_hangs() -> None:
    rig = Rig(A)
    rig.master.members.commits_since = 100.0
    assert rig.master.why_not_act(200.0) == ""


def test_a_promise_to_a_master_is_kept_longer_than_the_master_counts_on_it() -> None:
    promise = FollowerPromise(now=0.0)
    assert promise.asked_to_vote(4, 0.0) == pytest.approx(3.06), "a start forgets what it promised"
    promise = FollowerPromise(now=0.0)
    assert promise.heard(3, 10.0)
    assert promise.asked_to_vote(4, 11.0) == pytest.approx(2.0)
    assert not promise.heard(3, 12.0), "it promises nothing more to an earlier master"
    assert promise.asked_to_vote(4, 13.0) == 0.0
    assert promise.heard(4, 14.0)


@pytest.mark.parametrize(
    ("gone", "wait_s"), [(0, 2.5), (2, 2.5), (3, 0.0), (4, 0.0)], ids=["unknown", "2", "3", "4"]
)
def test_what_was_promised_to_a_start_that_is_gone_is_void(gone: int, wait_s: float) -> None:
    promise = FollowerPromise(now=0.0)
    promise.heard(3, 10.0)
    assert promise.asked_to_vote(5, 10.5, gone=gone) == pytest.approx(wait_s)


def test_a_start_that_has_forgotten_its_promises_drops_those_to_one_that_is_gone() -> None:
    assert FollowerPromise(now=0.0).asked_to_vote(4, 0.0, gone=3) == 0.0


def test_a_promise_to_a_master_that_still_speaks_is_kept_though_it_is_said_to_be_gone() -> None:
    promise = FollowerPromise(now=0.0)
    promise.is_connected = True
    promise.heard(3, 10.0)
    assert promise.asked_to_vote(4, 11.0, gone=3) == pytest.approx(2.0)
    assert promise.asked_to_vote(4, 11.1, gone=3) == 0.0, "not for a second"
    promise.heard(3, 12.0)
    promise.is_connected = False
    assert promise.asked_to_vote(4, 12.1, gone=3) == 0.0, "its connection is closed"


def test_a_slave_says_whom_it_hears_for_as_long_as_its_promise_runs() -> None:
    promise = FollowerPromise(now=0.0)
    assert promise.hears(0.0) == (0, False)
    promise.heard(3, 10.0, may_send=True)
    assert (promise.hears(12.9), promise.hears(13.0)) == ((3, True), (0, False))
    promise.heard(3, 14.0, may_send=False)
    assert promise.hears(14.0) == (3, False)


def test_sending_pauses_while_the_best_other_member_lacks_outcomes() -> None:
    rig = Rig(A, B, C)
    rig.ack(B, 2, echo=rig.now)
    rig.ack(C, 2, echo=rig.now)
    rig.outcomes(3, 100)
    rig.now += 0.19
    assert rig.master.why_not_send(rig.now) == ""
    rig.now += 0.02
    assert rig.master.why_not_send(rig.now) == (
        "the best other member lacks 100 outcomes, the oldest of them for 210 ms: a takeover would "
        "send these again"
    )
    rig.ack(C, 3)
    assert rig.master.why_not_send(rig.now) == "", "C has them, and an election takes the longest"
    rig.outcomes(4, 50_000)
    assert rig.master.why_not_send(rig.now) != ""
    rig.ack(B, 4)
    assert rig.master.why_not_send(rig.now) == ""


def test_alone_in_sync_it_sends_whatever_others_lack() -> None:
    rig = Rig(A)
    rig.outcomes(3, 5_000_000)
    rig.now += 10
    assert rig.master.why_not_send(rig.now) == ""


def test_outcomes_that_somebody_lacks_are_counted_from_the_end_of_its_log() -> None:
    lag = OutcomeLag()
    for end, count, at in ((10, 5, 1.0), (20, 7, 2.0), (30, 1, 3.0)):
        lag.durable(end, count, at)
    assert [tuple(lag.lacked_by(end, 4.0)) for end in (9, 10, 29, 30)] == [
        (13, 3.0),
        (8, 2.0),
        (1, 1.0),
        (0, 0.0),
    ]
    lag.committed_to(20)
    assert (lag.uncommitted, tuple(lag.lacked_by(9, 4.0))) == (1, (1, 1.0))


# -- handing over --------------------------------------------------------------------------------


def test_a_handover_waits_for_outcomes_and_for_the_other_log() -> None:
    rig = Rig(A, B)
    rig.ack(B, 2, echo=rig.now)
    assert rig.master.hand_over("b", rig.now) == ""
    assert rig.master.why_not_append(rig.now).startswith("hands over to b: for 0.0 s it has waited")
    assert rig.master.why_not_send(rig.now) != ""
    assert rig.master.why_not_act(rig.now) == "", "what was taken is acknowledged"
    assert rig.master.look(rig.now, in_flight=3) is None
    rig.outcomes(3, 3)
    assert rig.master.look(rig.now, in_flight=0) is None
    rig.ack(B, 3)
    assert rig.master.look(rig.now, in_flight=0) == HandoverRequest(3, 7, B)
    assert rig.master.why_not_act(rig.now) == "hands over to b: waits for the meta server"
    assert rig.master.look(rig.now, in_flight=0) == HandoverRequest(3, 7, B), "again and again"
    assert rig.master.handover is not None
    assert rig.master.handover.unanswered == 0


def test_a_node_that_does_not_answer_is_not_handed_over_to_and_nothing_is_held() -> None:
    rig = Rig(A, B)
    rig.ack(B, 2, echo=rig.now)
    rig.now += 0.4
    for wait_s, ends in ((0.5, False), (0.6, True)):
        assert rig.master.hand_over("b", rig.now) == ""
        rig.master.look(rig.now + wait_s, in_flight=0)
        assert (rig.master.handover is None) == ends
        assert rig.master.why_not_append(rig.now) == rig.master.why_not_send(rig.now) == ""
        rig.master.handover = None
    assert rig.master.hand_over("b", rig.now) == ""
    rig.now += 0.3
    rig.ack(B, 2)
    assert rig.master.look(rig.now, in_flight=0) == HandoverRequest(3, 7, B)


def test_outcomes_that_do_not_come_are_counted_and_not_waited_for() -> None:
    rig = Rig(A, B)
    rig.ack(B, 2)
    rig.master.hand_over("b", rig.now)
    assert rig.master.look(rig.now + 0.4, in_flight=3) is None
    assert rig.master.look(rig.now + 0.6, in_flight=3) == HandoverRequest(3, 7, B)
    assert rig.master.handover is not None
    assert rig.master.handover.unanswered == 3


def test_a_master_whose_target_does_not_get_there_goes_on() -> None:
    rig = Rig(A, B)
    rig.master.hand_over("b", rig.now)
    assert rig.master.look(rig.now + 1.9, in_flight=0) is None
    assert rig.master.why_not_append(rig.now + 1.9) != ""
    rig.master.look(rig.now + 2.1, in_flight=0)
    assert rig.master.handover is None
    assert rig.master.why_not_append(rig.now) == ""


def test_a_master_that_is_told_of_no_record_asks_for_itself() -> None:
    rig = Rig(A, B)
    rig.ack(B, 2)
    rig.master.hand_over("b", rig.now)
    assert rig.master.look(rig.now + 1.9, in_flight=0) == HandoverRequest(3, 7, B)
    assert rig.master.look(rig.now + 2.1, in_flight=0) == HandoverRequest(3, 7, A)


def test_nothing_is_held_for_a_handover_beside_a_member_that_is_silent() -> None:
    rig = Rig(A, B, C)
    rig.now += 0.1
    assert rig.master.hand_over("b", rig.now) == ""
    rig.now += 0.2
    rig.ack(B, 2, echo=rig.now)
    assert rig.master.look(rig.now, in_flight=0) is None
    assert rig.master.why_not_append(rig.now) == "", "a commit needs c as well"
    rig.now += 0.4
    rig.master.look(rig.now, in_flight=0)
    assert rig.master.handover is None


def test_a_newer_record_of_the_same_epoch_ends_a_handover() -> None:
    rig = Rig(A, B)
    rig.ack(B, 2)
    rig.master.hand_over("b", rig.now)
    rig.master.look(rig.now, in_flight=0)
    old = rig.master.record
    rig.master.recorded(
        Record(epoch=3, version=8, master=("a", 1), in_sync=old.in_sync, min_isr=1), rig.now
    )
    assert rig.master.handover is None
    assert rig.master.why_not_append(rig.now) == ""


def test_only_a_member_in_sync_is_handed_over_to() -> None:
    rig = Rig(A, B)
    assert rig.master.hand_over("c", rig.now) == "c is not in sync; in sync are b"
    assert rig.master.hand_over("a", rig.now) == "a is the master already"
    assert rig.master.hand_over("b", rig.now) == ""
    assert rig.master.hand_over("b", rig.now).startswith("hands over to b")
    assert Rig(A).master.hand_over("b", 0.0) == "b is not in sync; in sync are no others"


def test_a_set_is_proposed_only_while_nothing_is_handed_over() -> None:
    rig = Rig(A, B)
    rig.ack(B, 2)
    rig.master.members.leaves(B, rig.connections[B], "it stops")
    assert isinstance(rig.master.look(rig.now, in_flight=0), Proposal)
