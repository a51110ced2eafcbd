"""A group of receivers: what waits for it, who is attached, and what they have not settled.

Receivers connect to us (docs/client). Each says how much may be unsettled with it at a time, which
is its credit, and settles each message by itself, in any order. So there is no window, no circuit
and no answer to a whole request: a receiver that does badly gets nothing more once its credit is
used up, and what it has not settled when it leaves goes to the others.

A member gets only what the patterns take that it brought. Lanes of subjects that not all take have
queues of their own here, and room of their own, so that none waits behind what nobody may take.

What receivers left with again and again goes out alone (members.py), and is given up in the end.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Final

import numpy as np
import structlog
import trio

from delay_protocol.basics.codes import CommandCode
from delay_protocol.receivers.attaching import ALONE_AFTER, LEASE_S, Attach, Flow
from delay_protocol.receivers.delivering import DELIVER_ITEMS_MAX, encode_deliver_head
from delay_protocol.wire.frames import encode_one_way
from delay_transport.connections.connection import Connection
from delay_transport.seams.outbox import Wakeup
from sender.groups.group import GroupOwner, Shared
from sender.groups.group_rules import NO_RULE, GroupRule, TokenBucket, bucket_of
from sender.groups.group_status import GroupCounts, GroupState, GroupStatus
from sender.groups.members import Alone, Attachment
from sender.groups.readable import readable_of
from sender.groups.routing import LaneView
from sender.groups.taking import PatternSet, Takers
from sender.outcomes.outcomes import Outcome
from sender.queues.lanes import LaneQueue, lane_of
from sender.queues.parcels import Batch, Entries, Mask, Parcel
from sender.queues.places import Having, HeldPart, Where
from sender.settings.config import BrokerGroup
from sender.settings.errors import GroupRefusedError

_log: structlog.stdlib.BoundLogger = structlog.get_logger("sender")

SETS_MAX: Final = 8
"""Different sets of patterns that the members of a group may have brought. A rolling deployment has
two. For each set that comes or goes it is looked up for all subjects which sets take them."""
_TAKE_S: Final = 1.0
"""Receivers that come and go with sets of their own change routes no more often than so."""
_SHARED_MIN: Final = 16
"""Messages that are not divided among receivers: each DELIVER costs."""
_CHOKED_LOOK_S: Final = 0.02
"""How often it is looked whether it has taken them."""


class AttachedGroup:
    """The queue of one group of receivers, and its members.

    It stands beside `Group` and is to the sender what that is; it is its own intake.

    Invariant: `in_flight` is the number of entries that are unsettled with any member.
    """

    def __init__(
        self, number: int, target: BrokerGroup, shared: Shared, rule: GroupRule = NO_RULE
    ) -> None:
        """Begin with nobody attached."""
        self.name = target.name
        self.number = number
        """Never that of another group."""
        self._target = target
        self._shared = shared
        self._owner: GroupOwner = shared.owner
        self._queues = defaultdict[Takers, LaneQueue](
            lambda: LaneQueue(turn_items=shared.config.lane_turn_items)
        )
        """The entries that wait, by who takes them, in the order of turns."""
        self._alone = Alone(turn_items=shared.config.lane_turn_items)
        """Those that go out alone."""
        self._members: dict[Connection, Attachment] = {}
        self._sets_changed = False
        """Whether members have brought other sets than the routes go by, or will."""
        self._take_at = -math.inf
        """When the routes may begin to go by other sets again."""
        self._taking: Iterator[None] = iter(())
        """The steps in which the routes begin to go by what members brought."""
        self._nobody_since_ms: int | None = shared.clock.now_ms()
        self._rule = NO_RULE
        self._bucket: TokenBucket | None = None
        self._counts = GroupCounts()
        self._last_end = ""
        self._more = Wakeup()
        self._stopping = False
        self.has_ended = False
        """Whether run() has returned."""
        self.in_flight = 0
        """Entries that are unsettled."""
        self._in_flight_bytes = 0
        self._scope = trio.CancelScope()
        self._set_rule(rule)

    # -- what the sender asks ----------------------------------------------------------------

    @property
    def intake(self) -> "AttachedGroup":
        """What it may be given."""
        return self

    @property
    def address(self) -> str:
        """Who is attached, for people."""
        return f"{len(self._members)} attached"

    @property
    def queued(self) -> int:
        """Entries that wait for this group."""
        return sum(queue.count for queue in self._all_queues())

    def _all_queues(self) -> list[LaneQueue]:
        return [*self._queues.values(), *self._alone.queues.values()]

    @property
    def queued_by_lane(self) -> dict[int, int]:
        """Entries that wait for this group, by lane."""
        return sum((Counter(queue.counts()) for queue in self._all_queues()), Counter())

    @property
    def has_members(self) -> bool:
        """Whether anybody is attached."""
        return bool(self._members)

    def _free(self, takers: Takers = None) -> int:
        """Return how many more messages all members, or these takers, take together."""
        if self._stopping or self._rule.paused:
            return 0
        wanted = 0
        for one in self._members.values():
            if one.takes(takers) and not one.is_choked:
                wanted += one.items_left
        return min(wanted, max(self._unsettled_max - self.in_flight, 0))

    @property
    def _unsettled_max(self) -> int:
        """How many entries its members may have together.

        Those who settle nothing leave brokers three quarters of all places, and each further
        group of receivers half of what is left. With a fifth of them in one lane, nothing of it
        would be read from disk for those who do their work.
        """
        others = self._shared.unsettled.count - self.in_flight
        return max((self._shared.config.entries_max // 4 - others) // 2, 1)

    def _room(self, takers: Takers) -> int:
        most = min(self._free(takers), self._shared.config.queue_items_max)
        return max(most - self._queues[takers].count, 0)

    @property
    def is_open(self) -> bool:
        """Whether there is room for a lane of which nothing is queued for the group."""
        return any(self._room(takers) for takers in {None, *self._queues})

    @property
    def is_hungry(self) -> bool:
        """Whether little waits for the group for what its members take."""
        takers = {None, *self._queues}
        return any(self._room(some) > self._queues[some].count for some in takers)

    def _takers_of(self, lane: int) -> Takers:
        routes = self._shared.routes
        return None if routes is None else routes.groups_of(lane_of(lane)).get(self.name)

    def seen_by(self, lane: int, now: float) -> LaneView:
        """Return the group as entries of a lane find it."""
        del now
        room = self._room(self._takers_of(lane))
        return LaneView(self.name, room, room > 0, room, self._target.weight)

    def count_of(self, lane: int) -> int:
        """Return how many entries of a lane wait for this group."""
        return sum(queue.count_of(lane) for queue in self._all_queues())

    def withdraw(self, lane: int, wanted: Callable[[Entries], Mask]) -> list[Entries]:
        """Take back what is wanted of a lane and not with a receiver."""
        queues = self._all_queues()
        return [entries for queue in queues for entries in queue.take_where(lane, wanted)]

    def enqueue(self, parcel: Parcel) -> None:
        """Queue entries for this group; it must have room for them."""
        takers = self._takers_of(parcel.lane)
        room = self._room(takers)
        assert len(parcel) <= room, f"{self.name}: {len(parcel)} entries, room {room}"
        alone = self._shared.left_with.noted(parcel.entries, ALONE_AFTER)
        if alone is not None:
            self._alone.queues[takers].append(parcel.where(alone))
            parcel = parcel.where(~alone)
        self._queues[takers].append(parcel)
        self.wake()

    def give_back(self) -> None:
        """Give back what is queued, to be placed anew."""
        parcels = [parcel for queue in self._all_queues() for parcel in queue.clear()]
        self._queues.clear()
        self._alone.queues.clear()
        if parcels:
            self._owner.give_back(parcels)

    def yield_queue(self) -> None:
        """Keep what is queued: there is only what members take."""

    def wake(self) -> None:
        """Look for something to deliver."""
        self._more.wake()

    def move(self, target: BrokerGroup) -> None:
        """Weigh as it is said from now on."""
        self._target = target

    def set_rule(self, rule: GroupRule) -> None:
        """Do as an operator allows, from now on."""
        if rule != self._rule:
            self._set_rule(rule)
            if rule.paused:
                self.give_back()
            self.wake()
            self._owner.groups_changed()

    def _set_rule(self, rule: GroupRule) -> None:
        self._rule, self._bucket = rule, bucket_of(rule)

    def parts(self) -> Iterator[HeldPart]:
        """Yield all entries that wait for this group or are with a receiver."""
        for queue in self._all_queues():
            for parcel in queue.parcels():
                yield HeldPart(Where.QUEUED, parcel.lane, self.name, parcel.entries)
        for member in self._members.values():
            who = f"{member.connection.peer}, instance {member.attach.instance.hex()}"
            for batch in _batches_of(member.unsettled.values()):
                holder = f"{who}, since {np.datetime64(batch.sent_ms, 'ms')} UTC"
                yield HeldPart(Where.IN_FLIGHT, None, self.name, batch.entries, holder)

    def with_whom(self, wanted: frozenset[int]) -> dict[int, Having]:
        """Return who has those of these sequences that are with a receiver."""
        now_ms, found = self._shared.clock.now_ms(), {}
        for member in self._members.values():
            for sequence in wanted & member.unsettled.keys():
                batch, _ = member.unsettled[sequence]
                found[sequence] = Having(self.name, (now_ms - batch.sent_ms) / 1000)
        return found

    def status(self) -> GroupStatus:
        """Return a look at the group as it is now."""
        takes = self._free() > 0
        return GroupStatus(
            name=self.name,
            address=self.address,
            source=self._target.source,
            state=GroupState.UP if takes else GroupState.DOWN,
            queued=self.queued,
            in_flight=self.in_flight,
            in_flight_bytes=self._in_flight_bytes,
            last_end=self._last_end,
            rule=self._rule,
            weight=self._target.weight,
            effective_weight=self._target.weight if takes else 0.0,
            window_requests=len(self._members),
            queue_items=self._free(),
            counts=self._counts.copy(),
            is_attached=True,
            why_none="" if takes else self._why_none(),
        )

    def _why_none(self) -> str:
        """Return why nothing is delivered at the moment."""
        if self._nobody_since_ms is not None:
            since = np.datetime64(self._nobody_since_ms, "ms")
            return f"nobody is attached to {self.name} since {since} UTC"
        if self.in_flight >= self._unsettled_max:
            return f"the receivers of {self.name} have not settled {self.in_flight} messages"
        reasons = [one.credit.reason for one in self._members.values() if one.credit.reason]
        said = f": {reasons[0]}" if reasons else ""
        return f"{len(self._members)} attached to {self.name}, and none takes more now{said}"

    # -- members -----------------------------------------------------------------------------

    def attach(self, connection: Connection, attach: Attach) -> Attachment:
        """Take a member; it gets nothing before its first FLOW. Raises GroupRefusedError."""
        if (count := len(self._members)) >= self._shared.config.receivers_max:
            why = f"{count} receivers of {self.name} are attached here (sender.receivers_max)"
            raise GroupRefusedError(why)
        alike = [one for one in self._sets() if one.patterns == set(attach.patterns)]
        brought = alike[0] if alike else PatternSet(attach.patterns)
        if len(self._sets() | {brought}) > SETS_MAX:
            why = f"the receivers of {self.name} that are attached here have brought {SETS_MAX}"
            raise GroupRefusedError(
                f"{why} different sets of subjects, the limit: start them with the same subjects, "
                "or use another name"
            )
        least = min((one.served for one in self._members.values()), default=0.0)
        lease_until = trio.current_time() + LEASE_S
        member = Attachment(connection, attach, brought, lease_until, served=least)
        self._members[connection] = member
        if not alike:
            self._sets_changed = True
        self._nobody_since_ms = None
        _log.info("a receiver is attached", group=self.name, peer=connection.peer)
        self.wake()
        return member

    def _sets(self) -> set[PatternSet]:
        return {one.brought for one in self._members.values()}

    def _take_sets(self) -> Iterator[None]:
        """Put what members brought into the routes, in steps; then all of them get messages."""
        routes, sets = self._shared.routes, self._sets()
        if routes is not None:
            yield from routes.take_sets(self.name, sets)
        for one in sets:
            one.is_known = True
        # What is queued may be taken by others now, or by nobody.
        self.give_back()
        yield

    def flow(self, member: Attachment, credit: Flow) -> None:
        """Renew the lease of a member, and go by what it takes from now on."""
        member.lease_until, member.credit = trio.current_time() + LEASE_S, credit
        self._has_room()

    def detach(self, member: Attachment, reason: str) -> None:
        """Let a member go; what it has not settled goes to others."""
        if self._members.pop(member.connection, None) is None or self.has_ended:
            return
        self._last_end = reason
        member.brought.is_there = member.brought in self._sets()
        if self._members and not member.brought.is_there:
            self._sets_changed = True
        _log.info("a receiver is gone", group=self.name, peer=member.connection.peer, reason=reason)
        for batch in self._take(member, list(member.unsettled))[0]:
            self._counts.possible_duplicates += len(batch)
            tries_max = member.attach.unsettled_tries
            self._owner.unsettled(batch, group=self.name, tries_max=tries_max)
        if not self._members:
            self._nobody_since_ms = self._shared.clock.now_ms()
            self.give_back()
        self._owner.groups_changed()
        self.wake()

    def done(self, member: Attachment, sequences: Iterable[int]) -> int:
        """Report what a member is done with; return how many of it are not unsettled with it."""
        batches, unknown = self._take(member, sequences)
        for batch in batches:
            self._counts.delivered += len(batch)
            self._owner.settled(batch.entries, Outcome.DELIVERED, self.name)
        self._has_room()
        return unknown

    def release(self, member: Attachment, sequences: Iterable[int]) -> int:
        """Give messages to others as if nobody had had them; return how many are unknown."""
        batches, unknown = self._take(member, sequences)
        # It is the last to get more, or the same would come back to it while others have nothing.
        most = max((one.served for one in self._members.values()), default=0.0)
        for batch in batches:
            member.served = max(member.served, most) + len(batch) / member.attach.weight
            self._owner.give_back(batch.by_lane())
        self._has_room()
        return unknown

    def take(
        self, member: Attachment, sequences: Iterable[int], *, refused: bool
    ) -> tuple[list[Batch], int]:
        """Take messages that somebody else brings to an end; return how many are unknown, too.

        refused: they are refused for good; else they come later
        """
        batches, unknown = self._take(member, sequences)
        count = sum(map(len, batches))
        self._counts.refused += count if refused else 0
        self._counts.later += 0 if refused else count
        self._has_room()
        return batches, unknown

    def _take(self, member: Attachment, sequences: Iterable[int]) -> tuple[list[Batch], int]:
        """Take out what is unsettled of these; return how many are not, too."""
        found, unknown = [], 0
        for sequence in sequences:
            one = member.unsettled.pop(sequence, None)
            if one is None:
                unknown += 1
            else:
                found.append(one)
        batches = _batches_of(found)
        size = sum(int(batch.entries["size"].sum()) for batch in batches)
        member.unsettled_bytes -= size
        self._in_flight_bytes -= size
        self.in_flight -= len(found)
        self._shared.unsettled.count -= len(found)
        return batches, unknown

    def _has_room(self) -> None:
        self._owner.room_changed(self.number)
        self.wake()

    # -- delivering --------------------------------------------------------------------------

    def stop(self) -> None:
        """Deliver nothing more; run() returns once what is unsettled is settled."""
        self._stopping = True
        self.give_back()
        self.wake()

    def abort(self) -> None:
        """End at once, whatever is unsettled; it stays counted as in flight."""
        self._stopping = True
        self._scope.cancel()

    async def run(self) -> None:
        """Deliver what is queued as members take it, until stopped."""
        try:
            with self._scope:
                while self.in_flight or not self._stopping:
                    self._end_leases()
                    if self._sets_changed and trio.current_time() >= self._take_at:
                        self._sets_changed = False
                        self._take_at = trio.current_time() + _TAKE_S
                        self._taking = self._take_sets()
                    is_taking = not self._stopping and next(self._taking, self) is None
                    if self._deliver() or is_taking:
                        if self.is_hungry:
                            self._owner.room_changed(self.number)
                        await trio.lowlevel.checkpoint()
                        continue
                    with trio.move_on_at(self._look_at()):
                        await self._more.sleep()
        finally:
            self.has_ended = True
            for member in list(self._members.values()):
                member.connection.close(f"{self.name} is not delivered to any more")

    def _end_leases(self) -> None:
        """Let members go that have not said for a lease that they are there."""
        now = trio.current_time()
        for member in [one for one in self._members.values() if one.lease_until <= now]:
            reason = f"no FLOW for {LEASE_S} s: what it has not settled goes to others"
            self.detach(member, reason)
            member.connection.close(reason)

    def _look_at(self) -> float:
        """Return when something may be done of which nobody tells."""
        at, now, queued = math.inf, trio.current_time(), self.queued
        if self._sets_changed:
            at = self._take_at
        for member in self._members.values():
            at = min(at, member.lease_until)
            if queued and member.is_choked:
                at = min(at, now + _CHOKED_LOOK_S)
        if self._alone.member is not None:
            free_in_s = self._alone.member.free_in_s(self._shared.clock.now_ms())
            at = min(at, now + (free_in_s or math.inf))
        if queued and self._bucket is not None:
            ready_at = self._bucket.ready_at(1, now)
            at = min(at, ready_at if ready_at > now else at)
        return at

    def _deliver(self) -> bool:
        """Deliver the next messages to one member; say whether there were any."""
        if self._stopping or self._rule.paused or not self.queued or self._owner.is_paused:
            return False
        ready = [one for one in self._members.values() if one.items_left and not one.is_choked]
        ready.sort(key=lambda one: one.served)
        most = DELIVER_ITEMS_MAX
        if self._bucket is not None:
            most = min(most, self._bucket.available(trio.current_time()))
        if not ready or not most or not self._owner.may_send():
            return False
        if (found := self._alone.choose(ready, self._shared.clock.now_ms())) is not None:
            member, queue = found
            if (batch := self._next_batch(queue, member, 1)) is not None:
                self._deliver_to(member, batch)
                return True
        for member in ready:
            if member is self._alone.member:
                continue
            for takers in [one for one in self._queues if member.takes(one)]:
                queue = self._queues[takers]
                share = max(-(-queue.count // len(ready)), _SHARED_MIN)
                batch = self._next_batch(queue, member, min(share, most, member.items_left))
                if batch is not None:
                    # The others have their turns before it.
                    self._queues[takers] = self._queues.pop(takers)
                    self._deliver_to(member, batch)
                    self._alone.others_had_turn()
                    return True
        return self._alone.others_had_turn()

    def _next_batch(self, queue: LaneQueue, member: Attachment, items_max: int) -> Batch | None:
        """Take what comes next and a member takes; a large item alone."""
        left, take = member.bytes_left, queue.take
        most = min(left, self._shared.config.batch_bytes)
        batch = take(items_max=items_max, bytes_max=most, any_size=False)
        return batch or take(items_max=1, bytes_max=left, any_size=False)

    def _deliver_to(self, member: Attachment, batch: Batch) -> None:
        shared = self._shared
        found = readable_of(
            batch, clock=shared.clock, read_items=shared.read_items, others=self._owner
        )
        if found is None:
            return
        batch = found.batch
        count, size = len(batch), len(found.body)
        sequences: list[int] = batch.entries["sequence"].tolist()
        head = encode_deliver_head(
            sequences, (batch.tries + np.uint32(1)).tolist(), found.sizes.tolist()
        )
        if self._bucket is not None:
            self._bucket.take(count, trio.current_time())
        batch.sent_ms = self._shared.clock.now_ms()
        member.unsettled.update(zip(sequences, zip(repeat(batch), range(count)), strict=False))
        member.unsettled_bytes += size
        member.served += count / member.attach.weight
        self.in_flight += count
        self._shared.unsettled.count += count
        self._in_flight_bytes += size
        self._counts.requests += 1
        member.connection.reply(encode_one_way(CommandCode.DELIVER, head, found.body))


def _batches_of(found: Iterable[tuple[Batch, int]]) -> list[Batch]:
    """Return entries, given by their deliveries and places there, as batches."""
    places: dict[int, tuple[Batch, list[int]]] = {}
    for batch, place in found:
        places.setdefault(id(batch), (batch, []))[1].append(place)
    batches = []
    for batch, some in places.values():
        mask = np.zeros(len(batch), np.bool_)
        mask[some] = True
        batches.append(batch.those(mask))
    return batches
