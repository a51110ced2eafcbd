"""A slave believes answers to its question, appends what goes on, and cuts nothing committed."""

import pytest

from replication.core.epochs import Behind, Diverges, Question
from replication.core.follower import Ack, Cut, CutRefusedError, Follower
from replication.core.in_sync import ProtocolFaultError

ASKED = Question(20, 3)


def asked(*, committed: int = 10) -> Follower:
    follower = Follower(epoch=5, committed=committed)
    follower.ask(ASKED)
    return follower


def test_what_the_master_says_is_committed_counts_as_far_as_the_log_is_the_same() -> None:
    follower = asked()
    follower.matches(ASKED)
    follower.batches(20, 20, committed=30, time=1.0, is_promised=True)
    assert follower.committed == 20
    assert follower.batches(20, 25, committed=30, time=1.0, is_promised=True)
    assert follower.committed == 20
    follower.appended(25)
    assert follower.committed == 25
    follower.batches(25, 25, committed=26, time=1.0, is_promised=True)
    follower.appended(35)
    assert follower.committed == 30, "and never less"


def test_batches_that_do_not_go_on_are_refused() -> None:
    follower = asked()
    with pytest.raises(ProtocolFaultError, match="before the log matched"):
        follower.batches(20, 25, committed=1, time=1.0, is_promised=True)
    follower.matches(ASKED)
    with pytest.raises(ProtocolFaultError, match="batches from record 21 on; 20 comes next"):
        follower.batches(21, 25, committed=1, time=1.0, is_promised=True)


def test_an_answer_to_another_question_is_refused() -> None:
    follower = asked()
    other = Question(19, 3)
    with pytest.raises(ProtocolFaultError, match="an answer to"):
        follower.matches(other)
    with pytest.raises(ProtocolFaultError, match="an answer to"):
        follower.diverges(Diverges(other, 2, 12), end=20)


def test_it_cuts_what_the_master_has_not() -> None:
    assert asked().diverges(Diverges(ASKED, 2, 12), end=20) == Cut(2, 12)


def test_it_cuts_nothing_that_is_committed() -> None:
    with pytest.raises(CutRefusedError, match="up to record 14 it is committed here: nothing was"):
        asked(committed=15).diverges(Diverges(ASKED, 2, 14), end=20)
    assert asked(committed=15).diverges(Diverges(ASKED, 2, 15), end=20) == Cut(2, 15)


def test_an_answer_that_would_cut_nothing_is_refused() -> None:
    with pytest.raises(ProtocolFaultError, match="cuts nothing"):
        asked().diverges(Diverges(ASKED, 3, 20), end=20)


def test_a_log_that_ends_before_the_masters_begins_needs_a_snapshot() -> None:
    assert asked().diverges(Behind(ASKED, 100), end=20) is None


def test_it_tells_the_masters_time_back_only_where_it_has_promised_something() -> None:
    follower = asked()
    follower.matches(ASKED)
    assert follower.ack(end=20, applied=15) == Ack(20, 15, None)
    follower.batches(20, 20, committed=1, time=7.0, is_promised=True)
    follower.batches(20, 20, committed=1, time=8.0, is_promised=False)
    assert follower.ack(end=20, applied=15) == Ack(20, 15, 7.0)
