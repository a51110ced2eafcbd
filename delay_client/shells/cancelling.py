"""Tells an exception that ends a task from one that ends only what the task does just now."""

import asyncio
import math

import anyio

_ENDS_PROGRAM = (KeyboardInterrupt, SystemExit)


def ends_task(error: BaseException, *, is_ours: bool = False) -> bool:
    """Return True if the current task is cancelled, or the program ends.

    A CancelledError alone does not say so: whoever waits for another task gets one when that is
    cancelled. A task of ours, which nobody else knows, is cancelled only by a scope around it;
    others by `task.cancel()` as well.
    """
    if isinstance(error, Exception):
        return False
    if BaseExceptionGroup("", [error]).subgroup(_ENDS_PROGRAM) is not None:
        return True
    try:
        if anyio.current_effective_deadline() == -math.inf:
            return True
        task = None if is_ours else asyncio.current_task()
    except RuntimeError:
        # Trio, whose tasks are cancelled by scopes; or a loop that has ended, of which it is left.
        return is_ours
    return task is not None and task.cancelling() > 0
