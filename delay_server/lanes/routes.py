"""Which broker groups each subject's messages go to, as a meta server says.

What is asked for, and what was answered, is kept by name in a MetaSession
(delay_protocol/meta/session.py); the arrays here bring it to the subject numbers of entries:

    number --> route, a number for each set of groups that any subject goes to --> names of groups

A group of receivers is in a route with those of its members that take the subject by the patterns
that they brought (sender/groups/taking.py): so subjects that not all take have routes of their own.
A subject that no member takes has no route, until one attaches that does.

A subject S that several names receive has the route SHARED: what is due of it is replaced by a
copy for each name G (receiving/copies.py), in the log under the subject `%RETRY%S%G`. That goes to
G alone wherever receivers have S, as the retry of a consumer of G does. It is S that is asked for.

A subject is asked for when it is first seen, which is when its messages enter the wheel: so the
answer is there when they are due. It is asked for as long as it is seen again every now and then,
or waits for its route.

No clock and no task: a shell asks (delay_transport/meta/routes.py), and hands in what it hears.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import structlog

from delay_protocol.basics.subjects import real_subject, retry_group
from delay_protocol.meta.requests import BrokerGroupInfo
from delay_protocol.meta.session import MetaSession, RouteState
from delay_protocol.nodes.controls import ControlsError, check_group_name
from delay_server.lanes.lanes import BARRED, NO_ROUTE, SHARED, Lanes, Subjects
from delay_transport.seams.errors import AddressError
from delay_transport.seams.runtime import parse_address
from sender.groups.taking import PatternSet, Takers
from sender.settings.config import BrokerGroup
from storage.batch.number_set import grown
from storage.disk.sorting import each_once

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_UNSEEN: Final = -1
_EXPECTED_PART: Final = 4
"""This part of the session's places is for subjects of which nothing has come near."""
_STEP: Final = 1000
"""Subjects looked at in one step of a round."""
_TAKE_STEP: Final = 200
"""Subjects of which it is looked up in one step what receivers take: 2 ms, with ten sets 3 ms."""

SOURCE: Final = "meta server"

_HOST_SHOWN: Final = 255
"""Characters kept of what is no host: it goes into logs and the status."""


