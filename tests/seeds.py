"""How much a test tries: little of all in `make test`, everything in `make test-long`.

    @each_seed(100)         test(seed: int)      a test for each seed, all but six of them long
    @seeds_in_parts(100)    test(seeds: range)   the same where a test has a loop over its seeds
    @examples(300)          beside @given        at the most 15 of them in `make test`
    @seeds_of_the_day(40)   test(seed: int)      a test for each of 40 seeds that no other day has

Seeds of the worlds are others each day, so that what is run again finds more. A failure has its
seed in the name of the test, and DELAYWHEEL_TESTS_DAY=2026-11-25 has those of that day again.
"""

import os
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import settings

LONG = "DELAYWHEEL_TESTS_LONG"
"""`make test-long` sets it: properties are tried with all examples."""
DAY = "DELAYWHEEL_TESTS_DAY"

QUICK_SEEDS = 6
QUICK_EXAMPLES = 15
LONG_EXAMPLES = 500

_SEEDS_OF_A_DAY = 1000
_FIRST_DAY = date(2020, 1, 1)


def is_long() -> bool:
    """Say whether this run is to try all."""
    return bool(os.environ.get(LONG))


def examples(count: int, **others: Any) -> settings:  # noqa: ANN401 (what Hypothesis takes)
    """Return Hypothesis' settings for a property that is worth `count` examples."""
    return settings(max_examples=count if is_long() else min(count, QUICK_EXAMPLES), **others)


def each_seed(count: int, *, first: int = 0, quick: int = QUICK_SEEDS) -> pytest.MarkDecorator:
    """Give a test one `seed` at a time; all but the first ones are long."""
    return pytest.mark.parametrize(
        "seed",
        [
            pytest.param(seed, marks=[pytest.mark.long] if seed >= first + quick else [])
            for seed in range(first, first + count)
        ],
    )


def seeds_in_parts(
    count: int, *, quick: int = QUICK_SEEDS, part: int | None = None
) -> pytest.MarkDecorator:
    """Give a test several `seeds` at once: the first ones; the others, in parts, are long."""
    parts = [range(quick), *in_parts(range(quick, count), part or count)]
    return pytest.mark.parametrize(
        "seeds",
        [
            pytest.param(
                seeds, id=f"{seeds[0]} to {seeds[-1]}", marks=[pytest.mark.long] if seeds[0] else []
            )
            for seeds in parts
        ],
    )


def in_parts(seeds: range, size: int) -> list[range]:
    """Return seeds in parts of a size."""
    return [seeds[begin : begin + size] for begin in range(0, len(seeds), size)]


def first_of(cases: Sequence[Any], quick: int) -> list[Any]:
    """Return cases for a test's parameters: the first ones, and the others for long tests."""
    return [
        *cases[:quick],
        *(
            pytest.param(*case, marks=pytest.mark.long)
            if isinstance(case, tuple)
            else pytest.param(case, marks=pytest.mark.long)
            for case in cases[quick:]
        ),
    ]


def day() -> date:
    """Return the day whose seeds are run; the workers of a run agree, also at midnight."""
    today = datetime.now(UTC).date().isoformat()
    return date.fromisoformat(os.environ.setdefault(DAY, today))


def seeds_of(today: date) -> range:
    """Return all seeds of a day: no other one has them."""
    first = (today - _FIRST_DAY).days * _SEEDS_OF_A_DAY
    return range(first, first + _SEEDS_OF_A_DAY)


def seeds_of_the_day(count: int) -> pytest.MarkDecorator:
    """Give a test one `seed` at a time, others each day: the first of the day's."""
    return pytest.mark.parametrize("seed", seeds_of(day())[:count])


def long_seeds_of_the_day(count: int, *, part: int) -> list[range]:
    """Return the last seeds of the day in parts, for a long test of each."""
    return in_parts(seeds_of(day())[-count:], part)


def again(world: str, seed: int) -> str:
    """Return the command that runs a seed of a world again."""
    return f"make simulate WORLD={world} SEEDS=1 FIRST={seed}"
