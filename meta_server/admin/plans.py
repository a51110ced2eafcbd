"""Plans of administrators' changes. Pure: a request and the registry to changes.

Each plan checks the request against the registry of that moment. It returns the changes to store,
with one audit entry that has the row before and after; nothing if nothing changes. Refusals:

    BadValueError    a value that is never allowed
    NotFoundError    no such row
    StateError       the row has another version, or its state does not allow it

A change that could lose messages is refused unless the request allows it: retiring a group from
which consumers still read, or giving up the delay server with the only copy of its group's
messages.
"""

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import UNSET

from delay_protocol.basics.subjects import (
    SUBJECT_BYTES_MAX,
    real_subject,
    subject_fault,
    subject_size_fault,
)
from delay_protocol.meta.requests import BrokerRole, BrokerState
from delay_protocol.nodes.controls import Controls, ControlsError, GroupControl, SubjectControl
from delay_protocol.nodes.controls_exchange import document_of
from delay_protocol.nodes.registration import GroupRecord, Phase
from meta_server.admin.admin_types import (
    BrokerGroupChange,
    BrokerGroupNew,
    BrokerNew,
    BrokerPlace,
    BrokerReplacement,
    GroupRuleChange,
    ReadOnlyChange,
    RouteSet,
    SubjectRuleChange,
    SubjectSet,
)
from meta_server.groups.broker_groups import addresses_of, check_address, check_name, check_place
from meta_server.groups.elections import GroupState, Refused, set_min_isr
from meta_server.groups.group_records import ELECT, HAND_OVER, MIN_ISR, plan_record
from meta_server.groups.receiver_groups import Room, plan_receiver, routed_elsewhere
from meta_server.groups.waiting_groups import WaitingGroup
from meta_server.known.errors import BadValueError, NotFoundError, RefusedError, StateError
from meta_server.known.model import (
    ENTERED,
    EVERY,
    OWN_EXT,
    SPOKE,
    STATIC,
    Audit,
    AuditEntry,
    Broker,
    BrokerGroup,
    Change,
    ClusterControls,
    DelayGroup,
    DelayNode,
    GroupKind,
    RemoveBroker,
    RemoveBrokerGroup,
    RemoveDelayGroup,
    RemoveDelayNode,
    RemoveRoute,
    RemoveSubject,
    Route,
    SaveBroker,
    SaveBrokerGroup,
    SaveControls,
    SaveDelayGroup,
    SaveDelayNode,
    SaveRoute,
    SaveSubject,
    Subject,
)
from meta_server.known.registry import Registry
from meta_server.known.set_back import SetBacks
from meta_server.settings.config import AdminConfig, RegistrationConfig

_COMMAND: Final = "delaywheel admin delay-group"

ITSELF: Final = "(meta server)"
"""Actor of changes that the meta server makes by itself; no token has parentheses."""

BROKERS_PER_GROUP_MAX: Final = 3
"""Brokers that may be entered for one group, as in QMQ."""
_BROKERS_MAX: Final = 10_000
"""Brokers that may be entered."""

KINDS: Final[Mapping[str, GroupKind]] = {kind.name.lower(): kind for kind in GroupKind}

_MASTERS: Final = {
    GroupKind.NORMAL: (BrokerRole.MASTER,),
    GroupKind.DELAY: (BrokerRole.DELAY_MASTER, BrokerRole.DELAY),
}
"""Roles of a group's master, by kind."""

_ANY_STORE: Final = UUID(int=0)
"""A placeholder, for measuring the encoded length of a document."""

_BACKUPS: Final = frozenset({BrokerRole.BACKUP, BrokerRole.DELAY_BACKUP})


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """The input of a plan: who asks, when, and the known rows."""

    registry: Registry
    set_backs: SetBacks
    registration: RegistrationConfig
    limits: AdminConfig
    actor: str
    """Actor, as the audit names it."""
    now_ms: int

    def audited(
        self,
        action: str,
        target: str,
        changes: Iterable[Change],
        *,
        before: object = None,
        after: object = None,
    ) -> tuple[Change, ...]:
        """Return the changes with their entry in the audit; nothing if there are none."""
        stored = tuple(changes)
        if not stored:
            return ()
        return (*stored, *self.noted(action, target, before=before, after=after))

    def noted(
        self, action: str, target: str, *, before: object = None, after: object = None
    ) -> tuple[Change, ...]:
        """Return the entry in the audit for something that the store has nothing else of."""
        entry = AuditEntry(
            at_ms=self.now_ms,
            actor=self.actor,
            action=action,
            target=target,
            before=_as_json(before),
            after=_as_json(after),
        )
        return (Audit(entry),)


def _as_json(row: object) -> str:
    return "" if row is None else msgspec.json.encode(row).decode()


def _bad(field: str, value: object, check: Callable[[], None]) -> None:
    """Run a check that raises RefusedError; name the field in the error."""
    try:
        check()
    except RefusedError as error:
        raise BadValueError(field=field, value=value, allowed=str(error)) from error


def check_version(what: str, expected: int | None, found: int) -> None:
    """Raise StateError unless a row has the version that is expected; 0: there is none."""
    if expected is not None and expected != found:
        raise StateError(
            f"{what} has version {found}, not {expected}: somebody changed it meanwhile"
            if found
            else f"{what} does not exist, so it does not have version {expected}"
        )


