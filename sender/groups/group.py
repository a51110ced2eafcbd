"""One broker group: what waits for it, its one connection, and what is in flight.

Groups share no queue, no connection and no task. A group that fails gives back at once what is
queued for it; what is in flight gets the rest of its time, since its answers may still come. Its
states are drawn in group_status.py.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, Protocol

import numpy as np
import structlog
import trio

from delay_protocol.basics.codes import ItemCode, ResponseCode
from delay_protocol.basics.errors import (
    MalformedHelloError,
    MalformedReplyError,
    RemoteProtocolError,
)
from delay_protocol.wire.frames import Frame
from delay_protocol.wire.hello import Hello, decode_hello, encode_hello
from delay_transport.seams.backoff import Backoff
from delay_transport.seams.errors import TransportError
from delay_transport.seams.runtime import Clock, Network
from sender.groups.connection import BrokerConnection, End, Request
from sender.groups.gates import OPEN_GATE, GroupGate, TokenBucket
from sender.groups.group_status import MOVES, GroupCounts, GroupState, GroupStatus
from sender.groups.routing import LaneView
from sender.health.circuit import Change, Circuit, CircuitLimits, CircuitState, Event, Failure
from sender.health.refusal_run import RefusalRun
from sender.health.weight import Weight
from sender.health.window import Window, WindowLimits
from sender.outcomes.answers import Codes, Items, is_broker_sick, item_codes, permanent
from sender.outcomes.outcomes import Outcome
from sender.queues.bulk_turns import BulkTurns
from sender.queues.lanes import LaneQueue
from sender.queues.parcels import Batch, Entries, Mask, Parcel, count_of
from sender.queues.places import HeldPart, Where
from sender.settings.config import BrokerGroup, SenderConfig
from sender.settings.errors import ItemBytesError

_log: structlog.stdlib.BoundLogger = structlog.get_logger("sender")

ReadItems = Callable[[Entries], tuple[Items, Mask | None]]
"""Returns the item of each entry, checked, and which of them are damaged (None if none is).

