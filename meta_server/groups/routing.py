"""Which broker groups a client gets for a subject. Pure: a function of the registry and the limits.

Two rules, for two kinds of groups.

*Delay groups* hold a message until it is due, and nobody reads from them: which ones a subject has
may change at any time. Each subject ranks all delay groups by rendezvous hashing and gets the first
few that take messages. So the answer is the same for everybody at all times, subjects spread over
the groups by weight, and a group that fails is replaced for its own subjects only.

*Normal groups* hold messages until consumers read them, so a subject must keep the groups that it
ever had: its route is chosen once, by the same ranking, stored, and only ever added to by itself,
when it has fewer groups than it should, or none of them takes messages any more. Only a group that
an operator entered is added: who just turns up gets no messages of subjects that have a route.

    state   a consumer keeps the group   a producer keeps it
    RW      yes                          yes
    R       yes                          no
    W       no                           yes
    NRW     left out by us               left out by us

*Groups of receivers* are in the routes that operators and receivers set, and no other group joins
them there. Of all clients delay servers alone, who hand receivers their messages, are told of them;
otherwise they get what a producer gets.

A delay producer never gets an empty list while any delay group is known: QMQ's would wait for ever.
If no group takes messages it gets those that it would get if they did, called RW.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from xxhash import xxh3_64_intdigest

from delay_protocol.basics.subjects import real_subject, subject_fault, subject_size_fault
from delay_protocol.meta.requests import BrokerGroupInfo, BrokerState, ClientType
from meta_server.known.errors import RefusedError
from meta_server.known.model import (
    BrokerGroup,
    Change,
    GroupKind,
    Route,
    SaveRoute,
    SaveSubject,
    Subject,
)
from meta_server.known.registry import Registry

WRITABLE = frozenset({BrokerState.RW, BrokerState.W})
"""States in which QMQ's producers use a group."""

_PRODUCERS = frozenset({ClientType.PRODUCER, ClientType.DELAY_SERVER})
"""Types of clients that send to the groups of a route."""

_HASH_SPAN = 2.0**64

