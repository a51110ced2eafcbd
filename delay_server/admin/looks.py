"""Looks at all rows of a node, one at a time, beside everything that is delivered meanwhile.

The schedule_log's worker only takes down what there is (`storage/readers/looking.py`). Another
worker does the rest in steps of a few ms, with a pause behind each: the loop, which shares the
interpreter with it, is never kept waiting for long. A look whose caller is cancelled ends with its
step.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import trio

from delay_server.node import Node
from delay_transport.http.problems import RequestError
from delay_transport.seams.runtime import Executor
from storage.readers.looking import Look, Present, take_present

WAITING_MAX: Final = 8
"""Looks that are under way or wait for their turn. One more is answered 429."""
_FILED_WITHIN_S: Final = 5.0
"""What was acknowledged is filed within milliseconds, unless the disk stalls or is full."""
_PAUSE_S: Final = 0.002
_WORKER: Final = "looks"

AnyLook = TypeVar("AnyLook", bound=Look)


class Looks:
    """Takes turns: a look has a few MiB of a file in memory, and the facts of one segment."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._turn = trio.Lock()
        self._count = 0

    async def run(self, node: Node, make: Callable[[Present], AnyLook]) -> AnyLook:
        """Return a look at all that is acknowledged by now, once it is over.

        It is behind where the disk stalls, or is full. Raises RequestError if too many looks wait.
        """
        if self._count >= WAITING_MAX:
            raise RequestError(
                429,
                "looks",
                f"{WAITING_MAX} looks at all messages wait already, and are made one by one: "
                "ask again",
                retry_after_s=5,
            )
        self._count += 1
        try:
            async with self._turn:
                with trio.move_on_after(_FILED_WITHIN_S) as filed:
                    await node.filer.drain_present()
                schedule = node.store.schedule
                look = make(await node.access.run(take_present, schedule))
                look.is_behind = filed.cancelled_caught
                is_over = False
                while not is_over:
                    is_over = await self._executor.run(_WORKER, look.step)
                    await trio.sleep(_PAUSE_S)
                return look
        finally:
            self._count -= 1
