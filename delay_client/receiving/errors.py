"""What a handler raises to say that a message comes again, or never; what ends a receiver."""

# ruff: noqa: N818 (RetryLater and Reject are verdicts)

from typing import Final

from delay_client.messages.item_encoder import delay_to_ms
from delay_client.messages.message import Delay


class RetryLater(Exception):
    """The message is put off: it comes again after a delay, and that is no try."""

    def __init__(self, delay: Delay) -> None:
        """Take a timedelta or seconds; raise InvalidMessage, a ValueError, for what is neither."""
        super().__init__(f"again after {delay}")
        self.delay_ms = delay_to_ms(delay)
        """The delay in ms."""


class Reject(Exception):
    """The message is never to come again: it becomes a dead letter with this reason."""

    def __init__(self, reason: object) -> None:
        super().__init__(reason)
        self.reason = text_of(reason)
        """A text of what was given. Up to 1,024 bytes of its UTF-8 are kept."""


ENDS_PROGRAM: Final = (KeyboardInterrupt, SystemExit)
"""Exceptions that are nobody's failure."""


def text_of(thing: object) -> str:
    """Return `str()` of anything, or a text that says why there is none."""
    try:
        return str(thing)
    except ENDS_PROGRAM:
        raise
    except BaseException as error:  # noqa: BLE001 (whatever a service wrote)
        return f"{type(thing).__name__}, whose text cannot be made: {type(error).__name__}"


class ReceiverRefusedError(Exception):
    """Nobody may receive in this way: of this name, say. `str()` says why; set it up otherwise."""