_ALIKE_MAX = 10_000
"""Different answers that are kept to be shared; beyond it they are gathered anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingLimits:
    """How many groups a subject has."""

    delay_groups_per_subject: int = 2
    """Delay groups that a producer gets for a subject."""

    groups_per_subject: int = 2
    """Broker groups that a subject is given at its first use, if there are so many."""

    groups_per_subject_max: int = 8
    """Broker groups that the meta server gives a subject in all, when those it has stay away."""

    extend_after_ms: int = 300_000
    """Milliseconds. How long all groups of a subject must have been away before it is given one
    more, where its messages then lie beside those of the others."""

    def __post_init__(self) -> None:
        """Refuse what would leave subjects without a group."""
        for name in ("delay_groups_per_subject", "groups_per_subject"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.groups_per_subject_max < self.groups_per_subject:
            raise ValueError("groups_per_subject_max must be at least groups_per_subject")
        if self.extend_after_ms < 0:
            raise ValueError(f"extend_after_ms must be at least 0, not {self.extend_after_ms}")


def routed_subject(subject: str) -> str:
    """Return the subject that a (retry) subject is routed as.

    Raises RefusedError if it is illegal or too long.
    """
    sent = subject.encode()
    if too_long := subject_size_fault(sent):
        raise RefusedError(too_long)
    real = real_subject(sent)
    if fault := subject_fault(real):
        raise RefusedError(f"an illegal subject: {fault}")
    return real.decode()


def ranked(subject: str, groups: Iterable[BrokerGroup]) -> list[BrokerGroup]:
    """Return groups by how much a subject belongs to them, most first (weighted rendezvous).

    A group comes first for a share of all subjects that is its share of all weights. Whatever
    happens to one group, the others keep their order. Groups without weight come last.
    """
    return sorted(groups, key=lambda group: (-_score(subject, group), group.name))


def _score(subject: str, group: BrokerGroup) -> float:
    # A NUL is in no legal name; the hash is named, stable and alike on every machine.
    drawn = xxh3_64_intdigest(f"{group.name}\0{subject}".encode())
    return group.weight / -math.log((drawn + 0.5) / _HASH_SPAN)


def groups_for(
    registry: Registry, subject: str, client_type: int, limits: RoutingLimits, *, now_ms: int
) -> tuple[BrokerGroupInfo, ...] | None:
    """Return what a client gets for a real subject; None if its route has to be chosen first."""
    return Answers(registry, limits, now_ms=now_ms).groups_for(subject, client_type)


class Answers:
    """What clients get as things are now, for many subjects: those that are routed alike share it.

    Good for one state of the registry: whoever changes that makes another one.
    """

    __slots__ = ("_alike", "_delay", "_limits", "_now_ms", "_registry", "_short")

    def __init__(self, registry: Registry, limits: RoutingLimits, *, now_ms: int) -> None:
        self._registry = registry
        self._limits = limits
        self._now_ms = now_ms
        self._alike: dict[tuple[object, ...], tuple[BrokerGroupInfo, ...]] = {}
        self._short: dict[tuple[str, ...], bool] = {}
        self._delay: tuple[list[BrokerGroup], bool] | None = None

    def groups_for(self, subject: str, client_type: int) -> tuple[BrokerGroupInfo, ...] | None:
        """Return what a client gets for a real subject; None if its route has to be chosen first.

        Equal answers are mostly one object.
        """
        registry = self._registry
        if client_type == ClientType.DELAY_PRODUCER:
            return self._delay_groups_for(subject)
        own = registry.routes.get(subject)
        route = own or registry.prefix_route(subject)
        if route is None:
            return None
        names = route.groups
        if own is not None and own.is_chosen and self._is_short(names):
            known = registry.subjects.get(subject)
            if _candidates(registry, known.tag if known else "", names):
                return None
        is_producer = client_type in _PRODUCERS
        key = (names, is_producer, client_type == ClientType.DELAY_SERVER)
        found = self._alike.get(key)
        if found is None:
            self._make_room(self._alike)
            found = self._alike[key] = answer_of(registry, client_type, names)
        return found

    def _is_short(self, names: tuple[str, ...]) -> bool:
        short = self._short.get(names)
        if short is None:
            self._make_room(self._short)
            short = self._short[names] = _is_short(
                self._registry, names, self._limits, self._now_ms
            )
        return short

    def _delay_groups_for(self, subject: str) -> tuple[BrokerGroupInfo, ...]:
        if self._delay is None:
            self._delay = _delay_groups(self._registry)
        groups, taking = self._delay
        first = ranked(subject, groups)[: self._limits.delay_groups_per_subject]
        key = ("delay", *(group.name for group in first))
        found = self._alike.get(key)
        if found is None:
            self._make_room(self._alike)
            found = self._alike[key] = _delay_infos(first, taking=taking)
        return found

    @staticmethod
    def _make_room(memory: dict[Any, Any]) -> None:
        if len(memory) >= _ALIKE_MAX:
            memory.clear()


def answer_of(
    registry: Registry, client_type: int, names: Iterable[str]
) -> tuple[BrokerGroupInfo, ...]:
    """Return those of the groups of a route that a client of this type is told of."""
    is_producer = client_type in _PRODUCERS
    return tuple(
        _info(group, group.state)
        for name in names
        if (group := registry.groups.get(name)) is not None
        and group.state is not BrokerState.NRW
        and not group.is_retired
        and (group.kind is not GroupKind.RECEIVER or client_type == ClientType.DELAY_SERVER)
        and not (is_producer and group.is_read_only)
    )


def route_of(registry: Registry, subject: str) -> tuple[str, ...] | None:
    """Return the names of the groups that a real subject is routed to, None if there are none."""
    route = registry.routes.get(subject) or registry.prefix_route(subject)
    return None if route is None else route.groups


def why_unserved(registry: Registry, subject: str) -> str:
    """Return why no broker group takes messages of a real subject now; "" if one does."""
    names = route_of(registry, subject)
    if names is None:
        return "it has no route: no broker group could be given to it"
    reasons = []
    for name in names:
        reason = _why_closed(registry, name)
        if reason is None:
            return ""
        reasons.append(f"{name} {reason}")
    return ", ".join(reasons)


def _why_closed(registry: Registry, name: str) -> str | None:
    """Return why a producer cannot use a group of its route; None if it can."""
    group = registry.groups.get(name)
    if group is None:
        return "is not there"
    if group.is_retired:
        return "is retired"
    if group.is_read_only:
        return "is read-only"
    if group.state is BrokerState.NRW:
        return "is away"
    return None if group.state in WRITABLE else "says that it takes no messages"


def delay_groups_for(
    registry: Registry, subject: str, limits: RoutingLimits
) -> tuple[BrokerGroupInfo, ...]:
    """Return the delay groups of a subject: never none while there is one that is not retired."""
    groups, taking = _delay_groups(registry)
    first = ranked(subject, groups)[: limits.delay_groups_per_subject]
    return _delay_infos(first, taking=taking)


def _delay_groups(registry: Registry) -> tuple[list[BrokerGroup], bool]:
    """Return the delay groups that subjects choose from, and whether they take messages."""
    known = [
        group
        for group in registry.groups.values()
        if group.kind is GroupKind.DELAY and not group.is_retired and group.master
    ]
    open_to_it = [group for group in known if not group.is_read_only]
    taking = [group for group in open_to_it if group.state in WRITABLE]
    return taking or open_to_it or known, bool(taking)


def _delay_infos(groups: Iterable[BrokerGroup], *, taking: bool) -> tuple[BrokerGroupInfo, ...]:
    return tuple(_info(group, group.state if taking else BrokerState.RW) for group in groups)


def plan_route(
    registry: Registry, subject: str, limits: RoutingLimits, *, now_ms: int
) -> list[Change]:
    """Return what is to be stored so that a real subject has its route; nothing if it has.

    There may be no group that it could be routed to: then the subject is stored, and its route is
    chosen when a group is there.
    """
    changes: list[Change] = []
    known = registry.subjects.get(subject)
    if known is None:
        known = Subject(name=subject, created_ms=now_ms)
        changes.append(SaveSubject(known))
    names = route_of(registry, subject)
    if names is not None and not _wants_more(registry, subject, names, limits, now_ms):
        return changes
    has = names or ()
    more = _candidates(registry, known.tag, has)
    # At least one more than it has: it wants more because it has too few, or none that works.
    count = max(limits.groups_per_subject - len(has), 1)
    groups = (*has, *(group.name for group in ranked(subject, more)[:count]))
    if len(groups) > len(has):
        before = registry.routes.get(subject)
        version = 1 if before is None else before.version + 1
        changes.append(SaveRoute(Route(name=subject, groups=groups, version=version)))
    return changes


def _wants_more(
    registry: Registry,
    subject: str,
    names: tuple[str, ...],
    limits: RoutingLimits,
    now_ms: int,
) -> bool:
    """Say whether the meta server is to add to a route, and could.

    Routes that an operator gave are left as they are.
    """
    route = registry.routes.get(subject)
    if route is None or not route.is_chosen or not _is_short(registry, names, limits, now_ms):
        return False
    known = registry.subjects.get(subject)
    return bool(_candidates(registry, known.tag if known else "", names))


def _is_short(
    registry: Registry, names: tuple[str, ...], limits: RoutingLimits, now_ms: int
) -> bool:
    """Say whether these are fewer groups than a subject is to have, or none of them works.

    Where receivers are among them they are enough.
    """
    groups = registry.groups
    if len(names) >= limits.groups_per_subject_max or any(
        name in groups and groups[name].kind is GroupKind.RECEIVER for name in names
    ):
        return False
    return len(names) < limits.groups_per_subject or all(
        _stays_away(registry.groups.get(name), limits, now_ms) for name in names
    )


def _stays_away(group: BrokerGroup | None, limits: RoutingLimits, now_ms: int) -> bool:
    """Say whether a group is gone, or has been away for so long that it counts as gone."""
    if group is None or group.is_retired:
        return True
    return group.state is BrokerState.NRW and now_ms - group.updated_ms >= limits.extend_after_ms


def _candidates(registry: Registry, tag: str, has: tuple[str, ...]) -> list[BrokerGroup]:
    """Return the groups that a subject with this tag could be routed to beside those it has.

    Those of the default tag stand in where no group has the subject's own. One that has some
    gets only such as an operator entered.
    """
    takes = [
        group
        for group in registry.groups.values()
        if group.kind is GroupKind.NORMAL
        and group.state is not BrokerState.NRW
        and not (group.is_retired or group.is_read_only)
        and group.weight > 0
        and group.name not in has
        and (not has or registry.is_entered(group.name))
    ]
    tagged = [group for group in takes if group.tag == tag]
    return tagged or [group for group in takes if not group.tag]


def _info(group: BrokerGroup, state: BrokerState) -> BrokerGroupInfo:
    return BrokerGroupInfo(
        name=group.name, master=group.master, updated_ms=group.updated_ms, state=state
    )
