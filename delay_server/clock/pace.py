"""The trusted time, for all parts that must not run ahead: the wall clock behind its guard."""

from collections.abc import Callable

import structlog

from delay_server.clock.clock_guard import ClockGuard, is_news
from delay_transport.seams.runtime import Clock
from storage.state.checkpoint import ClockMark

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

    def trusted_ms(self) -> int:
        """Return the time up to which messages are due.

        Never later than the wall clock, nor than the last trusted reading and the time since boot
        that has passed since: a step that nobody has looked at yet releases nothing.
        """
        return self._guard.trusted_now_ms(self._clock.now_ms(), self._clock.boot_ms())

    def runs(self) -> bool:
        """Read the clocks; say whether their time is trusted."""
        runs = self._guard.observe(
            self._clock.now_ms(), self._clock.boot_ms(), self._clock.synchronised
        )
        if runs != self._ran:
            self._ran = runs
            if runs:
                _log.warning("the clock is trusted again, delivery continues")
            else:
                _log.error("the clock stepped forward, delivery is held", reason=self.reason)
            if self._on_change is not None:
                self._on_change(runs)
        return runs

    def recall(self, known: ClockMark | None) -> None:
        """Go by what the last checkpoint says of the clocks, unless somebody has vouched for them.

        To be called before anything goes by the trusted time.
        """
        if known is not None and self._guard.trusted_offset_ms is None:
            self._guard.recall(
                known,
                boot_id=self._clock.boot_id(),
                wall_ms=self._clock.now_ms(),
                boot_ms=self._clock.boot_ms(),
            )

    def mark(self) -> ClockMark | None:
        """Return what the next process has to know of the clocks; None before any reading."""
        return self._guard.mark(self._clock.boot_id(), self._clock.boot_ms())

    def is_news(self, known: ClockMark | None) -> bool:
        """Say whether the next process needs to know more of the clocks than `known`."""
        mark = self.mark()
        return mark is not None and is_news(mark, known)

    @property
    def reason(self) -> str:
        """Why time is not trusted; empty if it is."""
        return self._guard.reason

    def accept(self) -> None:
        """Take an operator's word for the clock as it is."""
        self.runs()
        self._guard.accept()
        # Read again, so that everybody who waits for the clock hears of it now.
        self.runs()


class TrustedClock:
    """A Clock whose wall is the trusted time, for whoever compares due times with it."""

    def __init__(self, clock: Clock, pacer: Pacer) -> None:
        self._clock = clock
        self._pacer = pacer

    def now_ms(self) -> int:
        """Return the time up to which messages are due."""
        return self._pacer.trusted_ms()

    def boot_ms(self) -> int:
        """Return ms since boot."""
        return self._clock.boot_ms()

    def boot_id(self) -> str:
        """Return what names this boot of the machine."""
        return self._clock.boot_id()

    def synchronised(self) -> bool:
        """Say whether the kernel believes in the wall clock."""
        return self._clock.synchronised()
