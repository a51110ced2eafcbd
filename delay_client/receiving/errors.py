"""What a handler raises to say that a message comes again, or never; what ends a receiver."""

# ruff: noqa: N818 (RetryLater and Reject are verdicts)

from delay_client.messages.item_encoder import delay_to_ms
from delay_client.messages.message import Delay


class RetryLater(Exception):
    """The message is to come again after a delay, whatever the retry policy says."""

    def __init__(self, delay: Delay) -> None:
        """Take a timedelta or seconds; raise InvalidMessage, a ValueError, for what is neither."""
        super().__init__(f"again after {delay}")
        self.delay_ms = delay_to_ms(delay)
        """The delay in ms."""


class Reject(Exception):
    """The message is never to come again: it becomes a dead letter with this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        """At most 255 bytes of UTF-8; the rest is cut off."""


class ReceiverRefusedError(Exception):
    """Nobody may receive in this way: of this name, say. `str()` says why; set it up otherwise."""
