"""Who becomes the master, when, and what a master may have changed."""

import math
from collections.abc import Callable
from typing import Any
from uuid import UUID

import msgspec
import pytest

from delay_protocol.nodes.group_changes import Vote
from delay_protocol.nodes.registration import GroupRecord, Master, NodeRegister, Phase, Stands
from meta_server.groups.elections import (
    REFUSED_MAX,
    REFUSED_MS,
    Begins,
    GroupState,
    Heard,
    Rank,
    Voted,
    Wish,
    set_min_isr,
)
from meta_server.known.errors import StateError
from tests.meta_server.meta_rig import record

A, B, C = UUID(int=1), UUID(int=2), UUID(int=3)
MASTER = Master(node_id="a", incarnation=1)
ACTIVE = record(3, 7, master="a", min_isr=2, a=A, b=B, c=C)
ELECTING = msgspec.structs.replace(ACTIVE, epoch=4, version=8, master=None, phase=Phase.ELECTING)


def heard(storage: UUID, at: float = 0.0, *, end: int = 100, **others: Any) -> Heard:  # noqa: ANN401
    values: dict[str, Any] = {"incarnation": 1} | others
    node = NodeRegister(
        cluster="c1",
        group="d1",
        node_id="n1",
        log_uuid=UUID(int=9),
        storage_uuid=storage,
        boot_id=UUID(int=10),
        last_sequence=end - 1,
        address="h:1",
        http_address="",
        version="1",
        **values,
    )
    return Heard(at, node)


def vote(storage: UUID, *, end: int = 100, **others: object) -> Voted:
    values: dict[str, Any] = {"epoch": 4, "last_epoch": 3, "applied": end}
    incarnation = others.pop("incarnation", 2)
    assert isinstance(incarnation, int)
    return Voted(storage, incarnation, Vote(end=end, **(values | others)))


def state(**nodes: Heard) -> GroupState:
    found = GroupState(-100.0)
    found.heard = dict(nodes)
    return found


def refusal(ask: Callable[..., object], *args: object, **more: object) -> str:
    """Return why it is not done."""
    with pytest.raises(StateError) as error:
        ask(*args, **more)
    return str(error.value)


SENDS = Stands(may_send=True)
HEARS = Stands(hears=3, hears_sender=True, vote_in_s=3.0)
HEARS_IDLE = Stands(hears=3, vote_in_s=3.0)


def cause(group: GroupState, now: float) -> str:
    """Return why an election begins: gone, blocked, silent, or not at all."""
    found = group.why_begin(ACTIVE, now=now)
    if found is None:
        return ""
    return "gone" if found.gone else "blocked" if found.deposed else "silent"


def test_a_start_of_the_masters_disk_begins_an_election_at_once() -> None:
    group = state(a=heard(A, stands=SENDS), b=heard(B, stands=HEARS), c=heard(C, stands=HEARS))
    assert cause(group, 0.1) == ""
    group.heard["a"] = heard(A, incarnation=2)
    begins = Begins("a was started again", gone=3, kind="restarted")
    assert group.why_begin(ACTIVE, now=0.1) == begins
    assert group.begin(ACTIVE, Begins("a was started again", gone=3)) == ELECTING
    group.heard["a"] = heard(UUID(int=9), incarnation=2)
    assert cause(group, 0.1) == "", "another disk proves nothing"


@pytest.mark.parametrize(
    ("b", "c", "begins"),
    [
        (Stands(), Stands(), "silent"),
        (Stands(), Stands(vote_in_s=9.0), "silent"),
        (Stands(vote_in_s=9.0), Stands(vote_in_s=9.0), ""),
        (Stands(), HEARS, ""),
        (HEARS_IDLE, HEARS_IDLE, "silent"),
        (HEARS_IDLE, HEARS, ""),
        (Stands(), Stands(hears=2, hears_sender=True, vote_in_s=9.0), "silent"),
    ],
)
def test_a_silent_master_is_replaced_if_nobody_hears_it_send_and_somebody_could_vote(
    b: Stands, c: Stands, begins: str
) -> None:
    group = state(a=heard(A, stands=SENDS))
    group.heard["b"] = heard(B, at=3.0, stands=b)
    group.heard["c"] = heard(C, at=3.0, stands=c)
    assert cause(group, 3.0) == ""
    assert cause(group, 3.1) == begins


