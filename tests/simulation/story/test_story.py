"""The story of a group: seeds, and histories that the judges have to find fault with."""

from collections import Counter
from uuid import UUID

import pytest

from delay_protocol.nodes.registration import GroupRecord, Master, Phase
from tests.seeds import seeds_of_the_day
from tests.simulation.other_processes import printed
from tests.simulation.story import judges
from tests.simulation.story.group import run_story
from tests.simulation.story.history import Event, History, What

DISK = UUID(int=1, version=4)


@seeds_of_the_day(3)
def test_no_promise_is_broken_in_a_group_of_three(seed: int) -> None:
    assert run_story(seed).violations == []


@seeds_of_the_day(1)
def test_no_promise_is_broken_where_clocks_are_wrong(seed: int) -> None:
    assert run_story(seed, "group-clocks").violations == []


@seeds_of_the_day(1)
def test_no_promise_is_broken_where_the_store_is_set_back(seed: int) -> None:
    assert run_story(seed, "group-set-back").violations == []


@pytest.mark.long
def test_a_seed_is_the_same_story_in_every_process() -> None:
    one, other = printed(
        "from tests.simulation.story.group import run_story\n"
        "import zlib\n"
        "print(zlib.crc32(repr(list(run_story(5).history)).encode()))"
    )
    assert one == other


def told(*events: tuple[float, What, str, object, int]) -> History:
    return History([Event(*event) for event in events])


def record(epoch: int, master: str) -> GroupRecord:
    return GroupRecord(
        epoch=epoch,
        version=epoch,
        master=Master(node_id=master, incarnation=1),
        in_sync={"a": DISK, "b": DISK},
        min_isr=1,
        phase=Phase.ACTIVE,
    )


SENT = (1.0, What.SENT, "p0", "m", 5000)
ACKED = (1.1, What.ACKED, "a", "m", 0)


@pytest.mark.parametrize(
    ("events", "word"),
    [
        ([SENT, (2.0, What.ARRIVED, "broker", "m", 4999)], "early"),
        ([SENT, (6.0, What.RECEIVED, "receiver", ("m", 7000), 6999)], "early"),
        ([SENT, (6.0, What.RECEIVED, "receiver", ("m", 1000), 4999)], "early"),
        ([SENT, ACKED], "leaves"),
        (
            [
                SENT,
                (50.0, What.ARRIVED, "broker", "m", 5000),
                (60.0, What.ARRIVED, "broker", "m", 5000),
            ],
            "twice",
        ),
    ],
)
def test_what_a_broker_saw_is_judged(
    events: list[tuple[float, What, str, object, int]], word: str
) -> None:
    history = told(*events)
    found = [
        *judges.never_early(history),
        *judges.leaves(history, due_before_ms=10_000),
        *judges.few_twice(history),
    ]
    assert [one.partition(":")[0] for one in found] == [word]


FIRST, AGAIN = ((at_s, What.ARRIVED, "broker", "m", 5000) for at_s in (50.0, 70.0))
NEXT = (51.0, What.RECORDED, "store", record(2, "b"), 0)
FROM_THE_START = (0.0, What.RECORDED, "store", record(1, "a"), 0)


@pytest.mark.parametrize(
    ("between", "is_excused"),
    [
        ([], False),
        ([(50.4, What.RECORDED, "store", record(2, "b"), 0)], True),
        ([NEXT], False),
        ([(50.4, What.ENDED, "a", "Kill", 0)], True),
        ([(49.9, What.ENDED, "a", "Kill", 0)], False),
        # It was sent again, and is another message, of which each arrives once.
        ([SENT], True),
        ([SENT, FIRST], False),
        # It was held back until then, or no longer.
        ([(45.0, What.STRUCK, "slow_disk", 1, 0), NEXT], True),
        (
            [(50.4, What.STRUCK, "partition", 1, 0), (50.8, What.HEALED, "partition", 1, 0), NEXT],
            True,
        ),
        ([(45.0, What.STRUCK, "kill", 1, 0), (50.1, What.HEALED, "kill", 1, 0), NEXT], False),
        ([(50.7, What.STRUCK, "slow_disk", 1, 0), NEXT], False),
        ([(45.0, What.STRUCK, "operator", 1, 0), NEXT], False),
        ([(50.1, What.STRUCK, "reset", 1, 0)], True),
        ([(55.0, What.STRUCK, "reset", 1, 0)], False),
    ],
    ids=str,
)
def test_what_arrives_twice_had_no_outcome_when_its_master_ended(
    between: list[tuple[float, What, str, object, int]], is_excused: bool
) -> None:
    events = sorted([FROM_THE_START, SENT, FIRST, *between, AGAIN], key=lambda event: event[0])
    assert (list(judges.few_twice(told(*events))) == []) == is_excused


def test_an_answer_of_a_master_that_was_followed_by_another_is_noticed() -> None:
    events = [FROM_THE_START, NEXT, (51.05, What.ACKED, "a", "m", 0)]
    assert list(judges.one_master(judges.Logs(), told(*events), {})) == []
    events += [(51.2, What.ACKED, "b", "m", 0), (51.2, What.ACKED, "a", "m", 0)]
    assert list(judges.one_master(judges.Logs(), told(*events), {})) == [
        "one master: a acknowledged m when b was the master"
    ]


def test_an_acknowledged_message_that_a_disk_lacks_is_noticed() -> None:
    history = told(SENT, ACKED)
    disks: judges.Disks = {"a": {}, "b": {}}
    found = list(judges.kept(judges.Logs(), history, disks, record(1, "a")))
    assert len(found) == 2
    assert all(one.startswith("kept: 1 acknowledged are not on") for one in found)


def test_two_masters_of_an_epoch_are_noticed() -> None:
    history = told(
        (0.0, What.RECORDED, "store", record(1, "a"), 0),
        (1.0, What.RECORDED, "store", record(1, "b"), 0),
    )
    assert list(judges.one_master(judges.Logs(), history, {})) == [
        "one master: epoch 1 has ['a', 'b']"
    ]


@pytest.mark.long
def test_what_the_story_has_comes_to_pass() -> None:
    counts: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for seed in range(1, 7):
        result = run_story(seed)
        counts += result.counts
        faults += result.faults
    assert counts["changes of master"] >= 6
    assert counts["acknowledged"] >= 360
    assert counts["received"] >= 80
    assert len(faults) >= 9
