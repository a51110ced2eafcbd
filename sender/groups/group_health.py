"""How one broker group does: its circuit, its window, its weight, and its run of refusals."""

import math
import random
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import structlog

from delay_transport.seams.trouble import Trouble
from sender.groups.group_status import GroupCounts
from sender.health.circuit import Change, Circuit, CircuitState, Event, Failure
from sender.health.refusal_run import RefusalRun
from sender.health.weight import FLOOR, RAMP_S, Weight
from sender.health.window import Window
from sender.settings.config import SenderConfig

_log: structlog.stdlib.BoundLogger = structlog.get_logger("sender")

_HAIR_S: Final = 1e-6


class Level(IntEnum):
    """How far entries should rather go to a group than wait."""

    USELESS = 0
    """It is slow, or takes nothing."""
    ON_TRIAL = 1
    """It gets probes."""
    WELL = 2


class GroupHealth:
    """The measures of one broker group, and what is made of them together.

    It keeps the four measures and since when the group is slow. Its group tells the measures of
    each answer and failure, and asks here what the group is worth. Times are trio's.
    """

    def __init__(
        self,
        name: str,
        weight: float,
        *,
        config: SenderConfig,
        chance: random.Random,
        counts: GroupCounts,
        waits_since: Callable[[], float | None],
        trouble: Trouble,
    ) -> None:
        """Begin with a closed circuit; `waits_since` says what waits longest for its answer."""
        self.circuit_reason = ""
        """Why the circuit changed last, for people; empty if it never did."""
        self.is_given_up = False
        """Whether an open circuit is not followed by probes, unless the group moves."""
        self._name = name
        self._counts = counts
        self.circuit = Circuit(config, chance=chance, on_change=self._circuit_changed)
        self._config = config
        self.window = Window(config)
        self.weight = Weight(weight)
        self.refusals = RefusalRun(interval_s=config.reconnect_max_s)
        self._waits_since = waits_since
        self._trouble = trouble
        # Rounding must not hide it when the connection tells of a request that waits for so long.
        self._slow_s = config.slow_s - _HAIR_S
        self._slow_since = math.inf
        self._level = Level.USELESS
        """When it was looked at last."""

    @property
    def is_trial(self) -> bool:
        """Whether the circuit allows no more than probes."""
        return self.circuit.state is not CircuitState.CLOSED

    def connected(self) -> None:
        """Begin with a new window on a new connection."""
        self.window = Window(self._config)

    def answer_s(self, now: float) -> float:
        """Return how long its answers take: as they did of late, or as one keeps us waiting now."""
        return max(self.window.answer_s, self._waited_s(now))

    def _waited_s(self, now: float) -> float:
        """Return how long it has kept us waiting for an answer by now; 0 if for none."""
        since = self._waits_since()
        return 0.0 if since is None else now - since

    def is_slow(self, now: float) -> bool:
        """Return whether others had better get what it could be given."""
        return self.answer_s(now) >= self._slow_s

    def effective_weight(self, now: float) -> float:
        """Return what a turn of the group is worth."""
        # A few that it gets now tell more than what it took for many a while ago.
        answer_s = max(self.window.recent_s(now), self._waited_s(now))
        return self.weight.effective(now, answer_s=answer_s, quick_s=self.window.quick_s)

    def stated_weight(self, now: float) -> float:
        """Return what its share is in proportion to: the least while it gets probes only."""
        if self.is_trial:
            return self.weight.configured * FLOOR
        return self.effective_weight(now)

    def look(self, now: float, *, takes: bool) -> tuple[Level, Level]:
        """Return the level of the group before and now; `takes` is whether it may be given any."""
        level = Level.WELL
        if takes and self.is_slow(now):
            self._slow_since = min(self._slow_since, now)
            level = Level.USELESS
        elif not takes or self.refusals.is_long:
            level = Level.USELESS
        elif self.is_trial:
            level = Level.ON_TRIAL
        before, self._level = self._level, level
        if level is Level.WELL:
            if now - self._slow_since >= RAMP_S:
                self.weight.recovered(now)
            self._slow_since = math.inf
        return before, level

    def give_up(self, now: float, failure: Failure, detail: str) -> None:
        """Open the circuit and let no probes follow, unless the group moves."""
        self.is_given_up = True
        self.circuit.failed(now, failure, detail)

    def refused_for_good(self, items: int) -> None:
        """Hear that all items of a request were refused for good."""
        was_long = self.refusals.is_long
        self.refusals.refused(items)
        if self.refusals.is_long and not was_long:
            _log.warning("broker group refuses every item for good", group=self._name)

    def _circuit_changed(self, change: Change) -> None:
        """Log and count a change of the circuit."""
        self._counts.changes[change.after] += 1
        if change.event is not Event.WAITED:
            # While it gets probes it is still of interest why it gets nothing else.
            self.circuit_reason = change.reason
        log = _log.bind(
            group=self._name,
            before=change.before.value,
            after=change.after.value,
            reason=change.reason,
        )
        if change.before is CircuitState.CLOSED or change.event is Event.MOVED:
            self._trouble.over()
        if change.after is CircuitState.OPEN and not self.is_given_up:
            self._trouble.log(
                log.warning,
                "broker group failed",
                failures=self.circuit.failures,
                again_in_s=round(self.circuit.until - change.at, 3),
            )
        elif change.event is not Event.WAITED:
            log.info("broker group's circuit changed")
        if change.after is CircuitState.CLOSED:
            self.weight.recovered(change.at)
