"""Rules of each kind of row: a request and the known rows to changes. Pure.

A rule gets the row as it is (None: there is none) and what is wanted, checks it against what is
known at that moment, and returns the changes to store; none if nothing changes. Refusals:

    BadValueError    a value that is never allowed
    NotFoundError    no such row
    StateError       its state does not allow it

A change that could lose messages is refused unless the request allows it: retiring a group from
which consumers still read, or giving up the delay server with the only copy of its group's
messages.
"""

import ipaddress
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

from msgspec import convert
from msgspec.structs import asdict, replace

from delay_protocol.basics.levels import DEFAULT_LEVELS, parse_levels
from delay_protocol.meta.requests import BrokerRole, BrokerState
from delay_protocol.nodes.controls import (
    ANY_END,
    Controls,
    ControlsError,
    GroupControl,
    SubjectControl,
    document_of,
)
from delay_protocol.receivers.masters import Retries
from delay_transport.http.operations import Request
from meta_server.admin.admin_types import (
    ROUTE_GROUPS_MAX,
    BrokerGroupSet,
    BrokerKey,
    BrokerSet,
    GroupRuleKey,
    MayLose,
    NameKey,
    ReadOnly,
    ReceiverSet,
    RouteKey,
    RouteSet,
    SubjectRuleKey,
)
from meta_server.admin.parts import Parts, Planned
from meta_server.groups.broker_groups import (
    KINDS,
    addresses_of,
    check_address,
    check_group_name,
    check_place,
    check_room,
    is_entered_at,
)
from meta_server.groups.receiver_groups import (
    check_pattern,
    check_receiver,
    hindrance,
    received,
)
from meta_server.groups.routing import routed_subject
from meta_server.known.errors import BadValueError, NotFoundError, RefusedError, StateError
from meta_server.known.model import (
    Broker,
    BrokerGroup,
    Change,
    ClusterControls,
    GroupKind,
    Receiver,
    Remove,
    Route,
    Save,
    Subject,
    Versioned,
)
from meta_server.known.registry import Registry

_BROKERS_MAX: Final = 10_000
"""Brokers that may be entered."""

_BACKUPS: Final = frozenset({BrokerRole.BACKUP, BrokerRole.DELAY_BACKUP})

Kept = TypeVar("Kept", bound=Versioned)

_ANY_STORE: Final = UUID(int=0)
"""A placeholder, for measuring the encoded length of a document."""


def _bad(field: str, value: object, check: Callable[[], object]) -> None:
    """Run a check that raises RefusedError; name the field in the error."""
    try:
        check()
    except RefusedError as error:
        raise BadValueError(field=field, value=value, allowed=str(error)) from error


def put(known: Kept | None, wanted: Kept) -> Planned:
    """Return what saves a row in its next version; nothing if it is as it is wanted."""
    version = 0 if known is None else known.version
    if replace(wanted, version=version) == known:
        return Planned()
    after = replace(wanted, version=version + 1)
    return Planned([Save(after)], after)


# Broker groups


def set_group(
    parts: Parts, key: NameKey, known: BrokerGroup | None, wanted: BrokerGroupSet
) -> Planned:
    """Add or change a broker group: its address, whether it is static, its weight."""
    name, kind, address = key.name, wanted.kind, wanted.address
    if known is None:
        _bad("name", name, lambda: check_group_name(parts.registry, "a name", name))
        check_group_count(parts, name)
        state = BrokerState.RW if address else BrokerState.NRW
        before = BrokerGroup(name=name, kind=kind, master="", state=state, version=0)
    else:
        before = known
    if kind is not before.kind:
        allowed = f"{before.kind.value}: a group keeps its kind"
        raise BadValueError(field="kind", value=kind.value, allowed=allowed)
    if before.master and not address:
        raise BadValueError(field="address", value="", allowed="host:port of its master")
    is_static = bool(address) and wanted.static
    is_moved = address != before.master
    changed = replace(before, master=address, is_static=is_static, weight=wanted.weight)
    if is_moved or (is_static and not before.is_static):
        _bad("address", address, lambda: check_address(address))
        _check_master(parts.registry, changed)
        changed = replace(
            changed,
            state=BrokerState.RW if is_static else before.state,
            # Who spoke for another place does not for this one.
            speaker="" if is_moved else before.speaker,
        )
    return saved(parts, known, changed)


