"""Tracebacks of handlers: each is logged whole once a minute, so no fault fills a disk."""

import traceback
from typing import Final

_AGAIN_MS: Final = 60_000
"""How long a traceback is not logged again."""
_FRAMES: Final = 10
"""Innermost frames by which tracebacks are told apart: the line of a driver has many callers."""


class Tracebacks:
    """Knows which tracebacks of a receiver were logged lately."""

    def __init__(self) -> None:
        # As many as ways of the service to fail.
        self._logged_ms: dict[tuple[str, str], int] = {}

    def is_due(self, error: BaseException, now_ms: int) -> bool:
        """Return True, and remember it, if this traceback was not logged for a minute."""
        place = (
            type(error).__qualname__,
            str(traceback.extract_tb(error.__traceback__, limit=-_FRAMES)),
        )
        if 0 <= now_ms - self._logged_ms.get(place, -_AGAIN_MS) < _AGAIN_MS:
            return False
        self._logged_ms[place] = now_ms
        return True
