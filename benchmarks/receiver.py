"""A real-time broker that only counts: `python -m benchmarks.receiver PORT`.

Prints `ready`, and on SIGTERM one JSON line: received, early, first_ms, last_ms, lateness_ms.
"""

import json
import signal
import sys
import time

import numpy as np
import trio

from delay_protocol import CommandCode, Frame, ItemScan, ResponseCode, scan_items
from delay_transport import CloseReason, Connection, ConnectionLimits, TcpNetwork, serve_connections
from delaywheel.log_output import set_up_log


class Counting:
    """Counts items and keeps how late each was."""

    def __init__(self) -> None:
        self.lateness: list[np.ndarray] = []
        self.first_ms = 0
        self.last_ms = 0

    def frames(self, connection: Connection, frames: list[Frame]) -> None:
        """Count and answer."""
        now_ms = int(time.time() * 1000)
        scan = ItemScan()
        for frame in frames:
            if frame.code == CommandCode.SEND_MESSAGE:
                scan_items(frame.body, scan)
                connection.answer(frame, ResponseCode.SUCCESS)
            else:
                connection.answer(frame, ResponseCode.UNKNOWN_CODE)
        if len(scan):
            self.first_ms = self.first_ms or now_ms
            self.last_ms = now_ms
            self.lateness.append(now_ms - np.array(scan.due_ms))

    def closed(self, connection: Connection, reason: CloseReason) -> None:
        """Ignore it."""

    def summary(self) -> dict[str, object]:
        """Return what was counted."""
        lateness = np.concatenate(self.lateness) if self.lateness else np.zeros(0, np.int64)
        shares = (0.5, 0.9, 0.99, 0.999, 1.0)
        return {
            "received": len(lateness),
            "early": int((lateness < 0).sum()),
            "first_ms": self.first_ms,
            "last_ms": self.last_ms,
            "lateness_ms": {
                f"p{share * 100:g}": int(np.quantile(lateness, share, method="higher"))
                for share in shares
                if len(lateness)
            },
            "cpu_seconds": time.process_time(),
        }


async def main(port: int) -> None:
    """Serve until SIGTERM."""
    counting = Counting()
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            await nursery.start(
                serve_connections, TcpNetwork(), ("127.0.0.1", port), counting, ConnectionLimits()
            )
            print("ready", flush=True)
            async for _ in signals:
                break
            nursery.cancel_scope.cancel()
    print(json.dumps(counting.summary()), flush=True)


if __name__ == "__main__":
    set_up_log(level="warning", form="json")
    trio.run(main, int(sys.argv[1]))
