"""Who becomes the master, when, and what a master may have changed."""

from typing import Any
from uuid import UUID

import msgspec
import pytest

from delay_protocol.nodes.registration import GroupRecord, Master, Phase
from meta_server.groups.elections import GroupState, Heard, Refused, Voted, Waiting, set_min_isr

A, B, C = UUID(int=1), UUID(int=2), UUID(int=3)
MASTER = Master(node_id="a", incarnation=1)
ACTIVE = GroupRecord(
    epoch=3,
    version=7,
    master=MASTER,
    in_sync={"a": A, "b": B, "c": C},
    min_isr=2,
    phase=Phase.ACTIVE,
)
ELECTING = msgspec.structs.replace(ACTIVE, epoch=4, version=8, master=None, phase=Phase.ELECTING)


def heard(storage: UUID, at: float = 0.0, **others: int) -> Heard:
    values = {"incarnation": 1, "end": 100, "uncommitted": 0} | others
    return Heard(at, storage, **values)


def vote(storage: UUID, *, end: int = 100, **others: object) -> Voted:
    values: dict[str, Any] = {
        "incarnation": 2,
        "last_epoch": 3,
        "applied": end,
        "told": ACTIVE,
        "fault": "",
    }
    return Voted(storage=storage, end=end, **(values | others))


def state(**nodes: Heard) -> GroupState:
    found = GroupState(lease_until=-100.0)
    found.heard = dict(nodes)
    return found


def test_nobody_is_elected_before_the_lease_is_over() -> None:
    group = state(a=heard(A))
    assert group.grant(ACTIVE, MASTER, lease_s=5.0, now=0.0)
    refusal = group.begin(ACTIVE, now=2.0)
    assert isinstance(refusal, Refused)
    assert "the master may send for another 3.5 s, unless it is started again" in refusal.sentence
    assert group.begin(ACTIVE, now=5.6) == ELECTING


def test_a_start_of_the_masters_disk_ends_its_lease() -> None:
    group = state(a=heard(A))
    group.grant(ACTIVE, MASTER, lease_s=5.0, now=0.0)
    group.was_heard("a", heard(A, incarnation=2))
    assert group.begin(ACTIVE, now=0.1) == ELECTING
    group.was_heard("a", heard(UUID(int=9), incarnation=2))
    assert isinstance(group.begin(ACTIVE, now=0.1), Refused), "another disk proves nothing"


def test_a_lease_is_granted_to_the_recorded_start_only() -> None:
    group = state()
    assert not group.grant(ACTIVE, Master(node_id="a", incarnation=2), lease_s=5.0, now=0.0)
    assert not group.grant(ACTIVE, Master(node_id="b", incarnation=1), lease_s=5.0, now=0.0)
    assert not group.grant(ELECTING, MASTER, lease_s=5.0, now=0.0)
    assert group.lease_left(0.0) == 0.0


def test_the_longest_log_becomes_the_master_and_who_voted_is_in_sync() -> None:
    group = state(b=heard(B), c=heard(C))
    assert group.asks(ELECTING) == ["a", "b", "c"]
    group.voted(ELECTING, "b", 4, vote(B, end=90), now=0.0)
    assert group.choose(ELECTING, now=0.1) == Waiting("waits for votes of c")
    group.voted(ELECTING, "c", 4, vote(C, end=95), now=0.0)
    assert group.asks(ELECTING) == ["a"]
    chosen = group.choose(ELECTING, now=0.2)
    assert isinstance(chosen, GroupRecord)
    assert chosen.master == Master(node_id="c", incarnation=2)
    assert (chosen.in_sync, chosen.phase) == ({"b": B, "c": C}, Phase.ACTIVE)
    assert (chosen.epoch, chosen.version) == (4, 9)


@pytest.mark.parametrize(
    ("b", "c", "best"),
    [
        ({"last_epoch": 2, "end": 200}, {"last_epoch": 3, "end": 100}, "c"),
        ({"end": 101}, {"end": 100, "applied": 100}, "b"),
        ({"applied": 50}, {"applied": 60}, "c"),
        ({"fault": "its clock is off", "applied": 90}, {"applied": 10}, "c"),
    ],
)
def test_votes_are_ranked(b: dict[str, Any], c: dict[str, Any], best: str) -> None:
    group = state(b=heard(B), c=heard(C))
    group.voted(ELECTING, "b", 4, vote(B, **b), now=0.0)
    group.voted(ELECTING, "c", 4, vote(C, **c), now=0.0)
    chosen = group.choose(ELECTING, now=0.0)
    assert isinstance(chosen, GroupRecord)
    assert chosen.master is not None
    assert chosen.master.node_id == best


