"""Which broker groups a client gets for a subject. Pure: a function of the registry and the limits.

Two rules, for two kinds of groups.

*Delay groups* hold a message until it is due, and nobody reads from them: which ones a subject has
may change at any time. Each subject ranks all delay groups by rendezvous hashing and gets the first
few that take messages. So the answer is the same for everybody at all times, subjects spread over
the groups by weight, and a group that fails is replaced for its own subjects only.

*Normal groups* hold messages until consumers read them, so a subject must keep the groups that it
ever had: its route is chosen once, by the same ranking, stored, and only ever added to by itself,
when it has fewer groups than it should: one that was retired or removed does not count, one that is
away does. Only a group that an operator entered is added: who just turns up gets no messages of
subjects that have a route.

    state   a consumer keeps the group   a producer keeps it
    RW      yes                          yes
    R       yes                          no
    W       no                           yes
    NRW     left out by us               left out by us

*Receivers* of a subject take the place of its route (receiver_groups.py). Of all clients delay
servers alone, who hand receivers their messages, are told of them; others get no group.

A delay producer never gets an empty list while any delay group is known: QMQ's would wait for ever.
If no group takes messages it gets those that it would get if they did, called RW.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from delay_protocol.basics.subjects import real_subject, subject_fault, subject_size_fault
from delay_protocol.meta.requests import BrokerGroupInfo, BrokerState, ClientType
from delay_transport.settings.sections import require_at_least
from meta_server.known.errors import RefusedError
from meta_server.known.model import BrokerGroup, Change, GroupKind, Route, Save, Subject
from meta_server.known.registry import Registry

WRITABLE = frozenset({BrokerState.RW, BrokerState.W})
"""States in which QMQ's producers use a group."""

_PRODUCERS = frozenset({ClientType.PRODUCER, ClientType.DELAY_SERVER})
"""Types of clients that send to the groups of a route."""

_HASH_SPAN = 2.0**64

_KEPT_MAX = 10_000
"""Different answers that are kept to be shared; beyond it they are gathered anew."""

