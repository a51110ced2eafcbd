"""Due messages in, facts out: hands entries to broker groups until each of them has an outcome.

    offer --> waiting --> a group's queue --> in flight --> outcome
                ^  ^         |      |            |
                |  +---------+      |            +--> retries --+   wait for their backoff
                |   the group failed|                           |
                |                   +--> early ---+             |   the clock was set back
                +---------------------------------+-------------+

Everything here is index entries in arrays; bytes are read just before a request is written. Which
group gets what is decided by routing.py, which groups there are by group_set.py, how one is doing
by group.py. What waits for a time is kept by put_off.py, what is known from earlier tries by
history.py.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import trio

from delay_protocol.wire.hello import Hello
from delay_transport.seams.backoff import Backoff
from delay_transport.seams.runtime import Clock, Network
from sender.groups.attached import AttachedGroup
from sender.groups.group import Shared, Unsettled
from sender.groups.group_rules import GroupRule
from sender.groups.group_set import AnyGroup, GroupSet
from sender.groups.group_status import GroupStatus
from sender.groups.readable import ReadItems
from sender.groups.routing import LATER, LaneRoutes, LaneView, Weighted, in_their_lanes
from sender.outcomes.answers import Codes, permanent
from sender.outcomes.dead import OnDead
from sender.outcomes.history import History
from sender.outcomes.outcomes import Outcome
from sender.queues.bulk_turns import BulkTurns
from sender.queues.lanes import LaneQueue, both_of, lane_of, late_of
from sender.queues.parcels import (
    NOBODY,
    Batch,
    Entries,
    Mask,
    Parcel,
    count_of,
    first_try,
)
from sender.queues.places import Having, HeldPart, Where
from sender.queues.put_off import PutOff
from sender.settings.config import BrokerGroup, SenderConfig, check_groups

OnOutcome = Callable[[Entries, int, str, Outcome], None]
"""Called with entries, the wall clock in ms, the name of the broker group, and what became of them.

The entries may be a part of the array that was offered: who keeps them copies them.
"""

_ROUTED_AT_ONCE: Final = 2048
"""Entries for which groups are chosen in one step."""

_STEPS_AT_ONCE: Final = 64
"""Steps between two looks at the rest of the program: the loop is not to be held for 10 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsent:
    """How many entries the sender holds, by what they wait for."""

    queued: int
    """For a group with room, or in a group's queue."""
    in_flight: int
    """For the answer to their request."""
    retrying: int
    """For the end of their backoff."""
    early: int
    """For the clock, which was set back after they became due."""
    in_doubt: int
    """Of all these, and of what was left on disk since, what a broker may have that did not answer
    for it; not those in flight for the first time."""

    @property
    def total(self) -> int:
        """All entries that were offered and have no outcome yet."""
        return self.queued + self.in_flight + self.retrying + self.early


