"""A real-time broker that only counts: `python -m benchmarks.receiver PORT [RATE]`.

It answers at most RATE messages a second. Prints `ready`, and on SIGTERM one JSON line: received,
distinct, early, first_ms, last_ms, lateness_ms, and that of other subjects than `bench.hot…`.
"""

import json
import math
import signal
import sys
import time
from collections import deque
from typing import Final

import numpy as np
import trio

from benchmarks.quantiles import quantiles
from bridges.broker_end import Request
from delay_protocol.basics.codes import ResponseCode
from delay_protocol.wire.frames import Frame
from delay_transport.connections.connection import CloseReason, Connection
from delay_transport.connections.limits import ConnectionLimits
from delay_transport.connections.listener import serve_connections
from delay_transport.seams.outbox import Wakeup
from delay_transport.seams.runtime import TcpNetwork
from delaywheel.shared.log_output import set_up_log

HOT: Final = b"bench.hot"
"""What the names begin with of subjects that are left out of the lateness of the others."""


class Counting:
    """Counts items and keeps how late each was."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._waiting: deque[tuple[Connection, Frame, int]] = deque()
        self._more = Wakeup()
        self._ids: list[list[bytes]] = []
        self._subjects: list[list[bytes]] = []
        self._lateness: list[np.ndarray] = []
        self.first_ms = 0
        self.last_ms = 0

    def frames(self, connection: Connection, frames: list[Frame]) -> None:
        """Count and answer."""
        now_ms = int(time.time() * 1000)
        for request in map(Request, frames):
            if not request.has_items:
                connection.answer(request.frame, ResponseCode.UNKNOWN_CODE)
                continue
            scan = request.scan
            self._waiting.append((connection, request.frame, len(scan)))
            self._more.wake()
            self.first_ms = self.first_ms or now_ms
            self.last_ms = now_ms
            # The rest is for summary(): what is done here takes its time from the server's.
            self._lateness.append(now_ms - np.array(scan.due_ms))
            self._subjects.append(scan.subjects)
            self._ids.append(scan.ids)

    def closed(self, connection: Connection, reason: CloseReason) -> None:
        """Ignore it."""

    async def run(self) -> None:
        """Answer what waits, no faster than the rate."""
        free_at = trio.current_time()
        while True:
            if not self._waiting:
                await self._more.sleep()
                continue
            connection, frame, items = self._waiting.popleft()
            free_at = max(free_at, trio.current_time()) + items / self._rate
            # Timers are coarse: a little ahead now and then keeps the rate.
            if free_at - trio.current_time() > 0.002:
                await trio.sleep_until(free_at)
            connection.answer(frame, ResponseCode.SUCCESS)

    def summary(self) -> dict[str, object]:
        """Return what was counted."""
        lateness = np.concatenate([np.zeros(0, np.int64), *self._lateness])
        is_hot = np.array(
            [name.startswith(HOT) for names in self._subjects for name in names], np.bool_
        )
        return {
            "received": len(lateness),
            "distinct": len({one for ids in self._ids for one in ids}),
            "early": int((lateness < 0).sum()),
            "first_ms": self.first_ms,
            "last_ms": self.last_ms,
            "lateness_ms": quantiles(lateness),
            "lateness_of_others_ms": quantiles(lateness[~is_hot]),
            "cpu_seconds": time.process_time(),
        }


async def main(port: int, rate: float) -> None:
    """Serve until SIGTERM."""
    counting = Counting(rate)
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            await nursery.start(
                serve_connections, TcpNetwork(), ("127.0.0.1", port), counting, ConnectionLimits()
            )
            nursery.start_soon(counting.run)
            print("ready", flush=True)
            async for _ in signals:
                break
            nursery.cancel_scope.cancel()
    print(json.dumps(counting.summary()), flush=True)


if __name__ == "__main__":
    set_up_log(level="warning", form="json")
    trio.run(main, int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else math.inf)
