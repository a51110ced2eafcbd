"""An address that wastes connections is known for it, for a while, and nobody else is."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_transport.connections.limits import ConnectionLimits
from delay_transport.connections.reputation import Standing
from delay_transport.connections.sources import source_of

LIMITS = ConnectionLimits(
    wasted_per_second_max=5, wasted_burst_seconds=4, wasted_memory_seconds=30, wasters_max=3
)


@pytest.mark.parametrize(
    ("host", "where"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("producer-1", "producer-1"),
        ("not:an:address", "not:an:address"),
        ("", ""),
    ],
)
def test_standing_is_shared_by_an_ipv4_address_or_an_ipv6_network_of_64_bits(
    host: str, where: str
) -> None:
    assert source_of(host) == where


def test_who_has_no_address_has_no_standing() -> None:
    standing = Standing(LIMITS)
    assert not any(standing.wasted("", 0.0) for _ in range(100))
    assert (standing.is_bad("", 0.0), len(standing)) == (False, 0)


def test_an_address_is_bad_once_it_wasted_more_than_a_burst_and_that_is_said_once() -> None:
    standing = Standing(LIMITS)
    told = [standing.wasted("a", 0.0) for _ in range(25)]
    assert told == [False] * 20 + [True] + [False] * 4
    assert standing.is_bad("a", 0.0)
    assert not standing.is_bad("b", 0.0)
    assert standing.is_bad("a", 0.9)
    assert not standing.is_bad("a", 1.1)
    told = [standing.wasted("a", 1.1) for _ in range(2)]
    assert told == [True, False]


def test_however_much_was_wasted_an_address_is_free_of_its_past_in_time() -> None:
    standing = Standing(LIMITS)
    for _ in range(100_000):
        standing.wasted("a", 0.0)
    assert standing.is_bad("a", 29.9)
    assert not standing.is_bad("a", 30.1)


def test_one_good_connection_makes_up_for_one_wasted() -> None:
    standing = Standing(LIMITS)
    for _ in range(1000):
        standing.wasted("a", 0.0)
        standing.proven("a", 0.0)
        assert not standing.is_bad("a", 0.0)
    # And for no more: none can be saved up.
    for _ in range(1000):
        standing.proven("a", 0.0)
    for _ in range(21):
        standing.wasted("a", 0.0)
    assert standing.is_bad("a", 0.0)


def test_of_too_many_addresses_the_one_that_wasted_none_for_longest_is_forgotten() -> None:
    standing = Standing(LIMITS)
    for where in ("a", "b", "c"):
        for _ in range(21):
            standing.wasted(where, 0.0)
    standing.wasted("a", 0.0)
    standing.wasted("d", 0.0)
    assert [standing.is_bad(where, 0.0) for where in "abcd"] == [True, False, True, False]
    for number in range(1000):
        standing.wasted(str(number), 0.0)
        assert len(standing) == 3


@given(st.integers(0, 1 << 32), st.floats(0.1, 3.0))
def test_who_wastes_below_the_rate_is_never_bad_and_who_wastes_above_it_is(
    seed: int, share: float
) -> None:
    chance = random.Random(seed)
    standing = Standing(LIMITS)
    now, was_bad = 0.0, False
    for _ in range(400):
        now += chance.uniform(0.5, 1.5) / (5 * share)
        standing.wasted("a", now)
        was_bad |= standing.is_bad("a", now)
    if share < 0.9:
        assert not was_bad
    if share > 1.3:
        assert was_bad
