"""A broker that answers nonsense is found out, said so of, and costs nobody else anything."""

import re
import tracemalloc
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import numpy as np
import pytest
import trio
from structlog.testing import capture_logs

from delay_protocol.basics.codes import ItemCode, ResponseCode
from sender.groups.connection import End
from sender.groups.group_status import GroupStatus
from sender.health.circuit import CircuitState
from sender.settings.config import SenderConfig
from tests.brokers import Received
from tests.sender.broker_rig import (
    QUICK,
    FakeBroker,
    Reply,
    Rig,
    make_answering_of_others,
    make_endless,
    make_refusing,
    make_silent,
    make_talkative,
    make_unheard_of,
    refuse,
    rig_of,
    take_all,
)

Make = Callable[[FakeBroker], None]

Logs = Sequence[MutableMapping[str, Any]]

CHANGES = {"broker group failed", "broker group's circuit changed"}


def first(rig: Rig) -> GroupStatus:
    return rig.sender.status()[0]


def changes_in(logs: Logs) -> list[tuple[str, str, str]]:
    """Return the changes of a circuit that were logged: before, after, reason."""
    return [(one["before"], one["after"], one["reason"]) for one in logs if one["event"] in CHANGES]


async def test_a_silent_group_is_logged_when_it_goes_once_an_hour_and_when_it_is_back() -> None:
    config = SenderConfig(retry_base_s=0.1, retry_max_s=0.5, reconnect_max_s=20.0)
    reasons: set[tuple[CircuitState, str]] = set()
    with capture_logs() as logs:
        async with rig_of(config=config, setup=lambda rig: make_silent(rig.brokers[0])) as rig:
            rig.offer(100)
            for _ in range(2 * 3600 + 60):
                await trio.sleep(1)
                reasons.add((first(rig).circuit, first(rig).circuit_reason))
            rig.brokers[0].script = take_all
            await trio.sleep(60)
            rig.assert_all_settled()
            status = first(rig)
    silent = "timeout: no answer within 5 s"
    assert reasons == {
        (CircuitState.CLOSED, ""),
        (CircuitState.OPEN, silent),
        (CircuitState.HALF_OPEN, silent),
    }
    changes = changes_in(logs)
    assert changes[0] == ("closed", "open", silent)
    assert changes[1:-1] == [("half-open", "open", silent)] * 2
    assert changes[-1] == ("half-open", "closed", "an item was taken")
    # It answers the HELLO each time, which is no news either.
    connected = [one for one in logs if one["event"] == "broker group connected"]
    assert len(connected) == 4
    failed = [one for one in logs if one["event"] == "broker group failed"]
    assert sum(1 + one.get("repeated", 0) for one in failed) > 300
    assert status.counts.changes[CircuitState.OPEN] > 300
    assert (status.circuit, status.circuit_reason) == (CircuitState.CLOSED, "an item was taken")


async def test_a_group_that_fences_or_moves_has_its_change_logged_with_its_reason() -> None:
    def setup(rig: Rig) -> None:
        rig.brokers[0].hello_code = ResponseCode.BROKER_REJECT
        make_refusing(rig.brokers[1])

    fenced = "epoch 3 is refused, it is never tried again"
    with capture_logs() as logs:
        async with rig_of(3, config=SenderConfig(reconnect_max_s=60.0), setup=setup) as rig:
            await trio.sleep(300)
            assert rig.sender.status()[1].circuit is CircuitState.OPEN
            rig.sender.set_groups([rig.group(0), rig.group(1, at=2), rig.group(2)])
            # It takes a probe to close it again, and there is nothing to send.
            moved = rig.sender.status()[1]
            assert moved.circuit is CircuitState.HALF_OPEN
            assert moved.circuit_reason == "it has another address"
    of_first = [one for one in logs if one.get("group") == "g-b0"]
    assert changes_in(of_first) == [("closed", "open", f"fenced: {fenced}")]
    (said,) = (one for one in of_first if one["event"] == "broker group fences us off")
    assert (said["reason"], said["log_level"]) == (fenced, "error")
    of_second = [one for one in logs if one.get("group") == "g-b1"]
    assert changes_in(of_second)[-1] == ("open", "half-open", "it has another address")


