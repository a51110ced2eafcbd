"""A broker that answers nonsense is found out, said so of, and costs nobody else anything."""

import re
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from delay_protocol.basics.codes import ResponseCode
from sender.groups.connection import End
from sender.groups.group_status import GroupStatus
from sender.health.circuit import CircuitState
from sender.settings.config import SenderConfig
from tests.sender.broker_rig import (
    FakeBroker,
    Rig,
    make_answering_of_others,
    make_endless,
    make_refusing,
    make_silent,
    make_talkative,
    make_unheard_of,
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
