"""A real-time broker that only counts: `python -m benchmarks.receiver PORT`.

Prints `ready`, and on SIGTERM one JSON line: received, distinct, early, first_ms, last_ms and
lateness_ms.
"""

import json
import signal
import sys
import time

import numpy as np
import trio

from benchmarks.quantiles import quantiles
from bridges.broker_end import Request
from delay_protocol.basics.codes import ResponseCode
from delay_protocol.wire.frames import Frame
from delay_transport.connections.connection import CloseReason, Connection
from delay_transport.connections.limits import ConnectionLimits
from delay_transport.connections.listener import serve_connections
from delay_transport.seams.runtime import TcpNetwork
from delaywheel.shared.log_output import set_up_log


class Counting:
    """Counts items and keeps how late each was."""

    def __init__(self) -> None:
        self._ids: list[list[bytes]] = []
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
            connection.answer(request.frame, ResponseCode.SUCCESS)
            self.first_ms = self.first_ms or now_ms
            self.last_ms = now_ms
            # The rest is for summary(): what is done here takes its time from the server's.
            self._lateness.append(now_ms - np.array(scan.due_ms))
            self._ids.append(scan.ids)

    def closed(self, connection: Connection, reason: CloseReason) -> None:
        """Ignore it."""

    def summary(self) -> dict[str, object]:
        """Return what was counted."""
        lateness = np.concatenate([np.zeros(0, np.int64), *self._lateness])
        return {
            "received": len(lateness),
            "distinct": len({one for ids in self._ids for one in ids}),
            "early": int((lateness < 0).sum()),
            "first_ms": self.first_ms,
            "last_ms": self.last_ms,
            "lateness_ms": quantiles(lateness),
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
