"""Parses delays, moments and attributes of the command line."""

import math
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

from spark_tools.files.times import minute_of

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}

_PART = re.compile(r"(?P<count>\d+(?:\.\d+)?)\s*(?P<unit>[a-z]*)\s*")


T = TypeVar("T")


class Parsed(click.ParamType[T]):
    """A value that a function makes of a text; it raises ValueError with a sentence."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:  # noqa: ANN401 (click's own signature)
        """Return the value that a text means."""
        if not isinstance(value, str):
            # A default, which is no text.
            return value  # type: ignore[no-any-return]
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _delay(text: str) -> timedelta:
    """Return a length of time: `90`, `30s`, `1h30m`, `2d`, `500ms`; a bare number is seconds."""
    seconds, end, given = 0.0, 0, text.strip().lower()
    for part in _PART.finditer(given):
        scale = _SECONDS.get(part["unit"] or "s")
        if part.start() != end or scale is None:
            break
        seconds += float(part["count"]) * scale
        end = part.end()
    if not given or end != len(given):
        raise ValueError(f"{text!r} is not a delay; write 90, 30s, 1h30m, 2d or 500ms")
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        raise ValueError(f"{text!r} is longer than time itself") from None


def _shift(text: str) -> timedelta:
    """Return a length of time that may go back: `1h`, `+1h`, `-30m`."""
    given = text.strip()
    shift = _delay(given.removeprefix("-").removeprefix("+"))
    return -shift if given.startswith("-") else shift


def _moment(text: str) -> datetime:
    """Return a moment of ISO 8601; without a time zone it is this machine's local time."""
    try:
        # A person at a terminal means the clock on the wall of the room.
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a moment; write 2026-12-24T18:00:00+01:00") from None


def _pair(text: str) -> tuple[str, str]:
    """Return name and value of `KEY=VALUE`; the value may have further equals signs."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"{text!r} is not KEY=VALUE")
    return key, value


def _positive(text: str) -> float:
    """Return a number above 0."""
    number = float(text)
    if not 0 < number < math.inf:
        raise ValueError(f"{text!r} is not a number above 0")
    return number


DELAY = Parsed("delay", _delay)
MINUTE = Parsed("minute", minute_of)
"""A moment of whole minutes, as minutes since 1970; without a time zone it is UTC."""
MOMENT = Parsed("moment", _moment)
SHIFT = Parsed("shift", _shift)
PAIR = Parsed("pair", _pair)
POSITIVE = Parsed("number", _positive)