def _check_printable(field: str, text: str) -> None:
    if not text.isprintable():
        raise BadValueError(field=field, value=text, allowed="letters that can be shown")


def _check_address(field: str, address: str) -> None:
    if address:
        _bad(field, address, lambda: check_address(address))


def group_named(registry: Registry, name: str) -> BrokerGroup:
    """Return a broker group; raise NotFoundError."""
    group = registry.groups.get(name)
    if group is None:
        raise NotFoundError(f"there is no broker group {name!a}")
    return group


# Broker groups


def add_group(desk: Desk, new: BrokerGroupNew) -> tuple[Change, ...]:
    """Add a broker group."""
    registry = desk.registry
    _bad("name", new.name, lambda: check_name("a name", new.name))
    if new.name == EVERY:
        raise BadValueError(field="name", value=new.name, allowed="it stands for all groups")
    _check_address("address", new.address)
    _check_printable("tag", new.tag)
    if new.name in registry.groups:
        raise StateError(f"there is a broker group {new.name} already: change it instead")
    _check_count(desk)
    static = bool(new.address) if new.static is None else new.static
    if static and not new.address:
        raise BadValueError(
            field="static", value=True, allowed="only a group with an address can be static"
        )
    kind = KINDS[new.kind]
    is_away = not new.address and kind is not GroupKind.RECEIVER
    group = BrokerGroup(
        name=new.name,
        kind=kind,
        master=new.address,
        state=BrokerState.NRW if is_away else BrokerState.RW,
        tag=new.tag,
        ext=_ext_of(new.ext, {ENTERED: "true"}, static=static),
        weight=new.weight,
        updated_ms=desk.now_ms,
    )
    if new.address:
        _check_master(registry, group)
    return desk.audited("broker-group.add", new.name, [SaveBrokerGroup(group)], after=group)


def _check_count(desk: Desk) -> None:
    count = len(desk.registry.groups)
    if count >= desk.registration.groups_max:
        raise StateError(
            f"there are {count} broker groups, which is the limit (registration.groups_max): "
            "remove one that is not used (broker-group remove)"
        )


def _ext_of(ext: Mapping[str, str], own: Mapping[str, str], *, static: bool) -> dict[str, str]:
    """Return what an operator gives, with what is ours."""
    for name, value in ext.items():
        if name in OWN_EXT:
            raise BadValueError(
                field=f"ext.{name}", value=value, allowed="another name: this one is the server's"
            )
        _check_printable("ext", name)
        _check_printable(f"ext.{name}", value)
    return {**ext, **own, STATIC: "true"} if static else {**ext, **own}


def approve_group(
    desk: Desk, name: str, waiting: WaitingGroup | None, *, address: str | None
) -> tuple[Change, ...]:
    """Let in a group that waits, or count one that is known as entered; a receiver gets its routes.

    `address` is what it must give as its own, if that matters.
    """
    known = desk.registry.groups.get(name)
    if known is None and waiting is None:
        raise NotFoundError(f"no broker group {name!a} waits to be let in, and none is known")
    found = known.master if known is not None else waiting.address if waiting is not None else ""
    if address not in {None, found}:
        here, said = (one or "no address, as receivers are" for one in (found, address))
        raise StateError(f"{name} is at {here}, not at {said}")
    if waiting is not None and waiting.kind is GroupKind.RECEIVER:
        most = desk.registration
        room = Room(most.groups_max, most.subjects_max, desk.limits.prefix_routes_max)
        changes = plan_receiver(
            *(desk.registry, name, waiting.patterns, room), is_approved=True, now_ms=desk.now_ms
        )
        elsewhere = routed_elsewhere(desk.registry, name, waiting.patterns)
        if elsewhere and not changes:
            raise StateError("; ".join(elsewhere.values()))
        return desk.audited("broker-group.approve", name, changes, before=known, after=changes)
    if known is not None:
        return _saved(
            desk, "broker-group.approve", known, replace(known, ext={**known.ext, ENTERED: "true"})
        )
    assert waiting is not None
    _check_count(desk)
    group = BrokerGroup(
        name=name,
        kind=waiting.kind,
        # Which of several delay servers of ours is the master their record will say.
        master="" if waiting.is_node else waiting.address,
        ext={ENTERED: "true", SPOKE: waiting.where},
        updated_ms=desk.now_ms,
    )
    return desk.audited("broker-group.approve", name, [SaveBrokerGroup(group)], after=group)


