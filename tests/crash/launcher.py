"""A delay server that dies where it is told to: `python -m tests.crash.launcher ORDERS ...`.

It is `delaywheel` with the arguments that follow the file of orders, in a process whose clock, size
of log files and, if the orders say so, one rule (breaks.py) or one moment of death (points.py) are
the harness's.
"""

import dataclasses
import functools
import sys
import time
from pathlib import Path

import msgspec
import trio

from delay_server.settings.config import StorageConfig
from delay_transport.seams.runtime import SystemClock
from delay_transport.settings import settings_file
from delaywheel.main import main
from tests.crash.breaks import BREAKS
from tests.crash.life_clock import FastTrioClock, LifeClock
from tests.crash.patching import put_in
from tests.crash.points import Target, arm


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What one life is told."""

    clock: str
    """File with the clock of the life."""

    point: str | None = None
    """Where to die, if not by a signal from outside."""

    event: int = 0
    stage: str = "before"

    report: str
    """File that tells what was hit."""

    broken: str | None = None
    """Which rule to take out."""


def follow(orders: Orders) -> None:
    """Change this process as ordered."""
    clock = LifeClock.load(Path(orders.clock))
    put_in(
        SystemClock,
        now_ms=lambda _self: clock.now_ms(),
        boot_ms=lambda _self: time.monotonic_ns() * clock.rate // 1_000_000,
        # Between two lives it is set: so each is another boot, and somebody vouches for it.
        boot_id=lambda _self: f"life {clock.life}",
        synchronised=lambda _self: True,
    )
    # All that takes time is hurried, constants too.
    put_in(settings_file, settings_of=dataclasses.fields)
    put_in(trio, run=functools.partial(trio.run, clock=FastTrioClock(clock.rate)))
    # Log files are rolled all the time: smaller than a node lets them be.
    put_in(StorageConfig, __post_init__=lambda _self: None)
    if orders.broken is not None:
        BREAKS[orders.broken]()
    if orders.point is not None:
        arm(Target(orders.point, orders.event, orders.stage, Path(orders.report)))


if __name__ == "__main__":
    follow(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Orders))
    main(sys.argv[2:], prog_name="delaywheel")
