"""Parses delays, moments and attributes of the command line."""

import math
import re
from datetime import datetime, timedelta
from typing import Any

import click

from spark_tools.files.times import minute_of

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}

_PART = re.compile(r"(?P<count>\d+(?:\.\d+)?)\s*(?P<unit>[a-z]*)\s*")


class DelayType(click.ParamType[timedelta]):
    """A length of time: `90`, `30s`, `1h30m`, `2d`, `500ms`; a bare number means seconds."""

    name = "delay"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        """Return the timedelta that a text means."""
        if isinstance(value, timedelta):
            return value
        text = str(value).strip().lower()
        seconds = 0.0
        end = 0
        for part in _PART.finditer(text):
            scale = _SECONDS.get(part["unit"] or "s")
            if part.start() != end or scale is None:
                break
            seconds += float(part["count"]) * scale
            end = part.end()
        if not text or end != len(text):
            self.fail(f"{value!r} is not a delay; write 90, 30s, 1h30m, 2d or 500ms", param, ctx)
        try:
            return timedelta(seconds=seconds)
        except OverflowError:
            self.fail(f"{value!r} is longer than time itself", param, ctx)


class MomentType(click.ParamType[datetime]):
    """A moment as ISO 8601; without a time zone it is this machine's local time."""

    name = "moment"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """Return the datetime, with its zone, that a text means."""
        if isinstance(value, datetime):
            return value
        try:
            # A person at a terminal means the clock on the wall of the room.
            return datetime.fromisoformat(str(value)).astimezone()
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a moment; write 2026-12-24T18:00:00+01:00", param, ctx)


class MinuteType(click.ParamType[int]):
    """A moment of whole minutes, as minutes since 1970; without a time zone it is UTC."""

    name = "minute"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return the minute that a text means."""
        if isinstance(value, int):
            return value
        try:
            return minute_of(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class PairType(click.ParamType[tuple[str, str]]):
    """A name and a value, `KEY=VALUE`; the value may have further equals signs."""

    name = "pair"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Return key and value."""
        key, equals, text = str(value).partition("=")
        if not equals or not key:
            self.fail(f"{value!r} is not KEY=VALUE", param, ctx)
        return key, text


class FiniteRange(click.FloatRange):
    """A number within a range; neither `nan`, which every range lets pass, nor `inf`."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 (click's own signature)
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Return the number that a text means."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


DELAY = DelayType()
MINUTE = MinuteType()
MOMENT = MomentType()
PAIR = PairType()