def test_votes_are_waited_for_a_while_and_one_is_enough() -> None:
    group = state(b=heard(B), c=heard(C))
    group.voted(ELECTING, "b", 4, vote(B), now=0.0)
    assert isinstance(group.choose(ELECTING, now=1.4), Waiting)
    chosen = group.choose(ELECTING, now=1.6)
    assert isinstance(chosen, GroupRecord)
    assert chosen.in_sync == {"b": B, "c": C}, "filled up to min_isr, who was heard first"
    alone = state(b=heard(B))
    alone.voted(ELECTING, "b", 4, vote(B), now=0.0)
    assert isinstance(alone.choose(ELECTING, now=0.1), GroupRecord), "nobody else was heard"


def test_votes_that_do_not_count() -> None:
    group = state()
    assert group.voted(ACTIVE, "b", 4, vote(B), now=0.0) == "no election for epoch 4 is under way"
    assert group.voted(ELECTING, "b", 5, vote(B), now=0.0) == "no election for epoch 5 is under way"
    other = vote(UUID(int=9))
    assert group.voted(ELECTING, "b", 4, other, now=0.0) == "the disk of b is not in sync"
    assert group.voted(ELECTING, "d", 4, vote(B), now=0.0) == "the disk of d is not in sync"
    assert isinstance(group.choose(ELECTING, now=100.0), Waiting)


def test_an_election_is_gone_on_with_after_a_restart() -> None:
    group = GroupState(lease_until=5.0)
    assert group.asks(ELECTING) == ["a", "b", "c"]
    group.voted(ELECTING, "a", 4, vote(A), now=0.0)
    assert isinstance(group.choose(ELECTING, now=0.1), GroupRecord)


@pytest.mark.parametrize(
    ("told", "is_refused"),
    [
        (msgspec.structs.replace(ACTIVE, version=9, epoch=5), True),
        (msgspec.structs.replace(ELECTING, version=9), True),
        (msgspec.structs.replace(ELECTING, in_sync={"a": A}), True),
        (ELECTING, False),
        (ACTIVE, False),
        (None, False),
    ],
)
def test_a_store_that_was_set_back_is_found_out(told: GroupRecord | None, is_refused: bool) -> None:
    group = state(b=heard(B))
    group.voted(ELECTING, "b", 4, vote(B, told=told), now=0.0)
    chosen = group.choose(ELECTING, now=0.0)
    assert isinstance(chosen, Refused) == is_refused
    if isinstance(chosen, Refused):
        assert "it is an older copy, or another one" in chosen.sentence


def test_too_much_is_not_sent_again_without_an_operators_word() -> None:
    group = state(a=heard(A, at=-60.0, end=200_000, uncommitted=60_000), b=heard(B))
    group.voted(ELECTING, "b", 4, vote(B), now=0.0)
    chosen = group.choose(ELECTING, now=0.0)
    assert chosen == Refused(
        "a has 60000 outcomes of deliveries that b lacks, and which b would send again: bring a "
        "back, or elect with --send-again 60000"
    )
    group.may_send_again = 60_000
    assert isinstance(group.choose(ELECTING, now=0.0), GroupRecord)


# -- what a master asks for ----------------------------------------------------------------------


def test_a_master_changes_the_set_by_compare_and_set() -> None:
    group = state(b=heard(B), d=heard(UUID(int=4)))
    smaller = group.alter(ACTIVE, MASTER, (3, 7), {"a": A, "b": B}, now=0.0)
    assert isinstance(smaller, GroupRecord)
    assert (smaller.in_sync, smaller.version, smaller.epoch) == ({"a": A, "b": B}, 8, 3)
    wanted = {"a": A, "b": B, "c": C, "d": UUID(int=4)}
    larger = group.alter(ACTIVE, MASTER, (3, 7), wanted, now=0.0)
    assert isinstance(larger, GroupRecord)
    assert larger.in_sync == wanted


