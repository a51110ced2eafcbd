"""Names of receivers: who may have one, and which patterns are in its subscription. Pure.

    a pattern                                            becomes
    that no name and no set route has                    part of the subscription
    that another name has as well                        likewise, up to 16 names for a subject
    that has subjects in common with a set route         nothing, and the receiver is told so
    by which a subject would have a 17th name            likewise

Routes that the meta server chose give way: where a name receives a subject no broker group gets it.
A pattern that no member brings any more stays until an operator takes it away.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from delay_protocol.nodes.controls import ANY_END
from meta_server.groups.broker_groups import check_name, check_room
from meta_server.groups.routing import routed_subject
from meta_server.known.errors import RefusedError
from meta_server.known.model import Receiver, Route
from meta_server.known.registry import Registry

RECEIVERS: Final = "receivers"
"""Key of intents about subscriptions and prefix routes, each of which may touch any other."""

NAMES_MAX: Final = 16
"""Names that may receive one subject: each has a copy of each message on disk."""


class Room(NamedTuple):
    """How many there may be in all."""

    names: int
    patterns: int


def plan_receiver(
    registry: Registry,
    name: str,
    patterns: Iterable[str],
    room: Room,
    *,
    now_ms: int,
) -> Receiver | None:
    """Return a name with patterns added to its subscription; None if all is there.

    Patterns that something is in the way of are left out. Raises StateError where there is no room,
    RefusedError for what is never right.
    """
    check_receiver(registry, name)
    known = registry.receivers.get(name)
    before = known or Receiver(name=name, version=0)
    lacking = [one for one in lacks(registry, name, patterns) if not hindrance(registry, name, one)]
    if known is not None and not lacking:
        return None
    after = replace(
        before,
        patterns=tuple(sorted({*before.patterns, *lacking})),
        version=before.version + 1,
        updated_ms=now_ms,
    )
    check_room("receivers", registry.receivers, room.names, [] if known else [after])
    others = [one for row in registry.receivers.values() for one in row.patterns]
    check_room("patterns of receivers", others, room.patterns, lacking)
    return after


def check_receiver(registry: Registry, name: str) -> None:
    """Raise RefusedError for a name that receivers may not have."""
    check_name("the name of a receiver", name)
    if "%" in name:
        raise RefusedError(f"{name!a}: the name of a receiver has no %, which stands in retries")
    if name in registry.groups or registry.brokers_in(name):
        raise RefusedError(f"{name} is a group of brokers: a receiver needs another name")


def lacks(registry: Registry, name: str, patterns: Iterable[str]) -> list[str]:
    """Return the patterns that a subscription lacks, each once; raise RefusedError."""
    known = registry.receivers.get(name)
    has = () if known is None else known.patterns
    for one in (lacking := [one for one in dict.fromkeys(patterns) if not _is_in(one, has)]):
        check_pattern(one)
    return lacking


def hindrance(registry: Registry, name: str, pattern: str) -> str:
    """Return why a pattern does not come into a subscription; empty if it may, or is in it."""
    own = registry.receivers.get(name)
    if own is not None and _is_in(pattern, own.patterns):
        return ""
    for route in _set_routes(registry, pattern):
        return (
            f"pattern {pattern!a} has subjects in common with the route of {route.pattern} to "
            f"{', '.join(route.groups)}: an operator can end that with "
            f"`delaywheel admin remove route {route.pattern}`"
        )
    names = _names_at_most(registry, pattern) - {name}
    if len(names) < NAMES_MAX:
        return ""
    return (
        f"pattern {pattern!a} has subjects that {len(names)} names receive already, the limit: "
        f"{', '.join(sorted(names))}; an operator can take one away with `delaywheel admin remove "
        "receiver`"
    )


def received(registry: Registry, pattern: str) -> Receiver | None:
    """Return a receiver that has subjects in common with a pattern."""
    return next(
        (
            row
            for row in registry.receivers.values()
            if any(_overlap(one, pattern) for one in row.patterns)
        ),
        None,
    )


def check_pattern(pattern: str, *, may_be_all: bool = False) -> None:
    """Raise RefusedError for what is neither a subject nor the beginning of subjects.

    may_be_all: a * alone, for all subjects, is right
    """
    subject = pattern.removesuffix(ANY_END)
    if may_be_all and pattern == ANY_END:
        return
    is_plain = subject.isprintable() and ANY_END not in subject
    if not subject or not is_plain or routed_subject(subject) != subject:
        raise RefusedError(
            f"pattern {pattern!a}: a subject, or the beginning of subjects with a * behind it; "
            "a * alone is for operators, and retries follow their subjects"
        )


def _set_routes(registry: Registry, pattern: str) -> list[Route]:
    """Return the routes that operators set with subjects of a pattern."""
    stem = pattern.removesuffix(ANY_END)
    if stem == pattern:
        own = registry.routes.get(pattern)
        prefix = registry.prefix_route(pattern)
        return [one for one in (own, prefix) if one is not None and not one.is_chosen]
    routes = registry.of(Route).values()
    return [one for one in routes if not one.is_chosen and _overlap(one.pattern, pattern)]


def _names_at_most(registry: Registry, pattern: str) -> set[str]:
    """Return the names of the subject, of those that a pattern takes, that most names receive."""
    places = {pattern}
    if pattern.endswith(ANY_END):
        rows = registry.receivers.values()
        places |= {one for row in rows for one in row.patterns if _covers(pattern, one)}
    # A NUL is in no subject: so prefixes alone are found for what stands for many.
    subjects = [f"{one[:-1]}\0" if one.endswith(ANY_END) else one for one in places]
    found = [{row.name for row in registry.receivers_of(subject)} for subject in subjects]
    return max(found, key=len)


def _is_in(pattern: str, patterns: Iterable[str]) -> bool:
    return any(_covers(one, pattern) for one in patterns)


def _covers(pattern: str, other: str) -> bool:
    """Return True if a pattern takes all that another one takes."""
    return other == pattern or (
        pattern.endswith(ANY_END) and other.removesuffix(ANY_END).startswith(pattern[:-1])
    )


def _overlap(pattern: str, other: str) -> bool:
    """Return True if there are subjects that both patterns take."""
    return _covers(pattern, other) or _covers(other, pattern)
