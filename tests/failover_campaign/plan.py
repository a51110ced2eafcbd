"""The plan of a campaign: all chance of it comes from the seed, so a seed tells the same story.

What the plan cannot fix is the machine's own timing, and with it who is elected.
"""

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from tests.failover_campaign.faults import KINDS, Kind

PER_ROUND: Final = 20
"""Failovers of one group, before its directories are looked at and another group begins."""
CUTS_PER_ROUND: Final = 5
"""Power cuts of one group: before each, all that its disk was ever told is replayed."""
POWER: Final = "power"
"""What a kind needs that has rounds of its own, since a journal of the disk is written for it."""
CALM_S: Final = (1.0, 12.0)
"""Between two failovers, if a kind needs no more."""
QUICK_CALM_S: Final = (0.2, 0.5)
"""The same where all has to be over soon."""


@dataclass(frozen=True, slots=True)
class Failover:
    """One failover of the plan."""

    number: int
    kind: Kind
    calm_s: float
    """How long all is well before it."""
    draw: float
    """From 0 to 1: what the kind leaves to chance."""


def kinds_with(has: Collection[str]) -> list[Kind]:
    """Return the kinds for which everything is there that they need."""
    return [kind for kind in KINDS if not kind.needs or kind.needs in has]


def plan(
    seed: int, count: int, kinds: Collection[Kind], calm_s: tuple[float, float] = CALM_S
) -> list[list[Failover]]:
    """Return rounds of failovers: each kind as often as any other, in an order of the seed's."""
    chance = random.Random(seed)
    bag: list[Kind] = []
    found = []
    for number in range(1, count + 1):
        if not bag:
            bag = list(kinds)
            chance.shuffle(bag)
        kind = bag.pop()
        calm = max(chance.uniform(*calm_s), kind.calm_s)
        found.append(Failover(number, kind, calm, chance.random()))
    cuts = [one for one in found if one.kind.needs == POWER]
    others = [one for one in found if one.kind.needs != POWER]
    return [*_divided(others, PER_ROUND), *_divided(cuts, CUTS_PER_ROUND)]


def _divided(failovers: list[Failover], count: int) -> Iterator[list[Failover]]:
    for first in range(0, len(failovers), count):
        yield failovers[first : first + count]
