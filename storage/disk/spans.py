"""How time is cut into schedule segments: minutes near, hours further on, days beyond.

A segment covers `span` minutes from `start` (minutes since the epoch, UTC). Its name and its file
header carry both, e.g. `20261121T1403Z.minute`, so a file tells what it holds without a manifest.
Names use UTC: local time would fold two hours into one when a clock changes.
"""

import datetime as dt
import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

MINUTE_MS = 60_000


class Span(IntEnum):
    """How much time a file covers."""

    NONE = 0
    """It does not cover a span of due times."""
    MINUTE = 1
    HOUR = 2
    DAY = 3
    DEAD = 4
    """A day, too: of messages that were given up then, whenever they were due."""

    @property
    def minutes(self) -> int:
        """The length in minutes."""
        return _MINUTES[self]


MINUTE_MAX = 4_223_371_679
"""The last minute of the year 9999: a segment that begins later could have no name."""

_MINUTES = (0, 1, 60, 1440, 1440)
"""By span. A tuple: a dict would call Enum's own hash, for each of thousands of segments."""
_MINUTES_OF = np.array(_MINUTES, np.int64)
_NAME = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)Z\.(minute|hour|day|dead)", re.ASCII)
_CODE_SPANS = 8

DEAD_MINUTES_FROM = 2**32 - 2**22
"""Filed minutes from here on stand for dead segments, one for each day since 1970: facts, and
records that name a row, tell so that they mean one of a dead segment. No message can be due then
(MINUTE_MAX is less)."""


@dataclass(frozen=True, slots=True, order=True)
class SegmentKey:
    """Which segment: its first minute and its span."""

    start: int
    span: Span

    @property
    def end(self) -> int:
        """The first minute after the segment."""
        return self.start + _MINUTES[self.span]

    @property
    def filed_minutes(self) -> tuple[int, int]:
        """The first filed minute that belongs to it, and the first after these."""
        if self.span is Span.DEAD:
            return dead_minute(self), dead_minute(self) + 1
        return self.start, self.end

    @property
    def code(self) -> int:
        """The key as one number, which arrays of rows are grouped by."""
        return self.start * _CODE_SPANS + self.span

    @property
    def name(self) -> str:
        """The file name, alike in schedule_log and dispatch_log."""
        start = dt.datetime.fromtimestamp(self.start * 60, dt.UTC)
        return f"{start:%Y%m%dT%H%M}Z.{self.span.name.lower()}"

    @property
    def path(self) -> str:
        """The segment's file."""
        return f"schedule_log/{self.name}"

    @property
    def facts_path(self) -> str:
        """The file of the facts filed for this segment."""
        return f"dispatch_log/{self.name}"


def can_begin(start: int, span: Span) -> bool:
    """Say whether a segment of this span can begin at this minute."""
    return span is not Span.NONE and 0 <= start <= MINUTE_MAX and start % span.minutes == 0


def can_begin_all(
    start: npt.NDArray[np.int64], span: npt.NDArray[np.unsignedinteger[Any]]
) -> npt.NDArray[np.bool_]:
    """Say of each pair whether it is a span and a minute at which such a segment can begin."""
    known = (span > Span.NONE) & (span <= Span.DEAD)
    minutes = _MINUTES_OF[np.where(known, span, Span.MINUTE)]
    fits: npt.NDArray[np.bool_] = start % minutes == 0
    fits &= known & (start >= 0) & (start <= MINUTE_MAX)
    return fits


def ends_of(
    start: npt.NDArray[np.int64], span: npt.NDArray[np.unsignedinteger[Any]]
) -> npt.NDArray[np.int64]:
    """Return the first minute after each of some segments, whose spans must be known."""
    ends: npt.NDArray[np.int64] = start + _MINUTES_OF[span]
    return ends


def code_of(
    start: npt.NDArray[np.int64], span: npt.NDArray[np.unsignedinteger[Any]]
) -> npt.NDArray[np.int64]:
    """Return the codes of keys that are given as arrays."""
    return start * _CODE_SPANS + span


def codes_of_span(minute: npt.NDArray[np.int64], span: Span) -> npt.NDArray[np.int64]:
    """Return the codes of the segments of one span that cover these minutes."""
    start = minute if span is Span.MINUTE else minute - minute % span.minutes
    return start * _CODE_SPANS + int(span)


def key_of_code(code: int) -> SegmentKey:
    """Return the key whose code this is."""
    return SegmentKey(code // _CODE_SPANS, Span(code % _CODE_SPANS))


def key_of_name(name: str) -> SegmentKey | None:
    """Return the key a file name stands for, or None if it names no segment."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    try:
        year, month, day, hour, minute = map(int, match.groups()[:5])
        when = dt.datetime(year, month, day, hour, minute, tzinfo=dt.UTC)
    except ValueError:
        return None
    start, span = int(when.timestamp()) // 60, Span[match[6].upper()]
    return SegmentKey(start, span) if can_begin(start, span) else None


def key_of_minute(minute: int, span: Span) -> SegmentKey:
    """Return the segment of this span that covers a minute."""
    return SegmentKey(minute - minute % span.minutes, span)


def dead_segment_of(append_ms: int, floor_minute: int) -> SegmentKey:
    """Return the dead segment of a DEAD record, by when it was appended (wall ms).

    The day is that of the append, or of the batch's floor where the clock was behind it: so, as the
    floor never decreases, a day that it has passed gets no rows any more, on any replica.
    """
    return key_of_minute(max(append_ms // MINUTE_MS, floor_minute), Span.DEAD)


def dead_minute(key: SegmentKey) -> int:
    """Return the filed minute that stands for a dead segment."""
    return DEAD_MINUTES_FROM + key.start // Span.DEAD.minutes


def dead_key(minute: int) -> SegmentKey:
    """Return the dead segment for which a filed minute stands."""
    return SegmentKey((minute - DEAD_MINUTES_FROM) * Span.DEAD.minutes, Span.DEAD)


def dead_codes(minute: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the codes of the dead segments for which filed minutes stand."""
    return (minute - DEAD_MINUTES_FROM) * (Span.DEAD.minutes * _CODE_SPANS) + int(Span.DEAD)
