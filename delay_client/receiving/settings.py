"""Settings of a receiver. The defaults suit handlers that wait for a database or a service."""

import random
from dataclasses import dataclass, field
from typing import Final

from delay_client.messages.config import ClientConfig
from delay_protocol.receivers.attaching import (
    CREDIT_BYTES_MAX,
    CREDIT_BYTES_MIN,
    CREDIT_ITEMS_MAX,
    FLOW_S,
)
from delay_protocol.receivers.delivering import SETTLE_ITEMS_MAX

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a message comes again whose handler failed: after base_s, then factor times as long."""

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

    def __post_init__(self) -> None:
        """Refuse what cannot work, naming the setting."""
        _check(
            self, base_s=(0, 1e9), factor=(1, 1e9), jitter=(0, 1), cap_s=(0, 1e9), tries=(1, 1e9)
        )

    def wait_s(self, attempt: int, chance: random.Random) -> float | None:
        """Return how long a message waits after this attempt, from 1; None: no more tries."""
        if attempt >= self.tries:
            return None
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
    """When a message comes again whose handler failed."""

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
    `probe_max_s` (the longest pause where no receivers are taken) and `meta_…`."""

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
