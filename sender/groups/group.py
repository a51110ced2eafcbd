"""One broker group: what waits for it, its one connection, and what is in flight.

Groups share no queue, no connection and no task. A group that fails gives back at once what is
queued for it; what is in flight gets the rest of its time, since its answers may still come. Its
states are drawn in group_status.py.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog
import trio

from delay_protocol.basics.codes import ResponseCode
from delay_protocol.basics.errors import MalformedReplyError
from delay_protocol.wire.frames import Frame
from delay_protocol.wire.hello import Hello
from delay_transport.seams.runtime import Clock, Network
from sender.groups.connection import BrokerConnection, End, Request
from sender.groups.connector import Connector
from sender.groups.group_health import GroupHealth
from sender.groups.group_queue import GroupQueue
from sender.groups.group_rules import NO_RULE, GroupRule
from sender.groups.group_status import GroupState, GroupStatus
from sender.groups.intake import Intake
from sender.groups.readable import ReadItems
from sender.groups.requests import Requests, Settlement
from sender.groups.routing import LaneRoutes
from sender.health.circuit import CircuitState, Failure
from sender.outcomes.answers import is_broker_sick
from sender.outcomes.dead import Refusals
from sender.queues.bulk_turns import BulkTurns
from sender.queues.parcels import Batch, Entries, Mask, Parcel
from sender.queues.places import Having, HeldPart, Where
from sender.settings.config import BrokerGroup, SenderConfig

_log: structlog.stdlib.BoundLogger = structlog.get_logger("sender")

_FAILURES: Final = {
    End.UNREACHABLE: Failure.UNREACHABLE,
    End.HELLO: Failure.HELLO,
    End.LOST: Failure.LOST,
    End.TIMEOUT: Failure.TIMEOUT,
    End.GARBAGE: Failure.GARBAGE,
    End.REFUSING: Failure.REFUSED,
}
"""What the end of a connection says about the group; what is missing says nothing."""

_ENDS: Final = {
    Failure.TIMEOUT: End.TIMEOUT,
    Failure.GARBAGE: End.GARBAGE,
}
"""How a connection is said to have ended on a failure; all others are refusals."""


class GroupOwner(Settlement, Protocol):
    """Where a group leaves entries that it does not keep, and who hears how it does."""

    is_paused: bool
    """Whether nothing is to be sent for now."""
    may_send: Callable[[], bool]
    """Says whether a request may be sent at this moment; if not, the group is woken later."""

    def unsettled(self, batch: Batch, *, group: str, tries_max: int) -> None:
        """Take entries that a receiver left with, to be tried again, or given up after so many."""

    def give_back(self, parcels: Sequence[Parcel]) -> None:
        """Take entries that were queued for a group and not sent."""

    def groups_changed(self) -> None:
        """Hear that a group takes less than before, so that others may be asked."""

    def group_is_better(self, number: int) -> None:
        """Hear that the group of this number takes more: what waits for slow ones may go there."""

    def room_changed(self, number: int) -> None:
        """Hear that the group of this number has room for more of any lane."""

    def lane_room_changed(self, lane: int) -> None:
        """Hear that a group has room for more of this lane, though perhaps of no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all groups of one sender are made with."""

    hello: Hello
    """Said on each new connection."""
    config: SenderConfig
    clock: Clock
    network: Network
    chance: random.Random
    read_items: ReadItems
    owner: GroupOwner
    turns: BulkTurns
    """By which one group at a time makes a large request."""
    routes: LaneRoutes | None
    unsettled: "Unsettled"
    """What receivers have, of all groups."""
    left_with: Refusals
    """Entries that receivers left with and had not settled."""


@dataclass(slots=True)
class Unsettled:
    """How many entries are with receivers and not settled, of all groups that share it."""

    count: int = 0


class Group:
    """The queue, the connection and the health of one broker group.

    Its parts keep what it consists of: the queue what waits, the requests what is in flight, the
    health how it does, and the connector the way to its next connection. The intake says by these
    what it may be given. The group itself is the state of the connection, and what follows for one
    part from what another one hears.

    Invariant: only in the state UP is anything queued or sent, while the circuit is HALF_OPEN
    probes only, one at a time, and while it is OPEN nothing.
    """

    def __init__(
        self,
        number: int,
        target: BrokerGroup,
        shared: Shared,
        rule: GroupRule = NO_RULE,
    ) -> None:
        """Begin without a connection."""
        config, owner = shared.config, shared.owner
        self.name = target.name
        self.number = number
        """Never that of another group."""
        self.state = GroupState.DOWN
        self._target = target
        self._hello = shared.hello
        self._config = config
        self._connector = Connector(hello=shared.hello, network=shared.network, config=config)
        self._requests = Requests(
            target.name,
            number,
            clock=shared.clock,
            read_items=shared.read_items,
            settlement=owner,
        )
        self._owner = owner
        self._health = GroupHealth(
            target.name,
            target.weight,
            config=config,
            chance=shared.chance,
            counts=self._requests.counts,
            waits_since=self._waits_since,
            trouble=self._connector.trouble,
        )
        self._queue = GroupQueue(
            number,
            config=config,
            turns=shared.turns,
            rule=rule,
            wake=self.wake,
        )
        self.intake = Intake(
            target.name,
            config=config,
            queue=self._queue,
            requests=self._requests,
            health=self._health,
            is_up=lambda: self.state is GroupState.UP,
        )
        """What the group may be given."""
        self._connection: BrokerConnection | None = None
        self._last_end = ""
        self._stopping = False
        self.has_ended = False
        """Whether run() has returned."""
        self._scope = trio.CancelScope()
        self._queue.set_rule(rule, self._health.window)

    @property
    def address(self) -> str:
        """host:port of the master, for people."""
        return f"{self._target.host}:{self._target.port}"

    @property
    def in_flight(self) -> int:
        """Entries sent and not answered."""
        return self._requests.in_flight

    @property
    def queued(self) -> int:
        """Entries that wait for this group."""
        return self._queue.lanes.count

    @property
    def queued_by_lane(self) -> dict[int, int]:
        """Entries that wait for this group, by lane."""
        return self._queue.lanes.counts()

    def _waits_since(self) -> float | None:
        """Return when what waits longest for its answer was sent; None if nothing waits."""
        return None if self._connection is None else self._connection.waits_since()

    def status(self) -> GroupStatus:
        """Return a look at the group as it is now."""
        now = trio.current_time()
        return GroupStatus(
            name=self.name,
            address=self.address,
            source=self._target.source,
            state=self.state,
            queued=self.queued,
            in_flight=self.in_flight,
            in_flight_bytes=self._requests.in_flight_bytes,
            failures=self._health.circuit.failures,
            last_end=self._last_end,
            circuit=self._health.circuit.state,
            circuit_reason=self._health.circuit_reason,
            rule=self._queue.rule,
            weight=self._health.weight.configured,
            effective_weight=self._health.stated_weight(now) if self.intake.takes else 0.0,
            window_requests=self._health.window.requests,
            queue_items=self._queue.items_max,
            answer_s=self._health.answer_s(now),
            is_slow=self._health.is_slow(now),
            counts=self._requests.counts.copy(),
        )

    def parts(self) -> Iterator[HeldPart]:
        """Yield all entries that wait for this group or are in flight to it, and where they are."""
        for parcel in self._queue.lanes.parcels():
            yield HeldPart(Where.QUEUED, parcel.lane, self.name, parcel.entries)
        if self._connection is not None:
            for request in self._connection.in_flight.values():
                if request is not None:
                    yield HeldPart(Where.IN_FLIGHT, None, self.name, request.batch.entries)

    def with_whom(self, wanted: frozenset[int]) -> dict[int, Having]:
        """Return who has those of these sequences that are in flight."""
        if self._connection is None:
            return {}
        now, found = trio.current_time(), {}
        for request in filter(None, self._connection.in_flight.values()):
            here = wanted.intersection(request.batch.entries["sequence"].tolist())
            found.update(dict.fromkeys(here, Having(self.name, now - request.sent_at)))
        return found

    def count_of(self, lane: int) -> int:
        """Return how many entries of a lane wait for this group."""
        return self._queue.lanes.count_of(lane)

    def withdraw(self, lane: int, wanted: Callable[[Entries], Mask]) -> list[Entries]:
        """Take back what is wanted of a lane and not in flight."""
        return self._queue.lanes.take_where(lane, wanted)

    def enqueue(self, parcel: Parcel) -> None:
        """Queue entries for this group; it must have room for them."""
        room = self.intake.room(parcel.lane)
        assert len(parcel) <= room, f"{self.name}: {len(parcel)} entries, room {room}"
        if self._health.refusals.is_long:
            self._health.refusals.tried(trio.current_time())
        self._queue.lanes.append(parcel)
        self.wake()

    def wake(self) -> None:
        """Look for something to send."""
        if self._connection is not None:
            self._connection.wake()

    def move(self, target: BrokerGroup) -> None:
        """Deliver to another address from now on; what is in flight is answered at the old one."""
        self._health.weight.configured = target.weight
        if (target.host, target.port) == (self._target.host, self._target.port):
            self._target = target
            return
        before, self._target = self.address, target
        _log.info("broker group moved", group=self.name, before=before, address=self.address)
        if self.state is not GroupState.FENCED:
            self._health.circuit.moved(trio.current_time())
        self._health.refusals.taken()
        if self._connection is None:
            self._connector.interrupt(self.address)
        else:
            self._retire(End.MOVED, f"to {self.address}")

    def set_rule(self, rule: GroupRule) -> None:
        """Do as an operator allows, from now on; what is in flight is answered."""
        if rule == self._queue.rule:
            return
        _log.info(
            "broker group's rule changed",
            group=self.name,
            paused=rule.paused,
            rate_per_s=rule.rate_per_s,
        )
        self._queue.set_rule(rule, self._health.window)
        if rule.paused or self._queue.lanes.count > self._queue.items_max:
            # By the rate it would take long; others may take it now.
            self.give_back()
        self.wake()
        self._owner.groups_changed()

    def stop(self) -> None:
        """Send nothing more; run() returns once what is in flight is answered."""
        if self._connection is None:
            # What waits here while a connection that has ended is closed.
            self.give_back()
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
                self._requests.counts.ends[end] += 1
                self._last_end = f"{end.value}: {detail}"
                if end is End.FENCED:
                    self._move(GroupState.FENCED)
                    self._health.give_up(trio.current_time(), Failure.FENCED, detail)
                    _log.error(
                        "broker group fences us off",
                        group=self.name,
                        reason=detail,
                        **self._who(),
                    )
                    return
                self._move(GroupState.DOWN)
                self.give_back()
                if end is End.NO_BROKER:
                    await self._wait_for_another_address(detail)
                    continue
                # Whatever befell the connection to an old address says nothing about the new one.
                is_moved = address != self.address
                if end in _FAILURES and not (is_moved or self._stopping):
                    # Unless what ended it was heard of before, and the circuit is open already.
                    self._health.circuit.failed(trio.current_time(), _FAILURES[end], detail)
                    await self._wait_after_failure()

    async def _wait_for_another_address(self, detail: str) -> None:
        """Be given up for good, unless the group moves."""
        self._health.give_up(trio.current_time(), Failure.NO_BROKER, detail)
        _log.error(
            "broker group is a delay server: it gets nothing until it has another address",
            group=self.name,
            reason=detail,
            **self._who(),
        )
        await self._connector.wait_until(math.inf)
        self._health.is_given_up = False

    async def _wait_after_failure(self) -> None:
        await self._connector.wait_until(self._health.circuit.until)
        self._health.circuit.waited(trio.current_time())

    async def _converse(self) -> tuple[End, str]:
        """Connect, say HELLO, deliver until the connection ends; return why it did."""
        target = self._target
        stream = await self._connector.connect(target)
        if isinstance(stream, tuple):
            return stream
        try:
            connection = await self._connector.greet(stream, self, target)
            if isinstance(connection, tuple):
                return connection
            self._health.connected()
            self._queue.fit(self._health.window)
            self._connection = connection
            self._move(GroupState.UP)
            self._look_at_health()
            end = await connection.run()
            self._connection = None
            self._requests.connection_ended(connection)
            return end
        finally:
            await trio.aclose_forcefully(stream)

    # What the connection asks for, and tells.

    @property
    def send_at(self) -> float:
        """When there is something to send that has to wait for its time: that of a rate."""
        return self._queue.send_at() if self._could_send() else math.inf

    def next_request(self) -> tuple[Request, bytes | memoryview] | None:
        """Return the next batch as a request and its body; None if there is none for now.

        A connection asks when it begins and after every answer: so this is also where the owner
        hears that there is room again.
        """
        ready = None
        while ready is None and self._could_send() and self._queue.may_send():
            batch, is_beside = self._queue.next_batch(
                requests=self._health.window.requests,
                in_flight_bytes=self._requests.in_flight_bytes,
                any_size=not self.in_flight,
            )
            if batch is None:
                break
            if not self._queue.is_low:
                # Others fill the queue: more of the lanes of which little is left is asked for.
                for lane in self._queue.low_lanes(batch):
                    self._owner.lane_room_changed(lane)
            ready = self._requests.build(batch, is_beside=is_beside)
            if ready is not None:
                self._queue.sent(len(ready[0].batch))
        if self._queue.is_low:
            self._owner.room_changed(self.number)
        return ready

    def answered(self, request: Request, answer: Frame) -> None:
        """Take an answer: settle what was taken, hand on what was not."""
        now = trio.current_time()
        if answer.code != ResponseCode.SUCCESS:
            self._requests.refused(request)
            self._health.window.shrink(now=now, sent_at=request.sent_at)
            self._health.weight.answered(now, 0.0)
            is_final = answer.code == ResponseCode.BROKER_REJECT
            self._failed(
                Failure.REJECTED if is_final else Failure.REFUSED,
                f"answered with code {answer.code}",
            )
        else:
            assert self._connection is not None
            # How quickly a few are taken says nothing of how the large ones beside them are.
            if not request.is_beside:
                self._health.window.answered(
                    now=now,
                    sent_at=request.sent_at,
                    items=len(request.batch),
                    was_full=len(self._connection.in_flight) + 1 >= self._health.window.requests,
                )
            if answer.body:
                self._answered_in_part(request, answer.body, now)
            else:
                self._requests.taken(request)
                self._health.weight.answered(now, 1.0)
                self._success(now)
        self._queue.fit(self._health.window)
        self._look_at_health()

    def timed_out(self, request: Request | None) -> None:
        """Take the news that there was no answer in time, which says something about the group."""
        if request is not None:
            self._requests.unanswered(request)
        self._failed(Failure.TIMEOUT, f"no answer within {self._config.request_timeout_s:g} s")

    def stalled(self) -> None:
        """Take the news that an answer takes so long that others had better be asked."""
        self._look_at_health()

    def _could_send(self) -> bool:
        """Say whether anything but a rate keeps the next request back."""
        if self._owner.is_paused or not self._queue.lanes.count or self._connection is None:
            return False
        if not self.intake.takes:
            return False
        most = 1 if self._health.is_trial else self._health.window.requests
        return len(self._connection.in_flight) < most and self._owner.may_send()

    def _answered_in_part(self, request: Request, answer: bytes, now: float) -> None:
        """Take an answer that lists failures."""
        try:
            told = self._requests.taken_in_part(request, answer)
        except MalformedReplyError as error:
            self._requests.doubtful(request.batch)
            self._failed(Failure.GARBAGE, str(error))
            return
        judged = len(told.codes) - told.hopeless
        if judged:
            self._health.weight.answered(now, told.taken / judged)
        if is_broker_sick(told.codes):
            self._failed(Failure.SICK, f"refused every item, the first with code {told.codes[0]}")
        elif told.taken:
            self._success(now)
        else:
            self._health.refused_for_good(told.hopeless)

    def _success(self, now: float) -> None:
        self._health.refusals.taken()
        # Good answers of a connection that is being given up do not make up for why it is.
        if self.state is GroupState.UP:
            self._health.circuit.taken(now)

    def _failed(self, failure: Failure, detail: str) -> None:
        """Hear of a failure on the connection, which is given up if it opens the circuit."""
        if self.state is GroupState.UP:
            self._health.circuit.failed(trio.current_time(), failure, detail)
        if self._health.circuit.state is CircuitState.OPEN:
            self._retire(_ENDS.get(failure, End.REFUSING), detail)

    def _look_at_health(self) -> None:
        """Have entries handed out anew if the group has become well, or slow, or worse."""
        before, level = self._health.look(trio.current_time(), takes=self.intake.takes)
        if level > before:
            self._owner.group_is_better(self.number)
        elif level < before:
            self.give_back()
            self._owner.groups_changed()

    def yield_queue(self) -> None:
        """Give back what is queued, if the group is slow: another one takes more than before."""
        if self._queue.lanes.count and self._health.is_slow(trio.current_time()):
            self.give_back()

    def _retire(self, end: End, detail: str) -> None:
        """Send no more on this connection, and close it once nothing is in flight."""
        assert self._connection is not None
        if self.state is not GroupState.RETIRING:
            self._move(GroupState.RETIRING)
            self.give_back()
            self._look_at_health()
        self._connection.retire(end, detail)

    def give_back(self) -> None:
        """Give back what is queued and not in flight, to be placed anew."""
        parcels = self._queue.lanes.clear()
        if parcels:
            self._owner.give_back(parcels)

    def _move(self, state: GroupState) -> None:
        self.state = state
        if state is GroupState.DOWN:
            self._look_at_health()

    def _who(self) -> dict[str, object]:
        return {"address": self.address, "epoch": self._hello.epoch}
