"""The one way to the schedule_log: its calls happen one at a time and in order."""

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from delay_server.filing.checkpoints import SCHEDULE_WORKER
from delay_transport.seams.runtime import Executor

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class ScheduleAccess:
    """Calls of the schedule_log, in a worker of the executor of their own.

    That order is what makes a message enter the wheel exactly once (storage/schedule/handout.py).
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def run(self, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call something of the schedule_log."""
        return await self._executor.run(SCHEDULE_WORKER, fn, *args)
