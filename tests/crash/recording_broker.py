"""A broker process that writes down each delivery before it answers.

`python -m tests.crash.recording_broker CLOCK RECORD` prints its port and runs until its standard
input ends. The record has a line per delivery: life, monotonic ns, wall ms, due ms, CRC-32 of the
item's bytes, whether its own CRC is right, message id. A write call puts each line out of reach of
anything that happens to this process; nobody cuts this one's power.
"""

import os
import sys
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bridges.broker_end import Request
from tests.brokers import ThreadedBroker
from tests.crash.life_clock import LifeClock


class Recorder:
    """Answers each connection by the clock of the life that made it."""

    def __init__(self, clock: Path, record: Path) -> None:
        self._clock = clock
        self._record = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def handler(self) -> Callable[[Request], bytes]:
        """Return what answers the requests of a connection that begins now."""
        return partial(self._take, LifeClock.load(self._clock))

    def _take(self, clock: LifeClock, request: Request) -> bytes:
        if not request.has_items:
            return request.answer()
        at_ns = time.monotonic_ns()
        lines = [
            f"{clock.life} {at_ns} {clock.at(at_ns)} {due_ms} "
            f"{zlib.crc32(item)} {int(crc_ok)} {message_id.decode()}\n"
            for message_id, due_ms, item, crc_ok in zip(
                request.ids, request.scan.due_ms, request.items, request.scan.crc_ok, strict=True
            )
        ]
        os.write(self._record, "".join(lines).encode())
        return request.answer()


def run(clock: Path, record: Path) -> None:
    """Serve until standard input ends."""
    broker = ThreadedBroker(Recorder(clock, record).handler)
    sys.stdout.write(f"{broker.port}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]))