def test_who_is_not_heard_lately_neither_stops_an_election_nor_could_vote_in_one() -> None:
    group = state(a=heard(A), b=heard(B, at=3.0, stands=HEARS), c=heard(C, at=3.0))
    assert cause(group, 3.1) == ""
    group.heard["c"] = heard(C, at=5.4)
    assert (cause(group, 5.5), cause(group, 5.6)) == ("", "silent")
    assert cause(group, 8.0) == ""


@pytest.mark.parametrize(
    ("stands", "after_s"),
    [
        (Stands(lacks_promises_s=0.0), 3.0),
        (Stands(lacks_promises_s=1.0), 2.0),
        (Stands(lacks_promises_s=0.0, hears_nobody=True), 0.5),
        (Stands(lacks_promises_s=0.0, unfit="its disk hangs"), 0.5),
        (Stands(may_send=True), None),
        (Stands(), None),
    ],
)
def test_a_blocked_master_is_deposed(stands: Stands, after_s: float | None) -> None:
    group = state(b=heard(B, at=100.0), c=heard(C, at=100.0, stands=HEARS))

    def blocked(at: float) -> str:
        group.heard["a"] = heard(A, at=100.0, stands=stands)
        return cause(group, at)

    if after_s is None:
        assert blocked(102.4) == ""
        return
    if after_s < 2.4:
        assert (blocked(100 + after_s - 0.01), blocked(100 + after_s)) == ("", "blocked")
    group.changed_at = 91.0
    assert blocked(100.9) == "", "within 10 s of a change nobody is"
    group.changed_at = -1.0
    group.heard["b"] = heard(B, at=100.0, stands=HEARS)
    assert blocked(102.4) == "", "nobody could vote"


def test_who_could_not_ask_a_meta_server_to_drop_the_silent_is_not_blocked_yet() -> None:
    group = state(a=heard(A, at=100.0, stands=Stands(lacks_promises_s=9.0)), b=heard(B, at=100.0))
    group.heard["c"] = heard(C, at=100.0, stands=HEARS)
    group.began = 99.0
    assert (cause(group, 101.9), cause(group, 102.1)) == ("", "blocked")
    alone = Stands(lacks_promises_s=9.0, hears_nobody=True)
    group.heard["a"] = heard(A, at=100.0, stands=alone)
    assert (cause(group, 101.9), cause(group, 102.1)) == ("", "blocked")


@pytest.mark.parametrize("at", [0.5, 2.4, 2.9, 3.2])
def test_it_is_looked_again_when_time_alone_may_begin_an_election(at: float) -> None:
    group = state(a=heard(A), b=heard(B, at=0.7, stands=Stands(vote_in_s=2.4)), c=heard(C, at=0.9))
    assert cause(group, 3.0001) == "silent"
    times, now = [], at
    while (now := group.look_at(ACTIVE, now=now)) < math.inf:
        times.append(round(now, 3))
    assert times == [one for one in (0.901, 2.501, 3.001, 3.101, 3.201, 3.401) if one > at]


