"""Delays and moments as people write them in a header or in JSON. Pure.

delay       90s   1h52m   2d12h   500ms   PT90S   P1DT12H
moment      2026-12-24T18:00:00+01:00 (RFC 3339)   1798131600 (seconds since 1970)
"""

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Final

import msgspec

from delay_transport.http.problems import BadValueError

_DAY_MS: Final = 86_400_000
_UNITS_MS: Final = {"w": 7 * _DAY_MS, "d": _DAY_MS, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_SHORT: Final = re.compile(
    r"(?:(?P<w>\d+)w)?(?:(?P<d>\d+)d)?(?:(?P<h>\d+)h)?(?:(?P<m>\d+)m)?"
    r"(?:(?P<s>\d+(?:\.\d{1,3})?)s)?(?:(?P<ms>\d+)ms)?",
    re.ASCII,
)
_ISO: Final = re.compile(
    r"P(?:(?P<w>\d+)W)?(?:(?P<d>\d+)D)?"
    r"(?:T(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+(?:\.\d{1,3})?)S)?)?",
    re.ASCII,
)
_TEXT_MAX: Final = 64
"""Characters of a delay."""

Moment = Annotated[datetime, msgspec.Meta(tz=True)]


def parse_delay(text: str, where: str) -> float:
    """Return a delay in seconds.

    where: the header or field that has it. Raises BadValueError.
    """
    given = text.strip()
    seconds = _seconds_of(given) if len(given) <= _TEXT_MAX else None
    if seconds is None:
        unit = "add a unit: " if given.isdigit() else ""
        raise BadValueError(
            field=where, value=text, allowed=f"{unit}a delay such as 90s, 1h52m, 2d or PT90S"
        )
    return seconds


@lru_cache
def _seconds_of(given: str) -> float | None:
    """Read a delay; services have few, and each costs a tenth of a message of a list."""
    found = _SHORT.fullmatch(given) or _ISO.fullmatch(given)
    parts = {} if found is None else {k: v for k, v in found.groupdict().items() if v}
    if not parts or given[-1:] == "T":
        return None
    return sum(float(count) * _UNITS_MS[unit] for unit, count in parts.items()) / 1000


def parse_moment(text: str, where: str) -> datetime:
    """Return a moment, with its time zone.

    where: the header or field that has it. Raises BadValueError.
    """
    try:
        return msgspec.convert(text.strip(), Moment, strict=False)
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise BadValueError(
            field=where,
            value=text,
            allowed="2026-12-24T18:00:00Z, also with an offset such as +01:00 for Z, or seconds, "
            f"not milliseconds, since 1970 ({error})",
        ) from error


def rfc3339(ms: int) -> str:
    """Return the text of a moment in ms since 1970: RFC 3339, UTC."""
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
