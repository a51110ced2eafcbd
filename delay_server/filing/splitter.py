"""Splits coarse segments in good time, on every node, and tries again what cannot be read."""

from collections.abc import Awaitable, Callable

import structlog
import trio

from delay_server.clock.pace import Pacer
from delay_server.filing.schedule_access import ScheduleAccess
from storage.disk.errors import ReadFailedError, StorageFullError
from storage.disk.spans import SegmentKey
from storage.node.store import Store
from storage.schedule.splitting import SplitJob

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_AGAIN_S = 1.0
"""Shortest pause between two looks of a node that only files."""


class ReadFailures:
    """Files of the schedule_log that the operating system could not read."""

    def __init__(self, store: Store, access: ScheduleAccess) -> None:
        self._store = store
        self._limits = store.settings.limits
        self._access = access
        self.count = 0
        """Times that a file of the schedule_log could not be read."""

    async def failed(self, error: ReadFailedError, *, may_give_up: bool = True) -> float:
        """Count and tell that a file could not be read; return seconds until it is to be tried.

        After the last try what cannot be read is taken for damage, where it may be given up.
        """
        self.count += 1
        troubles = self._store.schedule.troubles
        unread = troubles.unread.get(error.path)
        failures = 1 if unread is None else unread.failures
        wait_ms = self._limits.read_retry_ms(failures)
        given_up = unread is not None and unread.given_up
        if may_give_up and not given_up and failures >= self._limits.read_tries:
            await self._access.run(troubles.give_up_on, error.path)
            _log.error(
                "a file cannot be read: what of it cannot be is taken for damage",
                path=error.path,
                errno=error.errno,
                reason=error.reason,
                failures=failures,
            )
            # What can be read of it is not to wait any longer.
            wait_ms = self._limits.read_retry_ms_min
        elif failures == 1:
            _log.warning(
                "a file cannot be read; it is tried again",
                path=error.path,
                errno=error.errno,
                reason=error.reason,
                wait_ms=wait_ms,
            )
        return wait_ms / 1000


class Splitter:
    """Begins and ends splits, one at a time."""

    def __init__(
        self, store: Store, access: ScheduleAccess, pacer: Pacer, failures: ReadFailures
    ) -> None:
        self._store = store
        self._access = access
        self._pacer = pacer
        self._failures = failures
        self._postponed: dict[SegmentKey, float] = {}
        """Segments whose split could not read them, and when it is begun again."""

    def begin(self) -> SplitJob | None:
        """Begin the next split that is due; to be called in the schedule_log's worker."""
        return self._store.schedule.splits.begin(self._pacer.now_ms(), postponed=self._postponed)

    def forget_postponed(self) -> None:
        """Begin again what could not be read, where it is time to."""
        now = trio.current_time()
        self._postponed = {key: at for key, at in self._postponed.items() if at > now}

    def ms_until_next(self, next_split_ms: int, now_ms: int) -> float:
        """Return ms from now until a split is to be begun, of which the next would be due then."""
        now = trio.current_time()
        again_ms = min((max(at - now, 0) * 1000 for at in self._postponed.values()), default=0)
        return max(next_split_ms - now_ms, 1000, again_ms)

    async def split(
        self, job: SplitJob, *, between: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
    ) -> bool:
        """Split a segment; False if there was no space: the rest comes later.

        between: is awaited between two steps.
        """
        try:
            while not await self._access.run(job.step, self._pacer.now_ms()):
                await between()
        except ReadFailedError as error:
            deadline_ms = self._store.schedule.splits.deadline_ms(job.key)
            is_urgent = self._pacer.now_ms() >= deadline_ms
            wait_s = await self._failures.failed(error, may_give_up=is_urgent)
            self._postponed[job.key] = trio.current_time() + wait_s
            return True
        except StorageFullError as error:
            _log.error("no space to split a segment", segment=job.key.name, error=str(error))
            return False
        _log.info("segment split", segment=job.key.name)
        return True

    async def run(self) -> None:
        """Split what is due, on a node that loads nothing, until cancelled."""
        while True:
            self.forget_postponed()
            job = await self._access.run(self.begin) if self._pacer.runs() else None
            if job is not None and await self.split(job):
                continue
            now_ms = self._pacer.now_ms()
            wait_ms = float(self._pacer.sleep_ms_max)
            next_ms = await self._access.run(self._store.schedule.splits.next_ms)
            if next_ms is not None:
                wait_ms = min(wait_ms, self.ms_until_next(next_ms, now_ms))
            await trio.sleep(max(wait_ms / 1000, _AGAIN_S))
