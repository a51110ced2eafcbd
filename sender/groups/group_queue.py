"""What waits for one broker group: how much may, and what of it the next request takes."""

import math
from collections.abc import Callable

import trio

from sender.groups.group_rules import GroupRule, TokenBucket, bucket_of
from sender.health.window import Window
from sender.queues.bulk_turns import BulkTurns
from sender.queues.lanes import LaneQueue
from sender.queues.parcels import Batch
from sender.settings.config import SenderConfig


class GroupQueue:
    """The entries that wait for one broker group, and its rate.

    It keeps the lanes of the entries, how many entries may wait, and the tokens of the rate. Only
    its group calls it: to queue entries, to ask for the next request, and when the window of the
    group or its rule has changed.
    """

    def __init__(
        self,
        number: int,
        *,
        config: SenderConfig,
        turns: BulkTurns,
        rule: GroupRule,
        wake: Callable[[], None],
    ) -> None:
        """Take turns with other groups, as group `number`; `wake` is called when it has one."""
        self.lanes = LaneQueue(turn_items=config.lane_turn_items)
        """The entries themselves."""
        self.rule = rule
        """What an operator allows."""
        self._number = number
        self._config = config
        self._turns = turns
        self._wake = wake
        self.items_max = self._lane_items_min = config.queue_items_min
        """Entries that may wait: in all, and of each lane whatever others have here."""
        self._bucket: TokenBucket | None = None
        self._sent_little = False
        """Whether the latest request was a small one beside the large ones of a backlog."""
        self._head_waits = False
        """Whether what is next did not fit beside what is in flight: nothing goes before it."""

    @property
    def is_low(self) -> bool:
        """Whether no more than half of what may wait does."""
        return self.lanes.count <= self.items_max // 2

    @property
    def has_rate(self) -> bool:
        """Whether an operator limits the rate."""
        return self._bucket is not None

    def room(self, lane: int) -> int:
        """Return how many entries of a lane may be added."""
        free = self.items_max - self.lanes.count
        if free < self._lane_items_min:
            # However much the other lanes have here: with nothing queued it had no turns.
            free = max(free, self._lane_items_min - self.lanes.count_of(lane))
        return max(0, free)

    def sent_soon(self, now: float) -> int:
        """Return how many more entries the rate lets go within `queue_s`; there must be a rate."""
        assert self._bucket is not None
        soon = self._bucket.available(now) + int(self._bucket.rate * self._config.queue_s)
        return max(0, soon - self.lanes.count)

    def low_lanes(self, batch: Batch) -> list[int]:
        """Return the lanes of a batch of which little is left here."""
        least = self._lane_items_min // 2
        return [lane for lane, _ in batch.lanes if self.lanes.count_of(lane) <= least]

    def set_rule(self, rule: GroupRule, window: Window) -> None:
        """Keep to another rate, or to none."""
        self.rule = rule
        self._bucket = bucket_of(rule)
        self.fit(window)

    def fit(self, window: Window) -> None:
        """Let as much wait as is answered soon."""
        self.items_max = window.queue_items
        if self.rule.rate_per_s is not None:
            soon = math.ceil(self.rule.rate_per_s * self._config.queue_s)
            self.items_max = min(self.items_max, soon)
        self._lane_items_min = min(self._config.queue_items_min, self.items_max)

    def may_send(self) -> bool:
        """Say whether the rate allows a request now: not one for each item that it allows."""
        if self._bucket is None:
            return True
        count = min(self.lanes.count, self._bucket.step)
        return self._bucket.available(trio.current_time()) >= count

    def send_at(self) -> float:
        """Return when the rate allows a request that it does not allow now; inf if none waits."""
        if self._bucket is None:
            return math.inf
        now = trio.current_time()
        at = self._bucket.ready_at(min(self.lanes.count, self._bucket.step), now)
        # If it is now, it is not the rate that keeps it back, and an answer will wake the group.
        return at if at > now else math.inf

    def sent(self, items: int) -> None:
        """Take the tokens of a request."""
        if self._bucket is not None:
            self._bucket.take(items, trio.current_time())

    def next_batch(
        self, *, requests: int, in_flight_bytes: int, any_size: bool
    ) -> tuple[Batch | None, bool]:
        """Take the entries of the next request; say if it is a small one beside the large ones.

        Where there is much of some lanes, what there is little of goes first, in a request of its
        own, and the rest when it is this group's turn to make a large one; but no second small one
        while it is. What is too large to go beside anything in flight is not overtaken at all.

        `requests` is how many may be unanswered; with `any_size` the first entry fits however
        large it is.
        """
        config = self._config
        items_max = self._items_allowed()
        bytes_max = min(config.batch_bytes, self._bytes_max(requests) - in_flight_bytes)
        if not self._head_waits and min(self.lanes.count, items_max) > config.lane_turn_items:
            now = trio.current_time()
            if not (self._sent_little and self._turns.take(self._number, now, self._wake)):
                little = self.lanes.take_little(
                    lane_items_max=config.lane_turn_items // 4,
                    items_max=config.lane_turn_items,
                    bytes_max=bytes_max,
                )
                if little is not None:
                    self._sent_little = True
                    self._turns.small_sent(now)
                    return little, True
                if not self._turns.take(self._number, now, self._wake):
                    return None, False
            self._sent_little = False
        batch = self.lanes.take(items_max=items_max, bytes_max=bytes_max, any_size=any_size)
        self._head_waits = batch is None
        return batch, False

    def _items_allowed(self) -> int:
        """Return how many items the next request may have."""
        if self._bucket is None:
            return self._config.batch_items
        return min(self._config.batch_items, self._bucket.available(trio.current_time()))

    def _bytes_max(self, requests: int) -> int:
        """Return how many bytes may be in flight: the same part of the most as of requests."""
        config = self._config
        part = config.in_flight_bytes_max * requests // config.in_flight_requests_max
        return max(part, min(config.batch_bytes, config.in_flight_bytes_max))