class Sender:
    """Delivers what is offered to it.

    Every entry offered ends in exactly one call of `on_outcome` or `on_damaged`, unless the process
    ends before; until then it is counted in `unsent()`.
    """

    def __init__(
        self,
        targets: Sequence[BrokerGroup],
        *,
        hello: Hello,
        config: SenderConfig,
        clock: Clock,
        network: Network,
        chance: random.Random,
        read_items: ReadItems,
        subject_name: Callable[[int], bytes],
        on_outcome: OnOutcome,
        on_damaged: Callable[[Entries], None],
        on_dead: OnDead,
        routes: LaneRoutes | None = None,
        may_send: Callable[[], bool] = lambda: True,
    ) -> None:
        """Deliver to `targets`; of these each lane goes only to those that `routes` name for it.

        may_send: is asked before each request; where it says no, resume() has to follow later.
        Without `routes` every lane goes to any of them, and there must be one at least.
        """
        if routes is None:
            check_groups(targets)
        self.is_paused = False
        """Whether nothing is sent for now; see pause()."""
        self.may_send = may_send
        """Says whether a request may be sent at this moment."""
        self.take_stranded: Callable[[int], bool] = lambda _: False
        """Takes back what is in a lane that leads to no group; False where it stays here."""
        self._config = config
        self._clock = clock
        self._subject_name = subject_name
        self._on_outcome = on_outcome
        self._on_damaged = on_damaged
        self.gives_up = True
        """Whether what is refused for good becomes a dead letter; else it is tried on."""
        self._history = History(config=config, on_dead=on_dead)
        self._routing = Weighted(batch_items=config.batch_items)
        self._routes = routes
        self._groups = GroupSet(
            targets,
            shared=Shared(
                hello=hello,
                config=config,
                clock=clock,
                network=network,
                chance=chance,
                read_items=read_items,
                owner=self,
                turns=BulkTurns(),
                routes=routes,
                unsettled=Unsettled(),
                left_with=self._history.left_with,
            ),
            routes=routes,
        )
        self._blocked: dict[int, dict[int, None]] = {}
        """For each group's number the lanes that were set aside until it has room for them."""
        self._misplaced: dict[int, None] = {}
        """Lanes whose entries may belong in others by now."""
        self._waiting = LaneQueue(turn_items=config.lane_turn_items)
        self._put_off = _put_off_of(config, clock, chance)
        self._is_draining = False
        self._tend_now = trio.Event()
        self._stopped = trio.Event()
        self._stopped.set()

    @property
    def queued(self) -> int:
        """Entries that are not in flight."""
        return self.unsent().total - self.in_flight

    @property
    def in_flight(self) -> int:
        """Entries sent and not answered."""
        return self._groups.in_flight

    @property
    def room(self) -> int:
        """How many more entries should be offered for now; the rest is better left on disk."""
        return max(0, self._config.entries_max - self.unsent().total)

    def is_hungry(self) -> bool:
        """Hand out what waits, and say whether a group could do with more."""
        self.hand_out()
        if self._waiting.next_lane is not None:
            return False
        return any(group.intake.is_hungry for group in self._groups.in_use)

    def unsent(self) -> Unsent:
        """Return how many entries wait, and for what."""
        return Unsent(
            queued=self._waiting.count + self._groups.queued,
            in_flight=self.in_flight,
            retrying=self._put_off.retrying,
            early=self._put_off.early,
            in_doubt=self._history.in_doubt,
        )

    def queued_by_lane(self) -> dict[int, int]:
        """Return what `unsent().queued` is in each lane that has any; costs a look at each lane."""
        counts = Counter(self._waiting.counts())
        for group in self._groups.in_use:
            counts.update(group.queued_by_lane)
        for lane in [lane for lane in counts if lane != lane_of(lane)]:
            counts[lane_of(lane)] += counts.pop(lane)
        return dict(counts)

    def queued_in(self, lane: int) -> int:
        """Return how many entries of a lane wait to be sent for the first time, or given back."""
        queued = 0
        for beside in both_of(lane):
            queued += self._waiting.count_of(beside) + self._groups.count_of(beside)
        return queued

    def withdraw(self, lane: int, wanted: Callable[[Entries], Mask]) -> list[Entries]:
        """Take back what is wanted of a lane and neither in flight nor put off.

        They are not counted any more; whoever takes them sees to it that they are delivered. How
        often they were refused is forgotten, as how often they were tried is.
        """
        taken, from_groups = [], []
        for beside in both_of(lane):
            taken += self._waiting.take_where(beside, wanted)
            from_groups += self._groups.withdraw(beside, wanted)
        if from_groups:
            # There is room where they were.
            self.groups_changed()
        self._tend_now.set()
        # What a group was given came first.
        return self._history.forget_refusals(from_groups + taken)

    def held(self) -> Iterator[Entries]:
        """Yield all entries that were offered and have no outcome yet, as they are just now.

        It takes time by their number, so it is for rare occasions.
        """
        for part in self.parts():
            yield part.entries

    def parts(self) -> Iterator[HeldPart]:
        """Yield all that held() does, and where it is; for rare occasions as well."""
        for parcel in self._waiting.parcels():
            yield HeldPart(Where.QUEUED, parcel.lane, None, parcel.entries)
        yield from self._put_off.parts()
        yield from self._groups.parts()

    def with_whom(self, wanted: frozenset[int]) -> dict[int, Having]:
        """Return who has, or may have, those of these sequences.

        In doubt is also what no broker answered for; where more are in doubt than are known, that
        is told by `doubts_all`.
        """
        return self._history.doubtful(wanted) | self._groups.with_whom(wanted)

    @property
    def doubts_all(self) -> bool:
        """Whether any entry that was due may be with a broker that did not answer for it."""
        return self._history.doubts_all

    def status(self) -> list[GroupStatus]:
        """Return a look at each group: those that leave, then the others as they came."""
        return self._groups.status()

    def set_groups(self, targets: Iterable[BrokerGroup]) -> None:
        """Deliver to these groups from now on, at these addresses.

        A group that is not among them any more gives back what is queued for it, has what is in
        flight answered, and its connection is closed. Beyond `groups_max` none is added.
        """
        self._groups.replace(targets)
        self.groups_changed()

    def attached(self, name: str) -> AttachedGroup:
        """Return the group of receivers of a name; raise GroupRefusedError if there can be none."""
        return self._groups.attached(name)

    def forget(self, entries: Entries) -> None:
        """Forget entries that a receiver had and that somebody else brings to an end."""
        self._history.forget(entries)

    def try_later(self, batch: Batch) -> None:
        """Keep entries for a long while that were refused for good, and have them tried again."""
        self._put_off.retry_refused(batch, avoid=NOBODY)
        self._tend_now.set()

    def set_group_rules(self, rules: Mapping[str, GroupRule]) -> None:
        """Send each group what its rule allows from now on; a group that has none gets all.

        A rule holds for the group of its name whenever there is one.
        """
        self._groups.set_rules(rules)

    def routes_changed(self, lanes: Iterable[int]) -> None:
        """Look up anew which groups these lanes may use, and whether their entries belong there."""
        for lane in lanes:
            for beside in both_of(lane):
                self._groups.route_changed(beside)
                self._misplaced[beside] = None
        self._tend_now.set()

    def offer(self, entries: Entries, *, lane: int = 0, late: bool = False) -> None:
        """Take due entries, in the order in which they should be sent. The array is not copied.

        The order holds within a lane (any number); lanes take turns of `turn_items` entries, so
        that however many wait in one, none stands before those of another. Whoever offers says
        what a lane is; a number that is used again is the same lane, and none is negative. Those
        that are offered as `late` take turns with the others of their lane.

        After drain() they are counted and kept, but never sent.
        """
        if len(entries):
            self._waiting.append(first_try(entries, lane=late_of(lane) if late else lane))
            self._tend_now.set()

    def hand_out(self) -> None:
        """Queue with the groups what was offered, now and not only when run() has its turn."""
        if self._groups.is_running and not (self._is_draining or self._misplaced):
            if self._put_off.retrying or self._put_off.early:
                # What has waited long enough by now is older.
                self._release()
            self._hand_out()

    def pause(self) -> None:
        """Send nothing until resume(); what is in flight is answered meanwhile."""
        self.is_paused = True

    def resume(self) -> None:
        """Go on after pause(); what waited for a group is placed anew, by the routes of now."""
        self.is_paused = False
        self._groups.give_back()
        self._groups.wake()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Deliver until drained or cancelled. Does not wait for any broker to be ready."""
        self._stopped = trio.Event()
        try:
            async with trio.open_nursery() as beside:
                beside.start_soon(self._groups.turns.run, name="sender turns")
                await self._run_groups(task_status)
                beside.cancel_scope.cancel()
        finally:
            self._stopped.set()

    async def _run_groups(self, task_status: trio.TaskStatus[None]) -> None:
        try:
            async with trio.open_nursery() as nursery:
                self._groups.start(nursery)
                nursery.start_soon(self._tend, name="sender")
                task_status.started()
        finally:
            self._groups.ended()

    async def drain(self, *, deadline: float) -> int:
        """Send nothing more, wait for what is in flight, close the connections; run() returns.

        Return the number of entries whose answer had not come by the deadline (trio's time): they
        may or may not have been delivered.
        """
        self._is_draining = True
        self._tend_now.set()
        self._groups.stop()
        with trio.move_on_at(deadline):
            await self._stopped.wait()
        self._groups.abort()
        await self._stopped.wait()
        return self.in_flight

    # What groups leave here: the GroupOwner of group.py.

    def give_back(self, parcels: Sequence[Parcel]) -> None:
        """Take entries that a group did not send; in their lanes they go first, to anyone."""
        self._waiting.prepend(in_their_lanes(parcels, self._routes))
        self._tend_now.set()

    def hold_early(self, batch: Batch) -> None:
        """Keep entries, by lane, until the earliest of them is due."""
        for parcel in batch.by_lane():
            self._put_off.hold_early(parcel)
        self._tend_now.set()

    def damaged(self, entries: Entries) -> None:
        """Hand on entries whose items cannot be read: they are not sent."""
        self._history.forget(entries)
        self._on_damaged(entries)

    def settled(self, entries: Entries, outcome: Outcome, group: str) -> None:
        """Report entries for which nothing more is to be done."""
        self._history.forget(entries)
        self._on_outcome(entries, self._clock.now_ms(), group, outcome)

    def retry(self, batch: Batch, *, avoid: int) -> None:
        """Try entries again after a backoff of their own, if possible at another group."""
        self._put_off.retry(batch, avoid=avoid)
        self._tend_now.set()

    def doubtful(self, batch: Batch, *, avoid: int) -> None:
        """Try entries again of which nobody knows what became of them."""
        self._history.note_doubt(batch.entries)
        self.retry(batch, avoid=avoid)

    def unsettled(self, batch: Batch, *, group: str, tries_max: int) -> None:
        """Try entries again that a receiver left with, unless `tries_max` have."""
        if self.gives_up:
            now_ms = self._clock.now_ms()
            batch = self._history.give_up_unsettled(
                batch, group=group, at_ms=now_ms, tries_max=tries_max
            )
        self.doubtful(batch, avoid=NOBODY)

    def refused(self, batch: Batch, codes: Codes, *, avoid: int) -> None:
        """Decide what becomes of items that were refused one by one.

        What is refused for good is tried elsewhere like the rest, but after a longer wait, and
        becomes a dead letter after some tries.
        """
        hopeless = permanent(codes)
        count = count_of(hopeless)
        if count:
            left = self._refused_for_good(batch.those(hopeless), codes[hopeless], avoid)
            self._put_off.retry_refused(left, avoid=avoid)
        if count < len(batch):
            self._put_off.retry(batch.those(~hopeless), avoid=avoid)
        self._tend_now.set()

    def groups_changed(self) -> None:
        """Hand out anew what waits: groups take more than before, or others have to."""
        self._blocked.clear()
        self._waiting.bring_back_all()
        self._tend_now.set()

    def group_is_better(self, number: int) -> None:
        """Hand out anew what waits, for slow groups as well."""
        self._groups.yield_queues(but=number)
        self.groups_changed()

    def _refused_for_good(self, batch: Batch, codes: Codes, number: int) -> Batch:
        """Note a refusal for good; return the entries that are tried again."""
        group = self._groups.name_of(number)
        subject = self._subject_name(int(batch.entries["subject"][0]))
        self._history.log_refusal(batch, codes, group=group, subject=subject)
        if not self.gives_up:
            return batch
        return self._history.give_up(
            batch,
            codes,
            group=group,
            at_ms=self._clock.now_ms(),
            has_others=any(len(self._groups.of_lane(lane)) > 1 for lane, _ in batch.lanes),
        )

    def room_changed(self, number: int) -> None:
        """Hand out what waits for room in a group, if anything does."""
        if self._waiting.count:
            for lane in self._blocked.pop(number, ()):
                self._waiting.bring_back(lane)
            self._tend_now.set()

    def lane_room_changed(self, lane: int) -> None:
        """Hand out what waits for room in one lane, if anything does."""
        if self._waiting.bring_back(lane):
            self._tend_now.set()

    def _set_aside(
        self,
        lane: int,
        views: Sequence[LaneView],
        rest: Sequence[Parcel] = (),
        avoid: int = NOBODY,
    ) -> None:
        """Let a lane wait until one of its groups has room for it.

        While one is well by these `views`, it does not wait for those that are not, nor for the one
        to avoid.
        """
        self._waiting.set_aside(lane, rest)
        groups = self._groups.of_lane(lane)
        well = [place for place, view in enumerate(views) if view.is_well and place != avoid]
        for place in well or range(len(groups)):
            self._blocked.setdefault(groups[place].number, {})[lane] = None

    def _place_anew(self) -> None:
        """Move what waits in lanes that have changed to where it belongs, in its order."""
        misplaced, self._misplaced = self._misplaced, {}
        for lane in misplaced:
            self._waiting.prepend(in_their_lanes(self._waiting.take_lane(lane), self._routes))

    # The one task that moves entries between the places of the picture above.

    async def _tend(self) -> None:
        """Release what has waited long enough and hand out what waits; asleep in between."""
        while not self._is_draining:
            self._release()
            self._place_anew()
            if self._hand_out():
                await trio.lowlevel.checkpoint()
                continue
            with trio.move_on_at(self._put_off.next_at()):
                await self._tend_now.wait()
            self._tend_now = trio.Event()

    def _release(self) -> None:
        """Queue again what has waited long enough; it is older than all that waits."""
        self._waiting.prepend(in_their_lanes(self._put_off.take_retries(), self._routes))
        self._waiting.prepend(in_their_lanes(self._put_off.take_due(), self._routes))

    def _hand_out(self) -> bool:
        """Queue entries with the groups that the routing chooses; say whether there is more to do.

        Entries that no group can take stay at the front of their lane, and with them those behind;
        the lane is set aside until a group has room for it, or more of it comes.
        """
        for _ in range(_STEPS_AT_ONCE):
            lane = self._waiting.next_lane
            if lane is None:
                return False
            groups = self._groups.of_lane(lane)
            if not groups and self.take_stranded(lane_of(lane)):
                continue
            now = trio.current_time()
            views = [group.intake.seen_by(lane, now) for group in groups]
            if not any(view.room for view in views):
                if not any(group.intake.is_open for group in self._groups.in_use):
                    return False
                self._set_aside(lane, views)
                continue
            parcel = self._waiting.take_alike(_ROUTED_AT_ONCE)
            avoid = _place_of(parcel.avoid, groups)
            choices = self._routing.choose(parcel.entries, avoid=avoid, groups=views)
            first, last = int(choices[0]), int(choices[-1])
            if first == last != LATER and (len(choices) == 1 or (choices == first).all()):
                groups[first].enqueue(parcel)
                continue
            for place in np.unique(choices).tolist():
                if place != LATER:
                    groups[place].enqueue(parcel.where(choices == place))
            left = choices == LATER
            if left.any():
                self._set_aside(lane, views, [parcel.where(left)], avoid=avoid)
        return True


def _put_off_of(config: SenderConfig, clock: Clock, chance: random.Random) -> PutOff:
    """Return the place for what waits for a time, empty, with the backoffs of the settings."""
    return PutOff(
        retry=Backoff(base_s=config.retry_base_s, max_s=config.retry_max_s),
        retry_refused=Backoff(base_s=config.refused_base_s, max_s=config.refused_max_s),
        clock=clock,
        chance=chance,
    )


def _place_of(number: int, groups: Sequence[AnyGroup]) -> int:
    """Return where among these groups the one of a number is, or NOBODY."""
    if number != NOBODY:
        for place, group in enumerate(groups):
            if group.number == number:
                return place
    return NOBODY
