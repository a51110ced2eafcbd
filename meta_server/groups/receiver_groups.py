"""Groups of receivers: who may have a name, and which patterns get a route to it. Pure.

    what leads the subjects of a pattern       what becomes of the pattern
    nothing                                    it gets a route
    a route that the meta server chose         the same, in its place
    a route that names the group               nothing is to be done
    another one, of the pattern or of a        that stays, and the receiver is told so
    prefix of it

Of a pattern's route it is not known whether an operator or another receiver set it: neither is
taken away by a receiver.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from delay_protocol.meta.requests import BrokerState
from meta_server.groups.broker_groups import check_name
from meta_server.groups.routing import routed_subject
from meta_server.known.errors import RefusedError, StateError
from meta_server.known.model import (
    Audit,
    AuditEntry,
    BrokerGroup,
    Change,
    GroupKind,
    Route,
    SaveRoute,
    SaveSubject,
    Subject,
)
from meta_server.known.registry import Registry

PREFIX_ROUTES: Final = "prefix routes"
"""Key of intents about routes of prefixes."""


def new_receivers(name: str, *, now_ms: int, ext: dict[str, str]) -> BrokerGroup:
    """Return a group of receivers that comes into being."""
    return BrokerGroup(
        name=name,
        kind=GroupKind.RECEIVER,
        master="",
        state=BrokerState.RW,
        ext=ext,
        updated_ms=now_ms,
    )


def check_receiver(registry: Registry, name: str, patterns: Iterable[str]) -> None:
    """Raise RefusedError for a name that is not for receivers, and for an illegal pattern."""
    check_name("the name of a receiver", name)
    known = registry.groups.get(name)
    if known is not None and known.kind is not GroupKind.RECEIVER:
        raise RefusedError(
            f"{name} is a group of kind {known.kind.name}: a receiver needs another name"
        )
    if registry.brokers_in(name):
        raise RefusedError(f"{name} has brokers entered for it: a receiver needs another name")
    if known is not None and known.is_retired:
        raise RefusedError(f"{name} was retired")
    for pattern in patterns:
        _read_pattern(pattern)


def keys_of(patterns: Iterable[str]) -> tuple[object, ...]:
    """Return the keys of an intent that gives patterns their routes."""
    return (PREFIX_ROUTES, *(("subject", pattern) for pattern in patterns))


def unrouted(registry: Registry, patterns: Iterable[str]) -> list[str]:
    """Return the patterns that are to get a route, each once."""
    return [one for one in dict.fromkeys(patterns) if _leading(registry, one) is None]


def routed_elsewhere(registry: Registry, name: str, patterns: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each pattern whose subjects another route leads past the group."""
    for pattern in dict.fromkeys(patterns):
        route = _leading(registry, pattern)
        if route is not None and name not in route.groups:
            yield (
                f"pattern {pattern!a} is routed to {', '.join(route.groups)}: an operator can "
                "change that with `delaywheel admin route set`"
            )


def plan_routes(
    registry: Registry,
    name: str,
    patterns: Sequence[str],
    *,
    actor: str,
    by_node: bool,
    subjects_max: int,
    prefixes_max: int,
    now_ms: int,
) -> list[Change]:
    """Return what routes patterns to a group of receivers, with the audit; nothing if all are.

    Raises StateError where there are too many subjects, or routes of prefixes.
    """
    subjects: list[SaveSubject] = []
    routes: list[SaveRoute] = []
    for pattern in unrouted(registry, patterns):
        subject, is_prefix = _read_pattern(pattern)
        known = None if is_prefix else registry.routes.get(subject)
        if not (is_prefix or subject in registry.subjects):
            subjects.append(SaveSubject(Subject(name=subject, created_ms=now_ms)))
        route = Route(
            name=subject,
            is_prefix=is_prefix,
            groups=(name,),
            is_chosen=False,
            version=1 if known is None else known.version + 1,
        )
        routes.append(SaveRoute(route))
    if not routes:
        return []
    if len(registry.subjects) + len(subjects) > subjects_max:
        raise StateError(f"there are {subjects_max} subjects, which is the limit")
    if len(registry.prefixes) + sum(row.route.is_prefix for row in routes) > prefixes_max:
        raise StateError(f"there are {prefixes_max} routes of prefixes, which is the limit")
    entry = AuditEntry(
        at_ms=now_ms,
        actor=actor,
        action="receiver.route",
        target=name,
        after=msgspec.json.encode([row.route for row in routes]).decode(),
        by_node=by_node,
    )
    return [*subjects, *routes, Audit(entry)]


def _leading(registry: Registry, pattern: str) -> Route | None:
    """Return the route of a pattern's subjects that was set for them; None: none, or chosen."""
    subject, is_prefix = _read_pattern(pattern)
    own = None if is_prefix else registry.routes.get(subject)
    if own is not None:
        return None if own.is_chosen else own
    return registry.prefix_route(subject)


def _read_pattern(pattern: str) -> tuple[str, bool]:
    """Return the subject, or prefix, that a pattern is, and which of them; raise RefusedError."""
    subject = pattern.removesuffix("*")
    if not subject:
        raise RefusedError(f"pattern {pattern!a} is every subject: only an operator routes those")
    if "*" in subject:
        raise RefusedError(f"pattern {pattern!a} has a * elsewhere than at its end")
    try:
        real = routed_subject(subject)
    except RefusedError as error:
        raise RefusedError(f"pattern {pattern!a}: {error}") from error
    if real != subject:
        raise RefusedError(f"pattern {pattern!a}: retries are routed as {real!a}")
    return subject, subject != pattern
