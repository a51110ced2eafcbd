"""Decides whether the wall clock is trusted, or has made a step forward that nothing confirms.

Messages are due by the wall clock. A wall clock that is wrong by a year would send a year's
messages, so it is compared with the boot clock (CLOCK_BOOTTIME), which nobody sets and which goes
on in suspend. A wall clock that gains more than the allowance is held: dispatch, floor and splits
wait until one of these ends it:

    confirmed    the kernel says that the clock is synchronised
    accepted     an operator vouches for it
    taken back   its gain is within the allowance again

The allowance, exactly. Each reading compares wall minus boot with the highest such offset that was
trusted. What is beyond it adds to a debt, and a tenth of the boot time that passes is forgiven,
which is more than any clock daemon slews (chrony: a twelfth). While the debt is at most
`step_forward_ms_max` the reading is trusted. So any single step of more than that is held; over
boot time T the trusted clock gains at most step_forward_ms_max + T / 10; and a clock that is slewed
forward is followed for ever. Nothing is forgiven while the clock is held.

A step backward is just followed: it delays. Coming back to where the clock was is no gain, unless
it had been set back by more than a day: then it was wrong before, and what it showed counts no
longer.

What was trusted outlives the process: a checkpoint has it (`ClockMark`), and the next process goes
by it (`recall`). In the same boot of the machine it is the offset that counts. In another one
nobody knows how long the machine was off: the wall clock is believed if it is at most a day beyond
the last trusted time, and not at all beyond it if it was held then. A node that was off for longer
goes on as soon as its clock is confirmed or accepted.
"""

from collections.abc import Callable
from typing import Final

from storage.state.checkpoint import ClockMark

_SLEW_DIVISOR: Final = 10
"""A tenth of passing time is forgiven. Debts are kept in tenths of ms, so that it adds up whatever
the time between readings."""

FAR_MS: Final = 24 * 60 * 60 * 1000
"""A day. After another boot: so far beyond the last trusted time the wall clock is believed. Most
nodes that are started anew were off for less, and a clock that is wrong by less can send no more
than a day's messages early."""

_NEWS_MS: Final = 1000
"""A trusted offset that differs by more from what the last checkpoint says is to be made durable.
Less than that is no step that anybody could hold against a clock later."""


def is_news(mark: ClockMark, last: ClockMark | None) -> bool:
    """Say whether a start that went by `last` in place of `mark` would misjudge the clock."""
    if last is None or (mark.boot_id, mark.held) != (last.boot_id, last.held):
        return True
    return abs((mark.wall_ms - mark.boot_ms) - (last.wall_ms - last.boot_ms)) > _NEWS_MS


class ClockGuard:
    """Compares wall and boot clock, reading by reading.

    Invariants: `_offset_ms` is the highest wall minus boot of trusted readings, those of more than
    a day before a step back left out; while not held the latest reading is at most that, and
    `_debt` is at most the allowance.

    A new guard trusts its first reading unless `recall` has restored an earlier one.
    """

    def __init__(self, *, step_forward_ms_max: int) -> None:
        assert step_forward_ms_max >= 0
        self._debt_max = step_forward_ms_max * _SLEW_DIVISOR
        self.is_held = False
        """True if the latest reading was ahead, and nothing confirmed it."""
        self._offset_ms: int | None = None
        self._is_of_another_boot = False
        """Whether `_offset_ms` only says what the wall clock showed before this boot."""
        self._trusted_boot_ms: int | None = None
        """When the last trusted reading was made, by the boot clock."""
        self._debt = 0
        """Gain that is not forgiven yet, in tenths of ms: as of the last trusted reading, or, while
        held, as of when that began."""
        self._latest_offset_ms = 0
        self._latest_boot_ms = 0

    @property
    def reason(self) -> str:
        """Why the clock is held, for people; empty while it is not."""
        if not self.is_held or self._offset_ms is None:
            return ""
        gained_s = (self._latest_offset_ms - self._offset_ms) / 1000
        if self._is_of_another_boot:
            return (
                f"the wall clock is {gained_s:.1f} s ahead of the last trusted time before this "
                "boot, and nothing confirms it"
            )
        return (
            f"the wall clock gained {gained_s:.1f} s on the time since boot, "
            "and nothing confirms it"
        )

    @property
    def trusted_offset_ms(self) -> int | None:
        """The highest wall minus boot clock that is trusted; None before the first reading."""
        return self._offset_ms

    def recall(self, known: ClockMark, *, boot_id: str, wall_ms: int, boot_ms: int) -> None:
        """Go by what an earlier process knew of the clocks; to be called before the first reading.

        boot_id names this boot of the machine, or is empty; wall_ms, boot_ms: what the clocks show.
        """
        assert self._offset_ms is None
        if boot_id and boot_id == known.boot_id and boot_ms >= known.boot_ms:
            self._offset_ms = known.wall_ms - known.boot_ms
        elif known.held or not known.wall_ms <= wall_ms <= known.wall_ms + FAR_MS:
            self._offset_ms = known.wall_ms - boot_ms
            self._is_of_another_boot = True

    def mark(self, boot_id: str, boot_ms: int) -> ClockMark | None:
        """Return what the next process has to know; None before the first reading."""
        if self._offset_ms is None:
            return None
        return ClockMark(
            boot_id=boot_id,
            wall_ms=self._offset_ms + boot_ms,
            boot_ms=boot_ms,
            held=self.is_held,
        )

    def observe(self, wall_ms: int, boot_ms: int, synchronised: Callable[[], bool]) -> bool:
        """Take a reading of both clocks; return whether time is to be followed.

        `synchronised` says whether the kernel believes in the wall clock; it is asked only when the
        clock is ahead.
        """
        self._latest_offset_ms = offset_ms = wall_ms - boot_ms
        self._latest_boot_ms = boot_ms
        if self._offset_ms is None:
            self._offset_ms = offset_ms
        self._debt = max(0, self._debt - self._forgiven(boot_ms))
        debt = self._debt + max(0, offset_ms - self._offset_ms) * _SLEW_DIVISOR
        if debt <= self._debt_max:
            self._trust(debt=debt)
        elif synchronised():
            self._trust(debt=0)
        else:
            self.is_held = True
        return not self.is_held

    def accept(self) -> None:
        """Take an operator's word for the wall clock as it was at the latest reading."""
        if self.is_held:
            self._trust(debt=0)

    def trusted_now_ms(self, wall_ms: int, boot_ms: int) -> int:
        """Return the time up to which things are due: never later than the wall clock shows.

        Nor is it later than the highest trusted offset and the boot clock make it. That is so while
        not held too, so a step beyond it that no observe() has seen yet changes nothing.
        """
        if self._offset_ms is None:
            return wall_ms
        return min(wall_ms, boot_ms + self._offset_ms)

    def _forgiven(self, boot_ms: int) -> int:
        """Return the tenths of ms of debt that the time since the last trusted reading settles."""
        if self.is_held or self._trusted_boot_ms is None:
            return 0
        return max(0, boot_ms - self._trusted_boot_ms)

    def _trust(self, *, debt: int) -> None:
        """Make the latest reading the last trusted one."""
        offset_ms = self._latest_offset_ms
        if self._offset_ms is None or not 0 <= self._offset_ms - offset_ms <= FAR_MS:
            self._offset_ms = offset_ms
            self._is_of_another_boot = False
        self._trusted_boot_ms = self._latest_boot_ms
        self._debt = debt
        self.is_held = False