@pytest.mark.parametrize(
    ("make_bad", "end", "reason"),
    [
        (make_unheard_of, End.REFUSING, "sick: refused every item, the first with code 99"),
        (make_answering_of_others, End.GARBAGE, "garbage: .* 5 ids that were not sent"),
        (make_talkative, End.GARBAGE, "garbage: .* more results than the 100 items"),
        (make_endless, End.GARBAGE, "garbage: frame length field 16000000, limit "),
    ],
)
async def test_an_answer_by_which_nothing_is_taken_opens_the_circuit_and_is_logged(
    make_bad: Make, end: End, reason: str
) -> None:
    config = SenderConfig(retry_base_s=0.1, retry_max_s=0.5, trial_items=100)
    with capture_logs() as logs:
        async with rig_of(config=config, setup=lambda rig: make_bad(rig.brokers[0])) as rig:
            rig.offer(100)
            await trio.sleep(1)
            status = first(rig)
            assert status.circuit is not CircuitState.CLOSED
            assert status.counts.ends[end]
            assert not rig.facts
            if end is End.GARBAGE:
                assert status.counts.possible_duplicates == 100 * status.counts.requests
    found = [one for one in logs if one["event"] == "broker group failed"]
    assert found
    assert re.match(reason, found[0]["reason"]), found[0]


@pytest.mark.parametrize("make_bad", [make_unheard_of, make_answering_of_others])
async def test_a_probe_by_which_nothing_is_taken_opens_a_half_open_circuit_again(
    make_bad: Make,
) -> None:
    config = SenderConfig(retry_base_s=0.001, retry_max_s=0.001, reconnect_max_s=4.0)
    async with rig_of(config=config, setup=lambda rig: make_bad(rig.brokers[0])) as rig:
        rig.offer(100)
        await trio.sleep(60)
        probes = [one.at_ms for one in rig.brokers[0].requests if len(one.ids) == 1]
        gaps = np.diff(probes[6:])
        assert len(gaps) >= 5
        # Jitter takes a half of the wait at the most.
        assert gaps.min() >= 2000
        assert first(rig).counts.changes[CircuitState.HALF_OPEN] >= len(gaps)
        rig.brokers[0].script = take_all
        await trio.sleep(10)
        rig.assert_all_settled()


async def test_a_giant_answer_is_given_up_before_it_is_there() -> None:
    tiny = b"".join(
        (3).to_bytes(2, "big") + n.to_bytes(3, "big") + (1).to_bytes(4, "big") + b"\0\0"
        for n in range(1_400_000)
    )

    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda _request: Reply(body=tiny)

    async with rig_of(2, config=QUICK, setup=setup) as rig:
        tracemalloc.start()
        try:
            rig.offer(2000)
            await trio.sleep(0.2)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert first(rig).counts.ends[End.GARBAGE]
        # Of the broker's copies of its answer; the rows would be 15 times as much.
        assert peak < 5 * len(tiny)
        await trio.sleep(30)
        rig.assert_all_settled()
        assert {fact.group for fact in rig.facts} == {"g-b1"}


async def test_a_long_remark_on_each_item_is_read_and_one_of_any_length() -> None:
    remark = b"\xe2\x82\xac" * 300

    def rows(ids: list[bytes], text: bytes) -> bytes:
        return b"".join(
            len(one).to_bytes(2, "big")
            + one
            + int(ItemCode.STORE_ERROR).to_bytes(4, "big")
            + len(text).to_bytes(2, "big")
            + text
            for one in ids
        )

    def script(request: Received) -> Reply:
        ids = request.ids
        return Reply(body=rows(ids[: len(ids) // 2], remark) + rows(ids[-1:], b"x" * 20_000))

    async with rig_of(config=QUICK) as rig:
        rig.brokers[0].script = script
        rig.offer(100)
        await trio.sleep(0.05)
        counts = first(rig).counts
        assert counts.delivered == 49
        assert counts.refused == 51
        assert first(rig).circuit is CircuitState.CLOSED
        rig.brokers[0].script = take_all
        await trio.sleep(10)
        rig.assert_all_settled()


@pytest.mark.parametrize(
    ("poison", "good"), [([1], []), ([1, 2, 3], []), ([1, 2, 3, 4, 5, 6, 7, 8], [9])]
)
async def test_poisonous_subjects_keep_no_group_from_others(
    poison: list[int], good: list[int]
) -> None:
    refused: set[bytes] = set()

    def setup(rig: Rig) -> None:
        rig.brokers[0].script = lambda request: refuse(
            ItemCode.BLOCK, *(one for one in request.ids if one in refused)
        )

    async with rig_of(config=QUICK, setup=setup) as rig:
        for number in range(300):
            subject = (poison + good)[number % len(poison + good)]
            if subject in poison:
                refused.add(b"m%d" % rig.offered)
            rig.offer(1, subject=subject)
            await trio.sleep(0.1)
        assert first(rig).counts.changes[CircuitState.OPEN] == 0
        assert len(rig.facts) == rig.offered - len(refused)
