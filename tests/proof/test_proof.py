"""Promise: what reconciling says of a busy day is true, before and after it is tampered with."""

import random
from pathlib import Path

import pytest

from tests.proof.departures import DAY, calls_of, read_departures
from tests.proof.node import Node
from tests.proof.proof import Proof

RATE = 20
LASTS_S = 6.0


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.long
def test_a_day_is_reconciled_tampered_with_repaired_and_reconciled(tmp_path: Path) -> None:
    departures = read_departures(DAY)
    assert len(departures) == 1014
    calls = calls_of(
        departures,
        lasts_ms=round(LASTS_S * RATE * 1000),
        lead_days=(0.01, 0.9),
        chance=random.Random(1),
    )
    with Node(tmp_path, RATE) as node:
        proof = Proof(node, calls, seed=1)
        proof.play()
        proof.check_clean()
        proof.take_out(lost=60, missing=20)
        proof.repair(rate=25)
        proof.check_repaired()
