"""The clocks: the client reads its own here and nowhere else, and learns those of delay servers.

A delay counts by the clock of the delay server that takes the message, since that one decides when
it is due. The server says what its clock shows when a connection begins, and again later.
"""

import logging
import time
from typing import Final

logger = logging.getLogger("delaywheel.client")

DIFFERS_MS: Final = 100
"""A message is made anew, before its first try, where the clocks differ by as much: it takes ten
times as long as to send it, so it is nothing for clocks that are well."""

_DIFFERS: Final = "%s: its clock is %+.1f s from that of this machine: delays count by it"

_BOOT: Final = getattr(time, "CLOCK_BOOTTIME", None)
"""Goes on while the machine sleeps; not every system has it."""


def wall_ms() -> int:
    """Return ms since 1970 UTC."""
    return time.time_ns() // 1_000_000


def monotonic_s() -> float:
    """Return seconds that never go back, for what is measured within this process."""
    return time.monotonic()


def boot_ms() -> int:
    """Return ms of a clock that nobody sets."""
    return (time.monotonic_ns() if _BOOT is None else time.clock_gettime_ns(_BOOT)) // 1_000_000


class ServerClock:
    """The wall clock of a delay server, as far as its answers tell; before one, that of here.

    Between two answers it goes on with `boot_ms()`, so that a wall clock that is set changes
    nothing. It is not behind the server's, but for what ms round off, and ahead of it by no more
    than an answer took.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._lead_ms: int | None = None
        """Its time, less `boot_ms()`; None: the server has not said."""
        self._has_logged = False

    def now_ms(self) -> int:
        """Return what it shows."""
        return wall_ms() if self._lead_ms is None else boot_ms() + self._lead_ms

    def ahead_ms(self) -> int:
        """Return how far it is ahead of the clock here; 0 where nothing is to be made up for."""
        ahead_ms = self.now_ms() - wall_ms()
        return ahead_ms if abs(ahead_ms) >= DIFFERS_MS else 0

    def asked_ms(self) -> int:
        """Return the moment at which a question is asked, for `heard`."""
        return boot_ms()

    def heard(self, server_ms: int | None, asked_ms: int) -> None:
        """Take what an answer says; None: it says nothing.

        asked_ms: when the question was asked. The server looked at its clock since.
        What that explains is no difference.
        """
        if server_ms is None:
            return
        # One look, at the end of what was waited: a process may stand still between two.
        now_ms = boot_ms()
        known_ms = wall_ms() if self._lead_ms is None else now_ms + self._lead_ms
        latest_ms = server_ms + now_ms - asked_ms
        is_right = server_ms <= known_ms <= latest_ms
        if self._lead_ms is None or not is_right:
            self._lead_ms = (known_ms if is_right else latest_ms) - now_ms
        if (ahead_ms := self.ahead_ms()) and not self._has_logged:
            self._has_logged = True
            logger.warning(_DIFFERS, self._server, ahead_ms / 1000)
