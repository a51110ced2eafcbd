"""Limits that no connection could live with are refused when they are set."""

import math

import pytest

from delay_transport.connections.limits import ConnectionLimits, RequestLimits


def test_the_defaults_are_those_of_the_protocol_guards() -> None:
    limits = ConnectionLimits()
    assert limits.frame_bytes_max == 16 << 20
    assert limits.connections_max == 10_000
    assert (limits.total_bytes_max, limits.unfinished_bytes_max) == (256 << 20, 96 << 20)
    assert (limits.in_flight_requests_max, limits.in_flight_bytes_max) == (8192, 16 << 20)
    assert (limits.frame_seconds_max, limits.frame_grace_seconds) == (10, 5)
    assert limits.frame_bytes_per_second_min == 1024
    assert (limits.idle_seconds_max, limits.send_seconds_max) == (150, 10)
    assert RequestLimits().heartbeat_seconds == 15


@pytest.mark.parametrize("name", ConnectionLimits.__dataclass_fields__)
@pytest.mark.parametrize("value", [0, -1, math.nan])
def test_no_limit_of_a_listener_may_be_0_or_less(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        ConnectionLimits(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", RequestLimits.__dataclass_fields__)
def test_no_limit_of_a_requester_may_be_0_or_less(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        RequestLimits(**{name: 0})


def test_limits_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="total_bytes_max must"):
        ConnectionLimits(total_bytes_max=112 << 20)
    with pytest.raises(ValueError, match="unfinished_bytes_max must"):
        ConnectionLimits(unfinished_bytes_max=16 << 20)
    with pytest.raises(ValueError, match="unsent_bytes_max"):
        ConnectionLimits(unsent_bytes_max=1000)
    with pytest.raises(ValueError, match="frame_seconds_max"):
        ConnectionLimits(frame_seconds_max=1)
    with pytest.raises(ValueError, match="idle_seconds_max"):
        RequestLimits(idle_seconds_max=1)


def test_heartbeats_and_the_idle_limit_can_be_switched_off() -> None:
    limits = RequestLimits(heartbeat_seconds=math.inf, idle_seconds_max=math.inf)
    assert limits.heartbeat_seconds == math.inf
