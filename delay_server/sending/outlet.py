"""Applies the controls: pauses, limits and weights take effect in the lanes and in the sender.

A change is stored first, then applied, then answered. Once a pause is answered, the sender starts
no request with messages of its subjects; requests in flight may still succeed. The sender drops its
other messages of these subjects, those that were put off when their wait ends, and they wait on
disk like all the rest.
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import trio

from delay_protocol.nodes.controls import Controls
from delay_server.controls.controls_store import ControlsStore
from delay_server.filing.loader import Loader
from delay_server.lanes.lanes import Lanes
from delay_server.lanes.subject_rules import LaneRules
from delay_transport.seams.runtime import Executor
from sender.groups.group_rules import GroupRule
from sender.sender import Sender
from storage.batch.entries import Entries

CONTROLS_WORKER = "controls"


class Outlet:
    """Stores and applies the controls, and offers due messages to the sender."""

    def __init__(
        self,
        store: ControlsStore,
        *,
        lane_rules: LaneRules,
        lanes: Lanes,
        sender: Sender,
        loader: Loader,
        executor: Executor,
        set_weights: Callable[[Mapping[str, float]], None],
        on_room: Callable[[], None],
        on_barred: Callable[[Entries], None],
        on_shared: Callable[[Entries], None],
    ) -> None:
        """Have the controls that are stored hold from the start; nothing was offered yet.

        on_room: there may be more room in the sender, and for what is held at all. on_barred: for
        what the meta server refuses for good. on_shared: for what several names receive.
        """
        self._store = store
        self._lane_rules = lane_rules
        self._lanes = lanes
        self._sender = sender
        self._loader = loader
        self._executor = executor
        self._set_weights = set_weights
        self._on_room = on_room
        self._on_barred = on_barred
        self._on_shared = on_shared
        self.applied = Controls()
        """What holds; a change that is being made durable is not in it."""
        self._follow()

    # -- changes -----------------------------------------------------------------------------

    async def take(self, told: Controls) -> None:
        """Store and apply other controls, holding `taking`.

        Raises StorageFullError (nothing has changed then) or FatalDiskError.
        """
        # Whoever asked may go away meanwhile: half a change would be worse than none.
        with trio.CancelScope(shield=True):
            await self._executor.run(CONTROLS_WORKER, self._store.take, told)
            if self._store.controls is not self.applied:
                await self._apply()

    async def _apply(self) -> None:
        """Bring everything that is in memory to where it belongs by the present controls."""
        self._follow()
        for _ in self._lane_rules.place_known():
            await trio.lowlevel.checkpoint()
        # In all lanes: what waits for a group is there under the lane that it had when it came.
        # Last in that of the paused ones: what a group gives back in between is put there.
        for lane in [*self._sender.queued_by_lane(), self._lanes.base]:
            self._take_from_sender(lane)
            await trio.lowlevel.checkpoint()
        self._on_room()
        if self._lanes.backlog.forgotten and self._lanes.parked.has_room_for_unrouted:
            # Some of them may go now, and nothing else leads to them.
            self._lanes.remember()
            self._loader.wake()

    def _follow(self) -> None:
        """Have all that is decided from now on go by the stored controls."""
        controls = self.applied = self._store.controls
        self._lane_rules.set_rules(controls)
        self._set_weights(
            {name: rule.weight for name, rule in controls.groups.items() if rule.weight is not None}
        )
        self._sender.set_group_rules(
            {
                name: GroupRule(paused=rule.paused, rate_per_s=rule.rate_per_s)
                for name, rule in controls.groups.items()
                if rule.paused or rule.rate_per_s is not None
            }
        )

    def _take_from_sender(self, lane: int) -> None:
        """Leave on disk what the sender has in a lane and should not have."""
        for entries in self._sender.withdraw(lane, self._is_gated):
            self._lanes.withdrawn(entries)

    def take_stranded(self, lane: int) -> bool:
        """Take back what the sender has in a lane that leads nowhere; False for other lanes.

        What has no route is left on disk; what several names receive by now is copied.
        """
        if lane == self._lanes.base:
            self._take_from_sender(lane)
            self._on_room()
        elif lane == self._lanes.shared:
            for entries in self._sender.withdraw(lane, self._is_shared):
                self._on_shared(entries)
            self._on_room()
        else:
            return False
        return not self._sender.queued_in(lane)

    def _is_shared(self, entries: Entries) -> npt.NDArray[np.bool_]:
        shared: npt.NDArray[np.bool_] = self._lanes.lanes_of(entries) == self._lanes.shared
        return shared

    def _is_gated(self, entries: Entries) -> npt.NDArray[np.bool_]:
        """Return which of these may not leave."""
        gated: npt.NDArray[np.bool_] = self._lanes.lanes_of(entries) == self._lanes.base
        return gated

    # -- offers ------------------------------------------------------------------------------

    def offer(self, entries: Entries, *, lane: int, late: bool = False) -> None:
        """Give entries to the sender; give up those of subjects that are refused for good."""
        if lane == self._lanes.barred:
            self._on_barred(entries)
        elif lane == self._lanes.shared:
            self._on_shared(entries)
        else:
            self._sender.offer(entries, lane=lane, late=late)
