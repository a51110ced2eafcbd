"""What time it is for everything that must not run ahead: the wall clock behind its guard."""

from collections.abc import Callable

import structlog

from delay_server.clock_guard import ClockGuard
from delay_transport import Clock

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


class Pacer:
    """Reads the clocks and asks the guard whether dispatch, floor and splits may follow them."""

    def __init__(
        self, clock: Clock, guard: ClockGuard, *, on_change: Callable[[bool], None] | None = None
    ) -> None:
        self._clock = clock
        self._guard = guard
        self._ran = True
        self._on_change = on_change

    sleep_ms_max = 60_000
    """Nobody sleeps longer than this by the clock of the loop, in case the wall clock is set."""

    def now_ms(self) -> int:
        """Return the wall clock."""
        return self._clock.now_ms()

    def runs(self) -> bool:
        """Read the clocks; say whether their time is trusted."""
        runs = self._guard.observe(
            self._clock.now_ms(), self._clock.boot_ms(), self._clock.synchronised
        )
        if runs != self._ran:
            self._ran = runs
            if runs:
                _log.warning("the clock is trusted again, dispatch goes on")
            else:
                _log.error("the clock stepped forward, dispatch is held", reason=self.reason)
            if self._on_change is not None:
                self._on_change(runs)
        return runs

    @property
    def reason(self) -> str:
        """Why time is not trusted; empty if it is."""
        return self._guard.reason

    def accept(self) -> None:
        """Take an operator's word for the clock as it is."""
        self._guard.accept()