def check_group_count(parts: Parts, name: str) -> None:
    """Raise StateError if there are as many groups as there may be."""
    check_room("broker groups", parts.registry.groups, parts.config.registration.groups_max, [name])


def _check_master(registry: Registry, group: BrokerGroup) -> None:
    """Refuse an address that a registration would take away at once, or that is another kind's."""
    check_place(registry, group.kind, group.master)
    if group.name in registry.delay_groups:
        raise StateError(
            f"{group.name} is a group of delay servers that register here: its record says who is "
            "master, and nobody else can"
        )
    masters = [role for role, kind in KINDS.items() if kind is group.kind]
    try:
        is_entered_at(registry, group.name, group.master, *masters)
    except StateError as error:
        raise StateError(f"{error}: replace that broker instead") from error


def saved(parts: Parts, known: BrokerGroup | None, changed: BrokerGroup) -> Planned:
    """Save a broker group if it has changed; it counts as entered from then on."""
    if changed == known:
        return Planned()
    planned = put(known, replace(changed, is_entered=True, updated_ms=parts.now_ms))
    if known is None or not changed.is_watched:
        return planned
    if changed.master == known.master and known.is_watched:
        return planned
    # A new master has one time-out to be heard.
    return planned._replace(stored=partial(parts.heard.hear, known.name, parts.now))


def retire_group(parts: Parts, key: NameKey, known: BrokerGroup, body: MayLose) -> Planned:
    """Retire a broker group: no route leads to it; its name stays taken."""
    # Delay servers know that they are retired: they refuse messages, and deliver what they have.
    is_empty = known.is_retired or known.is_read_only or known.state is BrokerState.NRW
    if not (is_empty or body.lose_messages or key.name in parts.registry.delay_groups):
        raise StateError(
            f"{key.name} takes messages: set it read-only, wait until consumers have read what "
            "is in it, then retire it; or say that messages may be lost (--lose-messages)"
        )
    return saved(parts, known, replace(known, is_retired=True))


def restore_group(parts: Parts, _key: NameKey, known: BrokerGroup, _body: Request) -> Planned:
    """Use a retired broker group again."""
    return saved(parts, known, replace(known, is_retired=False))


def set_read_only(parts: Parts, _key: NameKey, known: BrokerGroup, body: ReadOnly) -> Planned:
    """Take a broker group from producers, or give it back."""
    return saved(parts, known, replace(known, is_read_only=body.read_only))


def remove_group(parts: Parts, key: NameKey, known: BrokerGroup, body: MayLose) -> Planned:
    """Remove a broker group that is not in use.

    Routes that the meta server chose go on without it.
    """
    registry, name = parts.registry, key.name
    delay_group = registry.delay_groups.get(name)
    if parts.heard.is_heard(name, parts.now):
        raise StateError(f"{name} speaks: stop it, and wait for the time-out")
    if known.state is not BrokerState.NRW and not known.is_retired:
        raise StateError(f"{name} takes messages: retire it first")
    if registry.brokers_in(name) or (
        delay_group is not None
        and (registry.nodes_in(delay_group.cluster, name) or delay_group.record.in_sync)
    ):
        raise StateError(f"{name} has brokers or delay servers: remove those first")
    routes = [route for route in registry.of(Route).values() if name in route.groups]
    for route in routes:
        if not route.is_chosen:
            raise StateError(f"an operator has routed {route.pattern} to {name}: change that first")
    if routes and not (known.is_retired or body.lose_messages):
        raise StateError(
            f"{len(routes)} subjects are routed to {name}, and messages in it would never be "
            "consumed: retire it first, or say that messages may be lost (--lose-messages)"
        )
    changes: list[Change] = [Remove(known)]
    if delay_group is not None:
        changes.append(Remove(delay_group))
    return Planned(changes)