def remove_group(
    desk: Desk,
    name: str,
    *,
    is_heard: bool,
    routes: int,
    version: int | None,
    lose_messages: bool,
) -> tuple[Change, ...]:
    """Remove a broker group that is not in use; `routes` lead to it that the meta server chose."""
    registry = desk.registry
    known = group_named(registry, name)
    check_version(f"the broker group {name}", version, known.version)
    delay_group = registry.delay_groups.get(name)
    if is_heard:
        raise StateError(f"{name} speaks: stop it, and wait for the time-out")
    if known.state is not BrokerState.NRW and not known.is_retired:
        raise StateError(f"{name} takes messages: retire it first")
    if registry.brokers_in(name):
        raise StateError(f"brokers are entered for {name}: remove those first")
    if delay_group is not None and (
        registry.nodes_in(delay_group.cluster, name) or delay_group.record.in_sync
    ):
        raise StateError(f"{name} has delay servers: remove those first")
    if routes and not (known.is_retired or lose_messages):
        raise StateError(
            f"{routes} subjects are routed to {name}, and messages in it would never be consumed: "
            "retire it first, or say that messages may be lost"
        )
    changes: list[Change] = [RemoveBrokerGroup(known)]
    if delay_group is not None:
        changes.append(RemoveDelayGroup(delay_group))
    return desk.audited("broker-group.remove", name, changes, before=known)


def leave_route(desk: Desk, subject: str, group: str) -> tuple[Change, ...]:
    """Take a group out of the route of a subject, which goes on being the meta server's."""
    known = desk.registry.routes.get(subject)
    if known is None or not known.is_chosen or group not in known.groups:
        return ()
    groups = tuple(other for other in known.groups if other != group)
    if not groups:
        return desk.audited("route.remove", subject, [RemoveRoute(known)], before=known)
    route = replace(known, groups=groups, version=known.version + 1)
    return desk.audited("route.reduce", subject, [SaveRoute(route)], before=known, after=route)


def _check_master(registry: Registry, group: BrokerGroup) -> None:
    """Refuse an address that a registration would take away at once, or that is another kind's."""
    if group.kind is GroupKind.RECEIVER:
        raise StateError(f"{group.name} is of kind receiver: those attach, and have no address")
    _check_place(registry, group.kind, group.master)
    if group.name in registry.delay_groups:
        raise StateError(
            f"{group.name} is a group of delay servers that register here: its record says who is "
            "master, and nobody else can"
        )
    entered = registry.broker_with_role(group.name, *_MASTERS[group.kind])
    if entered is not None and group.master not in addresses_of(entered):
        raise StateError(
            f"the {entered.role.name} of {group.name} is entered as "
            f"{entered.hostname}:{entered.serve_port}: replace that broker instead"
        )


def _check_place(registry: Registry, kind: GroupKind, *addresses: str) -> None:
    """Raise StateError for an address at which a group of another kind is."""
    try:
        check_place(registry, kind, *addresses)
    except RefusedError as error:
        raise StateError(str(error)) from error


def change_group(desk: Desk, name: str, change: BrokerGroupChange) -> tuple[Change, ...]:
    """Change a broker group: address, state, tag, weight, further attributes."""
    known = group_named(desk.registry, name)
    check_version(f"the broker group {name}", change.version, known.version)
    is_static = STATIC in known.ext if change.static is UNSET else change.static
    given = (
        {key: value for key, value in known.ext.items() if key not in OWN_EXT}
        if change.ext is UNSET
        else change.ext
    )
    own = {key: value for key, value in known.ext.items() if key in {ENTERED, SPOKE}}
    if change.address not in {UNSET, known.master}:
        # Who spoke for the old place does not for the new one.
        own.pop(SPOKE, None)
    changed = replace(known, ext=_ext_of(given, own, static=is_static))
    if change.address is not UNSET:
        if not change.address:
            raise BadValueError(field="address", value="", allowed="host:port of its master")
        _check_address("address", change.address)
        changed = replace(changed, master=change.address)
    if change.tag is not UNSET:
        _check_printable("tag", change.tag)
        changed = replace(changed, tag=change.tag)
    if change.weight is not UNSET:
        changed = replace(changed, weight=change.weight)
    if change.state is not UNSET:
        if not is_static:
            raise StateError(
                f"{name} is not static: it reports its state itself; use read-only to keep new "
                "messages out of it"
            )
        changed = replace(changed, state=BrokerState[change.state])
    if is_static and not changed.master:
        raise StateError(f"{name} has no address, so it cannot be static")
    if changed.master != known.master or (is_static and STATIC not in known.ext):
        _check_master(desk.registry, changed)
    return _saved(desk, "broker-group.change", known, changed)


def _saved(desk: Desk, action: str, known: BrokerGroup, changed: BrokerGroup) -> tuple[Change, ...]:
    """Save a broker group if it has changed; it counts as entered from then on."""
    if changed == known:
        return ()
    changed = replace(
        changed,
        ext={**changed.ext, ENTERED: "true"},
        updated_ms=desk.now_ms,
        version=known.version + 1,
    )
    return desk.audited(action, known.name, [SaveBrokerGroup(changed)], before=known, after=changed)


def retire_group(
    desk: Desk, name: str, *, version: int | None, lose_messages: bool
) -> tuple[Change, ...]:
    """Retire a broker group: no route leads to it."""
    known = group_named(desk.registry, name)
    check_version(f"the broker group {name}", version, known.version)
    if not (known.is_retired or lose_messages):
        _check_retirement(desk.registry, known)
    return _saved(desk, "broker-group.retire", known, replace(known, is_retired=True))