Signature = tuple[tuple[str, str, int], ...]
"""The part of an answer that matters: name, master and state of each group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingLimits:
    """How many groups a subject has."""

    delay_groups_per_subject: int = 2
    """Delay groups that a producer gets for a subject."""

    groups_per_subject: int = 2
    """Broker groups that a subject is given at its first use, if there are so many. Others join
    when some of them are retired."""

    def __post_init__(self) -> None:
        """Refuse what would leave subjects without a group."""
        require_at_least(self, 1, "delay_groups_per_subject", "groups_per_subject")


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


class Answer(NamedTuple):
    """The groups that a client gets for a subject."""

    groups: tuple[BrokerGroupInfo, ...]
    signature: Signature


NO_GROUPS: Final = Answer((), ())


class RouteAnswers:
    """The answers to clients, kept while the registry is as it is.

    Equal answers are mostly one object.
    """

    def __init__(self, registry: Registry, limits: RoutingLimits) -> None:
        self._registry = registry
        self._limits = limits
        self._version = -1
        """The version of the registry for which answers are kept."""
        self._begin()

    def _begin(self) -> None:
        """Keep nothing of before."""
        registry, kept = self._registry, lru_cache(_KEPT_MAX)
        self._joining = kept(partial(_joining, registry, self._limits))
        self._of_route = kept(partial(answer_of, registry))
        self._delay_groups = kept(partial(_delay_groups, registry))
        self._of_delay_groups = kept(partial(_delay_answer, registry))
        self._of_receivers = kept(partial(_receivers_answer, registry))
        self._of_delay_producer = kept(self._ranked_answer)

    def find(self, subject: str, client_type: int) -> Answer | None:
        """Return what a client gets for a real subject; None if it has to get a route, or more."""
        if self._registry.version != self._version:
            self._version = self._registry.version
            self._begin()
        if client_type == ClientType.DELAY_PRODUCER:
            return self._of_delay_producer(subject)
        if receivers := self._registry.receivers_of(subject):
            if client_type != ClientType.DELAY_SERVER:
                return NO_GROUPS
            return self._of_receivers(tuple(row.name for row in receivers))
        own = self._registry.routes.get(subject)
        if own is not None and own.is_chosen and self._joining(own.groups):
            return None
        names = route_of(self._registry, subject)
        return None if names is None else self.of_groups(names, client_type)

    def of_groups(self, names: tuple[str, ...], client_type: int) -> Answer:
        """Return what a client gets of the groups of a route, as of the last `find`."""
        kind = ClientType.PRODUCER if client_type in _PRODUCERS else ClientType.CONSUMER
        return self._of_route(kind, names)

    def _ranked_answer(self, subject: str) -> Answer:
        """Return the delay groups of a subject: never none while one is not retired."""
        groups, taking = self._delay_groups()
        first = ranked(subject, groups)[: self._limits.delay_groups_per_subject]
        return self._of_delay_groups(tuple(group.name for group in first), taking)


def answer_of(registry: Registry, client_type: int, names: Iterable[str]) -> Answer:
    """Return those of the groups of a route that a client of this type is told of."""
    is_producer = client_type in _PRODUCERS
    return _answer(
        _info(group, group.state)
        for name in names
        if (group := registry.groups.get(name)) is not None
        and group.state is not BrokerState.NRW
        and not group.is_retired
        and not (is_producer and group.is_read_only)
    )


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


def _delay_answer(registry: Registry, names: tuple[str, ...], taking: bool) -> Answer:  # noqa: FBT001 (a key)
    groups = [registry.groups[name] for name in names]
    return _answer(_info(group, group.state if taking else BrokerState.RW) for group in groups)


def _receivers_answer(registry: Registry, names: tuple[str, ...]) -> Answer:
    receivers = [registry.receivers[name] for name in names]
    return _answer(
        BrokerGroupInfo(name=row.name, master="", updated_ms=row.updated_ms, state=BrokerState.RW)
        for row in receivers
    )


def _answer(infos: Iterable[BrokerGroupInfo]) -> Answer:
    groups = tuple(infos)
    return Answer(groups, tuple((group.name, group.master, int(group.state)) for group in groups))


def _info(group: BrokerGroup, state: BrokerState) -> BrokerGroupInfo:
    return BrokerGroupInfo(
        name=group.name, master=group.master, updated_ms=group.updated_ms, state=state
    )


def route_of(registry: Registry, subject: str) -> tuple[str, ...] | None:
    """Return the names of the groups that a real subject is routed to, None if there are none."""
    route = registry.routes.get(subject) or registry.prefix_route(subject)
    return None if route is None else route.groups


def is_routed(registry: Registry, subject: str) -> bool:
    """Return True if a real subject has receivers or a route."""
    return bool(registry.receivers_of(subject)) or route_of(registry, subject) is not None


def why_unserved(registry: Registry, names: Iterable[str] | None) -> str:
    """Return why no group of a route (None: there is no route) takes messages; "" if one does."""
    if names is None:
        return "it has no route: no broker group could be given to it"
    reasons = {name: _why_closed(registry.groups.get(name)) for name in names}
    if not all(reasons.values()):
        return ""
    return ", ".join(f"{name} {reason}" for name, reason in reasons.items())


def _why_closed(group: BrokerGroup | None) -> str:
    """Return why a producer cannot use a group of its route; "" if it can."""
    if group is None:
        return "is not there"
    if group.is_retired:
        return "is retired"
    if group.is_read_only:
        return "is read-only"
    if group.state is BrokerState.NRW:
        return "is away"
    return "" if group.state in WRITABLE else "says that it takes no messages"


def plan_route(
    registry: Registry, subject: str, limits: RoutingLimits, *, now_ms: int
) -> list[Change]:
    """Return what is to be stored so that a real subject has its route; nothing if it has.

    There may be no group that it could be routed to: then the subject is stored, and its route is
    chosen when a group is there. Routes that an operator gave are left as they are.
    """
    changes: list[Change] = []
    if subject not in registry.subjects:
        changes.append(Save(Subject(name=subject, created_ms=now_ms)))
    route = registry.routes.get(subject)
    is_set = registry.prefix_route(subject) if route is None else not route.is_chosen
    if is_set or registry.receivers_of(subject):
        return changes
    has = () if route is None else route.groups
    more = _joining(registry, limits, has)
    if more:
        count = limits.groups_per_subject - len(_counting(registry, has))
        groups = (*has, *(group.name for group in ranked(subject, more)[:count]))
        version = 1 if route is None else route.version + 1
        changes.append(Save(Route(name=subject, groups=groups, version=version)))
    return changes


def _joining(registry: Registry, limits: RoutingLimits, has: tuple[str, ...]) -> list[BrokerGroup]:
    """Return the groups that may join those that a subject has; none if it has enough.

    A subject that has some gets only such as an operator entered.
    """
    if len(_counting(registry, has)) >= limits.groups_per_subject:
        return []
    return [
        group
        for group in registry.groups.values()
        if group.kind is GroupKind.NORMAL
        and group.state is not BrokerState.NRW
        and not (group.is_retired or group.is_read_only)
        and group.weight > 0
        and group.name not in has
        and (not has or registry.is_entered(group.name))
    ]


def _counting(registry: Registry, names: Iterable[str]) -> list[BrokerGroup]:
    """Return the groups of a route that count as such that a subject has."""
    found = (registry.groups.get(name) for name in names)
    return [group for group in found if group is not None and not group.is_retired]
