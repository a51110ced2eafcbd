"""Admission of HTTP requests: their tokens, and how many are served at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog
import trio

from delay_transport.http.access import AccessError, AccessPolicy
from delay_transport.http.tokens import LOOK_S, Tokens
from delay_transport.seams.runtime import Executor
from meta_server.settings.config import AdminConfig

_READING_WORKER: Final = "tokens"
"""The worker of the executor that reads the file of tokens."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


class Entrance:
    """The tokens, what they allow, and the limit of concurrent requests.

    It works before the store is loaded.
    """

    def __init__(self, settings: AdminConfig, executor: Executor, *, own_address: str) -> None:
        """`own_address` is where HTTP is served."""
        self.settings = settings
        self._executor = executor
        self.tokens = tokens_of(settings)
        self.gate = AccessPolicy(self.tokens, own_address=own_address)
        self.busy = 0
        """Requests in progress."""

    async def read_tokens(self) -> None:
        """Read the file of tokens, if there is one."""
        if not self.tokens.are_needed:
            return
        if not await self._executor.run(_READING_WORKER, self.tokens.read):
            return
        if self.tokens.fault:
            _log.error("nobody is let in", reason=self.tokens.fault)
        else:
            _log.info("tokens were read", tokens=self.tokens.count)

    async def keep_tokens(self) -> None:
        """Watch the file of tokens until cancelled; ends at once without one."""
        while self.tokens.are_needed:
            await trio.sleep(LOOK_S)
            await self.read_tokens()

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Count a request in progress; raise AccessError if there are too many."""
        if self.busy >= self.settings.requests_max:
            raise AccessError(503, "busy", "too many requests at a time", retry_after_s=1)
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1


def tokens_of(settings: AdminConfig) -> Tokens:
    """Return the tokens of the settings, unread."""
    return Tokens(Path(settings.token_file) if settings.token_file else None)
