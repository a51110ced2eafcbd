"""One broker group: what waits for it, its one connection, and what is in flight.

Groups share no queue, no connection and no task. A group that fails gives back at once what is
queued for it; what is in flight gets the rest of its time, since its answers may still come. Its
states are drawn in group_status.py.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import structlog
import trio

from delay_protocol import (
    Frame,
    Hello,
    ItemCode,
    MalformedReplyError,
    RemoteProtocolError,
    ResponseCode,
    encode_hello,
)
from delay_transport import Clock, Network, TransportError
from delay_transport.backoff import Backoff
from sender.answers import UNTOLD, Codes, is_broker_sick, item_codes
from sender.config import BrokerGroup, SenderConfig
from sender.connection import BrokerConnection, End, Items, Request
from sender.errors import ItemBytesError
from sender.group_status import MOVES, GroupCounts, GroupState, GroupStatus
from sender.lanes import LaneQueue
from sender.outcomes import Outcome
from sender.parcels import Batch, Entries, Mask, Parcel
from sender.routing import LaneView

_log: structlog.stdlib.BoundLogger = structlog.get_logger("sender")

ReadItems = Callable[[Entries], tuple[Items, Mask | None]]
"""Returns the item of each entry, checked, and which of them are damaged (None if none is).

A damaged item has its place among them too, and no bytes.
"""


class Exchange(Protocol):
    """Where a group leaves entries that it does not keep. All calls are synchronous."""

    is_paused: bool
    """Whether nothing is to be sent for now."""

    def give_back(self, parcels: Sequence[Parcel]) -> None:
        """Take entries that were queued for a group and not sent."""

    def hold_early(self, batch: Batch) -> None:
        """Take entries that are not due, by a clock that was set back."""

    def damaged(self, entries: Entries) -> None:
        """Take entries whose items cannot be read."""

    def settled(self, entries: Entries, outcome: Outcome, group: str) -> None:
        """Take entries for which nothing more is to be done."""

    def retry(self, batch: Batch, *, avoid: int) -> None:
        """Take entries whose try failed with their request, or whose outcome is unknown."""

    def refused(self, batch: Batch, codes: Codes, *, avoid: int) -> None:
        """Take entries that were refused one by one, with the code of each."""

    def group_failed(self, group: str) -> None:
        """Hear that a group could not be reached, or that its connection ended badly."""

    def room_changed(self, number: int) -> None:
        """Hear that the group of this number has room for more of any lane."""

    def lane_room_changed(self, lane: int) -> None:
        """Hear that a group has room for more of this lane, though perhaps of no other."""


class Group:
    """The queue, the connection and the health of one broker group.

    Invariants: `in_flight` and `in_flight_bytes` are the sums over the requests in flight; only in
    the states UP and TRIAL is anything queued or sent.
    """

    def __init__(
        self,
        number: int,
        target: BrokerGroup,
        *,
        hello: Hello,
        config: SenderConfig,
        clock: Clock,
        network: Network,
        chance: random.Random,
        read_items: ReadItems,
        exchange: Exchange,
    ) -> None:
        self.name = target.name
        self.number = number
        """Never that of another group."""
        self.state = GroupState.DOWN
        self.in_flight = 0
        """Entries sent and not answered."""
        self._target = target
        self._hello = hello
        self._config = config
        self._clock = clock
        self._network = network
        self._chance = chance
        self._read_items = read_items
        self._exchange = exchange
        self._reconnect = Backoff(base_s=config.reconnect_base_s, max_s=config.reconnect_max_s)
        self._queue = LaneQueue(turn_items=config.lane_turn_items)
        self._lane_items_min = min(
            config.queue_lane_batches_min * config.lane_turn_items, config.queue_items_max
        )
        self._in_flight_bytes = 0
        self._connection: BrokerConnection | None = None
        self._failures = 0
        self._refusals = 0
        self._counts = GroupCounts()
        self._last_end = ""
        self._stopping = False
        self.has_ended = False
        """Whether run() has returned."""
        self._scope = trio.CancelScope()
        self._attempt = trio.CancelScope()
        """Of connecting, or of waiting before it: a new address ends either."""

    @property
    def address(self) -> str:
        """host:port of the master, for people."""
        return f"{self._target.host}:{self._target.port}"

    @property
    def queued(self) -> int:
        """Entries that wait for this group."""
        return self._queue.count

    @property
    def load(self) -> int:
        """Entries that wait for this group or are in flight to it."""
        return self._queue.count + self.in_flight

    @property
    def queued_by_lane(self) -> dict[int, int]:
        """Entries that wait for this group, by lane."""
        return self._queue.counts()

    @property
    def is_open(self) -> bool:
        """Whether there is room for a lane of which nothing is queued here."""
        if self.state is GroupState.TRIAL:
            return self.load < self._config.trial_items
        return self.state is GroupState.UP

    def room(self, lane: int) -> int:
        """Return how many entries of a lane may be queued for this group now."""
        if self.state is GroupState.UP:
            free = self._config.queue_items_max - self._queue.count
            if free < self._lane_items_min:
                # However much the other lanes have here: with nothing queued it had no turns.
                free = max(free, self._lane_items_min - self._queue.count_of(lane))
            return max(0, free)
        if self.state is GroupState.TRIAL:
            return max(0, self._config.trial_items - self.load)
        return 0

    def seen_by(self, lane: int) -> LaneView:
        """Return the group as entries of this lane find it now."""
        return LaneView(self.name, self.room(lane), self._queue.count + self.in_flight)

    def status(self) -> GroupStatus:
        """Return a look at the group as it is now."""
        return GroupStatus(
            name=self.name,
            address=self.address,
            source=self._target.source,
            state=self.state,
            queued=self.queued,
            in_flight=self.in_flight,
            in_flight_bytes=self._in_flight_bytes,
            failures=self._failures,
            last_end=self._last_end,
            counts=replace(self._counts, ends=dict(self._counts.ends)),
        )

    def held(self) -> Iterator[Entries]:
        """Yield all entries that wait for this group or are in flight to it."""
        for parcel in self._queue.parcels():
            yield parcel.entries
        if self._connection is not None:
            for request in self._connection.in_flight.values():
                if request is not None:
                    yield request.batch.entries

    def enqueue(self, parcel: Parcel) -> None:
        """Queue entries for this group; it must have room for them."""
        room = self.room(parcel.lane)
        assert len(parcel) <= room, f"{self.name}: {len(parcel)} entries, room {room}"
        self._queue.append(parcel)
        self.wake()

    def wake(self) -> None:
        """Look for something to send."""
        if self._connection is not None:
            self._connection.wake()

    def move(self, target: BrokerGroup) -> None:
        """Deliver to another address from now on; what is in flight is answered at the old one."""
        if (target.host, target.port) == (self._target.host, self._target.port):
            self._target = target
            return
        before, self._target = self.address, target
        _log.info("broker group moved", group=self.name, before=before, address=self.address)
        self._failures = 0
        if self._connection is None:
            self._attempt.cancel()
        else:
            self._retire(End.MOVED, f"to {self.address}")

    def stop(self) -> None:
        """Send nothing more; run() returns once what is in flight is answered."""
        if self._connection is None:
            self.abort()
        else:
            self._stopping = True
            self._retire(End.DRAINED, "stopped")

    def abort(self) -> None:
        """Close at once, whatever is in flight; it stays counted as in flight."""
        self._stopping = True
        self._scope.cancel()

    async def run(self) -> None:
        """Keep a connection and deliver through it, until stopped or fenced."""
        try:
            await self._run()
        finally:
            self.has_ended = True

    async def _run(self) -> None:
        with self._scope:
            while not self._stopping:
                self._move(GroupState.CONNECTING)
                end, detail = await self._converse()
                if end is End.MOVED:
                    # Whatever befell the connection meanwhile says nothing about the new address.
                    self._failures = 0
                self._counts.ends[end] += 1
                self._last_end = f"{end.value}: {detail}"
                if end is End.FENCED:
                    self._move(GroupState.FENCED)
                    _log.error("broker group fences us off", group=self.name, **self._who())
                    return
                self._move(GroupState.DOWN)
                self._give_back()
                if end is not End.MOVED and not self._stopping:
                    await self._wait_after_failure(end, detail)

    async def _wait_after_failure(self, end: End, detail: str) -> None:
        self._failures += 1
        wait_s = self._reconnect.wait_s(self._failures, self._chance)
        _log.warning(
            "broker group failed",
            group=self.name,
            reason=end.value,
            detail=detail,
            failures=self._failures,
            again_in_s=round(wait_s, 3),
        )
        self._exchange.group_failed(self.name)
        with trio.CancelScope() as self._attempt:
            await trio.sleep(wait_s)

    async def _converse(self) -> tuple[End, str]:
        """Connect, say HELLO, deliver until the connection ends; return why it did."""
        timeout_s = self._config.connect_timeout_s
        target = self._target
        stream: trio.abc.Stream | None = None
        with trio.CancelScope() as self._attempt:
            try:
                with trio.fail_after(timeout_s):
                    stream = await self._network.connect(target.host, target.port)
            except trio.TooSlowError:
                return End.UNREACHABLE, f"not connected within {timeout_s:g} s"
            except (OSError, TransportError) as error:
                return End.UNREACHABLE, str(error)
        if stream is None:
            return End.MOVED, f"to {self.address}"
        try:
            connection = BrokerConnection(
                stream,
                self,
                answer_bytes_max=self._config.answer_bytes_max,
                request_timeout_s=self._config.request_timeout_s,
                heartbeat_s=self._config.heartbeat_s,
            )
            obstacle: tuple[End, str] | None = None
            with trio.CancelScope() as self._attempt:
                obstacle = await self._greet(connection)
            if (target.host, target.port) != (self._target.host, self._target.port):
                obstacle = End.MOVED, f"to {self.address}"
            if obstacle is not None:
                return obstacle
            self._move(GroupState.TRIAL if self._failures else GroupState.UP)
            self._connection = connection
            end = await connection.run()
            self._connection = None
            self._take_back(connection)
            return end
        finally:
            await trio.aclose_forcefully(stream)

    async def _greet(self, connection: BrokerConnection) -> tuple[End, str] | None:
        """Say HELLO; return None if the broker may be sent to, or else why not."""
        timeout_s = self._config.connect_timeout_s
        try:
            answer = await connection.greet(encode_hello(self._hello), timeout_s=timeout_s)
        except trio.TooSlowError:
            return End.HELLO, f"no answer within {timeout_s:g} s"
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            return End.HELLO, str(error.__cause__ or error)
        except RemoteProtocolError as error:
            return End.GARBAGE, str(error)
        return self._hello_answered(None if answer is None else answer.code)

    def _hello_answered(self, code: int | None) -> tuple[End, str] | None:
        if code is None:
            return End.HELLO, "closed by the peer"
        if code == ResponseCode.BROKER_REJECT:
            return End.FENCED, f"epoch {self._hello.epoch} is refused"
        # A QMQ broker does not know HELLO and says so: it cannot fence, but it can be sent to.
        if code not in {ResponseCode.SUCCESS, ResponseCode.UNKNOWN_CODE}:
            return End.HELLO, f"answered with code {code}"
        _log.info("broker group connected", group=self.name, fences=code == 0, **self._who())
        return None

    # What the connection asks for, and tells.

    def next_request(self) -> tuple[Request, bytes | memoryview] | None:
        """Return the next batch as a request and its body; None if there is none for now.

        A connection asks when it begins and after every answer: so this is also where the exchange
        hears that there is room again.
        """
        config = self._config
        ready = None
        while ready is None and self._may_send():
            batch = self._queue.take(
                items_max=config.batch_items,
                bytes_max=min(
                    config.batch_bytes, config.in_flight_bytes_max - self._in_flight_bytes
                ),
                any_size=not self.in_flight,
            )
            if batch is None:
                break
            if self._queue.count > config.queue_items_max // 2:
                self._tell_lanes_of_room(batch)
            ready = self._build(batch)
        if self._queue.count <= config.queue_items_max // 2:
            self._exchange.room_changed(self.number)
        return ready

    def _tell_lanes_of_room(self, batch: Batch) -> None:
        """Ask for more of the lanes of which little is left in a queue that others fill."""
        for lane, _ in batch.lanes:
            if self._queue.count_of(lane) <= self._lane_items_min // 2:
                self._exchange.lane_room_changed(lane)

    def answered(self, request: Request, answer: Frame) -> None:
        """Take an answer: settle what was taken, hand on what was not."""
        self._landed(request)
        if answer.code != ResponseCode.SUCCESS:
            self._counts.requests_refused += 1
            self._counts.refused += len(request.batch)
            self._exchange.retry(request.batch, avoid=self.number)
            self._refusal(
                f"answered with code {answer.code}",
                is_final=answer.code == ResponseCode.BROKER_REJECT,
            )
        elif not answer.body:
            self._counts.delivered += len(request.batch)
            self._exchange.settled(request.batch.entries, Outcome.DELIVERED, self.name)
            self._success()
        else:
            self._answered_in_part(request, answer.body)

    def timed_out(self, request: Request | None) -> None:
        """Take the news that there was no answer in time, which says something about the group."""
        if request is not None:
            self._landed(request)
            self._counts.requests_timed_out += 1
            self._doubtful(request.batch)
        self._retire(End.TIMEOUT, f"no answer within {self._config.request_timeout_s:g} s")

    def _may_send(self) -> bool:
        if self._exchange.is_paused or not self._queue.count or self._connection is None:
            return False
        requests = len(self._connection.in_flight)
        if self.state is GroupState.TRIAL:
            return not requests
        return self.state is GroupState.UP and requests < self._config.in_flight_requests_max

    def _build(self, batch: Batch) -> tuple[Request, bytes | memoryview] | None:
        """Read the items of a batch anew and make a request of those that may be sent.

        None if there are none: an empty request would be answered with success.
        """
        early: Mask = batch.entries["due_ms"] > self._clock.now_ms()
        if early.any():
            self._exchange.hold_early(batch.where(early))
            batch = batch.where(~early)
            if not len(batch):
                return None
        items, damaged = self._read_items(batch.entries)
        sizes, body = items.sizes, items.joined
        if damaged is not None and damaged.any():
            self._exchange.damaged(batch.where(damaged).entries)
            batch = batch.where(~damaged)
            sizes = sizes[~damaged]
            if not len(batch):
                return None
        expected = batch.entries["size"]
        if not (np.array_equal(sizes, expected) and sizes.all() and len(body) == sizes.sum()):
            raise ItemBytesError(
                entries=len(batch),
                items=len(sizes),
                expected_bytes=int(expected.sum()),
                bytes_read=len(body),
            )
        self.in_flight += len(batch)
        self._in_flight_bytes += len(body)
        self._counts.requests += 1
        return Request(batch, items, len(body)), body

    def _answered_in_part(self, request: Request, answer: bytes) -> None:
        """Look up what an answer that lists failures says about each item."""
        batch = request.batch
        try:
            codes = item_codes([item for item in request.items if len(item)], answer)
        except MalformedReplyError as error:
            self._doubtful(batch)
            self._retire(End.GARBAGE, str(error))
            return
        delivered = codes == ItemCode.SUCCESS
        known = codes == ItemCode.MESSAGE_DUPLICATE
        untold = codes == UNTOLD
        refused = ~(delivered | known | untold)
        self._counts.delivered += int(delivered.sum())
        self._counts.known += int(known.sum())
        self._counts.refused += int(refused.sum())
        for mask, outcome in ((delivered, Outcome.DELIVERED), (known, Outcome.KNOWN)):
            if mask.any():
                self._exchange.settled(batch.where(mask).entries, outcome, self.name)
        if refused.any():
            self._exchange.refused(batch.where(refused), codes[refused], avoid=self.number)
        if untold.any():
            self._doubtful(batch.where(untold))
        if is_broker_sick(codes):
            self._refusal(f"refused every item, the first with code {codes[0]}", is_final=False)
        elif delivered.any() or known.any():
            self._success()

    def _landed(self, request: Request) -> None:
        self.in_flight -= len(request.batch)
        self._in_flight_bytes -= request.size

    def _doubtful(self, batch: Batch) -> None:
        """Try entries again that the group may have taken."""
        self._counts.possible_duplicates += len(batch)
        self._exchange.retry(batch, avoid=self.number)

    def _success(self) -> None:
        self._refusals = 0
        # Good answers of a connection that is being given up do not make up for why it is.
        if self.state is not GroupState.RETIRING:
            self._failures = 0
        if self.state is GroupState.TRIAL:
            self._move(GroupState.UP)

    def _refusal(self, detail: str, *, is_final: bool) -> None:
        self._refusals += 1
        is_trial = self.state is GroupState.TRIAL
        if is_final or is_trial or self._refusals >= self._config.refusals_max:
            self._retire(End.REFUSING, detail)

    def _retire(self, end: End, detail: str) -> None:
        """Send no more on this connection, and close it once nothing is in flight."""
        assert self._connection is not None
        if self.state is not GroupState.RETIRING:
            self._move(GroupState.RETIRING)
            self._give_back()
        self._connection.retire(end, detail)

    def _take_back(self, connection: BrokerConnection) -> None:
        """Try again what was in flight when the connection ended: it may have arrived or not."""
        self._counts.answers_unmatched += connection.answers_unmatched
        self._refusals = 0
        for request in connection.in_flight.values():
            if request is not None:
                self._landed(request)
                self._counts.requests_lost += 1
                self._doubtful(request.batch)

    def _give_back(self) -> None:
        parcels = self._queue.clear()
        if parcels:
            self._exchange.give_back(parcels)

    def _move(self, state: GroupState) -> None:
        assert state in MOVES[self.state], f"{self.name}: {self.state} -> {state}"
        self.state = state

    def _who(self) -> dict[str, object]:
        return {"address": self.address, "epoch": self._hello.epoch}
