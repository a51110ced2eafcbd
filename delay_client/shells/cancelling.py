"""Tells an exception that ends a task from one that ends only what the task does just now."""

import asyncio
import contextlib
import math

import anyio

from delay_client.receiving.errors import ENDS_PROGRAM


def ends_task(error: BaseException, *, is_ours: bool = False) -> bool:
    """Return True if the current task is cancelled, or the program ends.

    A CancelledError alone does not say so: whoever waits for another task gets one when that is
    cancelled. A task of ours, which nobody else knows, is cancelled only by a scope around it;
    others by `task.cancel()` as well.
    """
    if isinstance(error, Exception):
        return False
    if BaseExceptionGroup("", [error]).subgroup(ENDS_PROGRAM) is not None:
        return True
    try:
        if anyio.current_effective_deadline() == -math.inf:
            return True
        task = None if is_ours else asyncio.current_task()
    except RuntimeError:
        # Trio, whose tasks are cancelled by scopes; or a loop that has ended, of which it is left.
        return is_ours
    return task is not None and task.cancelling() > 0


async def take_cancellation() -> None:
    """Raise CancelledError where `task.cancel()` was called on this task, and none came yet.

    That of a scope which is cancelled comes with the next await, as always.
    """
    task = _asyncio_task()
    if task is None or not task.cancelling():
        return
    if anyio.current_effective_deadline() > -math.inf:
        await asyncio.sleep(0)


async def forget_cancellation() -> None:
    """Count no `task.cancel()` of this task any more, whether it came or not: it goes on."""
    with contextlib.suppress(asyncio.CancelledError):
        await take_cancellation()
    task = _asyncio_task()
    while task is not None and task.cancelling():
        task.uncancel()


def _asyncio_task() -> asyncio.Task[object] | None:
    """Return the task that runs; None in trio, whose tasks are cancelled by scopes alone."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