# Brokers


def set_broker(parts: Parts, key: BrokerKey, known: Broker | None, wanted: BrokerSet) -> Planned:
    """Enter a broker with its group and role, or put another one in its place.

    The group's address follows when the new one goes on-line.
    """
    registry, role = parts.registry, BrokerRole[key.role]
    _bad("group", key.group, lambda: check_group_name(registry, "a name", key.group))
    broker = _broker_of(wanted, key.group, role)
    if known is None:
        _check_kind(registry, key.group, role)
        check_room("brokers", registry.brokers, _BROKERS_MAX, [broker])
    check_place(registry, _kind_of(role), *addresses_of(broker))
    other = registry.claimed(Broker, (broker.hostname, broker.serve_port))
    if other is not None and other is not known:
        raise StateError(
            f"{broker.hostname}:{broker.serve_port} is entered as {other.role.name} "
            f"of {other.group}"
        )
    return put(known, broker)


def remove_broker(_parts: Parts, _key: BrokerKey, known: Broker, _body: Request) -> Planned:
    """Remove a broker's entry: when it asks for its role, it is refused."""
    return Planned([Remove(known)])


def _broker_of(place: BrokerSet, group: str, role: BrokerRole) -> Broker:
    _bad("hostname", place.hostname, lambda: check_address(f"{place.hostname}:{place.serve_port}"))
    try:
        ip = str(ipaddress.IPv4Address(place.ip))
    except ValueError as error:
        raise BadValueError(
            field="ip", value=place.ip, allowed="an IPv4 address such as 10.0.0.1"
        ) from error
    if role not in _BACKUPS and not place.sync_port:
        raise BadValueError(
            field="sync_port", value=0, allowed=f"a {role.name} has one, from which others copy"
        )
    return Broker(
        hostname=place.hostname,
        serve_port=place.serve_port,
        ip=ip,
        group=group,
        role=role,
        sync_port=place.sync_port,
    )


def _kind_of(role: BrokerRole) -> GroupKind:
    return GroupKind.DELAY if role.name.startswith("DELAY") else GroupKind.NORMAL


def _check_kind(registry: Registry, group: str, role: BrokerRole) -> None:
    kind, known = _kind_of(role), registry.groups.get(group)
    if group in registry.delay_groups:
        raise StateError(f"{group} is a group of delay servers that register here by themselves")
    others = {_kind_of(broker.role) for broker in registry.brokers_in(group)}
    others |= set() if known is None else {known.kind}
    for other in others - {kind}:
        raise StateError(f"{group} is a group of kind {other.name}, not of {kind.name}")


# Subjects and routes


def check_subject(field: str, subject: str) -> None:
    """Raise BadValueError unless a subject could be used, and is not a retry subject."""
    _bad(field, subject, lambda: routed_subject(subject))
    if (real := routed_subject(subject)) != subject:
        allowed = f"it is routed as {real}, which stands for it"
        raise BadValueError(field=field, value=subject, allowed=allowed)


def _entered_subject(parts: Parts, subject: str) -> list[Save]:
    """Return what makes a subject known, if it is not."""
    if subject in parts.registry.subjects:
        return []
    limit = parts.config.registration.subjects_max
    check_room("subjects", parts.registry.subjects, limit, [subject])
    return [Save(Subject(name=subject, created_ms=parts.now_ms))]


def set_subject(parts: Parts, key: NameKey, known: Subject | None, _body: Request) -> Planned:
    """Enter a subject."""
    check_subject("name", key.name)
    if known is not None:
        return Planned()
    [entered] = _entered_subject(parts, key.name)
    return Planned([entered], entered.row)