A damaged item has its place among them too, and no bytes.
"""

_FAILURES: Final = {
    End.UNREACHABLE: Failure.UNREACHABLE,
    End.HELLO: Failure.HELLO,
    End.LOST: Failure.LOST,
    End.TIMEOUT: Failure.TIMEOUT,
    End.GARBAGE: Failure.GARBAGE,
    End.REFUSING: Failure.REFUSED,
}
"""What the end of a connection says about the group; what is missing says nothing."""

_HAIR_S: Final = 1e-6

_USELESS: Final = 0
_ON_TRIAL: Final = 1
_WELL: Final = 2
"""How far entries should rather go to a group than wait: less, while it is slow or takes none."""

_ENDS: Final = {
    Failure.TIMEOUT: End.TIMEOUT,
    Failure.GARBAGE: End.GARBAGE,
}
"""How a connection is said to have ended on a failure; all others are refusals."""


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
        """Take entries whose try failed with their request."""

    def doubtful(self, batch: Batch, *, avoid: int) -> None:
        """Take entries that a broker may have taken or not."""

    def refused(self, batch: Batch, codes: Codes, *, avoid: int) -> None:
        """Take entries that were refused one by one, with the code of each."""

    def group_failed(self, group: str) -> None:
        """Hear that a group could not be reached, or that its connection ended badly."""

    def groups_changed(self) -> None:
        """Hear that a group takes less than before, so that others may be asked."""

    def group_is_better(self, number: int) -> None:
        """Hear that the group of this number takes more: what waits for slow ones may go there."""

    def room_changed(self, number: int) -> None:
        """Hear that the group of this number has room for more of any lane."""

    def lane_room_changed(self, lane: int) -> None:
        """Hear that a group has room for more of this lane, though perhaps of no other."""


class Group:
    """The queue, the connection and the health of one broker group.

    Invariants: `in_flight` and `in_flight_bytes` are the sums over the requests in flight; only in
    the state UP is anything queued or sent, while the circuit is HALF_OPEN probes only, one at a
    time, and while it is OPEN nothing.
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
        turns: BulkTurns,
        gate: GroupGate = OPEN_GATE,
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
        self._turns = turns
        self._sent_little = False
        """Whether the latest request was a small one beside the large ones of a backlog."""
        self._head_waits = False
        """Whether what is next did not fit beside what is in flight: nothing goes before it."""
        wait = Backoff(base_s=config.reconnect_base_s, max_s=config.reconnect_max_s)
        self._circuit = Circuit(
            CircuitLimits(
                failures=config.refusals_max,
                share=config.refused_share,
                share_s=config.refused_share_s,
                requests_min=config.refused_share_requests_min,
                wait=wait,
                calm_s=config.ramp_s,
            ),
            chance=chance,
            on_change=self._circuit_changed,
        )
        self._circuit_reason = ""
        self._queue = LaneQueue(turn_items=config.lane_turn_items)
        self._window_limits = WindowLimits(
            requests_start=config.in_flight_requests_start,
            requests_max=config.in_flight_requests_max,
            queue_items_min=min(
                config.queue_lane_batches_min * config.lane_turn_items, config.queue_items_max
            ),
            queue_items_max=config.queue_items_max,
            queue_s=config.queue_s,
            quick_s=config.quick_s,
            usual_s_max=config.usual_s_max,
            fade_s=config.pace_fade_s,
        )
        self._window = Window(self._window_limits)
        self._queue_items = self._lane_items_min = self._window_limits.queue_items_min
        """Entries that may wait: in all, and of each lane whatever others have here."""
        self._weight = Weight(
            target.weight,
            ramp_s=config.ramp_s,
            fade_s=config.success_fade_s,
            floor=config.weight_floor,
        )
        self._refusal_run = RefusalRun(interval_s=config.reconnect_max_s)
        self._health = _USELESS
        """When it was looked at last, for whoever waits for a change."""
        # Rounding must not hide it when the connection tells of a request that waits for so long.
        self._slow_s = config.slow_s - _HAIR_S
        self._slow_since = math.inf
        self._gate = gate
        self._bucket: TokenBucket | None = None
        self._in_flight_bytes = 0
        self._connection: BrokerConnection | None = None
        self._counts = GroupCounts()
        self._last_end = ""
        self._stopping = self._is_no_broker = False
        self.has_ended = False
        """Whether run() has returned."""
        self._scope = trio.CancelScope()
        self._attempt = trio.CancelScope()
        """Of connecting, or of waiting before it: a new address ends either."""
        self._fit_gate()

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
        if self._is_trial:
            return self._takes and self._trial_room() > 0
        return self._takes

    @property
    def is_hungry(self) -> bool:
        """Whether little waits for the group for what it can be sent in a while."""
        if not self._takes or self._is_trial or self.queued > self._queue_items // 2:
            return False
        # A slow one is given a few at a time, and what is more goes back.
        return not self.is_slow(trio.current_time())

    @property
    def _takes(self) -> bool:
        """Whether entries may be queued here at all."""
        return (
            self.state is GroupState.UP
            and self._circuit.state is not CircuitState.OPEN
            and not self._gate.paused
        )

    @property
    def _is_trial(self) -> bool:
        return self._circuit.state is not CircuitState.CLOSED

    def _trial_room(self) -> int:
        """Return how many more entries may be risked here."""
        return max(0, self._config.trial_items - self.load)

    def room(self, lane: int) -> int:
        """Return how many entries of a lane may be queued for this group now."""
        if not self._takes:
            return 0
        if self._is_trial:
            return self._trial_room()
        free = self._queue_items - self._queue.count
        if free < self._lane_items_min:
            # However much the other lanes have here: with nothing queued it had no turns.
            free = max(free, self._lane_items_min - self._queue.count_of(lane))
        return max(0, free)

    def answer_s(self, now: float) -> float:
        """Return how long its answers take: as they did of late, or as one keeps us waiting now."""
        return max(self._window.answer_s, self._waited_s(now))

    def _waited_s(self, now: float) -> float:
        """Return how long it has kept us waiting for an answer by now; 0 if for none."""
        since = None if self._connection is None else self._connection.waits_since()
        return 0.0 if since is None else now - since

    def is_slow(self, now: float) -> bool:
        """Return whether others had better get what it could be given."""
        return self.answer_s(now) >= self._slow_s

    def seen_by(self, lane: int, now: float) -> LaneView:
        """Return the group as entries of this lane find it now (trio's time)."""
        if not self._takes:
            return LaneView(
                name=self.name, room=0, is_well=False, room_beside=0, weight=self._weight.configured
            )
        room = beside = self.room(lane)
        answer_s = self.answer_s(now)
        # What has a rate may have no room for long: nobody is to wait for it.
        is_well = not self._is_trial and self._bucket is None
        if self._bucket is not None:
            # Others take at once what would wait here for its turn within the rate.
            soon = self._bucket.available(now) + int(self._bucket.rate * self._config.queue_s)
            beside = min(beside, max(0, soon - self._queue.count))
        if answer_s >= self._slow_s:
            is_well = False
            beside = min(beside, self._trial_room())
        if self._refusal_run.is_long:
            is_well = False
            may_try = self._refusal_run.may_try(now)
            beside = min(beside, self._config.trial_items) if may_try else 0
        return LaneView(
            name=self.name,
            room=room,
            is_well=is_well,
            room_beside=beside,
            weight=self._effective(now),
        )

    def _effective(self, now: float) -> float:
        # A few that it gets now tell more than what it took for many a while ago.
        answer_s = max(self._window.recent_s(now), self._waited_s(now))
        return self._weight.effective(now, answer_s=answer_s, quick_s=self._window.quick_s)

    def _stated_weight(self, now: float) -> float:
        """Return what its share is in proportion to: the least while it gets probes only."""
        if not self._takes:
            return 0.0
        if self._is_trial:
            return self._weight.configured * self._config.weight_floor
        return self._effective(now)

    def status(self) -> GroupStatus:
        """Return a look at the group as it is now."""
        now = trio.current_time()
        answer_s = self.answer_s(now)
        return GroupStatus(
            name=self.name,
            address=self.address,
            source=self._target.source,
            state=self.state,
            queued=self.queued,
            in_flight=self.in_flight,
            in_flight_bytes=self._in_flight_bytes,
            failures=self._circuit.failures,
            last_end=self._last_end,
            circuit=self._circuit.state,
            circuit_reason=self._circuit_reason,
            gate=self._gate,
            weight=self._weight.configured,
            effective_weight=self._stated_weight(now),
            window_requests=self._window.requests,
            queue_items=self._queue_items,
            answer_s=answer_s,
            is_slow=answer_s >= self._slow_s,
            counts=replace(
                self._counts, ends=dict(self._counts.ends), changes=dict(self._counts.changes)
            ),
        )

    def held(self) -> Iterator[Entries]:
        """Yield all entries that wait for this group or are in flight to it."""
        for parcel in self._queue.parcels():
            yield parcel.entries
        if self._connection is not None:
            for request in self._connection.in_flight.values():
                if request is not None:
                    yield request.batch.entries

    def parts(self) -> Iterator[HeldPart]:
        """Yield all that held() does, and where it is."""
        for parcel in self._queue.parcels():
            yield HeldPart(Where.QUEUED, parcel.lane, self.name, parcel.entries)
        if self._connection is not None:
            for request in self._connection.in_flight.values():
                if request is not None:
                    yield HeldPart(Where.IN_FLIGHT, None, self.name, request.batch.entries)

    def count_of(self, lane: int) -> int:
        """Return how many entries of a lane wait for this group."""
        return self._queue.count_of(lane)

    def withdraw(self, lane: int, wanted: Callable[[Entries], Mask]) -> list[Entries]:
        """Take back what is wanted of a lane and not in flight."""
        return self._queue.take_where(lane, wanted)

    def enqueue(self, parcel: Parcel) -> None:
        """Queue entries for this group; it must have room for them."""
        room = self.room(parcel.lane)
        assert len(parcel) <= room, f"{self.name}: {len(parcel)} entries, room {room}"
        if self._refusal_run.is_long:
            self._refusal_run.tried(trio.current_time())
        self._queue.append(parcel)
        self.wake()

    def wake(self) -> None:
        """Look for something to send."""
        if self._connection is not None:
            self._connection.wake()

    def move(self, target: BrokerGroup) -> None:
        """Deliver to another address from now on; what is in flight is answered at the old one."""
        self._weight.configured = target.weight
        if (target.host, target.port) == (self._target.host, self._target.port):
            self._target = target
            return
        before, self._target = self.address, target
        _log.info("broker group moved", group=self.name, before=before, address=self.address)
        if self.state is not GroupState.FENCED:
            self._circuit.moved(trio.current_time())
        self._refusal_run.taken()
        if self._connection is None:
            self._attempt.cancel()
        else:
            self._retire(End.MOVED, f"to {self.address}")

    def set_gate(self, gate: GroupGate) -> None:
        """Do as an operator allows, from now on; what is in flight is answered."""
        if gate == self._gate:
            return
        self._gate = gate
        _log.info(
            "broker group's gate changed",
            group=self.name,
            paused=gate.paused,
            rate_per_s=gate.rate_per_s,
        )
        self._fit_gate()
        if gate.paused or self._queue.count > self._queue_items:
            # By the rate it would take long; others may take it now.
            self._give_back()
        self.wake()
        self._exchange.groups_changed()

    def _fit_gate(self) -> None:
        rate, burst_s = self._gate.rate_per_s, self._config.rate_burst_s
        if rate is None:
            self._bucket = None
        elif self._bucket is None:
            self._bucket = TokenBucket(rate_per_s=rate, burst_s=burst_s, now=trio.current_time())
        else:
            self._bucket.change(rate, burst_s, trio.current_time())
        self._fit_queue()

    def _fit_queue(self) -> None:
        """Let as much wait as is answered soon."""
        self._queue_items = self._window.queue_items
        if self._gate.rate_per_s is not None:
            soon = math.ceil(self._gate.rate_per_s * self._config.queue_s)
            self._queue_items = min(self._queue_items, soon)
        self._lane_items_min = min(self._window_limits.queue_items_min, self._queue_items)

    def stop(self) -> None:
        """Send nothing more; run() returns once what is in flight is answered."""
        if self._connection is None:
            # What waits here while a connection that has ended is closed.
            self._give_back()
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
                address = self.address
                end, detail = await self._converse()
                self._counts.ends[end] += 1
                self._last_end = f"{end.value}: {detail}"
                if end is End.FENCED:
                    self._move(GroupState.FENCED)
                    self._circuit.failed(trio.current_time(), Failure.FENCED, detail)
                    _log.error(
                        "broker group fences us off",
                        group=self.name,
                        reason=detail,
                        **self._who(),
                    )
                    return
                self._move(GroupState.DOWN)
                self._give_back()
                if end is End.NO_BROKER:
                    await self._wait_for_another_address(detail)
                    continue
                # Whatever befell the connection to an old address says nothing about the new one.
                is_moved = address != self.address
                if end in _FAILURES and not (is_moved or self._stopping):
                    # Unless what ended it was heard of before, and the circuit is open already.
                    self._circuit.failed(trio.current_time(), _FAILURES[end], detail)
                    await self._wait_after_failure()

    async def _wait_for_another_address(self, detail: str) -> None:
        """Be given up for good, unless the group moves."""
        self._is_no_broker = True
        self._circuit.failed(trio.current_time(), Failure.NO_BROKER, detail)
        _log.error(
            "broker group is a delay server: it gets nothing until it has another address",
            group=self.name,
            reason=detail,
            **self._who(),
        )
        self._exchange.group_failed(self.name)
        with trio.CancelScope() as self._attempt:
            await trio.sleep_forever()
        self._is_no_broker = False

    async def _wait_after_failure(self) -> None:
        self._exchange.group_failed(self.name)
        with trio.CancelScope() as self._attempt:
            await trio.sleep_until(self._circuit.until)
        self._circuit.waited(trio.current_time())

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
                stall_s=self._config.slow_s,
                heartbeat_s=self._config.heartbeat_s,
            )
            obstacle: tuple[End, str] | None = None
            with trio.CancelScope() as self._attempt:
                obstacle = await self._greet(connection)
            is_moved = (target.host, target.port) != (self._target.host, self._target.port)
            if is_moved or self._attempt.cancelled_caught:
                # Or it has moved there and back: half a HELLO may have been said.
                obstacle = End.MOVED, f"to {self.address}"
            if obstacle is not None:
                return obstacle
            self._window = Window(self._window_limits)
            self._fit_queue()
            self._connection = connection
            self._move(GroupState.UP)
            self._look_at_health()
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
        if answer is None:
            return End.HELLO, "closed by the peer"
        return self._hello_answered(answer.code, answer.body)

    def _hello_answered(self, code: int, body: bytes) -> tuple[End, str] | None:
        who = self._delay_server(body)
        if who:
            return End.NO_BROKER, f"{self.address} is {who}: what it got could come back"
        if code == ResponseCode.BROKER_REJECT:
            return End.FENCED, f"epoch {self._hello.epoch} is refused, it is never tried again"
        # A QMQ broker does not know HELLO and says so: it cannot fence, but it can be sent to.
        if code not in {ResponseCode.SUCCESS, ResponseCode.UNKNOWN_CODE}:
            return End.HELLO, f"answered with code {code}"
        _log.info("broker group connected", group=self.name, fences=code == 0, **self._who())
        return None

    def _delay_server(self, body: bytes) -> str:
        """Return which delay server answered a HELLO; empty if it was none."""
        try:
            peer = decode_hello(body)
        except MalformedHelloError:
            return ""
        if not peer.log_uuid:
            return ""
        if peer.log_uuid == self._hello.log_uuid:
            return "this delay server itself, or one of its group"
        return f"the delay server {peer.node_id} of {peer.group}, log {peer.log_uuid}"

    # What the connection asks for, and tells.

    @property
    def send_at(self) -> float:
        """When there is something to send that has to wait for its time: that of a rate."""
        if self._bucket is None or not self._could_send():
            return math.inf
        now = trio.current_time()
        at = self._bucket.ready_at(min(self._queue.count, self._bucket.step), now)
        # If it is now, it is not the rate that keeps it back, and an answer will wake us.
        return at if at > now else math.inf

    def next_request(self) -> tuple[Request, bytes | memoryview] | None:
        """Return the next batch as a request and its body; None if there is none for now.

        A connection asks when it begins and after every answer: so this is also where the exchange
        hears that there is room again.
        """
        ready = None
        while ready is None and self._may_send():
            batch, is_beside = self._next_batch()
            if batch is None:
                break
            if self._queue.count > self._queue_items // 2:
                self._tell_lanes_of_room(batch)
            ready = self._build(batch, is_beside=is_beside)
        if self._queue.count <= self._queue_items // 2:
            self._exchange.room_changed(self.number)
        return ready

    def _next_batch(self) -> tuple[Batch | None, bool]:
        """Take the entries of the next request out of the queue; say if it is a small one beside.

        Where there is much of some lanes, what there is little of goes first, in a request of its
        own, and the rest when it is this group's turn to make a large one; but no second small one
        while it is. What is too large to go beside anything in flight is not overtaken at all.
        """
        config = self._config
        items_max = self._items_allowed()
        bytes_max = min(config.batch_bytes, self._bytes_max() - self._in_flight_bytes)
        if not self._head_waits and min(self._queue.count, items_max) > config.lane_turn_items:
            now = trio.current_time()
            if not (self._sent_little and self._turns.take(self.number, now, self.wake)):
                little = self._queue.take_little(
                    lane_items_max=config.lane_turn_items // 4,
                    items_max=config.lane_turn_items,
                    bytes_max=bytes_max,
                )
                if little is not None:
                    self._sent_little = True
                    self._turns.small_sent(now)
                    return little, True
                if not self._turns.take(self.number, now, self.wake):
                    return None, False
            self._sent_little = False
        batch = self._queue.take(
            items_max=items_max, bytes_max=bytes_max, any_size=not self.in_flight
        )
        self._head_waits = batch is None
        return batch, False

    def _items_allowed(self) -> int:
        """Return how many items the next request may have."""
        if self._bucket is None:
            return self._config.batch_items
        return min(self._config.batch_items, self._bucket.available(trio.current_time()))

    def _bytes_max(self) -> int:
        """Return how many bytes may be in flight: the same part of the most as of requests."""
        config = self._config
        part = config.in_flight_bytes_max * self._window.requests // config.in_flight_requests_max
        return max(part, min(config.batch_bytes, config.in_flight_bytes_max))

    def _tell_lanes_of_room(self, batch: Batch) -> None:
        """Ask for more of the lanes of which little is left in a queue that others fill."""
        for lane, _ in batch.lanes:
            if self._queue.count_of(lane) <= self._lane_items_min // 2:
                self._exchange.lane_room_changed(lane)

    def answered(self, request: Request, answer: Frame) -> None:
        """Take an answer: settle what was taken, hand on what was not."""
        self._landed(request)
        now = trio.current_time()
        if answer.code != ResponseCode.SUCCESS:
            self._counts.requests_refused += 1
            self._counts.refused += len(request.batch)
            self._exchange.retry(request.batch, avoid=self.number)
            self._window.shrink(now=now, sent_at=request.sent_at)
            self._weight.answered(now, 0.0)
            is_final = answer.code == ResponseCode.BROKER_REJECT
            self._failed(
                Failure.REJECTED if is_final else Failure.REFUSED,
                f"answered with code {answer.code}",
            )
        else:
            assert self._connection is not None
            # How quickly a few are taken says nothing of how the large ones beside them are.
            if not request.is_beside:
                self._window.answered(
                    now=now,
                    sent_at=request.sent_at,
                    items=len(request.batch),
                    was_full=len(self._connection.in_flight) + 1 >= self._window.requests,
                )
            if answer.body:
                self._answered_in_part(request, answer.body, now)
            else:
                self._counts.delivered += len(request.batch)
                self._exchange.settled(request.batch.entries, Outcome.DELIVERED, self.name)
                self._weight.answered(now, 1.0)
                self._success(now)
        self._fit_queue()
        self._look_at_health()

    def timed_out(self, request: Request | None) -> None:
        """Take the news that there was no answer in time, which says something about the group."""
        if request is not None:
            self._landed(request)
            self._counts.requests_timed_out += 1
            self._doubtful(request.batch)
        self._failed(Failure.TIMEOUT, f"no answer within {self._config.request_timeout_s:g} s")

    def stalled(self) -> None:
        """Take the news that an answer takes so long that others had better be asked."""
        self._look_at_health()

    def _may_send(self) -> bool:
        if not self._could_send():
            return False
        if self._bucket is None:
            return True
        # Not for each single item that the rate allows.
        count = min(self._queue.count, self._bucket.step)
        return self._bucket.available(trio.current_time()) >= count

    def _could_send(self) -> bool:
        """Say whether anything but a rate keeps the next request back."""
        if self._exchange.is_paused or not self._queue.count or self._connection is None:
            return False
        if not self._takes:
            return False
        most = 1 if self._is_trial else self._window.requests
        return len(self._connection.in_flight) < most

    def _build(self, batch: Batch, *, is_beside: bool) -> tuple[Request, bytes | memoryview] | None:
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
        if self._bucket is not None:
            self._bucket.take(len(batch), trio.current_time())
        self.in_flight += len(batch)
        self._in_flight_bytes += len(body)
        self._counts.requests += 1
        remark_bytes = self._config.answer_remark_bytes
        request = Request(batch, items, len(body), remark_bytes=remark_bytes, is_beside=is_beside)
        return request, body

    def _answered_in_part(self, request: Request, answer: bytes, now: float) -> None:
        """Look up what an answer that lists failures says about each item."""
        batch = request.batch
        try:
            codes = item_codes(request.items, answer)
        except MalformedReplyError as error:
            self._doubtful(batch)
            self._failed(Failure.GARBAGE, str(error))
            return
        delivered = codes == ItemCode.SUCCESS
        known = codes == ItemCode.MESSAGE_DUPLICATE
        refused = ~(delivered | known)
        delivered_count, known_count, refused_count = map(count_of, (delivered, known, refused))
        taken_count = delivered_count + known_count
        self._counts.delivered += delivered_count
        self._counts.known += known_count
        self._counts.refused += refused_count
        if delivered_count:
            entries = batch.those(delivered).entries
            self._exchange.settled(entries, Outcome.DELIVERED, self.name)
        if known_count:
            self._exchange.settled(batch.those(known).entries, Outcome.KNOWN, self.name)
        if refused_count:
            self._exchange.refused(batch.those(refused), codes[refused], avoid=self.number)
        hopeless_count = count_of(permanent(codes))
        if hopeless_count < len(codes):
            self._weight.answered(now, taken_count / (len(codes) - hopeless_count))
        if is_broker_sick(codes):
            self._failed(Failure.SICK, f"refused every item, the first with code {codes[0]}")
        elif taken_count:
            self._success(now)
        else:
            self._refuse_all(hopeless_count)

    def _landed(self, request: Request) -> None:
        self.in_flight -= len(request.batch)
        self._in_flight_bytes -= request.size

    def _doubtful(self, batch: Batch) -> None:
        """Try entries again that the group may have taken."""
        self._counts.possible_duplicates += len(batch)
        self._exchange.doubtful(batch, avoid=self.number)

    def _refuse_all(self, items: int) -> None:
        """Hear that all items of a request were refused for good."""
        was_long = self._refusal_run.is_long
        self._refusal_run.refused(items)
        if self._refusal_run.is_long and not was_long:
            _log.warning("broker group refuses every item for good", group=self.name)

    def _success(self, now: float) -> None:
        self._refusal_run.taken()
        # Good answers of a connection that is being given up do not make up for why it is.
        if self.state is GroupState.UP:
            self._circuit.taken(now)

    def _failed(self, failure: Failure, detail: str) -> None:
        """Hear of a failure on the connection, which is given up if it opens the circuit."""
        if self.state is GroupState.UP:
            self._circuit.failed(trio.current_time(), failure, detail)
        if self._circuit.state is CircuitState.OPEN:
            self._retire(_ENDS.get(failure, End.REFUSING), detail)

    def _circuit_changed(self, change: Change) -> None:
        """Log and count a change of the circuit, and let those who depend on it know."""
        self._counts.changes[change.after] += 1
        if change.event is not Event.WAITED:
            # While it gets probes it is still of interest why it gets nothing else.
            self._circuit_reason = change.reason
        log = _log.bind(
            group=self.name,
            before=change.before.value,
            after=change.after.value,
            reason=change.reason,
        )
        is_for_good = self._is_no_broker or self.state is GroupState.FENCED
        if change.after is CircuitState.OPEN and not is_for_good:
            log.warning(
                "broker group failed",
                failures=self._circuit.failures,
                again_in_s=round(self._circuit.until - change.at, 3),
            )
        else:
            log.info("broker group's circuit changed")
        if change.after is CircuitState.CLOSED:
            self._weight.recovered(change.at)

    def _look_at_health(self) -> None:
        """Have entries handed out anew if the group has become well, or slow, or worse."""
        health, now = _WELL, trio.current_time()
        if self._takes and self.is_slow(now):
            self._slow_since = min(self._slow_since, now)
            health = _USELESS
        elif not self._takes or self._refusal_run.is_long:
            health = _USELESS
        elif self._is_trial:
            health = _ON_TRIAL
        before, self._health = self._health, health
        if health is _WELL:
            if now - self._slow_since >= self._config.ramp_s:
                self._weight.recovered(now)
            self._slow_since = math.inf
        if health > before:
            self._exchange.group_is_better(self.number)
        elif health < before:
            self._give_back()
            self._exchange.groups_changed()

    def yield_queue(self) -> None:
        """Give back what is queued, if the group is slow: another one takes more than before."""
        if self._queue.count and self.is_slow(trio.current_time()):
            self._give_back()

    def _retire(self, end: End, detail: str) -> None:
        """Send no more on this connection, and close it once nothing is in flight."""
        assert self._connection is not None
        if self.state is not GroupState.RETIRING:
            self._move(GroupState.RETIRING)
            self._give_back()
            self._look_at_health()
        self._connection.retire(end, detail)

    def _take_back(self, connection: BrokerConnection) -> None:
        """Try again what was in flight when the connection ended: it may have arrived or not."""
        self._counts.answers_unmatched += connection.answers_unmatched
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
        if state is GroupState.DOWN:
            self._look_at_health()

    def _who(self) -> dict[str, object]:
        return {"address": self.address, "epoch": self._hello.epoch}
