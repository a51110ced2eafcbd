"""What a server process does with its surroundings: signals, open files, memory, the collector."""

import ctypes
import gc
import resource
import signal
import sys
from collections.abc import Callable
from typing import Final

import structlog
import trio

from delay_transport.seams.runtime import Address, format_address

_COLLECT_AFTER: Final = (1_000, 3, 800)
"""Objects made and not freed before the youngest are looked through; and how many of those rounds
make a round of the next generation. So all that came since the start is looked through once for
every 2,400,000 objects more: with 10,000 connections that takes half a second in which nothing else
is done, and finds next to nothing, since what is done with goes without the collector. The younger
rounds are small, since nothing else is done in them either. They have many more objects than are
counted: thousands of connections that are served at once free as many as they make."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


def keep_freed_memory() -> None:
    """Have glibc's malloc use freed memory again instead of giving it back to the kernel.

    Commits and flushes need buffers of many MiB again and again; faulting their pages in anew costs
    more than copying into them. All threads share one arena, since Python's lock lets one of them
    run at a time anyway: to be called before there is a second thread, whose own arena would be
    shared as well, and each keeps what was freed there. Where there is no glibc nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, 256 << 20)


async def stop_on_signals(
    stop: trio.Event, everything: trio.CancelScope, *, is_ready: Callable[[], bool]
) -> None:
    """Stop in good order at the first SIGTERM or SIGINT; at once while starting, or at the second.

    In good order: `stop` is set. At once: `everything` is cancelled.
    """
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            _log.info("stopping", signal=signal.Signals(number).name)
            if stop.is_set() or not is_ready():
                everything.cancel()
            stop.set()


def allow_open_files(needed: int) -> int:
    """Raise this process's limit of open files to `needed`, as far as the system lets us.

    Returns the limit there is then; below `needed` it is all there can be.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


async def announce(ready: trio.Event, address: Callable[[], Address], http: str) -> None:
    """Print the one line of standard output, with where the server listens, once it is ready."""
    await ready.wait()
    settle_memory()
    sys.stdout.write(f"ready listen={format_address(address())} http={http}\n")
    sys.stdout.flush()


def settle_memory() -> None:
    """Have the garbage collector leave alone what stands now, and look through the rest seldom.

    For a server that has started: what it has loaded stays, and to look through it again and again
    would take tens of milliseconds in one go.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