def _check_retirement(registry: Registry, group: BrokerGroup) -> None:
    if group.name in registry.delay_groups:
        # Its nodes are told: they refuse messages from then on, and deliver what they have.
        return
    if group.state is not BrokerState.NRW and not group.is_read_only:
        raise StateError(
            f"{group.name} takes messages: set it read-only, wait until consumers have read what "
            "is in it, then retire it; or say that messages may be lost"
        )


def restore_group(desk: Desk, name: str, *, version: int | None) -> tuple[Change, ...]:
    """Use a retired broker group again."""
    known = group_named(desk.registry, name)
    check_version(f"the broker group {name}", version, known.version)
    return _saved(desk, "broker-group.restore", known, replace(known, is_retired=False))


def set_read_only(desk: Desk, name: str, change: ReadOnlyChange) -> tuple[Change, ...]:
    """Take a broker group from producers, or give it back."""
    known = group_named(desk.registry, name)
    changed = replace(known, is_read_only=change.read_only)
    return _saved(desk, "broker-group.read-only", known, changed)


# Brokers


def add_broker(desk: Desk, new: BrokerNew) -> tuple[Change, ...]:
    """Enter a broker with its group and role, for which it asks when it starts."""
    registry = desk.registry
    _bad("group", new.group, lambda: check_name("a name", new.group))
    role = BrokerRole[new.role]
    broker = _broker_of(new, new.group, role, version=1)
    _check_kind(registry, new.group, role)
    if registry.broker_with_role(new.group, role) is not None:
        raise StateError(f"{new.group} has a {role.name} already: replace it instead")
    _check_free(registry, broker)
    if len(registry.brokers_in(new.group)) >= BROKERS_PER_GROUP_MAX:
        raise StateError(f"{new.group} has {BROKERS_PER_GROUP_MAX} brokers, which is the limit")
    if len(registry.brokers) >= _BROKERS_MAX:
        raise StateError(f"there are {_BROKERS_MAX} brokers, which is the limit")
    return desk.audited("broker.add", _target(broker), [SaveBroker(broker)], after=broker)


def replace_broker(
    desk: Desk, group: str, role_name: str, place: BrokerReplacement
) -> tuple[Change, ...]:
    """Put another broker in the place of the one with a role: the manual fail-over.

    The group's address follows when the new one goes on-line.
    """
    registry = desk.registry
    role = BrokerRole[role_name]
    known = _entered(registry, group, role)
    check_version(f"the {role.name} of {group}", place.version, known.version)
    same_place = (known.hostname, known.serve_port) == (place.hostname, place.serve_port)
    broker = _broker_of(place, group, role, version=known.version)
    if broker == known:
        return ()
    if same_place:
        broker = replace(broker, version=known.version + 1)
        changes: list[Change] = [SaveBroker(broker)]
    else:
        _check_free(registry, broker)
        broker = replace(broker, version=1)
        changes = [RemoveBroker(known), SaveBroker(broker)]
    return desk.audited("broker.replace", _target(broker), changes, before=known, after=broker)


def remove_broker(
    desk: Desk, group: str, role_name: str, *, version: int | None
) -> tuple[Change, ...]:
    """Enter a broker no longer."""
    known = _entered(desk.registry, group, BrokerRole[role_name])
    check_version(f"the {known.role.name} of {group}", version, known.version)
    return desk.audited("broker.remove", _target(known), [RemoveBroker(known)], before=known)


def _entered(registry: Registry, group: str, role: BrokerRole) -> Broker:
    known = registry.broker_with_role(group, role)
    if known is None:
        raise NotFoundError(f"no {role.name} is entered for {group!a}")
    return known


def _target(broker: Broker) -> str:
    return f"{broker.group}/{broker.role.name}"


def _broker_of(place: BrokerPlace, group: str, role: BrokerRole, *, version: int) -> Broker:
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
    if place.sync_port == place.serve_port:
        raise BadValueError(
            field="sync_port", value=place.sync_port, allowed="another port than serve_port"
        )
    return Broker(
        hostname=place.hostname,
        serve_port=place.serve_port,
        ip=ip,
        group=group,
        role=role,
        sync_port=place.sync_port,
        version=version,
    )


def _kind_of(role: BrokerRole) -> GroupKind:
    return GroupKind.DELAY if role.name.startswith("DELAY") else GroupKind.NORMAL


def _check_kind(registry: Registry, group: str, role: BrokerRole) -> None:
    kind = _kind_of(role)
    known = registry.groups.get(group)
    if group in registry.delay_groups:
        raise StateError(f"{group} is a group of delay servers that register here by themselves")
    if known is not None and known.kind is not kind:
        raise StateError(f"{group} is a group of kind {known.kind.name}, not of {kind.name}")
    for other in registry.brokers_in(group):
        if other.role.name.startswith("DELAY") is not (kind is GroupKind.DELAY):
            raise StateError(f"{group} has a {other.role.name} already, a group of another kind")


def _check_free(registry: Registry, broker: Broker) -> None:
    _check_place(registry, _kind_of(broker.role), *addresses_of(broker))
    other = registry.brokers.get((broker.hostname, broker.serve_port))
    if other is not None:
        raise StateError(
            f"{broker.hostname}:{broker.serve_port} is entered as {other.role.name} "
            f"of {other.group}"
        )


