"""Notices brokers and delay servers that have fallen silent, and takes groups from routes.

A process that was not running for a while heard nobody. That time does not count as silence.
"""

from collections.abc import Callable, Sequence
from typing import Final

import structlog
import trio

from delay_transport.seams.runtime import Clock
from meta_server.groups.broker_groups import plan_silence, watched
from meta_server.groups.liveness import Liveliness
from meta_server.known.commits import Committer, Intent
from meta_server.known.errors import MetaServerError
from meta_server.known.model import Change
from meta_server.known.registry import Registry

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_STALL_S: Final = 2.0
"""If this process was not running for longer than that (a stopped machine), the time does not count
as silence of others."""


class SilenceWatch:
    """The task that looks at who is silent."""

    def __init__(
        self,
        *,
        registry: Registry,
        committer: Committer,
        heard: Liveliness,
        clock: Clock,
        look_s: float,
        on_look: Callable[[float], None],
        on_stall: Callable[[float], None],
    ) -> None:
        """Look every `look_s`, and call `on_look` with the time (trio) then.

        A look that is late by more than _STALL_S says that the process was not running: `on_stall`
        is told for how many seconds.
        """
        self._registry = registry
        self._committer = committer
        self._heard = heard
        self._clock = clock
        self._look_s = look_s
        self._on_look = on_look
        self._on_stall = on_stall
        self._silent: dict[str, None] = {}
        """Groups that are silent, which the store could not be told."""
        self.stalls = 0
        """How often this process was not running for a while."""

    def wait_for_all(self) -> None:
        """Count everybody known as heard now, unless heard before: nobody flaps for our sake."""
        now = trio.current_time()
        self._heard.groups.start(
            (name for name in watched(self._registry) if name not in self._silent), now
        )
        self._heard.nodes.start(self._registry.nodes, now)

    def entered(self, group: str) -> None:
        """Count a group as heard now, unless it was: an operator may have made it."""
        self._heard.groups.start([group], trio.current_time())

    def forget(self, group: str) -> None:
        """Wait no longer for a group that was removed."""
        self._heard.groups.forget(group)
        self._silent.pop(group, None)

    async def run(self) -> None:
        """Take groups from routes whose masters have fallen silent, and answer what is overdue."""
        looked_at = trio.current_time()
        while True:
            await trio.sleep(self._look_s)
            now = trio.current_time()
            missed = now - looked_at - self._look_s
            looked_at = now
            if missed > _STALL_S:
                # What was sent to us meanwhile is still unread.
                self.stalls += 1
                _log.warning("this process was not running for a while", seconds=round(missed, 1))
                self._heard.groups.forgive(missed, now)
                self._heard.nodes.forgive(missed, now)
                self._on_stall(missed)
            self._silent |= dict.fromkeys(self._heard.groups.take_silent(now))
            self._heard.nodes.take_silent(now)
            self._tell_silent()
            self._on_look(now)

    def _tell_silent(self) -> None:
        if self._committer.is_stale:
            return
        silent, self._silent = self._silent, {}
        for name in silent:
            _log.warning("a broker group timed out", group=name)
            self._take_from_routes(name)

    def _take_from_routes(self, name: str) -> None:
        """Take a group from routes whose master has been silent; try again later if that fails."""

        def done(error: MetaServerError | None) -> None:
            if error is not None:
                self._silent[name] = None

        def plan() -> Sequence[Change]:
            if self._heard.groups.is_heard(name, trio.current_time()):
                # It spoke while this waited.
                return ()
            return plan_silence(self._registry, name, now_ms=self._clock.now_ms())

        try:
            self._committer.submit(Intent(keys=(("group", name),), plan=plan, done=done))
        except MetaServerError as error:
            done(error)