def test_the_deposed_one_is_elected_last_and_fills_the_set_up_only() -> None:
    group = state(a=heard(A), b=heard(B), c=heard(C))
    group.begin(ACTIVE, Begins("a may not send", deposed="a"))
    group.voted(ELECTING, "a", vote(A, end=200), now=0.0)
    group.voted(ELECTING, "b", vote(B), now=0.0)
    group.voted(ELECTING, "c", vote(C, end=99), now=0.0)
    chosen = group.choose(ELECTING, now=0.0)
    assert chosen.master == Master(node_id="b", incarnation=2)
    assert chosen.in_sync == {"b": B, "c": C}
    group.begin(ACTIVE, Begins("a may not send", deposed="a"))
    group.voted(ELECTING, "b", vote(B), now=0.0)
    assert refusal(group.choose, ELECTING, now=0.1)
    group.voted(ELECTING, "c", vote(C), now=0.1)
    assert isinstance(group.choose(ELECTING, now=0.1), GroupRecord), "nobody waits for its vote"
    alone = state(a=heard(A))
    alone.begin(ACTIVE, Begins("a may not send", deposed="a"))
    alone.voted(ELECTING, "a", vote(A), now=0.0)
    chosen = alone.choose(ELECTING, now=0.0)
    assert chosen.master == Master(node_id="a", incarnation=2)


def test_a_refusal_is_known_for_an_hour_or_until_the_node_has_registered() -> None:
    state = GroupState(0.0)
    for number in range(REFUSED_MAX + 1):
        state.was_refused(f"n{number:02}", 1000 + number, "a copy")
    state.was_refused("n05", 5000, "another copy")
    found = state.refusals({"n05": 5000, "n06": 1007, "n07": 1007}, now_ms=5000)
    assert len(found) == REFUSED_MAX - 1
    assert (found["n05"], found["n07"]) == ("another copy", "a copy")
    assert not {"n00", "n06"} & found.keys()
    assert state.refusals({}, now_ms=5000 + REFUSED_MS) == {"n05": "another copy"}


def test_whoever_is_alone_in_sync_goes_on() -> None:
    alone = msgspec.structs.replace(ACTIVE, in_sync={"a": A}, min_isr=1)
    group = state(b=heard(B, at=99.0), c=heard(C, at=99.0))
    assert group.why_begin(alone, now=100.0) is None


def test_a_meta_server_that_has_begun_waits_until_it_may_have_heard_of_all() -> None:
    group = GroupState(100.0)
    group.heard["b"] = heard(B, at=101.0)
    group.heard["a"] = heard(A, at=101.0, incarnation=2)
    assert cause(group, 101.0) == "", "c has not spoken"
    del group.heard["a"]
    group.heard["c"] = heard(C, at=101.0)
    assert cause(group, 102.9) == ""
    assert cause(group, 103.1) == "silent"
    group.heard["a"] = heard(A, at=101.5, incarnation=2)
    assert cause(group, 101.5) == "gone", "all have spoken"
    late = GroupState(100.0)
    late.voted(ELECTING, "b", vote(B), now=100.1)
    assert refusal(late.choose, ELECTING, now=102.9)
    assert isinstance(late.choose(ELECTING, now=103.0), GroupRecord)


def test_time_in_which_the_meta_server_stood_still_is_nobodys_silence() -> None:
    group = state(a=heard(A), b=heard(B), c=heard(C))
    group.stood_still(10.0)
    group.heard["b"] = heard(B, at=12.0)
    assert (cause(group, 12.0), group.began) == ("", -90.0)
    group.heard["b"] = heard(B, at=13.1)
    assert cause(group, 13.1) == "silent"

    group = state(a=heard(A, stands=SENDS), b=heard(B), c=heard(C, stands=HEARS))
    refused = refusal(group.elect, ACTIVE, now=0.1)
    assert refused == "a is the master, and may send: have it hand the group over"
    assert refusal(group.elect, ACTIVE, now=2.5) == refused
    group.heard["c"] = heard(C)
    assert group.elect(ACTIVE, now=2.6) == ELECTING
    assert group.elect(ELECTING, now=2.6) is ELECTING
    alone = msgspec.structs.replace(ACTIVE, in_sync={"a": A}, min_isr=1)
    refused = refusal(group.elect, alone, now=9.0)
    assert "nobody else can be elected" in refused


