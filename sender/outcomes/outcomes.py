"""What the sender reports of an entry once nothing more is to be done for it."""

from enum import IntEnum


class Outcome(IntEnum):
    """How a message left the sender; the numbers are those of the dispatch log."""

    DELIVERED = 1
    """The broker group took it."""
    KNOWN = 2
    """The broker group said that it had the message already."""
