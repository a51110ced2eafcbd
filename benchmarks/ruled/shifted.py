"""`python -m benchmarks.ruled.shifted MS delay-server …`: its wall clock is MS behind."""

import sys

from delay_transport.seams import runtime
from delay_transport.seams.runtime import SystemClock
from delaywheel.main import main

if __name__ == "__main__":
    behind_ms = int(sys.argv.pop(1))

    class ShiftedClock(SystemClock):
        """The clocks of this machine, of which the wall clock is behind."""

        def now_ms(self) -> int:
            """Return the wall clock as it was so long ago."""
            return super().now_ms() - behind_ms

    runtime.SystemClock = ShiftedClock  # type: ignore[misc]
    main()
