"""Groups of receivers: who may have a name, and which patterns have a route to it. Pure.

    what leads the subjects of a pattern       what becomes of the pattern
    nothing                                    it gets a route
    a route that the meta server chose         the same, in its place
    another route that names the group         nothing is to be done
    another one, of the pattern or of a        that stays, and the receiver is told so
    prefix of it

A receiver takes no route away that was set, by an operator or for another receiver. A pattern that
no receiver brings any more keeps its route until an operator removes that.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from delay_protocol.meta.requests import BrokerState
from meta_server.groups.broker_groups import check_name, check_room
from meta_server.groups.routing import routed_subject
from meta_server.known import model
from meta_server.known.errors import RefusedError
from meta_server.known.model import GroupKind, Route, Save, saved
from meta_server.known.registry import Registry

PREFIX_ROUTES: Final = "prefix routes"
"""Key of intents about routes of prefixes."""


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
) -> list[Save]:
    """Return what makes a group of receivers and routes patterns to it; nothing if all is there.

    What is approved is an operator's from then on. Raises StateError where there is no room,
    RefusedError for what is never right.
    """
    check_name("the name of a receiver", name)
    lacking, changes = unrouted(registry, patterns), list[Save]()
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
        changes.append(Save(group))
    if group is None or group.kind is not GroupKind.RECEIVER:
        raise RefusedError(f"{name} is a group of brokers: a receiver needs another name")
    if group.is_retired:
        raise RefusedError(f"{name} was retired")
    for pattern in lacking:
        subject, is_prefix = _read_pattern(pattern)
        known = None if is_prefix else registry.routes.get(subject)
        if not is_prefix and subject not in registry.subjects:
            changes.append(Save(model.Subject(name=subject, created_ms=now_ms)))
        version = 1 if known is None else known.version + 1
        route = Route(
            name=subject,
            is_prefix=is_prefix,
            groups=(name,),
            is_chosen=False,
            version=version,
        )
        changes.append(Save(route))
    prefixes = [route for route in saved(changes, Route) if route.is_prefix]
    check_room("broker groups", registry.groups, room.groups, saved(changes, model.BrokerGroup))
    check_room("subjects", registry.subjects, room.subjects, saved(changes, model.Subject))
    check_room("prefix routes", registry.prefixes, room.prefixes, prefixes)
    return changes


def unrouted(registry: Registry, patterns: Iterable[str]) -> list[str]:
    """Return the patterns that are to get a route, each once; raise RefusedError."""
    return [one for one in dict.fromkeys(patterns) if _leading(registry, one) is None]


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
