"""What every server process does with its surroundings: signals, and the limit of open files."""

import resource
import signal
from collections.abc import Callable

import structlog
import trio

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


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
