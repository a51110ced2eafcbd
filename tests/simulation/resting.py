"""An operator who drains the node now and then, and what has to be true while it rests.

The server is drained in its life (delay_server/membership/planned_stop.py), and may be killed, cut
off power or stopped in order meanwhile. What he was answered is what counts:

    rest        from a drain that came to its end until it is undone, or an orderly stop, no message
                arrives that was not under way, and none is acknowledged; crashes and starts or not
    rest kept   a start finds the node at rest, or not, as it was answered or was being made
"""

import random
from collections import Counter
from dataclasses import dataclass, field

import trio

from delay_server.controls.controls_store import AuditEntry
from delay_server.server import DelayServer
from storage.disk.errors import StorageFullError
from tests.simulation.witness import Witness

_LOOK_S = 3.1
_RESTS_S = (0.0, 5.0, 60.0, 600.0, 600.0)
_DRAINS_S = (0.0, 5.0, 30.0)
_LATE_AFTER_S = 30.0
"""What has waited may leave until so long after the end of a rest."""


@dataclass(slots=True)
class _Rest:
    """A time in which nothing may come or go."""

    from_s: float
    until_s: float = float("inf")


@dataclass(slots=True)
class Resting:
    """Drains the server and undoes that, in one world."""

    chance: random.Random
    witness: Witness
    faults: Counter[str]
    length_s: float
    is_over: bool = False
    """The node is to go on, and is not drained any more."""
    _rests: list[_Rest] = field(default_factory=list)
    _possible: set[bool] = field(default_factory=lambda: {False})
    """Whether a start finds the node at rest: one of these."""

    @property
    def may_rest(self) -> bool:
        """Whether the server may have cause to say that it rests."""
        return True in self._possible

    def stop(self) -> None:
        """Have the node go on."""
        self.is_over = True

    async def run(self, server: DelayServer) -> None:
        """Drain and undo in one life of the server, until cancelled."""
        while not server.is_open:  # noqa: ASYNC110 (once in a life, and it costs nothing)
            await trio.sleep(0.05)
        self._begin_life(server)
        while True:
            if server.is_resting:
                await self._wait(self.chance.choice(_RESTS_S))
                await self._undo(server)
            else:
                await self._wait(self.chance.uniform(5, self.length_s / 12))
                if self.is_over:
                    return
                await self._drain(server)

    async def _wait(self, seconds: float) -> None:
        until_s = trio.current_time() + seconds
        # An event would be of this life or the next; it is seldom, and costs nothing.
        while trio.current_time() < until_s and not self.is_over:  # noqa: ASYNC110
            await trio.sleep(min(_LOOK_S, until_s - trio.current_time()))

    def _begin_life(self, server: DelayServer) -> None:
        if server.is_resting not in self._possible:
            self.witness.complain(f"rest kept: a start finds {server.is_resting}, against it")
        self._possible = {server.is_resting}
        if server.is_resting:
            self.faults["operator: started at rest"] += 1
            self._begin_rest()
        else:
            self.witness.rest_ended(_LATE_AFTER_S)

    def end_life(self, *, is_stopping: bool) -> None:
        """Note that the server is gone, or will be in a moment if it was told to stop."""
        if is_stopping:
            # It is ended in the beginning of the stop.
            self._possible.add(False)
            self._end_rest()

    def stopped(self) -> None:
        """Note that an orderly stop has come to its end."""
        self._possible = {False}

    def _begin_rest(self) -> None:
        if not self._rests or self._rests[-1].until_s != float("inf"):
            self._rests.append(_Rest(trio.current_time()))

    def _end_rest(self) -> None:
        if self._rests:
            self._rests[-1].until_s = min(self._rests[-1].until_s, trio.current_time())

    def _entry(self, action: str) -> AuditEntry:
        return AuditEntry(at_ms=0, who="operator", peer="", action=action, target="node")

    async def _drain(self, server: DelayServer) -> None:
        self.witness.rest_began()
        self._possible = {False, True}
        self.faults["operator: drained"] += 1
        try:
            report = await server.planned_stop.run(
                self.chance.choice(_DRAINS_S), self._entry("drain")
            )
        except StorageFullError:
            # The next start tells.
            self.witness.rest_ended(_LATE_AFTER_S)
            return
        if server.stopping:
            return
        self._possible = {True}
        if report["done"]:
            self._begin_rest()

    async def _undo(self, server: DelayServer) -> None:
        self._possible = {False, True}
        self._end_rest()
        try:
            await server.planned_stop.undo(self._entry("end drain"))
        except StorageFullError:
            await trio.sleep(_LOOK_S)
            return
        self._possible = {False}
        self.witness.rest_ended(_LATE_AFTER_S)

    def check(self) -> list[str]:
        """Return what came or went while the node was at rest, as violations."""
        witness = self.witness
        found = []
        for rest in self._rests:
            from_s = rest.from_s + witness.under_way_s + 1
            found += [
                f"rest: {one.message_id!r} arrived at {one.at_s:.3f}, at rest from "
                f"{rest.from_s:.3f}"
                for one in witness.receipts
                if from_s < one.at_s < rest.until_s
            ]
            found += [
                f"rest: {message_id!r} was acknowledged at {at_s:.3f}, at rest from "
                f"{rest.from_s:.3f}"
                for message_id, at_s in witness.acknowledged.items()
                if from_s < at_s < rest.until_s
            ]
        return found[:5]