# Subjects and routes


def check_subject(field: str, subject: str) -> None:
    """Raise BadValueError unless a subject could be used, and is not a retry subject."""
    fault = subject_fault(subject.encode())
    if fault is not None:
        raise BadValueError(
            field=field, value=subject, allowed=f"no blanks and slashes: this {fault}"
        )
    if subject_size_fault(subject.encode()):
        raise BadValueError(
            field=field, value=subject, allowed=f"at most {SUBJECT_BYTES_MAX} bytes"
        )
    real = real_subject(subject.encode()).decode()
    if real != subject:
        raise BadValueError(
            field=field, value=subject, allowed=f"it is routed as {real}, which stands for it"
        )


def _entered_subject(desk: Desk, subject: str) -> list[Change]:
    """Return what makes a subject known, if it is not."""
    registry = desk.registry
    if subject in registry.subjects:
        return []
    limit = desk.registration.subjects_max
    if len(registry.subjects) >= limit:
        raise StateError(f"there are {limit} subjects, which is the limit")
    return [SaveSubject(Subject(name=subject, created_ms=desk.now_ms))]


def set_subject(desk: Desk, subject: str, wanted: SubjectSet) -> tuple[Change, ...]:
    """Enter a subject, or change its tag."""
    check_subject("subject", subject)
    _check_printable("tag", wanted.tag)
    known = desk.registry.subjects.get(subject)
    check_version(f"the subject {subject}", wanted.version, known.version if known else 0)
    if known is None:
        _entered_subject(desk, subject)
        changed = Subject(name=subject, tag=wanted.tag, created_ms=desk.now_ms)
    elif known.tag == wanted.tag:
        return ()
    else:
        changed = replace(known, tag=wanted.tag, version=known.version + 1)
    return desk.audited("subject.set", subject, [SaveSubject(changed)], before=known, after=changed)


def remove_subject(
    desk: Desk, name: str, *, is_used: bool, version: int | None
) -> tuple[Change, ...]:
    """Remove a subject and the route that was chosen for it, unless a connected client uses it."""
    registry = desk.registry
    known = registry.subjects.get(name)
    if known is None:
        raise NotFoundError(f"the subject {name!a} was never used")
    check_version(f"the subject {name}", version, known.version)
    route = registry.routes.get(name)
    if known.tag:
        raise StateError(f"the subject {name} has the tag {known.tag}, which an operator gave it")
    if route is not None and not route.is_chosen:
        raise StateError(
            f"the subject {name} has a route that an operator set: take that away first"
        )
    if is_used:
        raise StateError(f"the subject {name} is used by a connected client")
    changes: list[Change] = [RemoveSubject(known)]
    if route is not None:
        changes.append(RemoveRoute(route))
    return desk.audited("subject.remove", name, changes, before=known)


def set_route(desk: Desk, name: str, wanted: RouteSet, *, is_prefix: bool) -> tuple[Change, ...]:
    """Give a subject, or all subjects with a prefix, the route that an operator wants."""
    registry = desk.registry
    what = "prefix" if is_prefix else "subject"
    check_subject(what, name)
    check_groups(desk, "groups", wanted.groups)
    table = registry.prefixes if is_prefix else registry.routes
    known = table.get(name)
    check_version(f"the route of {name}", wanted.version, known.version if known else 0)
    was = None if known is None else (known.groups, known.is_chosen, known.is_brought)
    if was == (wanted.groups, False, False):
        return ()
    if is_prefix and known is None and len(table) >= desk.limits.prefix_routes_max:
        raise StateError(
            f"there are {desk.limits.prefix_routes_max} routes of prefixes, which is the limit"
        )
    route = Route(
        name=name,
        is_prefix=is_prefix,
        groups=wanted.groups,
        is_chosen=False,
        version=known.version + 1 if known else 1,
    )
    changes: list[Change] = [] if is_prefix else _entered_subject(desk, name)
    changes.append(SaveRoute(route))
    return desk.audited(
        "route.set" if not is_prefix else "prefix-route.set",
        name,
        changes,
        before=known,
        after=route,
    )


def check_groups(desk: Desk, field: str, names: Sequence[str]) -> None:
    """Raise BadValueError unless a route may lead to these groups."""
    limit = desk.limits.route_groups_max
    if len(names) > limit:
        raise BadValueError(field=field, value=len(names), allowed=f"at most {limit} groups")
    for number, name in enumerate(names):
        if name in names[:number]:
            raise BadValueError(field=field, value=name, allowed="each group once")
        group = desk.registry.groups.get(name)
        if group is None:
            raise BadValueError(
                field=field, value=name, allowed="a broker group that there is: add it first"
            )
        if group.kind is GroupKind.DELAY:
            raise BadValueError(
                field=field,
                value=name,
                allowed="a group of another kind: delay groups are given to every subject by rank",
            )
        if group.is_retired:
            raise BadValueError(field=field, value=name, allowed="a group that is not retired")