def remove_subject(parts: Parts, key: NameKey, known: Subject, _body: Request) -> Planned:
    """Remove a subject that no connected client uses, with the route that was chosen for it."""
    name = key.name
    route = parts.registry.routes.get(name)
    if route is not None and not route.is_chosen:
        raise StateError(
            f"the subject {name} has a route that an operator set: take that away first"
        )
    if any(name in session.routed for session in parts.handlers.sessions):
        raise StateError(f"the subject {name} is used by a connected client")
    changes: list[Change] = [Remove(known)]
    if route is not None:
        changes.append(Remove(route))
    return Planned(changes)


def subject_of(pattern: str) -> tuple[str, bool]:
    """Return the subject, or prefix, of a pattern; True for a prefix. Raises BadValueError."""
    subject = pattern.removesuffix(ANY_END)
    check_subject("pattern", subject)
    return subject, subject != pattern


def set_route(parts: Parts, key: RouteKey, known: Route | None, wanted: RouteSet) -> Planned:
    """Set a route by hand: the server does not change it from then on."""
    name, is_prefix = subject_of(key.pattern)
    check_groups(parts, "groups", wanted.groups)
    if receiver := received(parts.registry, key.pattern):
        raise StateError(
            f"{receiver.name} receives {', '.join(receiver.patterns)}, and what a name receives no "
            f"broker group gets: change that first by `delaywheel admin set receiver "
            f"{receiver.name} patterns=…`"
        )
    if is_prefix and known is None:
        limit = parts.config.admin.prefix_routes_max
        check_room("prefix routes", parts.registry.prefixes, limit, [name])
    entered = [] if is_prefix else _entered_subject(parts, name)
    route = Route(name=name, is_prefix=is_prefix, groups=wanted.groups, is_chosen=False)
    planned = put(known, route)
    return planned._replace(changes=[*entered, *planned.changes])


def check_groups(parts: Parts, field: str, names: Sequence[str]) -> None:
    """Raise BadValueError unless a route may lead to these groups."""
    if len(names) > len(set(names)):
        raise BadValueError(field=field, value=",".join(names), allowed="each group once")
    for name in names:
        group = parts.registry.groups.get(name)
        if group is None or group.kind is GroupKind.DELAY or group.is_retired:
            raise BadValueError(
                field=field,
                value=name,
                allowed="a broker group that is there, is not retired, and is not of kind delay: "
                "those are given to every subject by rank",
            )


def set_receiver(
    parts: Parts,
    key: NameKey,
    known: Receiver | None,
    wanted: ReceiverSet,
    *,
    patterns_are: str = "patterns",
) -> Planned:
    """Enter a name of receivers, or change which subjects it gets, and how they are tried."""
    registry, name = parts.registry, key.name
    _bad("name", name, lambda: check_receiver(registry, name))
    for one in wanted.patterns:
        _bad(patterns_are, one, partial(check_pattern, one, may_be_all=True))
        if why := hindrance(registry, name, one):
            raise StateError(why)
    if wanted.waits and wanted.first_level is not None:
        raise BadValueError(
            field="first_level", value=wanted.first_level, allowed="null where waits are given"
        )
    try:
        parse_levels(wanted.waits or DEFAULT_LEVELS)
    except ValueError as error:
        raise BadValueError(field="waits", value=wanted.waits, allowed=str(error)) from error
    if known is None:
        limit = parts.config.registration.groups_max
        check_room("receivers", registry.receivers, limit, [name])
    before = known or Receiver(name=name, version=0)
    changed = replace(
        before,
        patterns=tuple(sorted(set(wanted.patterns))),
        is_entered=True,
        **asdict(convert(wanted, Retries, from_attributes=True)),
    )
    if changed == known:
        return Planned()
    planned = put(known, replace(changed, updated_ms=parts.now_ms))
    return planned._replace(stored=partial(parts.handlers.admission.forget, name))


def remove_receiver(parts: Parts, key: NameKey, known: Receiver, _body: Request) -> Planned:
    """Remove a name of receivers that nobody has."""
    if any(session.receiver == key.name for session in parts.handlers.sessions):
        raise StateError(f"a receiver of {key.name} is connected: stop it first")
    if key.name in parts.registry.webhooks:
        raise StateError(
            f"{key.name} is a webhook: end that first by `delaywheel admin remove webhook "
            f"{key.name}`"
        )
    return Planned([Remove(known)])