@pytest.mark.parametrize(
    "wanted",
    [
        {"a": A},
        {"b": B, "c": C},
        {"a": A, "b": B, "d": UUID(int=4)},
        {"a": A, "b": UUID(int=9)},
    ],
)
def test_a_set_that_may_not_be_counts_the_version_up_alone(wanted: dict[str, UUID]) -> None:
    changed = state(b=heard(B)).alter(ACTIVE, MASTER, (3, 7), wanted, now=0.0)
    assert isinstance(changed, GroupRecord)
    assert (changed.in_sync, changed.version) == (ACTIVE.in_sync, 8)


def test_a_proposal_of_another_time_changes_nothing() -> None:
    for master, pair in (
        (MASTER, (3, 6)),
        (MASTER, (2, 7)),
        (Master(node_id="a", incarnation=2), (3, 7)),
        (Master(node_id="b", incarnation=1), (3, 7)),
    ):
        assert isinstance(state().alter(ACTIVE, master, pair, {"a": A, "b": B}, now=0.0), Refused)
        assert isinstance(state(b=heard(B)).hand_over(ACTIVE, master, pair, "b"), Refused)


def test_a_master_hands_over_to_a_member_that_was_heard() -> None:
    group = state(b=heard(B, incarnation=5), c=heard(UUID(int=9)))
    changed = group.hand_over(ACTIVE, MASTER, (3, 7), "b")
    assert isinstance(changed, GroupRecord)
    assert changed.master == Master(node_id="b", incarnation=5)
    assert (changed.epoch, changed.version, changed.in_sync) == (4, 8, ACTIVE.in_sync)
    for target in ("c", "d"):
        refused = group.hand_over(ACTIVE, MASTER, (3, 7), target)
        assert refused == Refused(f"{target} is not in sync, or was not heard")


def test_no_more_disks_are_required_than_are_in_sync() -> None:
    changed = set_min_isr(ACTIVE, 3)
    assert isinstance(changed, GroupRecord)
    assert (changed.min_isr, changed.version) == (3, 8)
    assert set_min_isr(ACTIVE, 4) == Refused(
        "4 disks cannot be required while 3 are in sync: a, b, c"
    )


def electing(**ahead_ms: int) -> GroupState:
    disks = {"a": A, "b": B, "c": C}
    return state(
        **{name: heard(disks[name], clock_ahead_ms=by_ms) for name, by_ms in ahead_ms.items()}
    )


@pytest.mark.parametrize("by_ms", [10_200, 3_600_000, -3_600_000])
def test_a_voter_whose_clock_is_wrong_is_not_chosen(by_ms: int) -> None:
    group = electing(a=0, b=0, c=by_ms)
    assert group.voted(ELECTING, "c", 4, vote(C, end=200), now=0.0) == ""
    assert isinstance(group.choose(ELECTING, now=1.0), Waiting)
    found = group.choose(ELECTING, now=4.0)
    assert isinstance(found, Refused)
    assert found.sentence.startswith(f"c: its clock is {abs(by_ms) / 1000} s ")
    assert group.voted(ELECTING, "b", 4, vote(B, end=100), now=4.0) == ""
    found = group.choose(ELECTING, now=4.1)
    assert isinstance(found, GroupRecord)
    assert found.master == Master(node_id="b", incarnation=2)
    assert set(found.in_sync) == {"b", "c"}


def test_who_alone_is_in_sync_is_chosen_whatever_its_clock_says() -> None:
    group = electing(a=0, b=0, c=3_600_000)
    record = msgspec.structs.replace(ELECTING, in_sync={"c": C}, min_isr=1)
    group.voted(record, "c", 4, vote(C), now=0.0)
    found = group.choose(record, now=0.1)
    assert isinstance(found, GroupRecord)
    assert found.master == Master(node_id="c", incarnation=2)


def test_a_member_whose_clock_is_wrong_is_handed_the_group_only_by_name() -> None:
    group = electing(a=0, b=0, c=3_600_000)
    group.was_heard("c", heard(C, end=200, clock_ahead_ms=3_600_000))
    assert group.ask_to_hand_over(ACTIVE, None, now=0.0) == "b"
    assert group.ask_to_hand_over(ACTIVE, "c", now=0.0) == "c"
    del group.heard["b"]
    refused = group.ask_to_hand_over(ACTIVE, None, now=0.0)
    assert isinstance(refused, Refused)
    assert refused.sentence == (
        "no member in sync beside a was heard within 2.5 s and has a right clock: start one, "
        "wait until it is in sync; c: its clock is 3600.0 s ahead of the meta server's, and 0 of 2 "
        "other clocks agree with it: set it right (chronyc makestep)"
    )
