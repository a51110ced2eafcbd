"""Which subjects an operator has paused, and what that does to their lanes.

Rules stand between the lanes of the sender (lanes.py) and the routes of subjects (routes.py; there
are none where brokers are in the settings, then every subject goes to any group):

    number --> rule, the one that counts for the name (delay_protocol/nodes/controls.py)

    no rule, or an exception    the subject's route, as if there were no rules
    paused                      NO_ROUTE: nothing leaves, what is due waits on disk

A rule is looked up by name when a number is first seen under the present rules, and kept by number
from then on: nothing is looked up for a message. While there is no rule at all nothing is done
here. No clock and no task.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from delay_protocol.nodes.controls import Controls, SubjectRules
from delay_server.lanes.lanes import NO_ROUTE, Lanes, Subjects
from delay_server.lanes.routes import SubjectRoutes
from sender.groups.taking import PatternSet, Takers
from storage.batch.entries import Entries
from storage.batch.number_set import grown

_UNSEEN: Final = -1
_FREE: Final = 0
_PAUSED: Final = 1
_STEP: Final = 1000
"""Subjects placed in one step."""


class LaneRules:
    """The rules for subjects. RouteNumbers for Lanes, LaneRoutes for the sender.

    Invariant: `_state[number]` is `_UNSEEN` or what the present rules say of its name.
    """

    def __init__(
        self,
        *,
        name_of: Callable[[int], bytes],
        routes: SubjectRoutes | None,
        groups: Sequence[str] = (),
    ) -> None:
        """`name_of` knows subjects by number; `groups`: those of every subject without `routes`."""
        self.lanes: Lanes
        """Set by attach()."""
        self._name_of = name_of
        self._routes = routes
        self._groups: Mapping[str, Takers] = dict.fromkeys(groups)
        self._rules = SubjectRules({})
        self._state = np.full(64, _UNSEEN, np.int8)

    def attach(self, lanes: Lanes) -> None:
        """Lead the subjects of these lanes."""
        self.lanes = lanes
        if self._routes is not None:
            self._routes.lanes = lanes
            self._routes.on_route_changed = self.route_changed

    # -- the rules ---------------------------------------------------------------------------

    def set_rules(self, controls: Controls) -> None:
        """Go by these from now on; `place_known` brings what is held to where it belongs then."""
        self._rules = SubjectRules(controls.subjects)
        self._state[:] = _UNSEEN

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
        return self._routes is not None or bool(len(self._rules))

    def look(self, subjects: Subjects) -> npt.NDArray[np.int32]:
        """Return the route of each; what is paused has none."""
        if self._routes is None:
            routes = np.full(len(subjects), self.lanes.anywhere, np.int32)
        else:
            routes = self._routes.look(subjects)
        if len(self._rules):
            routes[self._paused(subjects)] = NO_ROUTE
        return routes

    def _paused(self, subjects: Subjects) -> npt.NDArray[np.bool_]:
        """Return which are paused; the names of those that were not seen yet are looked up."""
        self._state = grown(self._state, int(subjects.max()) + 1, _UNSEEN)
        unseen = self._state[subjects] == _UNSEEN
        for number in np.unique(subjects[unseen]).tolist():
            name = self._name_of(number).decode(errors="replace")
            self._state[number] = _PAUSED if self.is_paused(name) else _FREE
        paused: npt.NDArray[np.bool_] = self._state[subjects] == _PAUSED
        return paused

    def forget_numbers(self, held: npt.NDArray[np.bool_]) -> Iterator[None]:
        """Forget the numbers that are not held, in steps: they may come to mean other subjects."""
        inside = min(len(held), len(self._state))
        self._state[:inside][~held[:inside]] = _UNSEEN
        self._state[inside:] = _UNSEEN
        if self._routes is not None:
            yield from self._routes.forget_numbers(held)

    def paused(self, subjects: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
        """Say which subjects are paused; they must be known to Lanes."""
        if not len(self._rules) or not len(subjects):
            return np.zeros(len(subjects), np.bool_)
        return self._paused(subjects.astype(np.uint32))

    def route_changed(self, number: int, route: int) -> None:
        """Put a subject where it belongs now that the meta server has another route for it."""
        is_paused = bool(self.paused(np.array([number], np.intp))[0])
        self.lanes.route_changed(number, NO_ROUTE if is_paused else route)

    # -- for the sender ----------------------------------------------------------------------

    def groups_of(self, lane: int) -> Mapping[str, Takers]:
        """Return the groups that a lane may use, and which receivers take it there."""
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