class SubjectRoutes:
    """The routes of all subjects that were seen. LaneRules looks into it.

    Invariants: every route but NO_ROUTE has a subject by name; `_numbers[name]` is the number of a
    name wherever `_route[number]` is not `_UNSEEN`.
    """

    def __init__(
        self,
        session: MetaSession,
        *,
        now: Callable[[], float],
        name_of: Callable[[int], bytes],
        on_wanted: Callable[[], None],
    ) -> None:
        """Keep routes in `session`, by seconds of `now`; `name_of` knows subjects by number.

        `on_wanted` is called when there is something new to ask.
        """
        self.session = session
        self._is_nameless_told = False
        """True once it was logged that a broker group is left out: it comes with each subject."""
        self.lanes: Lanes
        """Set before anything is asked."""
        self.on_route_changed: Callable[[int, int], None]
        """Told of the number of a subject and its new route; set likewise."""
        self.on_barred: Callable[[bytes], None] = lambda _: None
        """Told of a subject that the meta server refuses for good from now on."""
        self.on_taken: Callable[[], None]
        """Called when routes have changed since receivers take other subjects; set likewise."""
        self._now = now
        self._name_of = name_of
        self._on_wanted = on_wanted
        self._route = np.full(64, _UNSEEN, np.int32)
        """The route of each number."""
        self._used = np.zeros(64, np.bool_)
        """Whether a number was seen since the last round."""
        self._numbers: dict[str, int] = {}
        self._retries: dict[str, dict[str, None]] = {}
        """For each subject its retries and copies that have a number, by name."""
        self._expected: set[str] = set()
        """Names that were asked for at admission, and of which nothing has come near."""
        self._route_of: dict[str, int] = {}
        """By name, of those that have one."""
        # Nobody's name is so; these two routes stand for good.
        self._ids: dict[tuple[tuple[str, Takers], ...], int] = {
            (("", None),): BARRED,
            (("%", None),): SHARED,
        }
        self._groups: dict[int, Mapping[str, Takers]] = {NO_ROUTE: {}, BARRED: {}, SHARED: {}}
        self._subjects: dict[int, int] = {BARRED: 1, SHARED: 1}
        """How many names each route has."""
        self._free: list[int] = []
        self._sets: dict[str, Collection[PatternSet]] = {}
        """The pattern sets of the receivers of each group that has any."""
        self._masters: dict[str, str] = {}
        self._with_group: dict[str, int] = {}
        """How many routes lead to each group."""
        self.targets_changed = False
        """Whether `targets` says something else than when it was asked last."""

    # -- by number ---------------------------------------------------------------------------

    def look(self, subjects: Subjects) -> npt.NDArray[np.int32]:
        """Return the route of each; those that were not seen yet are asked for."""
        size = int(subjects.max()) + 1
        self._route = grown(self._route, size, _UNSEEN)
        self._used = grown(self._used, size)
        self._used[subjects] = True
        routes = self._route[subjects]
        unseen = routes == _UNSEEN
        if unseen.any():
            for number in np.unique(subjects[unseen]).tolist():
                self._see(number)
            routes = self._route[subjects]
        return routes

    def is_kept(self, subject: bytes) -> bool:
        """Whether the route of a subject is known, or asked for."""
        return self.session.is_wanted(_real(subject))

    def why_barred(self, subject: bytes) -> str:
        """Return why the meta server refuses a subject for good; empty if it does not.

        One of which messages come is asked for again: the meta server may change its mind.
        """
        name = _real(subject)
        if not self.session.is_barred(name):
            return ""
        self.session.want(name, self._now())
        return self.session.reason(name)

    def expect(self, subject: bytes) -> None:
        """Ask for a subject of which messages arrive before those of others are asked for.

        They may be due in a year: most places are left to what is due soon, which is asked for when
        it enters the wheel.
        """
        name = _real(subject)
        is_new = not self.session.is_wanted(name)
        if is_new and len(self._expected) >= self.session.config.subjects_max // _EXPECTED_PART:
            return
        if self.session.want(name, self._now()):
            if is_new:
                self._expected.add(name)
            if self.session.route(name) is None:
                self._on_wanted()

    def _see(self, number: int) -> None:
        name = self._name_of(number).decode(errors="replace")
        subject = _real(name.encode())
        self._expected.discard(subject)
        self._want(subject)
        if name != subject:
            self._retries.setdefault(subject, {})[name] = None
        groups = self.session.route(subject) or ()
        if name != subject or (self._sets and groups):
            # Receivers may take something else than when it had a number last.
            self._set(name, groups)
        self._numbers[name] = number
        self._route[number] = self._route_of.get(name, NO_ROUTE)

    def _want(self, name: str) -> bool:
        if not self.session.want(name, self._now()):
            return False
        if self.session.route(name) is None:
            self._on_wanted()
        return True

    def forget_numbers(self, held: npt.NDArray[np.bool_]) -> Iterator[None]:
        """Forget the numbers that are not held, in steps: they may come to mean other subjects."""
        seen = np.flatnonzero(self._route != _UNSEEN)
        inside = seen[seen < len(held)]
        gone = np.concatenate([inside[~held[inside]], seen[seen >= len(held)]])
        for first in range(0, len(gone), _STEP):
            part = gone[first : first + _STEP]
            for number in part.tolist():
                name = self._name_of(number).decode(errors="replace")
                self._numbers.pop(name, None)
                self._forget_retry(name)
            self._route[part] = _UNSEEN
            self._used[part] = False
            yield

    # -- by name -----------------------------------------------------------------------------

    def changed(self, subject: str) -> None:
        """Take over what the session has heard of a subject, for its retries and copies as well."""
        groups = self.session.route(subject) or ()
        for name in (subject, *self._retries.get(subject, ())):
            self._set(name, groups)

    def names_of(self, subject: str) -> list[str]:
        """Return the names that receive a subject, in order; none where it goes to brokers."""
        groups = self.session.route(_real(subject.encode())) or ()
        return sorted({group.name for group in groups if not group.master})

    def retries_of(self, subject: str) -> list[str]:
        """Return the retries and copies of a subject that have a number, by their own subject."""
        return list(self._retries.get(subject, ()))

    def _set(self, name: str, groups: Sequence[BrokerGroupInfo]) -> None:
        self._note_masters(groups)
        names = tuple(sorted({group.name for group in groups if group.name in self._masters}))
        before = self._route_of.get(name, NO_ROUTE)
        nowhere = BARRED if self.session.is_barred(_real(name.encode())) else NO_ROUTE
        receiving = [one for one in names if not self._masters[one]]
        if receiving and (group := retry_group(name)):
            names = (group,) if group in receiving else ()
        if len(receiving) > 1 and len(names) > 1:
            route = SHARED
        else:
            takers = {one: self._takers(one, name) for one in names}
            taken = {one: some for one, some in takers.items() if some != frozenset()}
            route = self._id(taken) if taken else nowhere
        if route == BARRED != before:
            self.on_barred(name.encode())
        if route != before:
            self._count(route, 1)
            if route:
                self._route_of[name] = route
            else:
                del self._route_of[name]
        number = self._numbers.get(name)
        if route != before and number is not None:
            self._route[number] = route
            self.on_route_changed(number, route)
        if route != before:
            self._count(before, -1)

    def _note_masters(self, groups: Sequence[BrokerGroupInfo]) -> None:
        """Note where groups are: whoever was heard of last is right.

        One at what is no address is like one that cannot be reached: the sender says so of it, and
        why. One whose name could not be written down is none.
        """
        for group in groups:
            if self._masters.get(group.name) == group.master:
                continue
            try:
                check_group_name(group.name)
            except ControlsError as error:
                if not self._is_nameless_told:
                    self._is_nameless_told = True
                    _log.warning("a broker group is left out of routes", reason=str(error))
                continue
            self._masters[group.name] = group.master
            self.targets_changed = True

    def _takers(self, group: str, name: str) -> Takers:
        """Return which receivers of a group take a subject."""
        sets = () if self._masters[group] else self._sets.get(group, ())
        taking = frozenset(one for one in sets if one.take(name))
        return None if len(taking) == len(sets) else taking

    def take_sets(self, group: str, sets: Collection[PatternSet]) -> Iterator[None]:
        """Go by what receivers of a group take from now on; subjects change lanes in steps."""
        self._sets[group] = sets
        for place, name in enumerate(list(self._numbers)):
            if not place % _TAKE_STEP:
                self.on_taken()
                yield
            groups = self.session.route(_real(name.encode())) or ()
            if any(one.name == group for one in groups):
                self._set(name, groups)
        self.on_taken()

    def _id(self, names: Mapping[str, Takers]) -> int:
        """Return the number of a set of groups, and of who takes there."""
        key = tuple(names.items())
        route = self._ids.get(key)
        if route is None:
            route = self._free.pop() if self._free else len(self._ids) + 1
            self._ids[key] = route
            self._groups[route] = names
            self._subjects[route] = 0
            for group in names:
                self._with_group[group] = self._with_group.get(group, 0) + 1
            self.targets_changed = True
            # The number may have been that of another route.
            self.lanes.on_changed({self.lanes.base + route})
        return route

    def _count(self, route: int, more: int) -> None:
        """Count a subject of a route more or less; one without any is forgotten."""
        if not route:
            return
        self._subjects[route] += more
        if self._subjects[route]:
            return
        names = self._groups.pop(route)
        del self._ids[tuple(names.items())], self._subjects[route]
        self._free.append(route)
        for group in names:
            self._with_group[group] -= 1
            if not self._with_group[group]:
                del self._with_group[group], self._masters[group]
        self.targets_changed = True

    def round(self) -> Iterator[None]:
        """Go through all that is kept, in steps: what is not in use any more is forgotten.

        The places that come free are for those that have waited longest, before any that come.
        """
        used = np.flatnonzero(self._used)
        self._used[used] = False
        for group in [one for one, sets in self._sets.items() if not any(x.is_there for x in sets)]:
            del self._sets[group]
        waiting = self.lanes.oldest_parked()
        others = each_once(np.concatenate([used, self.lanes.holders()]))
        needed = np.concatenate([waiting, others[~np.isin(others, waiting)]])
        untaken: deque[str] = deque()
        for first in range(0, len(needed), _STEP):
            for number in needed[first : first + _STEP].tolist():
                if number < len(self._route) and self._route[number] != _UNSEEN:
                    name = _real(self._name_of(number))
                    if not self._want(name):
                        untaken.append(name)
            yield
        for _ in range(-(-len(self.session) // _STEP)):
            for name in self.session.forget_unused(self._now(), at_most=_STEP):
                self._forget(name)
                if untaken:
                    self._want(untaken.popleft())
            yield

    def _forget(self, subject: str) -> None:
        self._expected.discard(subject)
        for name in (subject, *self._retries.pop(subject, ())):
            self._forget_name(name)

    def _forget_retry(self, name: str) -> None:
        """Forget a retry or a copy that has no number any more; there may be any number of them."""
        retries = self._retries.get(subject := _real(name.encode()), {})
        if name in retries:
            del retries[name]
            if not retries:
                del self._retries[subject]
            self._forget_name(name)

    def _forget_name(self, name: str) -> None:
        number = self._numbers.pop(name, None)
        if number is not None:
            self._route[number] = _UNSEEN
        route = self._route_of.pop(name, NO_ROUTE)
        self._count(route, -1)

    def targets(self) -> list[BrokerGroup]:
        """Return the groups that any route leads to."""
        self.targets_changed = False
        found = []
        for name in self._with_group:
            master = self._masters[name]
            host, port = _place_of(master) if master else ("", 0)
            found.append(
                BrokerGroup(name=name, host=host, port=port, source=SOURCE, is_attached=not master)
            )
        return found

    # -- for the sender ----------------------------------------------------------------------

    def groups_of(self, lane: int) -> Mapping[str, Takers]:
        """Return the groups that a lane may use, and which receivers take it there."""
        if lane >= self.lanes.base:
            return self._groups.get(lane - self.lanes.base, {})
        subject = self.lanes.subject_of(lane)
        route = NO_ROUTE if subject is None else max(int(self._route[subject]), NO_ROUTE)
        return self._groups[route]

    def groups_of_name(self, name: str) -> Collection[str]:
        """Return the names of the groups that a subject goes to, as far as that is known."""
        return self._groups[self._route_of.get(name, NO_ROUTE)]

    def why_untaken(self, number: int) -> str:
        """Return why no receiver gets the messages of a subject that has a route; "" if one may."""
        name = self._name_of(number).decode(errors="replace")
        names = [] if name in self._route_of else self.names_of(name)
        group = retry_group(name)
        if not names:
            return ""
        if group not in {"", *names}:
            return (
                f"it is for {group}, which does not receive the subject: start a receiver of "
                f"{group} that brings it"
            )
        return f"no receiver that is attached to {group or ', '.join(names)} takes it"

    # -- what can be seen --------------------------------------------------------------------

    def standing(self, number: int) -> tuple[str, RouteState, str]:
        """Return the name of a subject, what is known of its route, and why it was refused."""
        name = self._name_of(number).decode(errors="replace")
        subject = _real(name.encode())
        why = self.session.reason(subject) or self.why_untaken(number)
        return name, self.session.standing(subject), why

    @property
    def routes(self) -> int:
        """How many different sets of groups there are."""
        return len(self._ids) - 2


def _real(subject: bytes) -> str:
    return real_subject(subject).decode(errors="replace")


def _place_of(master: str) -> tuple[str, int]:
    """Return host and port of what a meta server says; of what is no address what looks like it.

    Nobody can be connected to there, and the attempt says why.
    """
    try:
        return parse_address(master)
    except AddressError:
        host, _, port = master.rpartition(":")
        is_port = port.isascii() and port.isdigit() and 0 < len(port) <= 5
        host, port = (host, port) if is_port and host else (master, "0")
        return host[:_HOST_SHOWN], int(port)