def test_the_longest_log_becomes_the_master_and_who_voted_is_in_sync() -> None:
    group = state(b=heard(B), c=heard(C))
    assert group.asks(ELECTING) == ["a", "b", "c"]
    group.voted(ELECTING, "b", vote(B, end=90), now=0.0)
    assert refusal(group.choose, ELECTING, now=0.1) == "waits for votes of c"
    group.voted(ELECTING, "c", vote(C, end=95), now=0.0)
    assert group.asks(ELECTING) == ["a"]
    chosen = group.choose(ELECTING, now=0.2)
    assert chosen.master == Master(node_id="c", incarnation=2)
    assert (chosen.in_sync, chosen.phase) == ({"b": B, "c": C}, Phase.ACTIVE)
    assert (chosen.epoch, chosen.version) == (4, 9)


@pytest.mark.parametrize(
    ("b", "c", "best"),
    [
        ({"last_epoch": 2, "end": 200}, {"last_epoch": 3, "end": 100}, "c"),
        ({"end": 101}, {"end": 100, "applied": 100}, "b"),
        ({"applied": 50}, {"applied": 60}, "c"),
    ],
)
def test_votes_are_ranked(b: dict[str, Any], c: dict[str, Any], best: str) -> None:
    group = state(b=heard(B), c=heard(C))
    group.voted(ELECTING, "b", vote(B, **b), now=0.0)
    group.voted(ELECTING, "c", vote(C, **c), now=0.0)
    chosen = group.choose(ELECTING, now=0.0)
    assert master_of(chosen) == best


def test_votes_are_waited_for_a_while_and_one_is_enough() -> None:
    group = state(b=heard(B), c=heard(C))
    group.voted(ELECTING, "b", vote(B), now=0.0)
    assert refusal(group.choose, ELECTING, now=1.4)
    chosen = group.choose(ELECTING, now=1.6)
    assert chosen.in_sync == {"b": B, "c": C}, "filled up to min_isr, who was heard first"
    alone = state(b=heard(B))
    alone.voted(ELECTING, "b", vote(B), now=0.0)
    assert isinstance(alone.choose(ELECTING, now=0.1), GroupRecord), "nobody else was heard"


def test_votes_that_do_not_count() -> None:
    group = state()
    assert group.voted(ACTIVE, "b", vote(B), now=0.0) == "no election for epoch 4 is under way"
    assert (
        group.voted(ELECTING, "b", vote(B, epoch=5), now=0.0)
        == "no election for epoch 5 is under way"
    )
    other = vote(UUID(int=9))
    assert group.voted(ELECTING, "b", other, now=0.0) == "the disk of b is not in sync"
    assert group.voted(ELECTING, "d", vote(B), now=0.0) == "the disk of d is not in sync"
    assert refusal(group.choose, ELECTING, now=100.0)


def test_an_election_is_gone_on_with_after_a_restart() -> None:
    group = GroupState(-5.0)
    assert group.asks(ELECTING) == ["a", "b", "c"]
    group.voted(ELECTING, "a", vote(A), now=0.0)
    assert isinstance(group.choose(ELECTING, now=0.1), GroupRecord)


# -- what a master asks for ----------------------------------------------------------------------


def test_a_master_changes_the_set_by_compare_and_set() -> None:
    group = state(b=heard(B), d=heard(UUID(int=4)))
    smaller = group.alter(ACTIVE, MASTER, (3, 7), {"a": A, "b": B}, now=0.0)
    assert (smaller.in_sync, smaller.version, smaller.epoch) == ({"a": A, "b": B}, 8, 3)
    wanted = {"a": A, "b": B, "c": C, "d": UUID(int=4)}
    larger = group.alter(ACTIVE, MASTER, (3, 7), wanted, now=0.0)
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
    assert (changed.in_sync, changed.version) == (ACTIVE.in_sync, 8)


