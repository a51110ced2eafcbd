"""Counts refusals and limits their log lines.

Refused brokers and nodes ask again about every second. The first refusal of an address for a reason
is logged, then one line in each interval with the number of refusals since.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Final

import trio

from delay_protocol.basics.codes import CommandCode
from delay_protocol.nodes.registration import REASON_LENGTH_MAX
from delay_transport.connections.connection import Connection

KINDS_MAX: Final = 1000
"""Kinds of refusals that are remembered; beyond that the oldest counts as new again."""


@dataclass(slots=True)
class _Kind:
    """One command refused to one address for one reason."""

    written_at: float
    """In trio time."""
    repeated: int = 0
    """Since then."""


class Refusals:
    """Counts refusals and writes them into the log; the listener bounds the lines of all kinds."""

    def __init__(self, *, remind_s: float) -> None:
        """Write the same again after so many seconds."""
        self.remind_s = remind_s
        self.by_command: Counter[str] = Counter()
        """All there were."""
        self._kinds: OrderedDict[tuple[str, str, str], _Kind] = OrderedDict()

    def __len__(self) -> int:
        """Return how many kinds are remembered."""
        return len(self._kinds)

    def note(self, connection: Connection, code: int, reason: str) -> None:
        """Take note of a request that is refused."""
        command = CommandCode(code).name
        self.by_command[command] += 1
        reason = reason[:REASON_LENGTH_MAX]
        now = trio.current_time()
        # Of the peer the host alone: one that connects anew is no other one.
        key = (command, connection.peer.rpartition(":")[0], reason)
        kind = self._kinds.get(key)
        if kind is not None:
            self._kinds.move_to_end(key)
            if now - kind.written_at < self.remind_s:
                kind.repeated += 1
                return
        repeated = {"repeated": kind.repeated} if kind is not None and kind.repeated else {}
        connection.warn("refused", command=command, reason=reason, **repeated)
        self._kinds[key] = _Kind(now)
        while len(self._kinds) > KINDS_MAX:
            self._kinds.popitem(last=False)
