"""Removes old audit entries, by age and by number, a few hundred in a commit.

The removal takes the same queue as all other changes, so no request waits longer for the store than
for any other commit. Entries that delay servers cause by registering have a bound of their own, so
they never displace entries of people.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Protocol

import structlog
import trio

from delay_transport.seams.runtime import Clock
from meta_server.known.errors import StoreError
from meta_server.known.model import AuditAge, AuditCounts, Change, ForgetAudit
from meta_server.settings.config import AuditConfig

_AT_ONCE: Final = 500
"""Entries that one commit forgets."""

_PAUSE_S: Final = 0.05
"""Between two such commits, for those who wait for the store."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


class AuditReader(Protocol):
    """The way to the store; both raise StoreError."""

    async def count_audit(self) -> AuditCounts:
        """Return how many entries there are."""

    async def oldest_audit(self, *, by_node: bool, limit: int) -> tuple[AuditAge, ...]:
        """Return up to `limit` entries of one kind, oldest first."""


class AuditKeeper:
    """The task that forgets, and what it saw."""

    def __init__(
        self,
        settings: AuditConfig,
        *,
        clock: Clock,
        reading: AuditReader,
        commit: Callable[[str, Callable[[], Sequence[Change]]], Awaitable[bool]],
    ) -> None:
        """`commit(key, plan)` has something stored and says whether it is."""
        self._settings = settings
        self._clock = clock
        self._reading = reading
        self._commit = commit
        self._began_ms = clock.now_ms()
        self._began_at = trio.current_time()
        self.counts = AuditCounts(asked=0, by_node=0)
        """As they were at the last look."""
        self.forgotten = 0
        """Entries; the number only grows."""

    async def run(self) -> None:
        """Look, and forget, until cancelled."""
        while True:
            try:
                await self._look()
            except StoreError as error:
                # Whoever wants to change something is told; here it can wait.
                _log.debug("the audit could not be read", reason=str(error))
            await trio.sleep(self._settings.look_ms / 1000)

    async def _look(self) -> None:
        self.counts = await self._reading.count_audit()
        for by_node, count, keep in (
            (False, self.counts.asked, self._settings.entries_max),
            (True, self.counts.by_node, self._settings.node_entries_max),
        ):
            forgotten = await self._forget(by_node=by_node, surplus=max(count - keep, 0))
            if forgotten:
                self.counts = await self._reading.count_audit()
                _log.info(
                    "old audit entries removed",
                    of="delay servers" if by_node else "what was asked for",
                    entries=forgotten,
                    left=self.counts.by_node if by_node else self.counts.asked,
                )

    async def _forget(self, *, by_node: bool, surplus: int) -> int:
        """Forget `surplus` entries, and all that are too old; return how many that were."""
        forgotten = 0
        while True:
            oldest = await self._reading.oldest_audit(by_node=by_node, limit=_AT_ONCE)
            before_ms = self._now_ms() - self._settings.keep_ms
            numbers = [
                entry.number
                for place, entry in enumerate(oldest, start=forgotten)
                if place < surplus or entry.at_ms < before_ms
            ]
            if not numbers or not await self._commit("audit", partial(_forgetting, numbers)):
                return forgotten
            forgotten += len(numbers)
            self.forgotten += len(numbers)
            if len(numbers) < _AT_ONCE:
                return forgotten
            await trio.sleep(_PAUSE_S)

    def _now_ms(self) -> int:
        """Return the time by which entries are old: a clock that is set ahead makes none older."""
        passed_ms = int((trio.current_time() - self._began_at) * 1000)
        return min(self._clock.now_ms(), self._began_ms + passed_ms)


def _forgetting(numbers: Sequence[int]) -> Sequence[Change]:
    return [ForgetAudit(number) for number in numbers]