def test_a_proposal_of_another_time_changes_nothing() -> None:
    for master, pair in (
        (MASTER, (3, 6)),
        (MASTER, (2, 7)),
        (Master(node_id="a", incarnation=2), (3, 7)),
        (Master(node_id="b", incarnation=1), (3, 7)),
    ):
        assert refusal(state().alter, ACTIVE, master, pair, {"a": A, "b": B}, now=0.0)
        assert refusal(state(b=heard(B)).hand_over, ACTIVE, master, pair, "b", now=0.0)


def test_a_master_hands_over_to_a_member_that_was_heard() -> None:
    group = state(b=heard(B, incarnation=5), c=heard(UUID(int=9)))
    changed = group.hand_over(ACTIVE, MASTER, (3, 7), "b", now=1.0)
    assert changed.master == Master(node_id="b", incarnation=5)
    assert (changed.epoch, changed.version, changed.in_sync) == (4, 8, ACTIVE.in_sync)
    for target in ("c", "d"):
        refused = refusal(group.hand_over, ACTIVE, MASTER, (3, 7), target, now=1.0)
        assert refused == f"{target} is not in sync, or was not heard"


def test_no_more_disks_are_required_than_are_in_sync() -> None:
    changed = set_min_isr(ACTIVE, 3)
    assert (changed.min_isr, changed.version) == (3, 8)
    refused = refusal(set_min_isr, ACTIVE, 4)
    assert refused == "4 disks cannot be required while 3 are in sync: a, b, c"


def electing(**ahead_ms: int) -> GroupState:
    disks = {"a": A, "b": B, "c": C}
    return state(
        **{name: heard(disks[name], clock_ahead_ms=by_ms) for name, by_ms in ahead_ms.items()}
    )


@pytest.mark.parametrize("by_ms", [10_200, 3_600_000, -3_600_000])
def test_a_voter_whose_clock_is_wrong_is_not_chosen(by_ms: int) -> None:
    group = electing(a=0, b=0, c=by_ms)
    assert group.voted(ELECTING, "c", vote(C, end=200), now=0.0) == ""
    assert refusal(group.choose, ELECTING, now=1.0)
    refused = refusal(group.choose, ELECTING, now=4.0)
    assert refused.startswith(f"c: its clock is {abs(by_ms) / 1000} s ")
    assert group.voted(ELECTING, "b", vote(B, end=100), now=4.0) == ""
    found = group.choose(ELECTING, now=4.1)
    assert found.master == Master(node_id="b", incarnation=2)
    assert set(found.in_sync) == {"b", "c"}


def test_who_alone_is_in_sync_is_chosen_whatever_its_clock_says() -> None:
    group = electing(a=0, b=0, c=3_600_000)
    record = msgspec.structs.replace(ELECTING, in_sync={"c": C}, min_isr=1)
    group.voted(record, "c", vote(C), now=0.0)
    found = group.choose(record, now=0.1)
    assert found.master == Master(node_id="c", incarnation=2)


def test_a_member_whose_clock_is_wrong_is_handed_the_group_only_by_name() -> None:
    group = electing(a=0, b=0, c=3_600_000)
    group.heard["c"] = heard(C, end=200, clock_ahead_ms=3_600_000)
    assert group.ask_to_hand_over(ACTIVE, None, now=0.0) == "b"
    assert group.ask_to_hand_over(ACTIVE, "c", now=0.0) == "c"
    del group.heard["b"]
    refused = refusal(group.ask_to_hand_over, ACTIVE, None, now=0.0)
    assert refused == (
        "nobody in sync beside a was heard within 2.5 s and is fit: start one, wait until it is "
        "in sync; c: its clock is 3600.0 s ahead of the meta server's, and 0 of 2 "
        "other clocks agree with it: set it right (chronyc makestep)"
    )


# -- who is fit to be the master -----------------------------------------------------------------


