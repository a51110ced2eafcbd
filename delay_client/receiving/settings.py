"""Settings of a receiver. The defaults suit handlers that wait for a database or a service."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

from delay_client.messages.config import ClientConfig
from delay_protocol.basics.levels import DEFAULT_LEVELS, LEVEL_S_MAX, LEVELS_MAX, parse_levels
from delay_protocol.receivers.attaching import (
    CREDIT_BYTES_MAX,
    CREDIT_BYTES_MIN,
    CREDIT_ITEMS_MAX,
    FLOW_S,
    UNSETTLED_TRIES,
)
from delay_protocol.receivers.delivering import SETTLE_ITEMS_MAX
from delay_protocol.receivers.masters import Retries

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a message comes again whose handler failed: after base_s, then factor times as long.

    Or after the waits of a table: `RetryPolicy(waits_s=(10, 60))`, `RetryPolicy.levels()`.
    """

    base_s: float = 1.0
    """The wait after the first try."""
    factor: float = 2.0
    """How much longer each further wait is."""
    jitter: float = 0.2
    """Part of a wait that is drawn, so that what failed together does not come again together."""
    cap_s: float = 3600.0
    """The longest wait."""
    tries: int = 16
    """A message whose handler failed so often becomes a dead letter; 16 take about 4 hours."""
    unsettled_tries: int = UNSETTLED_TRIES
    """A message with which so many receivers ended, and had not settled it, becomes a dead letter.
    It is told when a receiver connects, so `run(retry=…)` does not change it."""
    waits_s: tuple[float, ...] = ()
    """The wait after each try, in place of `base_s`, `factor` and `cap_s`: at most 64, of at most
    180 days. The last one is also that after further tries."""
    first_level: int | None = None
    """Set by `levels()`: the receiver takes `waits_s` from the table of levels that it was told,
    from this level on."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, naming the setting."""
        _check(
            self, base_s=(0, 1e9), factor=(1, 1e9), jitter=(0, 1), cap_s=(0, 1e9), tries=(1, 1e9)
        )
        _check(self, first_level=(1, LEVELS_MAX), unsettled_tries=(1, 1_000_000))
        if len(self.waits_s) > LEVELS_MAX:
            raise ValueError(f"waits_s has {len(self.waits_s)} waits: give at most {LEVELS_MAX}")
        for at, wait_s in enumerate(self.waits_s):
            if not 0 <= wait_s <= LEVEL_S_MAX:
                raise ValueError(
                    f"waits_s[{at}] must be from 0 to {LEVEL_S_MAX} s (180 days), not {wait_s!r}"
                )

    @classmethod
    def levels(cls, first: int = 3, tries: int = 16) -> Self:
        """Return the policy that waits by the table of levels, without jitter: 10 s, 30 s, 1 min ….

        The table is that of `send(level=)`: `delay.levels` of the meta server. `first` is the level
        of the first wait. Raises ValueError for what is no level and no number of tries.
        """
        policy = cls(first_level=first, tries=tries, jitter=0)
        return policy.by_levels(parse_levels(DEFAULT_LEVELS))

    @classmethod
    def told(cls, retries: Retries) -> Self | None:
        """Return the policy that an operator set for the receiver's name; None if none is set.

        Raises ValueError for waits that are none.
        """
        policy = cls() if retries.first_level is None else cls.levels(retries.first_level)
        if retries.waits:
            policy = replace(policy, waits_s=tuple(ms / 1000 for ms in parse_levels(retries.waits)))
        if retries.tries is not None:
            policy = replace(policy, tries=retries.tries)
        if retries.unsettled_tries is not None:
            policy = replace(policy, unsettled_tries=retries.unsettled_tries)
        return None if retries == Retries() else policy

    def by_levels(self, levels_ms: Sequence[int]) -> Self:
        """Return the policy with the waits of these levels, if it is one of `levels()`."""
        if self.first_level is None:
            return self
        first = min(self.first_level, len(levels_ms)) - 1
        return replace(self, waits_s=tuple(delay_ms / 1000 for delay_ms in levels_ms[first:]))

    def wait_s(self, attempt: int, chance: random.Random) -> float | None:
        """Return how long a message waits after this attempt, from 1; None: no more tries."""
        if attempt >= self.tries:
            return None
        if self.waits_s:
            wait_s = self.waits_s[min(attempt, len(self.waits_s)) - 1]
        else:
            try:
                wait_s = min(self.cap_s, self.base_s * float(self.factor) ** (attempt - 1))
            except OverflowError:
                wait_s = self.cap_s
        return wait_s * (1 - self.jitter * chance.random())


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverConfig:
    """How much, how long and how many."""

    credit_items: int | None = None
    """Messages that may be here without a verdict, for each delay server. None: those at handlers,
    and for handlers to begin next twice as many as they begin at a time, but 64 at least, of all
    delay servers together."""

    credit_bytes: int = 16 * _MIB
    """Bytes of all that is here, for each delay server: what bounds the memory of a receiver."""

    concurrency: int = 10
    """Handlers of a run() that are at work at a time."""

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    """When a message comes again whose handler failed, unless an operator set that for the name
    (`delaywheel admin set receiver`). What `run(retry=…)` says goes before both."""

    settle_linger_s: float = 0.002
    """How long a verdict waits for others to share its request."""

    settle_items_max: int = 500
    """Verdicts of one request."""

    settle_bytes_max: int = 4 * _MIB
    """Bytes of one request; what comes again later has its item in it. An item that is larger
    travels alone."""

    settles_in_flight_max: int = 4
    """Unanswered requests per server."""

    flow_s: float = FLOW_S
    """How often the receiver says what it takes, which renews the lease of all that it has."""

    answer_timeout_s: float = 10.0
    """How long a delay server may be silent that was asked something; and how long leaving the
    block waits for answers, once the handlers have ended."""

    connecting: ClientConfig = field(default_factory=ClientConfig)
    """How connections are made and lost ones made again: its `connect_timeout_s`, `backoff_…`,
    `probe_max_s` (the longest pause where no receivers are taken) and `meta_…`; and `levels`."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, naming the setting."""
        _check(
            self,
            credit_items=(1, CREDIT_ITEMS_MAX),
            credit_bytes=(CREDIT_BYTES_MIN, CREDIT_BYTES_MAX),
            concurrency=(1, 100_000),
            settle_linger_s=(0, 10),
            settle_items_max=(1, SETTLE_ITEMS_MAX),
            settle_bytes_max=(1, 4 * _MIB),
            settles_in_flight_max=(1, 1000),
            flow_s=(0.001, FLOW_S),
            answer_timeout_s=(0.001, 3600),
        )


def _check(settings: RetryPolicy | ReceiverConfig, **bounds: tuple[float, float]) -> None:
    for name, (least, most) in bounds.items():
        value = getattr(settings, name)
        # Not `value < least`: that lets a NaN through.
        if value is not None and not least <= value <= most:
            raise ValueError(f"{name} must be from {least:g} to {most:g}, not {value!r}")
