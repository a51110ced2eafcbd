"""Levels: the numbers that stand for delays, as RocketMQ 4 has them. Pure.

A table is a text of delays with blanks between: level 1 is the first of them, level 0 is no delay,
and a level above the last one is the last one.

    5s 30s 10m 2h 1d
"""

import re
from collections.abc import Sequence
from typing import Final

DEFAULT_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""The table of RocketMQ 4."""

LEVELS_HEADER: Final = "Delaywheel-Levels"
"""The header by which the answer to /meta/address tells the table."""

LEVELS_MAX: Final = 64
"""Levels of a table."""

LEVEL_S_MAX: Final = 180 * 86_400
"""Seconds of the longest delay that a level may be."""

_ENTRY: Final = re.compile(r"[^ ]+")
_DELAY: Final = re.compile(r"(?P<count>[1-9][0-9]{0,7})(?P<unit>[smhd])", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SHOWN: Final = 20
"""Characters of an entry that an error repeats."""


def parse_levels(text: str) -> tuple[int, ...]:
    """Return the delay of each level in ms, level 1 first.

    Raises ValueError with the level and the character that is wrong.
    """
    delays_ms: list[int] = []
    for entry in _ENTRY.finditer(text):
        where = f"levels: level {len(delays_ms) + 1}, at character {entry.start() + 1},"
        if len(delays_ms) == LEVELS_MAX:
            raise ValueError(f"{where} is one too many: give at most {LEVELS_MAX} levels")
        found = _DELAY.fullmatch(entry[0])
        if found is None:
            shown = ascii(entry[0][:_SHOWN])
            raise ValueError(
                f"{where} is {shown}: write a whole number above 0 and s, m, h or d, such as 30s"
            )
        delay_s = int(found["count"]) * _SECONDS[found["unit"]]
        if delay_s > LEVEL_S_MAX:
            raise ValueError(f"{where} is {entry[0]}: give at most {LEVEL_S_MAX // 86_400}d")
        delays_ms.append(delay_s * 1000)
    if not delays_ms:
        raise ValueError("levels: there are none: write delays such as 5s 30s 10m")
    return tuple(delays_ms)


def level_to_ms(level: int, delays_ms: Sequence[int]) -> int:
    """Return the delay of a level that is not negative, in ms."""
    return delays_ms[min(level, len(delays_ms)) - 1] if level else 0