def remove_route(
    desk: Desk, name: str, *, is_prefix: bool, version: int | None
) -> tuple[Change, ...]:
    """Take a route away: of a subject another one is chosen at its next use."""
    table = desk.registry.prefixes if is_prefix else desk.registry.routes
    known = table.get(name)
    if known is None:
        what = "prefix" if is_prefix else "subject"
        raise NotFoundError(f"the {what} {name!a} has no route of its own")
    check_version(f"the route of {name}", version, known.version)
    action = "prefix-route.remove" if is_prefix else "route.remove"
    return desk.audited(action, name, [RemoveRoute(known)], before=known)


def extend_route(desk: Desk, name: str, group: str, new_group: str) -> tuple[Change, ...]:
    """Add a group to a subject's route if it has another one.

    A route that the meta server chose stays so; one that a receiver brought becomes the operator's.
    Raises StateError if it has as many as it may.
    """
    known = desk.registry.routes.get(name)
    if known is None or group not in known.groups or new_group in known.groups:
        return ()
    if len(known.groups) >= desk.limits.route_groups_max:
        raise StateError(f"{name} has {len(known.groups)} broker groups, which is the limit")
    check_groups(desk, "new_group", (new_group,))
    groups = (*known.groups, new_group)
    route = replace(known, groups=groups, is_brought=False, version=known.version + 1)
    return desk.audited("route.extend", name, [SaveRoute(route)], before=known, after=route)


def reduce_route(desk: Desk, name: str, group: str) -> tuple[Change, ...]:
    """Take a group out of a subject's route, which is the operator's from then on.

    Raises StateError if it is the only one. Were the route still the meta server's, it would add
    the group again.
    """
    known = desk.registry.routes.get(name)
    if known is None or group not in known.groups:
        return ()
    groups = tuple(other for other in known.groups if other != group)
    if not groups:
        raise StateError(f"{group} is the only broker group of {name}")
    route = replace(known, groups=groups, is_chosen=False, version=known.version + 1)
    return desk.audited("route.reduce", name, [SaveRoute(route)], before=known, after=route)


# Delay servers


def _node_of(registry: Registry, name: str, node_id: str) -> tuple[DelayGroup, DelayNode]:
    """Return a delay group and its node; raise NotFoundError."""
    group = _delay_group(registry, name)
    node = registry.nodes.get((group.cluster, name, node_id))
    if node is None:
        raise NotFoundError(f"the delay group {name} has no node {node_id!a}")
    return group, node


def _silent_node(
    registry: Registry, name: str, node_id: str, *, is_heard: bool
) -> tuple[DelayGroup, DelayNode]:
    """Return a delay group and its node; raise NotFoundError, or StateError if it lives."""
    group, node = _node_of(registry, name, node_id)
    if is_heard:
        raise StateError(
            f"{node_id} at {node.address} was heard lately: stop it, and try again when it was "
            "silent for registration.node_timeout_ms (15 s)"
        )
    return group, node


def remove_node(desk: Desk, name: str, node_id: str, *, is_connected: bool) -> tuple[Change, ...]:
    """Forget a delay server whose disk the group does not need: its master has dropped it."""
    group, node = _node_of(desk.registry, name, node_id)
    _check_newest(desk, name)
    if node_id in group.record.in_sync:
        raise StateError(_why_needed(name, group.record, node_id))
    if is_connected:
        raise StateError(f"{node_id} at {node.address} is alive, and would register again: stop it")
    return desk.audited(
        "node.remove",
        f"{group.cluster}/{name}/{node_id}",
        (RemoveDelayNode(node),),
        before={"node": node},
        after={"node": None},
    )


def _why_needed(name: str, record: GroupRecord, node_id: str) -> str:
    """Say what has to happen before a member in sync can be removed."""
    master = record.master
    if len(record.in_sync) == 1:
        return _only_disk(name, node_id) + f": `{_COMMAND} give-up {name} {node_id}`"
    if (too_few := _too_few_without(name, record, node_id)) is not None:
        return too_few
    if master is None:
        return (
            f"{node_id} is in sync, and {name} has no master who could drop it: wait for the "
            f"election, or say that its disk is lost by `{_COMMAND} give-up {name} {node_id}`"
        )
    if master.node_id == node_id:
        return (
            f"{node_id} is the master: have it hand over by `{_COMMAND} handover {name}`, or, if "
            f"it is dead, another one elected by `{_COMMAND} elect {name}`"
        )
    return (
        f"{node_id} is in sync: stop it, and the master {master.node_id} drops it within seconds. "
        f"If {master.node_id} is dead too: `{_COMMAND} elect {name}`"
    )


def _only_disk(name: str, node_id: str) -> str:
    return (
        f"{node_id} has the only disk with the messages of {name}: bring it back, or say that "
        "messages may be lost"
    )


def _too_few_without(name: str, record: GroupRecord, node_id: str) -> str | None:
    """Say that fewer members would be in sync than have to be; None if not."""
    count = len(record.in_sync)
    if count > record.min_isr:
        return None
    return (
        f"{node_id} is one of {count} members in sync, and min_isr of {name} is {record.min_isr}: "
        "let another one get in sync first, or let fewer be enough by "
        f"`{_COMMAND} set {name} --min-isr {count - 1}`"
    )


