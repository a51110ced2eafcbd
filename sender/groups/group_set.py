"""The broker groups of one sender, as they come, go, and are used by the lanes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import structlog
import trio

from sender.groups.attached import AttachedGroup
from sender.groups.group import Group, Shared
from sender.groups.group_rules import NO_RULE, GroupRule
from sender.groups.group_status import GroupStatus
from sender.groups.routing import LaneRoutes
from sender.queues.lanes import lane_of
from sender.queues.parcels import Entries, Mask
from sender.queues.places import Having, HeldPart
from sender.settings.config import BrokerGroup
from sender.settings.errors import GroupRefusedError

_log: structlog.stdlib.BoundLogger = structlog.get_logger("sender")

AnyGroup = Group | AttachedGroup


class GroupSet:
    """The broker groups of one sender: which there are, and which of them a lane may use.

    It makes each group, numbers it, gives it the rule of its name and runs its task. One that is
    used no more it keeps until what is in flight to it is answered. The sender calls it, also to
    hear of all groups together.

    Invariant: a group has a number as long as it is in here, either in use or leaving.
    """

    def __init__(
        self,
        targets: Iterable[BrokerGroup],
        *,
        shared: Shared,
        routes: LaneRoutes | None,
    ) -> None:
        """Begin with `targets`, however many; without `routes` each lane may use any group."""
        self.in_use: list[AnyGroup] = []
        """Those that entries may go to, in the order in which they came."""
        self._leaving: list[AnyGroup] = []
        """Those that get nothing more and wait for what is in flight."""
        self.turns = shared.turns
        """By which one group at a time makes a large request; whoever runs the groups runs it."""
        self._shared = shared
        self._routes = routes
        self._groups_max = shared.config.groups_max
        self._rules: dict[str, GroupRule] = {}
        """What operators allow, by the group's name; also of groups that are not there."""
        self._by_number: dict[int, AnyGroup] = {}
        self._made = 0
        """Groups made so far: the number of the next one."""
        targets = list(targets)
        self._wanted = {target.name for target in targets}
        """Names of groups that routes lead to, or the settings."""
        self._of_lane: dict[int, list[AnyGroup]] = {}
        """The groups of each lane, as they were looked up."""
        self._nursery: trio.Nursery | None = None
        self._is_stopped = False
        for target in targets:
            self._add(target)

    @property
    def is_running(self) -> bool:
        """Whether the groups have their tasks: entries that are queued with them will be sent."""
        return self._nursery is not None

    @property
    def in_flight(self) -> int:
        """Entries sent and not answered."""
        return sum(group.in_flight for group in self._all())

    @property
    def queued(self) -> int:
        """Entries that wait for one of the groups."""
        return sum(group.queued for group in self.in_use)

    def count_of(self, lane: int) -> int:
        """Return how many entries of a lane wait for one of the groups."""
        return sum(group.count_of(lane) for group in self.in_use)

    def of_lane(self, lane: int) -> list[AnyGroup]:
        """Return the groups that the entries of a lane may go to."""
        if self._routes is None:
            return self.in_use
        found = self._of_lane.get(lane)
        if found is None:
            names = set(self._routes.groups_of(lane_of(lane)))
            found = [group for group in self.in_use if group.name in names]
            self._of_lane[lane] = found
        return found

    def name_of(self, number: int) -> str:
        """Return the name of the group of a number; KeyError if that group has been forgotten."""
        return self._by_number[number].name

    def parts(self) -> Iterator[HeldPart]:
        """Yield all entries that wait for a group or are in flight to one, and where they are."""
        for group in self._all():
            yield from group.parts()

    def with_whom(self, wanted: frozenset[int]) -> dict[int, Having]:
        """Return who has those of these sequences that are in flight."""
        found: dict[int, Having] = {}
        for group in self._all():
            found |= group.with_whom(wanted)
        return found

    def status(self) -> list[GroupStatus]:
        """Return a look at each group: those that leave, then the others as they came."""
        return [group.status() for group in self._leaving + self.in_use]

    def withdraw(self, lane: int, wanted: Callable[[Entries], Mask]) -> list[Entries]:
        """Take back what is wanted of a lane and not in flight."""
        taken: list[Entries] = []
        for group in self.in_use:
            taken += group.withdraw(lane, wanted)
        return taken

    # Which groups there are

    def replace(self, targets: Iterable[BrokerGroup]) -> None:
        """Use these groups from now on, at these addresses.

        A group that is not among them any more gives back what is queued for it, and leaves. Beyond
        `groups_max` none is added.
        """
        wanted = {target.name: target for target in targets}
        self._wanted = set(wanted)
        for group in list(self.in_use):
            target = wanted.get(group.name)
            is_attached = isinstance(group, AttachedGroup)
            if target is not None and target.is_attached == is_attached:
                group.move(wanted.pop(group.name))
            elif target is not None or not (isinstance(group, AttachedGroup) and group.has_members):
                self._let_go(group)
        for target in wanted.values():
            self._add_wanted(target)
        self._of_lane.clear()

    def attached(self, name: str) -> AttachedGroup:
        """Return the group of receivers of a name, which may be a new one that nothing leads to.

        Raises GroupRefusedError.
        """
        found = next((group for group in self.in_use if group.name == name), None)
        if found is None:
            self._let_unwanted_go(also_with_members=False)
            if len(self.in_use) >= self._groups_max or self._is_stopped:
                raise GroupRefusedError(
                    f"there are {len(self.in_use)} groups here, and no message for {name!r} yet"
                )
            found = self._add(BrokerGroup(name=name, host="", port=0, is_attached=True))
            self._of_lane.clear()
        if not isinstance(found, AttachedGroup):
            raise GroupRefusedError(f"{name!r} is a group of brokers: receivers need another name")
        return found

    def _let_unwanted_go(self, *, also_with_members: bool) -> None:
        """Let groups of receivers go that nothing leads to; their members have to attach anew."""
        for group in list(self.in_use):
            if not isinstance(group, AttachedGroup) or group.name in self._wanted:
                continue
            if also_with_members or not group.has_members:
                self._let_go(group)

    def _add_wanted(self, target: BrokerGroup) -> None:
        if len(self.in_use) >= self._groups_max:
            # Those who only say a name leave their places to those that messages go to.
            self._let_unwanted_go(also_with_members=True)
        if len(self.in_use) >= self._groups_max:
            _log.error(
                "too many broker groups; raise sender.groups_max",
                group=target.name,
                groups_max=self._groups_max,
            )
        elif not self._is_stopped:
            self._add(target)

    def set_rules(self, rules: Mapping[str, GroupRule]) -> None:
        """Give each group the rule of its name from now on; one that has none gets all."""
        self._rules = dict(rules)
        for group in self._all():
            group.set_rule(self._rules.get(group.name, NO_RULE))

    def route_changed(self, lane: int) -> None:
        """Look up anew which groups a lane may use, when that is asked next."""
        self._of_lane.pop(lane, None)

    def yield_queues(self, *, but: int) -> None:
        """Have all slow groups give back what is queued for them, but the one of this number."""
        for group in self.in_use:
            if group.number != but:
                group.yield_queue()

    def give_back(self) -> None:
        """Have all groups give back what is queued for them."""
        for group in self.in_use:
            group.give_back()

    # Their tasks

    def start(self, nursery: trio.Nursery) -> None:
        """Run each group in this nursery, and those that come later as well."""
        self._nursery = nursery
        for group in self.in_use:
            self._start(group, nursery)

    def ended(self) -> None:
        """Hear that the nursery is closed: no group runs any more."""
        self._nursery = None

    def wake(self) -> None:
        """Have each group look for something to send."""
        for group in self.in_use:
            group.wake()

    def stop(self) -> None:
        """Send nothing more; each group ends once what is in flight to it is answered."""
        self._is_stopped = True
        for group in self.in_use:
            group.stop()

    def abort(self) -> None:
        """End all groups at once, whatever is in flight; it stays counted as in flight."""
        for group in self._all():
            group.abort()

    def _all(self) -> Sequence[AnyGroup]:
        return self.in_use + self._leaving

    def _add(self, target: BrokerGroup) -> AnyGroup:
        rule = self._rules.get(target.name, NO_RULE)
        kind = AttachedGroup if target.is_attached else Group
        group: AnyGroup = kind(self._made, target, self._shared, rule)
        self._made += 1
        self.in_use.append(group)
        self._by_number[group.number] = group
        if self._nursery is not None:
            self._start(group, self._nursery)
        return group

    def _start(self, group: AnyGroup, nursery: trio.Nursery) -> None:
        nursery.start_soon(self._run, group, name=f"sender group {group.name}")

    async def _run(self, group: AnyGroup) -> None:
        await group.run()
        if group in self._leaving:
            self._forget(group)

    def _let_go(self, group: AnyGroup) -> None:
        """Have a group leave, once what is in flight to it is answered."""
        self.in_use.remove(group)
        self._leaving.append(group)
        _log.info("broker group is not used any more", group=group.name, address=group.address)
        group.stop()
        if self._nursery is None or group.has_ended:
            self._forget(group)

    def _forget(self, group: AnyGroup) -> None:
        """Forget a group of which nothing is left."""
        self._leaving.remove(group)
        del self._by_number[group.number]
        self.turns.forget(group.number)
