"""Brings a node to rest before it is stopped on purpose, so that nothing is in doubt afterwards.

    RUNNING --> LEAVING    clients are told to go elsewhere; messages are taken meanwhile
            --> CLOSED     no message is taken any more
            --> RESTING    nothing is sent any more; what is in flight is answered, and what was
                           given up becomes a dead letter

Where a meta server tells clients, what they still send after that is refused with item code 4: they
have another group by then. Without one there is nowhere else to go: requests are held and answered
51, and producers try again until the node is back.

A node that rests goes on running: `undo` brings it back. It is kept on disk that it rests, so a
crash does not bring it back, nor does whoever starts it again then. The stop that it was for, an
orderly one, ends it: the next start takes and sends messages.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import trio

from delay_protocol.meta.requests import BrokerState
from delay_server.controls.controls_store import AuditEntry

if TYPE_CHECKING:
    from delay_server.server import DelayServer

_LOOK_S = 0.02
"""Time between two looks at whether something is at its end."""


class Phase(Enum):
    """How far a planned stop has come."""

    RUNNING = "running"
    LEAVING = "leaving"
    CLOSED = "closed"
    RESTING = "resting"


@dataclass(slots=True)
class PlannedStop:
    """The steps, and what is left at each."""

    server: "DelayServer"
    phase: Phase = Phase.RUNNING

    @property
    def is_leaving(self) -> bool:
        """Whether clients are told that the node takes nothing."""
        return self.phase is not Phase.RUNNING

    @property
    def is_closed(self) -> bool:
        """Whether no message is taken any more."""
        return self.phase in {Phase.CLOSED, Phase.RESTING}

    async def run(self, seconds: float, entry: AuditEntry) -> dict[str, Any]:
        """Go through all steps in at most so many seconds; return what is left, as `report`.

        What did not come to its end in time is left as it is: the node rests all the same. `entry`
        is what the audit has of it. Raises StorageFullError (nothing has changed then, but a start
        may find the node at rest) or FatalDiskError.
        """
        server = self.server
        await server.operator.set_drained(entry, drained=True)
        deadline = trio.current_time() + seconds
        if self.phase is Phase.RUNNING:
            # Whoever asks once more goes on from there: a node at rest sends nothing meanwhile.
            self.phase = Phase.LEAVING
        try:
            await self._rest(deadline)
        finally:
            # Also if nobody waits for it any more: it is kept on disk that it rests.
            self._step(Phase.LEAVING, Phase.RESTING)
            self._step(Phase.CLOSED, Phase.RESTING)
        with trio.move_on_at(max(deadline, trio.current_time() + _LOOK_S)):
            await self._until(lambda: not server.sender.in_flight and not server.burying.count)
        return self.report()

    async def _rest(self, deadline: float) -> None:
        server = self.server
        server.tell_state()
        with trio.move_on_at(min(deadline, trio.current_time() + self._telling_s)):
            await self._until(lambda: self._clients_are_told)
        self._step(Phase.LEAVING, Phase.CLOSED)
        with trio.move_on_at(deadline):
            await self._until(lambda: not server.ingest.is_busy)
            await self._until(lambda: not server.connections)

    def _step(self, before: Phase, after: Phase) -> None:
        if self.phase is before:
            self.phase = after
            self.server.follow_planned_stop()

    async def _until(self, condition: Any) -> None:  # noqa: ANN401 (any condition)
        """Wait for a condition, or until somebody has undone all this."""
        # Any condition, seldom, and for a short time.
        while self.phase is not Phase.RUNNING and not condition():  # noqa: ASYNC110
            await trio.sleep(_LOOK_S)

    @property
    def _telling_s(self) -> float:
        return self.server.config.meta.offline_seconds_max

    @property
    def _clients_are_told(self) -> bool:
        registration = self.server.registration
        return registration is None or registration.announced in {None, BrokerState.NRW}

    async def undo(self, entry: AuditEntry) -> None:
        """Take and send messages again. Raises as `run`; the node rests then as before."""
        await self.server.operator.set_drained(entry, drained=False)
        self.phase = Phase.RUNNING
        self.server.follow_planned_stop()
        self.server.tell_state()

    def report(self) -> dict[str, Any]:
        """Return how far it has come and what is left, as plain values."""
        server = self.server
        unsent, recording = server.sender.unsent(), server.burying.count
        waits_for = []
        if self.phase is not Phase.RUNNING:
            if not self._clients_are_told:
                waits_for.append("the meta server to tell clients")
            if server.connections:
                waits_for.append(f"{server.connections} connections to be closed by their clients")
            if unsent.in_flight:
                waits_for.append(f"{unsent.in_flight} messages in flight to be answered")
            if recording:
                why = ": there is no free disk" if server.burying.lacks_space else ""
                waits_for.append(f"{recording} dead letters to be recorded{why}")
        return {
            "phase": self.phase.value,
            "done": self.phase is Phase.RESTING and not (unsent.in_flight or recording),
            "waits_for": waits_for,
            "connections": server.connections,
            "held_requests": server.ingest.held_requests,
            "in_flight": unsent.in_flight,
            "in_doubt": unsent.in_doubt,
            "dead_being_recorded": recording,
            "held": unsent.total - unsent.in_flight + server.meters.count,
        }
