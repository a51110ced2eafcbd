"""Times as options give them, whole UTC minutes, and as results show them."""

from datetime import UTC, datetime


def minute_of(text: str) -> int:
    """Return the minute (since 1970) that a text like `2026-11-21T14:00Z` names.

    Without a zone it is UTC. Raises ValueError, which says what is wrong.
    """
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no time like 2026-11-21T14:00Z") from error
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    seconds = when.timestamp()
    if seconds % 60 or seconds < 0:
        raise ValueError(f"{text!r} is no whole minute")
    return int(seconds) // 60


def time_text(ms: int) -> str:
    """Return a time, ms since 1970, as text."""
    when = datetime.fromtimestamp(ms // 1000, UTC)
    return f"{when:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


def minute_text(minute: int) -> str:
    """Return a minute since 1970 as text."""
    return f"{datetime.fromtimestamp(minute * 60, UTC):%Y-%m-%dT%H:%M}Z"