def give_up_node(
    desk: Desk, name: str, node_id: str, *, is_heard: bool, lose_messages: bool
) -> tuple[Change, ...]:
    """Give up a disk in sync that will not come back, where no master is there who could drop it.

    If its disk is the only one with the group's messages they are lost with it: then, if that is
    allowed, the group has no member in sync any more, and begins again with the next node that
    registers. `is_heard` says whether the node lives.
    """
    group, node = _silent_node(desk.registry, name, node_id, is_heard=is_heard)
    _check_newest(desk, name)
    record = group.record
    if node_id not in record.in_sync:
        raise StateError(
            f"{node_id} is not in sync, and nothing has to be given up: "
            f"`{_COMMAND} remove {name} {node_id}`"
        )
    changes: list[Change] = [RemoveDelayNode(node)]
    others = {other: uuid for other, uuid in record.in_sync.items() if other != node_id}
    if others:
        if record.master is not None:
            raise StateError(_why_needed(name, record, node_id))
        if (too_few := _too_few_without(name, record, node_id)) is not None:
            raise StateError(too_few)
        record = msgspec.structs.replace(record, version=record.version + 1, in_sync=others)
    elif lose_messages:
        record = msgspec.structs.replace(
            record,
            epoch=record.epoch + 1,
            version=record.version + 1,
            master=None,
            in_sync={},
            phase=Phase.ELECTING,
        )
        changes += _gone(desk.registry, name, now_ms=desk.now_ms)
    else:
        raise StateError(_only_disk(name, node_id))
    after = replace(group, record=record)
    changes.append(SaveDelayGroup(after, group.pair))
    return desk.audited(
        "node.give-up",
        f"{group.cluster}/{name}/{node_id}",
        changes,
        before={"node": node, "group": group},
        after={"node": None, "group": after},
    )


def elect_master(desk: Desk, name: str, state: GroupState, *, now: float) -> tuple[Change, ...]:
    """Begin an election of a master; nothing changes while one is under way."""
    group = _newest_of(desk, name)
    begun = _recorded(name, state.elect(group.record, now=now))
    if begun == group.record:
        return ()
    why = "" if state.cause is None else state.cause.sentence
    return _planned(desk, group, begun, ELECT, why=why)


def ask_to_hand_over(
    desk: Desk, name: str, state: GroupState, *, to: str | None, now: float
) -> tuple[Change, ...]:
    """Have the master of a group hand it over."""
    group = _newest_of(desk, name)
    target = state.ask_to_hand_over(group.record, to, now=now)
    if isinstance(target, Refused):
        raise StateError(f"{name}: {target.sentence}")
    path = f"{group.cluster}/{name}"
    return desk.noted(HAND_OVER, path, before=group.record, after={"to": target})


def set_group_min_isr(desk: Desk, name: str, count: int) -> tuple[Change, ...]:
    """Set how many disks at least have to be in sync."""
    group = _newest_of(desk, name)
    if count == group.record.min_isr:
        return ()
    return _planned(desk, group, _recorded(name, set_min_isr(group.record, count)), MIN_ISR)


def _delay_group(registry: Registry, name: str) -> DelayGroup:
    group = registry.delay_groups.get(name)
    if group is None:
        raise NotFoundError(f"there is no delay group {name!a}")
    return group


def _newest_of(desk: Desk, name: str) -> DelayGroup:
    """Return a delay group of which the store has the newest record; raise StateError."""
    group = _delay_group(desk.registry, name)
    _check_newest(desk, name)
    return group


def _check_newest(desk: Desk, name: str) -> None:
    if behind := desk.set_backs.why_behind(name):
        raise StateError(f"{name}: {behind}")


def recover_group(desk: Desk, name: str, *, lose_messages: bool) -> tuple[Change, ...]:
    """Go on with a group whose record was lost, without those who have not spoken."""
    return desk.set_backs.plan_recover(
        name, lose_messages=lose_messages, actor=desk.actor, now_ms=desk.now_ms
    )


def _recorded(name: str, record: GroupRecord | Refused) -> GroupRecord:
    if isinstance(record, Refused):
        raise StateError(f"{name}: {record.sentence}")
    return record


def _planned(
    desk: Desk, group: DelayGroup, record: GroupRecord, action: str, **more: object
) -> tuple[Change, ...]:
    return plan_record(
        *(desk.registry, group, record),
        action=action,
        actor=desk.actor,
        now_ms=desk.now_ms,
        more=more,
    )


def accept_older_node(
    desk: Desk, name: str, node_id: str, *, is_heard: bool, lose_messages: bool
) -> tuple[Change, ...]:
    """Let a delay server come back with an older copy of its directory than it had.

    What only the newer one has is given up; it is refused from the moment the older one has begun
    an epoch. Until then whichever comes first is taken.
    """
    group, node = _silent_node(desk.registry, name, node_id, is_heard=is_heard)
    if not lose_messages:
        raise StateError(
            f"{node_id} had record {node.last_sequence} in epoch {node.last_epoch}: what an older "
            "directory lacks of that is lost; bring the newer one back, or say that messages may "
            "be lost"
        )
    if not (node.last_sequence or node.last_epoch):
        return ()
    after = replace(node, last_sequence=0, last_epoch=0, version=node.version + 1)
    return desk.audited(
        "node.accept-older",
        f"{group.cluster}/{name}/{node_id}",
        [SaveDelayNode(after)],
        before=node,
        after=after,
    )


