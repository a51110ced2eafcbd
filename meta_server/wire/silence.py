"""Notices brokers and delay servers that have fallen silent, and takes groups from routes.

A process that was not running for a while heard nobody. That time does not count as silence.
"""

from collections.abc import Callable, Sequence
from typing import Final

import structlog
import trio

from meta_server.groups.broker_groups import plan_silence, watched
from meta_server.known.model import Change
from meta_server.wire.dispatch import Context

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_STALL_S: Final = 2.0
"""If this process was not running for longer than that (a stopped machine), the time does not count
as silence of others."""


class SilenceWatch:
    """The task that looks at what time alone changes."""

    def __init__(
        self,
        context: Context,
        *,
        look_s: float,
        on_look: Callable[[float], None],
        on_stall: Callable[[float], None],
    ) -> None:
        """Look every `look_s`, and call `on_look` with the time (trio) then.

        A look that is late by more than _STALL_S says that the process was not running: `on_stall`
        is called with the seconds.
        """
        self._context = context
        self._look_s = look_s
        self._on_look = on_look
        self._on_stall = on_stall
        self.stalls = 0
        """How often this process was not running for a while."""

    async def run(self) -> None:
        """Take groups from routes whose masters have fallen silent, and call `on_look`."""
        heard, looked_at = self._context.heard, trio.current_time()
        while True:
            self._look(looked_at)
            await trio.sleep(self._look_s)
            now = trio.current_time()
            missed = now - looked_at - self._look_s
            looked_at = now
            if missed > _STALL_S:
                # What was sent to us meanwhile is still unread.
                self.stalls += 1
                _log.warning("this process was not running for a while", seconds=round(missed, 1))
                heard.forgive(missed, now)
                self._on_stall(missed)

    def _look(self, now: float) -> None:
        heard, registry = self._context.heard, self._context.registry
        # Whoever is known by now has one time-out to be heard: a restart takes nobody from routes.
        heard.start(watched(registry), now)
        for name in heard.silent(now):
            group = registry.groups.get(name)
            if group is not None and group.is_watched:
                self._take_from_routes(name)
            else:
                heard.forget(name)
        self._on_look(now)

    def _take_from_routes(self, name: str) -> None:
        """Take a group from routes whose master is silent; what fails is tried at the next look."""
        context = self._context

        def plan() -> Sequence[Change]:
            if context.heard.is_heard(name, trio.current_time()):
                # It spoke while this waited.
                return ()
            _log.warning("a broker group timed out", group=name)
            return plan_silence(context.registry, name, now_ms=context.clock.now_ms())

        context.store_later(("group", name), plan=plan)