UNFIT, BEHIND = Stands(unfit="files of it are damaged"), Stands(behind="free disk is low")


def elected(group: GroupState, now: float, **ends: int) -> GroupRecord:
    """Return the record after an election in which these vote, with logs of these ends."""
    group.began = -100.0
    for name, end in ends.items():
        group.voted(ELECTING, name, vote({"a": A, "b": B, "c": C}[name], end=end), now=now)
    return group.choose(ELECTING, now=now + 2.0)


def master_of(record: GroupRecord) -> str:
    assert record.master is not None
    return record.master.node_id


def test_how_fit_a_node_is_has_a_rank_and_a_sentence() -> None:
    group = state(a=heard(A), b=heard(B, stands=UNFIT), c=heard(UUID(int=9)))
    group.heard["a"] = heard(A, stands=BEHIND)

    def fitness(node: str, record: GroupRecord = ACTIVE) -> tuple[Rank, str]:
        return group.fitness(record, node, now=0.0)

    outside = "its disk is not in sync, and may lack messages"
    assert fitness("a") == (Rank.BEHIND, "free disk is low")
    assert fitness("b") == (Rank.UNFIT, "files of it are damaged")
    assert fitness("c") == fitness("d") == (Rank.EXCLUDED, outside)
    group.heard["c"] = heard(C)
    assert fitness("c") == (Rank.FIT, "")
    group.begin(ACTIVE, Begins("c may not send", deposed="c"))
    assert fitness("c", ELECTING) == (Rank.LAST, "it is deposed, since it may not send")
    assert fitness("c") == (Rank.FIT, ""), "of that election alone"
    group.heard["c"] = heard(C, clock_ahead_ms=3_600_000)
    rank, sentence = fitness("c")
    assert (rank, sentence[:23]) == (Rank.EXCLUDED, "its clock is 3600.0 s a")


@pytest.mark.parametrize(
    ("b", "c", "best", "in_sync"),
    [
        (UNFIT, Stands(), "c", "ac"),
        (UNFIT, BEHIND, "c", "ac"),
        (UNFIT, UNFIT, "a", "ab"),
        (BEHIND, Stands(), "c", "abc"),
        (BEHIND, BEHIND, "b", "abc"),
    ],
)
def test_who_is_unfit_or_behind_is_elected_after_others_whatever_its_log_has(
    b: Stands, c: Stands, best: str, in_sync: str
) -> None:
    a = Stands() if best == "a" else BEHIND
    group = state(a=heard(A, stands=a), b=heard(B, stands=b), c=heard(C, stands=c))
    chosen = elected(group, 0.0, a=90, b=200, c=100)
    assert master_of(chosen) == best
    # min ISR is 2: of two that are unfit one is needed.
    assert "".join(sorted(chosen.in_sync)) == in_sync


def test_where_all_are_unfit_the_longest_log_is_the_master() -> None:
    group = state(b=heard(B, stands=UNFIT), c=heard(C, stands=UNFIT))
    assert master_of(elected(group, 0.0, b=90, c=100)) == "c"


def test_who_was_elected_three_times_within_ten_minutes_ranks_behind_all() -> None:
    group = state(b=heard(B), c=heard(C, stands=BEHIND))
    for at in (0.0, 10.0, 599.0):
        group.stood_still(10.0)
        assert master_of(elected(group, at, b=200, c=100)) == "b"
    assert group.fitness(ACTIVE, "b", now=600.0) == (
        Rank.LAST,
        "it was elected 3 times in 10 minutes",
    )
    assert group.fitness(ACTIVE, "b", now=602.1).rank is Rank.FIT
    assert master_of(elected(group, 599.5, b=200, c=100)) == "c"


def unfit_master(why: str = "it is being stopped", **others: Stands) -> GroupState:
    disks = {"b": B, "c": C}
    group = state(a=heard(A, stands=Stands(may_send=True, unfit=why)))
    for name, stands in others.items():
        group.heard[name] = heard(disks[name], stands=stands)
    return group


