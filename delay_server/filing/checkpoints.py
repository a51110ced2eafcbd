"""Checkpoints: what a start goes on from, and the moment at which old files are deleted."""

import math
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import structlog
import trio

from delay_server.clock.pace import Pacer
from delay_transport.seams.outbox import Wakeup
from delay_transport.seams.runtime import Executor
from storage.disk.errors import StorageFullError
from storage.node.store import Store
from storage.state.checkpoint import Checkpoint

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SCHEDULE_WORKER = "schedule_log"
CHECKPOINT_WORKER = "checkpoint"
FULL_RETRY_S = 1.0
"""Pause before what found no space is tried again."""


class Checkpoints:
    """Writes the checkpoints of one opened data directory."""

    def __init__(self, store: Store, *, executor: Executor, pacer: Pacer) -> None:
        self._store = store
        self._limits = store.settings.limits
        self._executor = executor
        self._pacer = pacer
        self._filed_bytes = 0
        self._check = Wakeup()
        self._hurry = trio.Event()
        self._writing = trio.Lock()
        self.written = 0
        """Checkpoints since the directory was opened."""

    def wake(self) -> None:
        """Look whether there is something new."""
        self._check.wake()

    def filed(self, size: int) -> None:
        """Count bytes of messages that were filed."""
        self._filed_bytes += size
        if self._filed_bytes >= self._limits.checkpoint_bytes:
            self._hurry.set()

    async def run(self) -> None:
        """Write a checkpoint every few seconds while there is something new."""
        while True:
            is_news = self._pacer.is_news(self._store.clock_known)
            if not is_news and not self._store.needs_checkpoint(self._pacer.trusted_ms()):
                with trio.move_on_after(self._next_s()):
                    await self._check.sleep()
                continue
            with trio.move_on_after(self._limits.checkpoint_interval_ms / 1000):
                await self._hurry.wait()
            await self.write()

    def write_soon(self) -> None:
        """Have a checkpoint written at once: the trust in the clock has changed, say."""
        self._hurry.set()
        self._check.wake()

    def _next_s(self) -> float:
        """Return seconds until there is something to do though nothing else happens."""
        next_ms = self._store.next_ms
        if next_ms is None:
            return math.inf
        return max(next_ms - self._pacer.trusted_ms(), 1) / 1000

    async def make_room(self, free_bytes_wanted: int) -> bool:
        """Delete what is retired or kept for its age only, oldest first, until so much is free.

        Returns False if there is no such thing.
        """
        helped = False
        # One checkpoint lists what goes, the next one deletes it.
        for _ in range(2):
            now_ms = self._pacer.trusted_ms()
            if await self._call(self._store.can_free, free_bytes_wanted, now_ms):
                await self.write(free_bytes_wanted)
                helped = True
        return helped

    async def write(self, free_bytes_wanted: int | None = None) -> None:
        """Write a checkpoint now; with `free_bytes_wanted` as `make_room` says."""
        async with self._writing:
            self._hurry = trio.Event()
            self._filed_bytes = 0
            # What one step takes down the next one needs, also where the role is lost meanwhile.
            with trio.CancelScope(shield=True):
                was_written = await self._write(free_bytes_wanted)
            if not was_written:
                await trio.sleep(FULL_RETRY_S)

    async def take_whole(self) -> Checkpoint | None:
        """Write a checkpoint; return it, or None if rows wait in memory that it does not cover."""
        await self.write()
        return self._store.whole_checkpoint

    async def _write(self, free_bytes_wanted: int | None) -> bool:
        # Ages are counted by it, so a clock that leapt ahead deletes nothing.
        now_ms = self._pacer.trusted_ms()
        store = self._store
        work = await self._call(
            store.prepare_checkpoint, now_ms, free_bytes_wanted, self._pacer.mark()
        )
        try:
            await self._executor.run(CHECKPOINT_WORKER, work.write)
        except StorageFullError as error:
            await self._call(store.abandon_checkpoint, work)
            _log.error("no space for a checkpoint", error=str(error))
            return False
        await self._call(store.finish_checkpoint, work)
        self.written += 1
        if work.seals:
            _log.info("segments sealed", count=len(work.seals))
        return True

    async def _call(self, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        return await self._executor.run(SCHEDULE_WORKER, fn, *args)
