"""Which subjects an operator has paused or limited, and what that does to their lanes.

Rules stand between the lanes of the sender (lanes.py) and the routes of subjects (routes.py; there
are none where brokers are in the settings, then every subject goes to any group):

    number --> rule, the one that counts for the name (delay_protocol/nodes/controls.py)

    no rule, or one that is open    the subject's route, as if there were no rules
    paused                          NO_ROUTE: nothing leaves, what is due waits on disk
    limited                         a lane for the rule and the set of groups: metered (metering.py)

A rule is looked up by name when a number is first seen under the present rules, and kept by number
from then on: nothing is looked up for a message. While there is no rule at all nothing is done
here. No clock and no task.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt
import structlog

from delay_protocol.nodes.controls import Controls, SubjectRules
from delay_server.lanes.lanes import BARRED, NO_ROUTE, Lanes, Subjects
from delay_server.lanes.routes import SubjectRoutes
from sender.groups.taking import PatternSet, Takers
from storage.batch.entries import Entries

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_UNSEEN: Final = -1
_FREE: Final = 0
"""The rule of subjects that have none; others are numbered from 1."""
_STEP: Final = 1000
"""Subjects placed in one step."""
_NO_BOUND: Final = 2**62


class _Kind(IntEnum):
    """What a rule does."""

    OPEN = 0
    PAUSED = 1
    LIMITED = 2


@dataclass(frozen=True, slots=True)
class NarrowLane:
    """A lane whose entries leave at a rate."""

    pattern: str
    """Of the rule; all lanes of one share its rate."""
    groups: tuple[tuple[str, Takers], ...]


class LaneRules:
    """The rules for subjects. RouteNumbers for Lanes, LaneRoutes for the sender.

    Invariants: `_rule_of[number]` is `_UNSEEN` or what the present rules say of its name; every
    number of `_narrow` lies in the range that Lanes leaves to rules, and has one place in `_ids`.
    """

    def __init__(
        self,
        *,
        name_of: Callable[[int], bytes],
        routes: SubjectRoutes | None,
        groups: Sequence[str] = (),
        buffer_s: float = 5.0,
    ) -> None:
        """`name_of` knows subjects by number; `groups`: those of every subject without `routes`.

        Of a limited lane, about what leaves in `buffer_s` seconds is held in memory.
        """
        self.lanes: Lanes
        """Set by attach()."""
        self.unmetered = 0
        """Times a limit was not kept, because there are too many lanes of that kind."""
        self._name_of = name_of
        self._routes = routes
        self._groups: Mapping[str, Takers] = dict.fromkeys(groups)
        self._buffer_s = buffer_s
        self._rules = SubjectRules({})
        self._patterns: list[str] = []
        self._numbers: dict[str, int] = {}
        """Of the rules, by pattern."""
        self._kinds = np.zeros(1, np.uint8)
        """By rule."""
        self._rule_of = np.full(64, _UNSEEN, np.int32)
        self._rates: dict[str, float] = {}
        self._narrow: dict[int, NarrowLane] = {}
        self._ids: dict[NarrowLane, int] = {}
        self._free: list[int] = []

    def attach(self, lanes: Lanes) -> None:
        """Lead the subjects of these lanes."""
        self.lanes = lanes
        self._free = list(range(lanes.catching_up - 1, lanes.lanes_max, -1))
        if self._routes is not None:
            self._routes.lanes = lanes
            self._routes.on_route_changed = self.route_changed

    # -- the rules ---------------------------------------------------------------------------

    def set_rules(self, controls: Controls) -> None:
        """Go by these from now on; `place_known` brings what is held to where it belongs then."""
        self._rules = SubjectRules(controls.subjects)
        self._patterns = list(controls.subjects)
        self._numbers = {pattern: place for place, pattern in enumerate(self._patterns, 1)}
        kinds = [_kind_of(controls, pattern) for pattern in self._patterns]
        self._kinds = np.array([_Kind.OPEN, *kinds], np.uint8)
        self._rates = {
            pattern: rule.rate_per_s
            for pattern, rule in controls.subjects.items()
            if rule.rate_per_s is not None and not rule.paused
        }
        self._rule_of[:] = _UNSEEN

    @property
    def rates(self) -> dict[str, float]:
        """Messages a second by the pattern of each rule that limits."""
        return self._rates

    def place_known(self) -> Iterator[None]:
        """Put the subjects that Lanes knows into the lanes where they belong now, in steps."""
        known = self.lanes.known()
        for first in range(0, len(known), _STEP):
            # A number may be another subject's by now, or nobody's.
            self.lanes.place_known(known[first : first + _STEP])
            yield

    # -- for Lanes ---------------------------------------------------------------------------

    @property
    def directs(self) -> bool:
        """Whether any subject has another lane than 0 by routes or rules."""
        return self._routes is not None or bool(self._patterns)

    def entries_max(self, lane: int) -> int:
        """Return how many entries should be held at most of a lane of a rule."""
        narrow = self._narrow.get(lane)
        rate = None if narrow is None else self._rates.get(narrow.pattern)
        return _NO_BOUND if rate is None else math.ceil(rate * self._buffer_s)

    def look(self, subjects: Subjects) -> npt.NDArray[np.int32]:
        """Return the route of each; what a rule closes has none."""
        if self._routes is None:
            routes = np.full(len(subjects), self.lanes.anywhere, np.int32)
        else:
            routes = self._routes.look(subjects)
        return self._gated(subjects, routes) if self._patterns else routes

    def _gated(self, subjects: Subjects, routes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        rules = self._rules_of(subjects)
        if not rules.any():
            return routes
        kinds = self._kinds[rules]
        routes = np.where(kinds == _Kind.PAUSED, NO_ROUTE, routes).astype(np.int32)
        leads = (routes != NO_ROUTE) & (routes != BARRED)
        limited = np.flatnonzero((kinds == _Kind.LIMITED) & leads)
        if len(limited):
            keys = (rules[limited].astype(np.int64) << 32) + routes[limited]
            found, places = np.unique(keys, return_inverse=True)
            firsts = np.zeros(len(found), np.intp)
            firsts[places] = limited
            lanes = [
                self._narrow_route(int(rules[first]), int(routes[first]))
                for first in firsts.tolist()
            ]
            routes[limited] = np.array(lanes, np.int32)[places]
        return routes

    def _rules_of(self, subjects: Subjects) -> npt.NDArray[np.int32]:
        """Return the rule of each by number; those that were not seen yet are looked up."""
        size = int(subjects.max()) + 1
        if size > len(self._rule_of):
            more = max(size, 2 * len(self._rule_of)) - len(self._rule_of)
            self._rule_of = np.concatenate([self._rule_of, np.full(more, _UNSEEN, np.int32)])
        rules = self._rule_of[subjects]
        unseen = rules == _UNSEEN
        if unseen.any():
            for number in np.unique(subjects[unseen]).tolist():
                pattern = self._rules.pattern_of(self._name(number))
                self._rule_of[number] = _FREE if pattern is None else self._numbers[pattern]
            rules = self._rule_of[subjects]
        return rules

    def _name(self, number: int) -> str:
        return self._name_of(number).decode(errors="replace")

    def _narrow_route(self, rule: int, route: int) -> int:
        """Return the route to the lane of a limit and the groups of a route."""
        groups = tuple(self._groups_of_route(route).items())
        lane = self._ids.get(key := NarrowLane(self._patterns[rule - 1], groups))
        if lane is None:
            if not self._free:
                self._collect()
            if not self._free:
                self.unmetered += 1
                _log.error(
                    "too many limits and sets of broker groups: a limit is not kept",
                    rule=key.pattern,
                    lanes=len(self._narrow),
                )
                return route
            lane = self._free.pop()
            self._ids[key] = lane
            self._narrow[lane] = key
            # The number may have been that of another lane.
            self.lanes.on_changed({lane})
        return lane - self.lanes.base

    def _groups_of_route(self, route: int) -> Mapping[str, Takers]:
        if self._routes is None:
            return self._groups
        return self._routes.groups_of(self.lanes.base + route)

    def _collect(self) -> None:
        """Take back the numbers of lanes of which nothing is held and nobody waits."""
        for lane in [lane for lane in self._narrow if self.lanes.is_idle(lane)]:
            del self._ids[self._narrow.pop(lane)]
            self._free.append(lane)

    def forget_numbers(self, held: npt.NDArray[np.bool_]) -> Iterator[None]:
        """Forget the numbers that are not held, in steps: they may come to mean other subjects."""
        inside = min(len(held), len(self._rule_of))
        self._rule_of[:inside][~held[:inside]] = _UNSEEN
        self._rule_of[inside:] = _UNSEEN
        if self._routes is not None:
            yield from self._routes.forget_numbers(held)

    def paused(self, subjects: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
        """Say which subjects are paused; they must be known to Lanes."""
        if not self._patterns or not len(subjects):
            return np.zeros(len(subjects), np.bool_)
        kinds = self._kinds[self._rules_of(subjects.astype(np.uint32))]
        is_paused: npt.NDArray[np.bool_] = kinds == _Kind.PAUSED
        return is_paused

    def route_changed(self, number: int, route: int) -> None:
        """Put a subject where it belongs now that the meta server has another route for it."""
        if self._patterns:
            one = np.array([number], np.uint32)
            route = int(self._gated(one, np.array([route], np.int32))[0])
        self.lanes.route_changed(number, route)

    # -- for the sender ----------------------------------------------------------------------

    @property
    def narrow_lanes(self) -> Sequence[int]:
        """All lanes that are metered, or were."""
        return list(self._narrow)

    def narrow(self, lane: int) -> NarrowLane | None:
        """Return the rule and the groups of a lane that is metered."""
        return self._narrow.get(lane)

    def groups_of(self, lane: int) -> Mapping[str, Takers]:
        """Return the groups that a lane may use, and which receivers take it there."""
        narrow = self._narrow.get(lane)
        if narrow is not None:
            return dict(narrow.groups)
        if lane == self.lanes.base:
            return {}
        return self._groups if self._routes is None else self._routes.groups_of(lane)

    def take_sets(self, group: str, sets: Collection[PatternSet]) -> Iterator[None]:
        """Go by what receivers of a group take from now on; subjects change lanes in steps."""
        return iter(()) if self._routes is None else self._routes.take_sets(group, sets)

    def lanes_of(self, entries: Entries) -> npt.NDArray[np.int32]:
        """Return the lane in which each entry belongs now."""
        return self.lanes.lanes_of(entries)

    # -- what can be seen --------------------------------------------------------------------

    def why_untaken(self, subject: int) -> str:
        """Return why no receiver gets messages of a subject that has a route; "" if one may."""
        return "" if self._routes is None else self._routes.why_untaken(subject)

    def pattern_of(self, subject: str) -> str | None:
        """Return which rule counts for a subject by name."""
        return self._rules.pattern_of(subject)

    def is_paused(self, subject: str) -> bool:
        """Whether a subject is paused, by name."""
        pattern = self._rules.pattern_of(subject)
        return pattern is not None and self._rules.rule(pattern).paused


def _kind_of(controls: Controls, pattern: str) -> _Kind:
    rule = controls.subjects[pattern]
    if rule.paused:
        return _Kind.PAUSED
    return _Kind.OPEN if rule.rate_per_s is None else _Kind.LIMITED
