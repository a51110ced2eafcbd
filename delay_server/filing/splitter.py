"""Splits coarse segments in good time, on every node."""

from collections.abc import Awaitable, Callable

import structlog
import trio

from delay_server.clock.pace import Pacer
from delay_server.filing.schedule_access import ScheduleAccess
from storage.disk.errors import StorageFullError
from storage.node.store import Store
from storage.schedule.splitting import SplitJob

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_AGAIN_S = 1.0
"""Shortest pause between two looks of a node that only files."""


class Splitter:
    """Begins and ends splits, one at a time."""

    def __init__(self, store: Store, access: ScheduleAccess, pacer: Pacer) -> None:
        self._store = store
        self._access = access
        self._pacer = pacer

    def begin(self) -> SplitJob | None:
        """Begin the next split that is due; to be called in the schedule_log's worker."""
        return self._store.schedule.splits.begin(self._pacer.now_ms())

    async def split(
        self, job: SplitJob, *, between: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
    ) -> bool:
        """Split a segment; False if there was no space: the rest comes later.

        between: is awaited between two steps.
        """
        try:
            while not await self._access.run(job.step, self._pacer.now_ms()):
                await between()
        except StorageFullError as error:
            _log.error("no space to split a segment", segment=job.key.name, error=str(error))
            return False
        if job.is_abandoned:
            _log.warning("a segment cannot be read; its split begins anew", segment=job.key.name)
        else:
            _log.info("segment split", segment=job.key.name)
        return True

    async def run(self) -> None:
        """Split what is due, on a node that loads nothing, until cancelled."""
        while True:
            job = await self._access.run(self.begin) if self._pacer.runs() else None
            if job is not None and await self.split(job):
                continue
            now_ms = self._pacer.now_ms()
            wait_ms = float(self._pacer.sleep_ms_max)
            next_ms = await self._access.run(self._store.schedule.splits.next_ms)
            if next_ms is not None:
                wait_ms = min(wait_ms, next_ms - now_ms)
            await trio.sleep(max(wait_ms / 1000, _AGAIN_S))
