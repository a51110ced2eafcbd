"""The plan of a campaign: all chance of it comes from the seed, so a seed tells the same story.

What the plan cannot fix is the machine's own timing: with the same seed a server dies at the same
points, but not at the same byte.
"""

import random
from dataclasses import dataclass
from typing import Final

from storage.disk.spans import MINUTE_MS
from tests.crash.points import POINTS, STAGES

CYCLES_PER_ROUND: Final = 20
"""Lives on one data directory; then what is still owed is collected and the logs are verified."""

HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
MINUTE_HORIZON_MS: Final = 2 * MINUTE_MS
HOUR_HORIZON_MS: Final = 62 * MINUTE_MS
RATES: Final = (1, 20, 60)
CHECKPOINTS_MS: Final = (300, 1000, 3000)
_BEFORE_SPLIT_MS: Final = 300
"""How long, by the machine's clock, before the time of a split a life begins that is to see it."""

START_UP: Final = "start-up"
UNDER_LOAD: Final = "under load"
STOPPED: Final = "stopped well"
EIO: Final = "fsync fails"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One life of a server and its end."""

    round: int
    number: int
    """Within its round."""
    point: str
    """Where it is to die: a name of points.POINTS, or one of the four above."""
    event: int
    stage: str
    after_s: float
    """When: seconds from the start (start-up) or from ready; for a point in the code, when to wait
    no longer for it."""
    rate: int
    """How much faster than the machine's the clock of this life runs."""
    checkpoint_ms: int
    """Between checkpoints, by the machine's clock."""
    jump: str
    """What the clock is set to before: "none", "minutes", "hour" or "day"."""
    jump_ms: int
    producers: int
    cuts_power: bool
    """Whether what was not fsynced is lost afterwards."""
    fault: str | None
    """What the disk does meanwhile (disk_journal.c)."""
    seed: int
    """For what the producers draw, and the power cut."""

    def wall_ms(self, before_ms: int) -> int:
        """Return the clock at the start of this life, from that at the end of the one before."""
        ahead = _BEFORE_SPLIT_MS * self.rate
        match self.jump:
            case "hour":
                return _next(before_ms + ahead + MINUTE_HORIZON_MS, HOUR_MS) - (
                    MINUTE_HORIZON_MS + ahead
                )
            case "day":
                return _next(before_ms + ahead + HOUR_HORIZON_MS, DAY_MS) - (
                    HOUR_HORIZON_MS + ahead
                )
            case _:
                return before_ms + self.jump_ms


def _next(ms: int, span_ms: int) -> int:
    return -(-ms // span_ms) * span_ms


def plan_round(seed: int, number: int, *, power: bool, cycles: int) -> list[Cycle]:
    """Return the first cycles of a round."""
    chance = random.Random(f"{seed}/{'power' if power else 'kill'}/{number}")
    return [_draw(chance, number, at, power=power) for at in range(cycles)]


def _draw(chance: random.Random, number: int, at: int, *, power: bool) -> Cycle:
    points = [START_UP, UNDER_LOAD, UNDER_LOAD, STOPPED, *POINTS]
    point = chance.choice([*points, EIO] if power else points)
    fault = None
    if point == EIO:
        fault = f"eio {chance.randrange(200)}"
    elif power and chance.random() < 0.1:
        fault = f"enospc {chance.randrange(20, 800)} {chance.randrange(1, 60)}"
    jump = chance.choice(["none", "none", "minutes", "minutes", "hour", "day"])
    rate = chance.choice(RATES)
    if point == "split":
        jump = chance.choice(["hour", "hour", "day"])
    elif point in {"seal", "retention"}:
        rate = max(RATES)
    return Cycle(
        round=number,
        number=at,
        point=point,
        event=int(POINTS[point].events * chance.random() ** 2) if point in POINTS else 0,
        stage=chance.choice(STAGES),
        after_s=chance.uniform(0.05, 1.2) if point == START_UP else chance.uniform(0.3, 2.2),
        rate=rate,
        checkpoint_ms=chance.choice(CHECKPOINTS_MS),
        jump=jump,
        jump_ms=chance.randrange(10 * MINUTE_MS) if jump == "minutes" else 0,
        producers=chance.randint(1, 2),
        cuts_power=power and chance.random() < (0.5 if point == EIO else 0.85),
        fault=fault,
        seed=chance.getrandbits(32),
    )
