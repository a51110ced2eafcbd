"""Groups of receivers: who may have a name, and which patterns have a route to it. Pure.

    what leads the subjects of a pattern       what becomes of the pattern
    nothing                                    it gets a route
    a route that the meta server chose         the same, in its place
    a prefix that receivers of the name        it gets a route of its own: the prefix may end
    brought, and this one does not bring
    another route that names the group         nothing is to be done
    another one, of the pattern or of a        that stays, and the receiver is told so
    prefix of it

A receiver takes no route away that was set, by an operator or for another receiver. A pattern that
a receiver brought ends when, for an hour, receivers of its name were connected and none of them
brought it. One that an operator set or approved ends by an operator only.
"""

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from delay_protocol.meta.requests import BrokerState
from delay_protocol.receivers.masters import HOLD_S
from meta_server.groups.broker_groups import check_name, check_room
from meta_server.groups.routing import routed_subject
from meta_server.known import model
from meta_server.known.errors import RefusedError
from meta_server.known.model import Change, GroupKind, Route, saved
from meta_server.known.registry import Registry

PREFIX_ROUTES: Final = "prefix routes"
"""Key of intents about routes of prefixes."""

UNBROUGHT_S: Final = 3600.0
"""Seconds until a pattern ends that no connected receiver brings: no deployment takes as long."""

_AWAY_S: Final = 3 * HOLD_S
"""Seconds after which no receiver of a name is connected, if none has registered."""


class Room(NamedTuple):
    """How many there may be in all."""

    groups: int
    subjects: int
    prefixes: int
    """Routes of prefixes."""


def keys_of(patterns: Iterable[str]) -> tuple[object, ...]:
    """Return the keys of an intent that gives patterns their routes."""
    return (PREFIX_ROUTES, *(("subject", pattern) for pattern in patterns))


def plan_receiver(
    registry: Registry,
    name: str,
    patterns: Iterable[str],
    room: Room,
    *,
    is_approved: bool,
    now_ms: int,
) -> list[Change]:
    """Return what makes a group of receivers and routes patterns to it; nothing if all is there.

    What is approved is an operator's from then on. Raises StateError where there is no room,
    RefusedError for what is never right.
    """
    check_name("the name of a receiver", name)
    lacking, changes = unrouted(registry, name, patterns), list[Change]()
    group = registry.groups.get(name)
    if group is None and not registry.brokers_in(name):
        group = model.BrokerGroup(
            name=name,
            kind=GroupKind.RECEIVER,
            master="",
            state=BrokerState.RW,
            is_entered=is_approved,
            updated_ms=now_ms,
        )
        changes.append(model.Save(group))
    if group is None or group.kind is not GroupKind.RECEIVER:
        raise RefusedError(f"{name} is a group of brokers: a receiver needs another name")
    if group.is_retired:
        raise RefusedError(f"{name} was retired")
    for pattern in lacking:
        subject, is_prefix = _read_pattern(pattern)
        known = None if is_prefix else registry.routes.get(subject)
        if not is_prefix and subject not in registry.subjects:
            changes.append(model.Save(model.Subject(name=subject, created_ms=now_ms)))
        version = 1 if known is None else known.version + 1
        route = Route(
            name=subject,
            is_prefix=is_prefix,
            groups=(name,),
            is_chosen=False,
            is_brought=not is_approved,
            version=version,
        )
        changes.append(model.Save(route))
    prefixes = [route for route in saved(changes, Route) if route.is_prefix]
    check_room("broker groups", registry.groups, room.groups, saved(changes, model.BrokerGroup))
    check_room("subjects", registry.subjects, room.subjects, saved(changes, model.Subject))
    check_room("prefix routes", registry.prefixes, room.prefixes, prefixes)
    return changes


def unrouted(registry: Registry, name: str, patterns: Iterable[str]) -> list[str]:
    """Return the patterns that are to get a route, each once; raise RefusedError."""
    leading = {pattern: _leading(registry, pattern) for pattern in patterns}
    return [
        pattern
        for pattern, route in leading.items()
        if route is None or (_is_brought_by(name, route) and route.pattern not in leading)
    ]


def _is_brought_by(name: str, route: Route | None) -> bool:
    return route is not None and route.is_brought and route.groups == (name,)


def routed_elsewhere(registry: Registry, name: str, patterns: Iterable[str]) -> dict[str, str]:
    """Return a sentence for each pattern whose subjects another route leads past the group."""
    found = {pattern: _leading(registry, pattern) for pattern in patterns}
    return {
        pattern: f"pattern {pattern!a} is routed to {', '.join(route.groups)}: an operator can "
        "change that with `delaywheel admin set route`"
        for pattern, route in found.items()
        if route is not None and name not in route.groups
    }


def _leading(registry: Registry, pattern: str) -> Route | None:
    """Return the route that was set for the subjects of a pattern; None: none, or a chosen one."""
    subject, is_prefix = _read_pattern(pattern)
    own = None if is_prefix else registry.routes.get(subject)
    if own is not None:
        return None if own.is_chosen else own
    return registry.prefix_route(subject)


def _read_pattern(pattern: str) -> tuple[str, bool]:
    """Return the subject, or prefix, that a pattern is, and which of them; raise RefusedError."""
    subject = pattern.removesuffix("*")
    is_plain = subject.isprintable() and "*" not in subject
    if not subject or not is_plain or routed_subject(subject) != subject:
        raise RefusedError(
            f"pattern {pattern!a}: a subject, or the beginning of subjects with a * behind it; "
            "a * alone is for operators, and retries follow their subjects"
        )
    return subject, subject != pattern


class BroughtPatterns:
    """When receivers brought the patterns of their name.

    Each connected receiver registers again at least every HOLD_S. Times are seconds of a monotonic
    clock. A receiver without patterns takes all of its name's, so none of them ends beside it.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._heard: dict[str, float] = {}
        """By name, when a receiver registered last."""
        self._brought: dict[str, dict[str, float]] = {}
        """By name and pattern, when one brought it; at first when there was one to say so."""

    def note(self, name: str, patterns: Iterable[str], now: float) -> None:
        """Note what a receiver brings that registers; its name has a group."""
        known = self._registry.brought
        if now - self._heard.get(name, -math.inf) > _AWAY_S:
            own = (one for one, route in known.items() if _is_brought_by(name, route))
            self._brought[name] = dict.fromkeys(own, now)
        self._heard[name] = now
        brought = self._brought[name]
        brought |= {one: now for one in patterns or brought if one in known}

    def ended(self, name: str, now: float) -> list[Route]:
        """Return the routes of a name that have not been brought for so long that they end."""
        brought, known = self._brought.get(name, {}), self._registry.brought
        old = [one for one, at in brought.items() if now - at >= UNBROUGHT_S]
        return [known[one] for one in old if _is_brought_by(name, known.get(one))]
