"""Entries of several lanes that take turns, so that many of one do not stand before few of another.

A lane is a number that whoever offers entries gives them: a subject with very much to send has one
of its own, all others share lane 0. Within a lane entries keep their order. Between lanes this is
deficit round robin: each turn is worth so many entries, and a turn that a request cuts short goes
on with the next one. A lane in which nothing waits is forgotten; one that comes (again) waits for
one turn of each other lane at most. Every call costs the same however many entries and lanes wait,
but for take_little(), which looks at each lane that has a turn.

Those who offer number lanes from 0 on. What is late of a lane has a lane beside it, see late_of().
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from sender.queues.parcels import Batch, Entries, Mask, Parcel, ParcelQueue, joined


def late_of(lane: int) -> int:
    """Return the lane for what comes late of a lane: it takes turns with it, and with all others.

    So entries that are on time do not stand behind a backlog of other subjects of their lane.
    """
    return ~lane


def lane_of(lane: int) -> int:
    """Return the lane whose entries these are, be they late ones or not."""
    return max(lane, ~lane)


def both_of(lane: int) -> tuple[int, int]:
    """Return a lane and the one for what comes late of it."""
    return lane, late_of(lane)


class LaneQueue:
    """Entries in the order in which they are to be sent, as turns of their lanes.

    Invariants: `count` is the sum over the lanes, none of which is empty; each lane either has a
    place in the order of turns or is set aside.
    """

    def __init__(self, *, turn_items: int) -> None:
        self._turn_items = turn_items
        self._lanes: dict[int, ParcelQueue] = {}
        self._turns: deque[int] = deque()
        """Lanes in the order of their turns; it is the first one's."""
        self._left = turn_items
        """Entries that are left of the turn of the first lane."""
        self._aside: dict[int, None] = {}
        """Lanes that miss their turns, in the order in which they were set aside."""
        self.count = 0
        """Entries that wait, in all lanes."""

    @property
    def next_lane(self) -> int | None:
        """The lane whose turn it is; None if there is none that is not set aside."""
        return self._turns[0] if self._turns else None

    def count_of(self, lane: int) -> int:
        """Return how many entries of a lane wait."""
        queue = self._lanes.get(lane)
        return 0 if queue is None else queue.count

    def counts(self) -> dict[int, int]:
        """Return how many entries wait in each lane that has any."""
        return {lane: queue.count for lane, queue in self._lanes.items()}

    def append(self, parcel: Parcel) -> None:
        """Put a parcel at the end of its lane, which is brought back if it was set aside."""
        if len(parcel):
            self._queue_of(parcel.lane).append(parcel)
            self.count += len(parcel)

    def prepend(self, parcels: Sequence[Parcel]) -> None:
        """Put parcels, in their order, first in their lanes, which are brought back as well."""
        by_lane: dict[int, list[Parcel]] = {}
        for parcel in parcels:
            if len(parcel):
                by_lane.setdefault(parcel.lane, []).append(parcel)
                self.count += len(parcel)
        for lane, of_lane in by_lane.items():
            self._queue_of(lane).prepend(of_lane)

    def take_alike(self, items_max: int) -> Parcel:
        """Take from the first parcel of the lane whose turn it is, and not beyond that turn.

        So all of it has the same group to avoid. There must be a lane that is not set aside.
        """
        lane = self._turns[0]
        queue = self._lanes[lane]
        parcel = queue.take_alike(self._turn_of(items_max))
        self._taken(lane, queue, len(parcel))
        return parcel

    def take(self, *, items_max: int, bytes_max: int, any_size: bool) -> Batch | None:
        """Take what fits, turn by turn; None if nothing does.

        With `any_size` the first entry fits however large it is. One that does not fit ends the
        batch: no other lane goes before it.
        """
        parcels: list[Parcel] = []
        while self._turns and items_max > 0:
            lane = self._turns[0]
            queue = self._lanes[lane]
            turn = self._turn_of(items_max)
            before = queue.count
            bytes_max = queue.take(parcels, turn, bytes_max, any_size=any_size)
            count = before - queue.count
            self._taken(lane, queue, count)
            if count < turn and count < before:
                break
            items_max -= count
        return joined(parcels) if parcels else None

    def take_little(self, *, lane_items_max: int, items_max: int, bytes_max: int) -> Batch | None:
        """Take all of lanes with no more than so many entries, if not all of them are such.

        None if there are none, or nothing of them fits. They do not wait for their turns. Lanes of
        what is late do.
        """
        little = [
            lane
            for lane in self._turns
            if self._lanes[lane].count <= lane_items_max and lane == lane_of(lane)
        ]
        if not little or len(little) == len(self._turns):
            return None
        parcels: list[Parcel] = []
        for lane in little:
            queue = self._lanes[lane]
            before = queue.count
            bytes_max = queue.take(parcels, items_max, bytes_max, any_size=False)
            items_max -= before - queue.count
            self.count -= before - queue.count
            if queue.count:
                break
            del self._lanes[lane]
        if self._turns[0] not in self._lanes:
            self._left = self._turn_items
        self._turns = deque(lane for lane in self._turns if lane in self._lanes)
        return joined(parcels) if parcels else None

    def parcels(self) -> Iterator[Parcel]:
        """Yield everything, which stays."""
        for queue in self._lanes.values():
            yield from queue.parcels()

    def clear(self) -> list[Parcel]:
        """Take everything, lane by lane."""
        parcels = [parcel for queue in self._lanes.values() for parcel in queue.clear()]
        self._lanes.clear()
        self._turns.clear()
        self._aside.clear()
        self._left = self._turn_items
        self.count = 0
        return parcels

    def take_lane(self, lane: int) -> list[Parcel]:
        """Take all of one lane, which is forgotten."""
        queue = self._lanes.pop(lane, None)
        if queue is None:
            return []
        self.count -= queue.count
        if lane in self._aside:
            del self._aside[lane]
        else:
            if self._turns[0] == lane:
                self._left = self._turn_items
            self._turns.remove(lane)
        return queue.clear()

    def take_where(self, lane: int, wanted: Callable[[Entries], Mask]) -> list[Entries]:
        """Take what is wanted of one lane; the rest keeps its order, and is brought back."""
        taken: list[Entries] = []
        left: list[Parcel] = []
        for parcel in self.take_lane(lane):
            mask = wanted(parcel.entries)
            if not mask.any():
                left.append(parcel)
            elif mask.all():
                taken.append(parcel.entries)
            else:
                taken.append(parcel.where(mask).entries)
                left.append(parcel.where(~mask))
        self.prepend(left)
        return taken

    def set_aside(self, lane: int, rest: Sequence[Parcel] = ()) -> None:
        """Let the lane whose turn it is miss its turns until it is brought back.

        `rest` is what take_alike() has just returned and goes back to where it was; then the lane
        need not be the next one any more, or be there at all.
        """
        if lane not in self._lanes:
            self._lanes[lane] = ParcelQueue()
        else:
            if self._turns[0] == lane:
                self._end_turn()
            # It has had its turn, so it is the last one.
            last = self._turns.pop()
            assert last == lane, f"lane {lane} is set aside when it is not its turn"
        self._lanes[lane].prepend(rest)
        self.count += sum(map(len, rest))
        self._aside[lane] = None

    def bring_back(self, lane: int) -> bool:
        """Give a lane turns again, after all others; say whether it was set aside."""
        if lane not in self._aside:
            return False
        del self._aside[lane]
        self._turns.append(lane)
        return True

    def bring_back_all(self) -> None:
        """Give each lane turns again that was set aside."""
        self._turns.extend(self._aside)
        self._aside.clear()

    def _queue_of(self, lane: int) -> ParcelQueue:
        """Return the queue of a lane that gets something now."""
        queue = self._lanes.get(lane)
        if queue is None:
            queue = self._lanes[lane] = ParcelQueue()
            self._turns.append(lane)
        elif self._aside:
            self.bring_back(lane)
        return queue

    def _turn_of(self, items_max: int) -> int:
        """Return how much may be taken now of the lane whose turn it is."""
        # One lane alone has one turn after another.
        return items_max if len(self._turns) == 1 else min(items_max, self._left)

    def _taken(self, lane: int, queue: ParcelQueue, count: int) -> None:
        """Note what was taken of the lane whose turn it is, and whose it is next."""
        self.count -= count
        if not queue.count:
            del self._lanes[lane]
            self._turns.popleft()
            self._left = self._turn_items
        elif len(self._turns) > 1:
            self._left -= count
            if not self._left:
                self._end_turn()

    def _end_turn(self) -> None:
        self._turns.rotate(-1)
        self._left = self._turn_items
