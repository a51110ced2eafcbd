"""Circuits: whether a server that failed gets requests. Pure.

    CLOSED --enough failures in a row, or one that leaves no doubt--> OPEN
      ^                                                                 |
      +--- the probe was accepted --- one request as a probe <----------+ after a pause

The pause grows, jittered, as long as probes fail. There are two: a long one, after which a probe is
worth a request that another server would take, and a short one, where there is no other server.
"""

import math
import random

from delay_client.messages.config import ClientConfig


class Circuit:
    """The health of one server, as its answers to requests tell it."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self.failures = 0
        """In a row."""
        self.probe_at = -math.inf
        """While open: when a probe is due though others take requests."""
        self.last_resort_at = -math.inf
        """While open: when a probe may go where no other server takes requests."""

    @property
    def is_open(self) -> bool:
        """Whether it gets nothing but probes."""
        return self.failures >= self._config.circuit_failures

    def failed(self, now: float, chance: random.Random, *, for_sure: bool = False) -> None:
        """Note a failure; `for_sure` one that would meet every other request as well."""
        config = self._config
        self.failures += 1
        if for_sure:
            self.failures = max(self.failures, config.circuit_failures)
        if self.is_open:
            times = self.failures - config.circuit_failures
            self.last_resort_at = now + pause_s(times, config, chance)
            self.probe_at = now + pause_s(times, config, chance, max_s=config.probe_max_s)

    def succeeded(self) -> None:
        """Note that it accepted a request."""
        self.failures = 0


def pause_s(
    failures: int, config: ClientConfig, chance: random.Random, *, max_s: float | None = None
) -> float:
    """Return how long to pause after a failure that had `failures` others before it.

    Between half and all of an exponentially growing span, so that many clients do not come back in
    step. The span grows to `backoff_max_s`, or to `max_s`.
    """
    # The exponent is bounded before the power, or a week without a server overflows a float.
    ceiling = config.backoff_max_s if max_s is None else max_s
    span = min(ceiling, config.backoff_min_s * 2.0 ** min(failures, 60))
    return span * (0.5 + chance.random() / 2)