def test_an_unfit_master_is_to_hand_over_to_the_fittest() -> None:
    group = unfit_master(b=BEHIND, c=Stands())
    assert group.must_hand_over(ACTIVE, now=0.1) == Wish(3, "c", "it is being stopped", 10.1)
    assert group.must_hand_over(ACTIVE, now=0.2) is None, "it is asked once"
    group.heard["a"] = heard(A, stands=Stands(unfit="files of it are damaged"))
    assert group.must_hand_over(ACTIVE, now=0.3) == Wish(3, "c", "files of it are damaged", 10.3)
    assert group.forget_wish(10.3)
    group.heard["c"] = heard(C, at=10.0, stands=UNFIT)
    group.heard["b"] = heard(B, at=10.0, stands=BEHIND)
    assert group.must_hand_over(ACTIVE, now=10.4) == Wish(3, "b", "files of it are damaged", 20.4)


@pytest.mark.parametrize("b", [UNFIT, Stands(unfit="it is being stopped")])
def test_an_unfit_master_stays_where_nobody_is_fit(b: Stands) -> None:
    group = unfit_master(b=b)
    assert group.must_hand_over(ACTIVE, now=0.1) is None
    group.heard["c"] = heard(C)
    assert group.must_hand_over(ACTIVE, now=2.6) is None, "nothing was heard of it for 2.5 s"
    assert group.must_hand_over(ACTIVE, now=2.5) is not None


def test_a_master_that_may_not_send_is_not_asked_but_deposed() -> None:
    group = unfit_master(b=Stands())
    hangs = Stands(lacks_promises_s=3.0, unfit="its disk hangs")
    group.heard["a"] = heard(A, stands=hangs)
    assert group.must_hand_over(ACTIVE, now=0.1) is None
    begins = group.why_begin(ACTIVE, now=0.1)
    assert begins is not None
    assert (begins.deposed, begins.kind) == ("a", "blocked")
    assert begins.sentence == "a may not send since 3.1 s: its disk hangs"


def test_an_unfit_member_is_not_handed_the_group_not_even_by_name() -> None:
    group = state(a=heard(A), b=heard(B, stands=UNFIT, end=200), c=heard(C))
    assert group.ask_to_hand_over(ACTIVE, None, now=0.0) == "c"
    refused = refusal(group.ask_to_hand_over, ACTIVE, "b", now=0.0)
    assert refused.endswith("; b: files of it are damaged")


@pytest.mark.parametrize(
    ("stands", "target", "min_isr", "left"),
    [
        (UNFIT, "b", 2, "bc"),
        (UNFIT, "b", 3, "abc"),
        (UNFIT, "a", 2, "abc"),
        (Stands(), "b", 2, "abc"),
    ],
)
def test_an_unfit_master_that_hands_over_leaves_the_set_if_enough_are_left(
    stands: Stands, target: str, min_isr: int, left: str
) -> None:
    group = state(a=heard(A, stands=stands), b=heard(B), c=heard(C))
    record = msgspec.structs.replace(ACTIVE, min_isr=min_isr)
    changed = group.hand_over(record, MASTER, (3, 7), target, now=1.0)
    assert "".join(sorted(changed.in_sync)) == left


def test_a_wish_is_for_the_master_of_one_epoch() -> None:
    group = unfit_master(b=Stands(), c=Stands())
    assert group.must_hand_over(ACTIVE, now=0.1) == Wish(3, "c", "it is being stopped", 10.1)
    # The next one is stopped soon after, as in a rolling restart.
    changed = group.hand_over(ACTIVE, MASTER, (3, 7), "b", now=0.2)
    group.heard["b"] = heard(B, stands=Stands(unfit="it is being stopped"))
    assert group.must_hand_over(changed, now=0.3) == Wish(4, "c", "it is being stopped", 10.3)
