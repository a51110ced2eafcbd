"""Trouble: messages wait, and no server has accepted any for a while. Pure.

nothing to send --expect()--> watched --too long without accepted()--> told
        ^                       |  ^                                    |
        +----- not busy --------+  +------------ accepted() ------------+
"""

import logging
import math
from collections.abc import Callable
from typing import Final

from delay_protocol.basics.printable import printable

logger = logging.getLogger("delaywheel.client")

_TROUBLE_S: Final = 1.0
"""When messages wait and none was accepted for so long, it is told why."""
_LENGTH_MAX: Final = 500
"""Characters of why."""


class TroubleWatch:
    """Tells why messages are not accepted, once, and again only after one was."""

    def __init__(
        self,
        on_trouble: Callable[[str], None] | None,
        *,
        is_busy: Callable[[], bool],
        why: Callable[[], str],
        wake: Callable[[float], None],
    ) -> None:
        """Tell the log, and `on_trouble`.

        `is_busy` says whether any message waits; `wake` is called with times at which to poll().
        """
        self._on_trouble = on_trouble
        self._is_busy = is_busy
        self._why = why
        self._wake = wake
        self._is_told = False
        """Whether it was told since a message was last accepted."""
        self.at = math.inf
        """When there is trouble, unless a message is accepted before."""

    def expect(self, now: float) -> None:
        """Note that a message is to be sent."""
        if self.at == math.inf or (now >= self.at and not self._is_busy()):
            self.at = now + _TROUBLE_S
            self._wake(self.at)

    def accepted(self, server: str, now: float) -> None:
        """Note that a server has taken messages."""
        self.at = now + _TROUBLE_S
        if self._is_told:
            self._is_told = False
            logger.info("%s: messages are accepted again", server)

    def poll(self, now: float) -> None:
        """Tell of trouble that is there by now."""
        if not self._is_busy():
            self.at = math.inf
        if now < self.at:
            return
        self.at = math.inf
        if self._is_told:
            return
        self._is_told = True
        why = printable(self._why())[:_LENGTH_MAX]
        text = f"no message was accepted for {_TROUBLE_S:g} s ({why}): still trying"
        logger.warning("%s", text)
        if self._on_trouble is not None:
            try:
                self._on_trouble(text)
            except Exception:
                logger.exception("on_trouble failed")
