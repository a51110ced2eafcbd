"""Counts refusals and limits their log lines.

Refused brokers and nodes ask again about every second. The first refusal of an address for a reason
is logged, then one line in each interval with the number of refusals since.
"""

from collections import Counter

from delay_protocol.basics.codes import CommandCode
from delay_protocol.nodes.registration import REASON_LENGTH_MAX
from delay_transport.connections.connection import Connection
from delay_transport.seams.trouble import Trouble

_REMIND_S = 60.0
"""Between two lines in the log about refusals of the same address for the same reason; those in
between are counted."""


class Refusals:
    """Counts refusals and writes them into the log; the listener bounds the lines of all kinds."""

    def __init__(self) -> None:
        self.by_command: Counter[str] = Counter()
        """All there were."""
        self.trouble = Trouble(again_s=_REMIND_S)

    def note(self, connection: Connection, code: int, reason: str) -> None:
        """Take note of a request that is refused."""
        command = CommandCode(code).name
        self.by_command[command] += 1
        reason = reason[:REASON_LENGTH_MAX]
        # Of the peer the host alone: one that connects anew is no other one.
        kind = (command, connection.peer.rpartition(":")[0], reason)
        self.trouble.log(connection.warn, "refused", *kind, command=command, reason=reason)