def _gone(registry: Registry, name: str, *, now_ms: int) -> list[Change]:
    """Return the changes that keep clients away from an address that is given up."""
    shown = registry.groups.get(name)
    if shown is None or (not shown.master and shown.state is BrokerState.NRW):
        return []
    gone = replace(
        shown, master="", state=BrokerState.NRW, updated_ms=now_ms, version=shown.version + 1
    )
    return [SaveBrokerGroup(gone)]


# Controls of delay servers


def clusters_of(registry: Registry) -> list[str]:
    """Return the clusters that there are: those of delay servers, and those with controls."""
    return sorted(
        {*registry.controls, *(group.cluster for group in registry.delay_groups.values())}
    )


def check_cluster(registry: Registry, cluster: str) -> None:
    """Raise NotFoundError for a cluster of which no delay server has registered: a slip of the pen.

    What is paused there would be paused nowhere.
    """
    if cluster not in registry.controls:
        clusters = clusters_of(registry)
        if cluster not in clusters:
            known = ", ".join(clusters) or "none"
            raise NotFoundError(
                f"no delay server of a cluster {cluster!a} has registered here; there are: {known}"
            )


def change_subject_control(
    desk: Desk, cluster: str, change: SubjectRuleChange
) -> tuple[Change, ...]:
    """Change the rule of a subject, or prefix, in a cluster."""
    before = _controls_for(desk, cluster, change.version)
    rule = SubjectControl(paused=change.paused)
    return _save_subject(desk, cluster, before, change.subject, rule)


def remove_subject_control(
    desk: Desk, cluster: str, subject: str, *, version: int | None
) -> tuple[Change, ...]:
    """Take the rule of a subject, or prefix, away."""
    before = _controls_for(desk, cluster, version)
    if subject not in before.subjects:
        raise NotFoundError(f"there is no rule for the subject {subject!a}")
    return _save_subject(desk, cluster, before, subject, None)


def change_group_control(desk: Desk, cluster: str, change: GroupRuleChange) -> tuple[Change, ...]:
    """Change the rule of a broker group in a cluster."""
    before = _controls_for(desk, cluster, change.version)
    rule = before.groups.get(change.group, GroupControl())
    rule = msgspec.structs.replace(
        rule, **{name: value for name, value in _given(change) if name != "group"}
    )
    return _save_group(desk, cluster, before, change.group, rule)


def remove_group_control(
    desk: Desk, cluster: str, group: str, *, version: int | None
) -> tuple[Change, ...]:
    """Take the rule of a broker group away."""
    before = _controls_for(desk, cluster, version)
    if group not in before.groups:
        raise NotFoundError(f"there is no rule for the broker group {group!a}")
    return _save_group(desk, cluster, before, group, None)


def _controls_for(desk: Desk, cluster: str, version: int | None) -> Controls:
    check_cluster(desk.registry, cluster)
    controls = desk.registry.controls_of(cluster)
    if version is not None and version != controls.version:
        raise StateError(
            f"the controls of {cluster} have version {controls.version}, not {version}: somebody "
            "changed them meanwhile"
        )
    return controls


def _given(change: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    for name in change.__struct_fields__:
        value = getattr(change, name)
        if name != "version" and value is not UNSET:
            yield name, value


def _save_subject(
    desk: Desk, cluster: str, before: Controls, subject: str, rule: SubjectControl | None
) -> tuple[Change, ...]:
    def plan() -> Controls:
        return before.with_subject(subject, rule)

    after = _checked("subject", subject, plan)
    rules = (before.subjects.get(subject), after.subjects.get(subject))
    row = ClusterControls(cluster=cluster, controls=after)
    return _save_controls(desk, row, f"subject.{_done(rule)}", subject, rules)


def _save_group(
    desk: Desk, cluster: str, before: Controls, group: str, rule: GroupControl | None
) -> tuple[Change, ...]:
    def plan() -> Controls:
        return before.with_group(group, rule)

    after = _checked("group", group, plan)
    rules = (before.groups.get(group), after.groups.get(group))
    row = ClusterControls(cluster=cluster, controls=after)
    return _save_controls(desk, row, f"group.{_done(rule)}", group, rules)


def _done(rule: object) -> str:
    return "remove" if rule is None else "set"


def _checked(field: str, value: str, plan: Callable[[], Controls]) -> Controls:
    """Return the controls that are planned, if a node can be told them; raise BadValueError."""
    try:
        after = plan()
        document_of(after, _ANY_STORE)
    except ControlsError as error:
        raise BadValueError(field=field, value=value, allowed=str(error)) from error
    return after


def _save_controls(
    desk: Desk, row: ClusterControls, action: str, name: str, rules: tuple[object, object]
) -> tuple[Change, ...]:
    """Store the next version.

    Also if the rule is as it was: the store may have another one, if it was set back since it was
    loaded. Nobody is to be told that it is kept before the store has said so.
    """
    before, after = rules
    target = f"{row.cluster}/{name}"
    return desk.audited(
        f"controls.{action}", target, [SaveControls(row)], before=before, after=after
    )
