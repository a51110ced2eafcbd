"""How many subjects a node takes that it has not seen before, where it asks a meta server for them.

A subject without a route takes a place and questions, and a meta server takes only so many new ones
of one address, which is this node for all of its producers. So one producer gets a share of both
only: first-seen subjects beyond it are put off (their items are to be sent again), and with them
nothing of a flood comes into the store. Subjects that are known are never put off: those whose
route is kept or asked for, and those of which there are rows in memory.

A subject that is taken is asked for at once, before what comes from disk: so the meta server knows
it whenever its messages are due, and what producers send now has its route first after a restart.
"""

import math
from collections.abc import Container
from typing import Final

import trio

from delay_server.lanes.routes import SubjectRoutes
from delay_transport.connections.connection import Connection
from delay_transport.seams.newcomers import Newcomers

RATE: Final = 200.0
"""First-seen subjects a second, for long: a meta server takes 250 of one address by default."""

BURST: Final = 8000
"""First-seen subjects at once after a quiet time."""

ADDRESS_SHARE: Final = 1 / 2
"""Of both, what producers of one address may take (an IPv6 network /64 counts as one)…"""

CONNECTION_SHARE: Final = 1 / 4
"""… and one connection."""

_LOGGED_S: Final = 60.0
"""The log says once in this time that new subjects are put off."""


class NewSubjects:
    """Decides about the subjects of items that arrive; lets `routes` ask for those it takes."""

    def __init__(self, routes: SubjectRoutes, known: Container[bytes]) -> None:
        """`known`: subjects of which there are rows in memory."""
        self.put_off_count = 0
        """Times that a subject was put off."""
        self._routes = routes
        self._known = known
        self._logged_at = -math.inf
        self._newcomers = Newcomers(
            "subjects are used for the first time",
            rate=RATE,
            burst=BURST,
            address=ADDRESS_SHARE,
            connection=CONNECTION_SHARE,
        )

    def refusal(self, source: Connection, subject: bytes) -> str | None:
        """Say why a subject has to come again later; None if it is taken, and asked for."""
        if not (subject in self._known or self._routes.is_kept(subject)):
            now = trio.current_time()
            told = self._newcomers.refusal(now, connection=source.peer, address=source.where)
            if told is not None:
                self.put_off_count += 1
                if now >= self._logged_at + _LOGGED_S:
                    self._logged_at = now
                    source.warn("new subjects are put off", reason=told, address=source.where)
                return told
        self._routes.expect(subject)
        return None
