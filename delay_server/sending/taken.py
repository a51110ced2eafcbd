"""Counts of the messages that each group took in each minute of the last day."""

from typing import Final

import numpy as np

from storage.disk.spans import MINUTE_MS

_MINUTES: Final = 1440


class TakenByMinute:
    """A number for each minute of the day and each group: 23 KiB a group."""

    def __init__(self) -> None:
        self._groups: dict[str, np.ndarray[tuple[int, int], np.dtype[np.int64]]] = {}
        """The last minute that has each place, and the messages of that minute."""

    def count(self, group: str, messages: int, at_ms: int) -> None:
        """Count messages that a group took at this moment, wall ms."""
        if group not in self._groups:
            self._groups[group] = np.zeros((_MINUTES, 2), np.int64)
        minute = at_ms // MINUTE_MS
        place = self._groups[group][minute % _MINUTES]
        if place[0] != minute:
            place[:] = minute, 0
        place[1] += messages

    def best(self, group: str, now_ms: int) -> int:
        """Return the messages of the best minute of the last 24 hours; 0 if it took nothing."""
        if group not in self._groups:
            return 0
        minutes, messages = self._groups[group].T
        return int(messages[minutes > now_ms // MINUTE_MS - _MINUTES].max(initial=0))
