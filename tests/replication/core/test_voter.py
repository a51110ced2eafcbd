"""A promise is durable before it is given, and holds against earlier masters."""

from replication.core.record import Record
from replication.core.voter import Later, Promise, Refusal, Voter


def record(epoch: int, version: int) -> Record:
    return Record(epoch=epoch, version=version, master=None, in_sync=frozenset(), min_isr=1)


def quiet() -> Voter:
    """Return a voter whose start is long ago."""
    return Voter(Promise(), now=-1000.0)


def test_a_vote_is_a_promise_to_be_made_durable_first() -> None:
    voter = quiet()
    assert voter.asked(4, 0.0) == Promise(4, None)
    assert (voter.may_follow(4), voter.may_follow(3)) == (True, False)
    assert voter.asked(3, 0.0) == Refusal("it has promised epoch 4 already")
    assert voter.asked(4, 0.0) == Promise(4, None), "the question may come twice"


def test_a_record_is_made_durable_when_it_is_newer() -> None:
    voter = quiet()
    assert voter.told(record(2, 5)) == Promise(2, record(2, 5))
    assert voter.told(record(2, 5)) is None
    assert voter.told(record(1, 9)) is None
    assert voter.told(record(2, 6)) == Promise(2, record(2, 6))
    assert voter.asked(7, 0.0) == Promise(7, record(2, 6))
    assert voter.told(record(3, 1)) == Promise(7, record(3, 1)), "the promise stays"


def test_it_votes_when_the_promise_to_its_master_has_run_out() -> None:
    voter = quiet()
    voter.to_master.heard(2, 10.0)
    assert voter.asked(3, 11.0) == Later(2.0)
    assert voter.asked(3, 13.0) == Promise(3, None)


def test_a_start_votes_when_promises_of_the_start_before_have_run_out() -> None:
    voter = Voter(Promise(2, record(2, 5)), now=0.0)
    assert isinstance(voter.asked(3, 3.0), Later)
    assert voter.asked(3, 3.1) == Promise(3, record(2, 5))