def remove_route(_parts: Parts, _key: RouteKey, known: Route, _body: Request) -> Planned:
    """Remove a route: a subject follows its prefix, or another one is chosen at its next use."""
    return Planned([Remove(known)])


def extended(parts: Parts, subjects: Sequence[str], new_group: str) -> Planned:
    """Add a group to the routes of subjects that have no more groups than they may.

    A route that the meta server chose stays so.
    """
    check_groups(parts, "new_group", (new_group,))
    changes: list[Change] = []
    for subject in subjects:
        known = parts.registry.routes[subject]
        if len(known.groups) < ROUTE_GROUPS_MAX:
            groups = (*known.groups, new_group)
            route = replace(known, groups=groups, version=known.version + 1)
            changes += (Save(route), parts.entry("route.extend", subject, known, route))
    return Planned(changes)


def without_removed(parts: Parts, subjects: Sequence[str]) -> Planned:
    """Take groups that were removed out of routes, which go on being the meta server's."""
    registry = parts.registry
    changes: list[Change] = []
    for known in [registry.routes[name] for name in subjects if name in registry.routes]:
        groups = tuple(name for name in known.groups if name in registry.groups)
        if known.is_chosen and groups != known.groups:
            route = replace(known, groups=groups, version=known.version + 1)
            changes.append(Save(route) if groups else Remove(known))
    return Planned(changes)


# Rules of clusters


def clusters_of(registry: Registry) -> list[str]:
    """Return the clusters that there are: those of delay servers, and those with rules."""
    return sorted(
        {*registry.controls, *(group.cluster for group in registry.delay_groups.values())}
    )


def check_cluster(registry: Registry, cluster: str) -> None:
    """Raise NotFoundError for a cluster of which no delay server has registered.

    A rule there would hold nowhere.
    """
    if cluster not in registry.controls and cluster not in clusters_of(registry):
        known = ", ".join(clusters_of(registry)) or "none"
        raise NotFoundError(
            f"no delay server of a cluster {cluster!a} has registered here; there are: {known}"
        )


def set_subject_rule(
    parts: Parts, key: SubjectRuleKey, _known: object, wanted: SubjectControl | None
) -> Planned:
    """Pause or resume a subject, or all with a prefix; None: remove its rule."""
    before = parts.registry.controls_of(key.cluster)
    after = _next_rules(
        *(parts, key.cluster, "subject", key.subject),
        lambda: before.with_subject(key.subject, wanted),
    )
    return Planned([Save(after)], wanted, before.subjects.get(key.subject))


def set_group_rule(
    parts: Parts, key: GroupRuleKey, _known: object, wanted: GroupControl | None
) -> Planned:
    """Pause, resume, limit or weight a broker group; None: remove its rule."""
    before = parts.registry.controls_of(key.cluster)
    after = _next_rules(
        *(parts, key.cluster, "group", key.group), lambda: before.with_group(key.group, wanted)
    )
    return Planned([Save(after)], wanted, before.groups.get(key.group))


def _next_rules(
    parts: Parts, cluster: str, field: str, value: str, change: Callable[[], Controls]
) -> ClusterControls:
    """Return the next version of a cluster's rules, if a node can be sent it.

    It is stored also if the rule is as it was: the store may have another one, if it was set back
    since it was loaded. Nobody is to be sent that it is kept before the store has said so.
    """
    check_cluster(parts.registry, cluster)
    if ahead := parts.handlers.group_changes.ahead(cluster):
        # Its version would be reached again, with other rules in it.
        raise StateError(
            f"{ahead} has newer controls than this store, which was set back: look at what the "
            "node has, then run `delaywheel controls --follow` there"
        )
    try:
        after = change()
        document_of(after, _ANY_STORE)
    except ControlsError as error:
        raise BadValueError(field=field, value=value, allowed=str(error)) from error
    return ClusterControls(cluster=cluster, controls=after)
