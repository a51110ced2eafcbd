"""Looks through the files of a replica for damage that nobody has met, slowly, in the background.

A slave sends nothing, so it reads hardly anything of what it would have to send as the master. What
is found is told as what a read meets (damages.py).
"""

import random
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog
import trio

from delay_server.filing.checkpoints import SCHEDULE_WORKER
from delay_transport.seams.runtime import Executor
from storage.disk.errors import StorageError
from storage.node.scrub import Look, files_to_look_through
from storage.node.snapshot import CopiedFile
from storage.node.store import Store

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

SCRUB_WORKER: Final = "scrub"
ROUND_S: Final = 7 * 86_400.0
"""Seconds from the beginning of a look at all files to the next: each is read once in a week."""
FIRST_S: Final = 10.0
"""Seconds after a start until the first look: a start has enough to read."""
BYTES_PER_S_MAX: Final = 5_000_000
"""Bytes read in a second: a small share of what any disk gives."""
REST_FACTOR: Final = 99
"""It rests so many times as long as it has read: it takes 1 % of a core at the most, and reads the
less the longer a read takes, since the disk is busy…"""
REST_S_MAX: Final = 60.0
"""… but goes on after so many seconds."""
BUSY_S: Final = 1.0
"""Seconds between two looks whether the node is less busy."""
BUSY_BYTES: Final = 4 * 1024 * 1024
"""Bytes that are committed and wait for filing: from there on the disk is busy."""


class Scrub:
    """The scrub of one opened data directory."""

    def __init__(
        self,
        store: Store,
        *,
        executor: Executor,
        backlog_bytes: Callable[[], int],
        chance: random.Random,
    ) -> None:
        """Prepare; backlog_bytes: returns how many bytes wait for filing."""
        self._store = store
        self._executor = executor
        self._backlog_bytes = backlog_bytes
        self._chance = chance
        self.rounds = 0
        """The number of times that all files were looked through."""

    async def run(self) -> None:
        """Look through all files once in a week, until cancelled."""
        await trio.sleep(FIRST_S)
        while True:
            ends_at = trio.current_time() + ROUND_S
            paths: list[str] = []
            try:
                paths += await self._listed()
            except OSError as error:
                _log.warning("the files could not be listed to look through", reason=str(error))
            # Each start begins anew: in another order, so that it is not always the same first.
            self._chance.shuffle(paths)
            for path in paths:
                try:
                    await self._look_through(path)
                except (StorageError, OSError) as error:
                    _log.warning("a file was not looked through", path=path, reason=str(error))
            self.rounds += 1
            await trio.sleep_until(ends_at)

    async def _listed(self) -> dict[str, CopiedFile]:
        return await self._executor.run(SCRUB_WORKER, files_to_look_through, self._store)

    async def _look_through(self, path: str) -> None:
        """Report what is damaged at a second look as well, where the file still counts then."""
        for is_last in (False, True):
            file = (await self._listed()).get(path)
            if file is None:
                return
            look = Look(self._store.disk, file)
            while await self._read(look):
                pass
            if not look.damages:
                return
            if is_last and path in await self._listed():
                report = self._store.schedule.on_damage
                for damage in look.damages:
                    await self._executor.run(SCHEDULE_WORKER, partial(report, damage))

    async def _read(self, look: Look) -> int:
        """Read some, and rest."""
        while self._backlog_bytes() > BUSY_BYTES:  # noqa: ASYNC110 (it has time)
            await trio.sleep(BUSY_S)
        began = trio.current_time()
        read = await self._executor.run(SCRUB_WORKER, look.go_on)
        rest_s = max(read / BYTES_PER_S_MAX, (trio.current_time() - began) * REST_FACTOR)
        await trio.sleep(min(rest_s, REST_S_MAX))
        return read
