"""The wall clock: the client reads it here and nowhere else, and tests put their own in place."""

import time


def wall_ms() -> int:
    """Return ms since 1970 UTC. A `delay` counts from here, so keep producers' clocks right."""
    return time.time_ns() // 1_000_000


def monotonic_s() -> float:
    """Return seconds that never go back, for what is measured within this process."""
    return time.monotonic()
