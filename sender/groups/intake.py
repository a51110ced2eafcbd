"""What one broker group may be given: whether anything at all, and how much of each lane."""

from collections.abc import Callable

import trio

from sender.groups.group_health import GroupHealth
from sender.groups.group_queue import GroupQueue
from sender.groups.requests import Requests
from sender.groups.routing import LaneView
from sender.health.circuit import CircuitState
from sender.settings.config import SenderConfig


class Intake:
    """The room of one broker group for entries, as it follows from how the group is and does.

    It keeps nothing and changes nothing. It reads what waits for the group, what is in flight to
    it, how it does, and whether its connection is up. The sender asks before it hands out entries,
    the group before it queues or sends any. Times are trio's.
    """

    def __init__(
        self,
        name: str,
        *,
        config: SenderConfig,
        queue: GroupQueue,
        requests: Requests,
        health: GroupHealth,
        is_up: Callable[[], bool],
    ) -> None:
        """Read these parts of the group `name`; `is_up` says whether its connection is UP."""
        self._name = name
        self._trial_items = config.trial_items
        self._queue = queue
        self._requests = requests
        self._health = health
        self._is_up = is_up

    @property
    def takes(self) -> bool:
        """Whether entries may be queued for the group at all."""
        return (
            self._is_up()
            and self._health.circuit.state is not CircuitState.OPEN
            and not self._queue.rule.paused
        )

    @property
    def is_open(self) -> bool:
        """Whether there is room for a lane of which nothing is queued for the group."""
        if self._health.is_trial:
            return self.takes and self._trial_room() > 0
        return self.takes

    @property
    def is_hungry(self) -> bool:
        """Whether little waits for the group for what it can be sent in a while."""
        if not self.takes or self._health.is_trial or not self._queue.is_low:
            return False
        # A slow one is given a few at a time, and what is more goes back.
        return not self._health.is_slow(trio.current_time())

    def room(self, lane: int) -> int:
        """Return how many entries of a lane may be queued for the group now."""
        return self._room(lane) if self.takes else 0

    def seen_by(self, lane: int, now: float) -> LaneView:
        """Return the group as entries of this lane find it now."""
        if not self.takes:
            return LaneView(
                name=self._name,
                room=0,
                is_well=False,
                room_beside=0,
                weight=self._health.weight.configured,
            )
        room = beside = self._room(lane)
        # What has a rate may have no room for long: nobody is to wait for it.
        is_well = not (self._health.is_trial or self._queue.has_rate)
        if self._queue.has_rate:
            # Others take at once what would wait here for its turn within the rate.
            beside = min(beside, self._queue.sent_soon(now))
        if self._health.is_slow(now):
            is_well = False
            beside = min(beside, self._trial_room())
        if self._health.refusals.is_long:
            is_well = False
            may_try = self._health.refusals.may_try(now)
            beside = min(beside, self._trial_items) if may_try else 0
        return LaneView(
            name=self._name,
            room=room,
            is_well=is_well,
            room_beside=beside,
            weight=self._health.effective_weight(now),
        )

    def _room(self, lane: int) -> int:
        """Return how many entries of a lane may be queued for a group that takes any."""
        if self._health.is_trial:
            return self._trial_room()
        return self._queue.room(lane)

    def _trial_room(self) -> int:
        """Return how many more entries may be risked with the group."""
        return max(0, self._trial_items - self._queue.lanes.count - self._requests.in_flight)
