"""Timestamps never decrease, not over restarts either, and are never ahead of what is stored."""

from hypothesis import given
from hypothesis import strategies as st

from meta_server.wire.timestamps import Timestamps


def test_they_follow_the_clock_below_the_ceiling() -> None:
    stamps = Timestamps(ceiling_ms=0)
    assert stamps.read(1000) == 0
    assert stamps.wanted(1000) == 61_000
    stamps.raise_ceiling(61_000)
    assert stamps.read(1000) == 1000
    assert stamps.read(500) == 1000
    assert stamps.wanted(1000) is None
    assert stamps.wanted(31_000) == 91_000
    assert stamps.read(99_000) == 61_000


@given(
    st.lists(
        st.one_of(
            st.integers(-200_000, 200_000).map(lambda step: ("step", step)),
            st.sampled_from([("store", 0), ("restart", 0), ("read", 0)]),
        ),
        max_size=60,
    )
)
def test_whatever_clock_store_and_process_do(events: list[tuple[str, int]]) -> None:
    stored, now, last = 0, 1_000_000, 0
    stamps = Timestamps(ceiling_ms=stored)
    for event, step in events:
        if event == "step":
            now = max(0, now + step)
        elif event == "store" and (wanted := stamps.wanted(now)) is not None:
            stored = max(stored, wanted)
            stamps.raise_ceiling(stored)
        elif event == "restart":
            stamps = Timestamps(ceiling_ms=stored)
        given_out = stamps.read(now)
        assert last <= given_out <= stored
        last = given_out
