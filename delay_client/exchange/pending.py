"""Pending: the messages that are on no connection at present, by lane. Pure.

    gather() --> open --> ready --> taken out, to be sent
      add() ----------------^         |
                            +- waiting-+  wait(), until its pause is over

A batch gets its lane when it comes, by the routes that are known then. When routes change it is
*filed* anew: what waited for a route at once, everything else within `_REFILE_S`.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from delay_client.exchange.batches import Batch, BatchLink, Gathering, Lane, Waiter
from delay_client.exchange.links import LinkState
from delay_client.exchange.routing import FixedRouting, MetaRouting
from delay_client.messages.config import ClientConfig
from delay_client.messages.item_encoder import EncodedItem

_REFILE_S = 0.05
"""For so long changes of routes gather before what is ready is looked at again."""

_GATHER_LINGERS = 20
"""A request that cannot go out yet lets calls in for so many lingers. Longer, and the time-out of
the first call in it would be stretched by what the last one adds."""


class Pending:
    """The batches that gather calls, are ready, or pause after a setback.

    Invariants: each batch is in one place, open or ready in one lane or waiting; `lanes` has every
    lane with anything in it.
    """

    def __init__(
        self,
        routing: FixedRouting | MetaRouting,
        config: ClientConfig,
        wake: Callable[[float], None],
    ) -> None:
        """`wake` is called with each time at which there is something to do."""
        self._routing = routing
        self._config = config
        self._wake = wake
        self.lanes: dict[Lane, None] = {}
        """Lanes that have something to be sent, in the order of their turns."""
        self._waiting: list[Batch] = []
        self._refile_at = math.inf
        """When what is ready is looked at by routes that have changed."""

    # What comes.

    def gather(
        self,
        encoded: EncodedItem,
        waiter: Waiter,
        *,
        subject: str,
        timeout_s: float,
        now: float,
        is_id_given: bool,
        is_past_due: bool,
    ) -> None:
        """Take one message into a batch with others of its subject's lane and of its time-out."""
        item, message_id, *_ = encoded
        own_id = message_id if is_id_given else None
        lane = self._routing.lane_for(subject, own_id)
        if not lane.links:
            self._wake_for_routes([lane])
        gathered = lane.open.get(timeout_s)
        if gathered is not None and (
            not gathered[0].has_room(self._config, len(item), own_id)
            or now >= gathered[1] + _GATHER_LINGERS * self._config.linger_s
        ):
            del lane.open[timeout_s]
            lane.ready.append(gathered[0])
            self._wake(now)
            gathered = None
        if gathered is None:
            batch = Batch(Gathering(), deadline=now, lane=lane, version=self._routing.version)
            gathered = batch, now
            lane.open[timeout_s] = gathered
            self.lanes[lane] = None
            # If nothing is in flight that is now, but not in this very call: others that run in
            # the same turn of the loop join in.
            self._wake(self._ripe_at(lane, now))
        batch = gathered[0]
        assert isinstance(batch.receiver, Gathering)
        batch.receiver.add(waiter)
        batch.add(encoded, subject, len(batch), own_id=own_id, is_past_due=is_past_due)
        batch.deadline = now + timeout_s

    def add(self, batch: Batch) -> None:
        """Take a batch that is complete."""
        if batch.lane.links and batch.version == self._routing.version:
            batch.lane.ready.append(batch)
            self.lanes[batch.lane] = None
        else:
            self.file(batch)
        self._wake(batch.deadline)

    def wait(self, batch: Batch) -> None:
        """Take a batch whose try failed, until its `retry_at`."""
        self._waiting.append(batch)
        batch.lane.waiting += 1
        self.lanes[batch.lane] = None
        self._wake(min(batch.retry_at, batch.deadline))

    def file(self, batch: Batch) -> None:
        """Put a batch into the lane of its items, in parts if they are of several."""
        are_ids_given = batch.lane.main is not batch.lane
        parts: dict[Lane, list[int]] = {}
        for index, subject in enumerate(batch.subjects):
            lane = self._routing.lane_for(subject, batch.ids[index] if are_ids_given else None)
            parts.setdefault(lane, []).append(index)
        self._wake_for_routes(parts)
        if len(parts) == 1:
            [lane] = parts
            self._enqueue(batch, lane)
            return
        for lane, indices in parts.items():
            self._enqueue(batch.part(indices), lane)
        batch.lane = next(iter(parts))

    def _enqueue(self, batch: Batch, lane: Lane) -> None:
        batch.lane = lane
        batch.version = self._routing.version
        last = lane.ready[-1] if lane.ready else None
        if last is not None and self._may_share(last, batch):
            last.absorb(batch)
        else:
            lane.ready.append(batch)
        self.lanes[lane] = None

    def _may_share(self, last: Batch, batch: Batch) -> bool:
        """Whether two batches may be one: those that waited for their routes are small."""
        return (
            last.receiver is batch.receiver
            and last.attempts == batch.attempts == 0
            and last.version == batch.version
            and last.given.isdisjoint(batch.given)
            and len(last) + len(batch) <= self._config.request_items_max
            and last.size + batch.size <= self._config.request_bytes_max
        )

    # What is there.

    def batches(self) -> Iterator[Batch]:
        """Yield all of them."""
        for lane in self.lanes:
            for batch, _ in lane.open.values():
                yield batch
            yield from lane.ready
        yield from self._waiting

    def has_work(self, link: BatchLink) -> bool:
        """Whether anything is to be sent that this link could take, or should have taken."""
        return link.is_missed or any(lane.is_busy and link in lane.links for lane in self.lanes)

    def has_room(self, batch: Batch) -> bool:
        """Whether not too much waits to go out, where this batch went and in all."""
        lane = batch.lane
        if len(lane.ready) + lane.waiting >= 2 * max(1, len(lane.links)):
            return False
        queued_max = max(self._config.requests_queued_max, 2 * len(self._routing.links))
        return sum(len(one.ready) + one.waiting for one in self.lanes) < queued_max

    # What goes.

    def take_all(self) -> list[Batch]:
        """Take out all batches: the client ends."""
        batches = list(self.batches())
        for lane in self.lanes:
            lane.open.clear()
            lane.ready.clear()
            lane.waiting = 0
        self.lanes.clear()
        self._waiting.clear()
        return batches

    def take_expired(self, now: float) -> list[Batch]:
        """Take out what has run out of time, or is of a subject that is refused for good."""

        def is_over(batch: Batch) -> bool:
            return batch.deadline <= now or self._routing.refuses(batch.lane)

        late = [batch for batch in self.batches() if is_over(batch)]
        if not late:
            return late
        for lane in self.lanes:
            lane.ready = deque(batch for batch in lane.ready if not is_over(batch))
            lane.open = {key: kept for key, kept in lane.open.items() if not is_over(kept[0])}
        for batch in [batch for batch in self._waiting if is_over(batch)]:
            self._stop_waiting(batch)
        return late

    def tidy(self) -> None:
        """Forget lanes that have nothing to be sent."""
        idle = [lane for lane in self.lanes if not lane.is_busy]
        for lane in idle:
            del self.lanes[lane]

    # Pauses.

    def release(self, link: BatchLink) -> None:
        """Let go what was held for a group that is there again, or cannot be reached."""
        for batch in [batch for batch in self._waiting if batch.held_for == link.group]:
            self._stop_waiting(batch)
            if link.state is not LinkState.UP:
                batch.held_for, batch.avoid = None, link.server
            self.file(batch)

    def _stop_waiting(self, batch: Batch) -> None:
        self._waiting.remove(batch)
        batch.lane.waiting -= 1

    def _file_due_retries(self, now: float) -> None:
        """File the batches whose pause is over."""
        for batch in [batch for batch in self._waiting if batch.retry_at <= now]:
            self._stop_waiting(batch)
            batch.held_for = None
            self.file(batch)

    # Routes.

    def routes_changed(self, subjects: Sequence[str], now: float) -> None:
        """Take changed routes: what waited for one goes into its lane, the rest is looked at soon.

        Soon, not now: when a group fails many routes change one after another.
        """
        if not subjects:
            return
        assert isinstance(self._routing, MetaRouting)
        version = self._routing.version
        for lane in self._routing.changed(subjects):
            for one in (lane, *lane.beside.values()):
                self._refile_lane(one)
        if self._routing.version != version and self._refile_at == math.inf:
            self._refile_at = now + _REFILE_S
            self._wake(self._refile_at)

    def _refile(self) -> None:
        """Put what is ready into the lanes that are right by now, and drop links without routes."""
        self._refile_at = math.inf
        assert isinstance(self._routing, MetaRouting)
        for lane in list(self.lanes):
            if any(batch.version != self._routing.version for batch in lane.ready):
                self._refile_lane(lane, only_ready=True)
        self.tidy()
        self._routing.prune(self.lanes)

    def _refile_lane(self, lane: Lane, *, only_ready: bool = False) -> None:
        batches = list(lane.ready)
        lane.ready.clear()
        if not only_ready:
            batches += [batch for batch, _ in lane.open.values()]
            lane.open.clear()
        for batch in batches:
            self.file(batch)

    def _wake_for_routes(self, lanes: Iterable[Lane]) -> None:
        """Wake for the meta server to be asked, or at once for what it refuses to be taken out."""
        if isinstance(self._routing, MetaRouting):
            is_over = any(map(self._routing.refuses, lanes))
            self._wake(-math.inf if is_over else self._routing.next_event())

    # Time.

    def poll(self, now: float) -> None:
        """Make ready what is due: by routes that changed, after gathering, and after pauses."""
        if now >= self._refile_at:
            self._refile()
        self.ripen(now)
        self._file_due_retries(now)

    def events(self, now: float) -> Iterator[float]:
        """Yield the times at which poll(), take_expired() or a probe is due."""
        for lane in self.lanes:
            yield from self._lane_events(lane, now)
        for batch in self._waiting:
            yield min(batch.retry_at, batch.deadline)
        yield self._refile_at

    def _lane_events(self, lane: Lane, now: float) -> Iterator[float]:
        for batch, since in lane.open.values():
            yield self._ripe_at(lane, since)
            yield batch.deadline
        for batch in lane.ready:
            yield batch.deadline
        for link in lane.links:
            if link.circuit.is_open:
                for at in (link.circuit.last_resort_at, link.circuit.probe_at):
                    if at > now:
                        yield at

    def ripen(self, now: float) -> None:
        """Make the batches ready that have gathered long enough."""
        for lane in self.lanes:
            for timeout_s, (batch, since) in list(lane.open.items()):
                if now >= self._ripe_at(lane, since):
                    del lane.open[timeout_s]
                    lane.ready.append(batch)

    def _ripe_at(self, lane: Lane, since: float) -> float:
        """Return when a batch that gathers in a lane since then should go."""
        hopeful = [link for link in lane.links if link.is_hopeful]
        if hopeful and not any(link.requests_in_flight for link in lane.links):
            return since
        has_room = any(link.has_room() for link in hopeful)
        # What cannot go out yet may as well grow: else an outage leaves a request for each call.
        return since + self._config.linger_s * (1 if has_room else _GATHER_LINGERS)
