"""Damage on a replica of a running group is harmless, or repaired by a copy."""

from collections import Counter

import pytest

from delay_server import damages, scrub
from tests.damage.replica import INJECTIONS, story
from tests.kit.virtual_time import run_in_virtual_time


@pytest.mark.parametrize(
    ("seed", "injections"), [(1, 2), pytest.param(2, INJECTIONS, marks=pytest.mark.long)]
)
def test_a_damaged_replica_is_whole_again_and_nothing_is_lost_or_delivered_wrongly(
    seed: int, injections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub, "FIRST_S", 0.5)
    monkeypatch.setattr(damages, "COPIED_AGAIN_S", 1.0)
    tally: Counter[str] = Counter()

    async def one() -> None:
        await story(seed, injections, tally)

    run_in_virtual_time(one)
    assert tally["copied anew"] + tally["harmless"] == injections
    assert tally["copied anew"]
