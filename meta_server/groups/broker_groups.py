"""Registration of broker groups: the state that follows each event. Pure.

    event        what the state becomes   who may cause it
    ONLINE       RW                       the group's address; another one if that is silent or NRW
    HEARTBEAT    what the broker reports  the group's address; another one if that is silent
    OFFLINE      NRW                      the group's address
    SILENCE      NRW                      the meta server, a time-out after the last of the above

The roles that copy (slaves, backups) say that they live, and nothing follows from it.

Whose address a group has: where brokers are entered for it, those of its master: they go on-line
whatever the address was before. Else it is whoever speaks first, for as long as that one is heard:
whoever could take a living group's address away would get its messages. A broker that was moved is
let in when it had itself taken off-line, or else by its heartbeats, a time-out after the old place
spoke last; the audit has each move, since it may have been an operator who said where the group is.
A group that is unknown comes into being with its first event, also with a heartbeat: brokers go on-
line once, at their start, and a meta server whose store was lost has to find them again.

An address in a request is what somebody says; the IP address that a request came from is not. So
while a group is heard only its speaker may take it off-line, move it or say that it takes less:
the IP address that spoke for it before, or that of its own address. Anybody else can only say that
it goes on. A static group is never heard: its own address is the only one that may speak for it.

A group of delay servers of ours has the address of its master by the record, and the state that
this one gives with NODE_REGISTER (`plan_state`). Nothing else is taken for it.
"""

from collections.abc import Mapping, Sized
from typing import Final

from msgspec.structs import replace

from delay_protocol.basics.addresses import AddressFaultError, read_address
from delay_protocol.meta import requests
from delay_protocol.nodes.registration import Master, NodeRegister
from delay_transport.http.addresses import is_loopback
from delay_transport.settings.sections import require_name
from meta_server.known.errors import RefusedError, StateError
from meta_server.known.model import Broker, BrokerGroup, Change, GroupKind, Save, audited
from meta_server.known.registry import Registry

ADDRESS_BYTES_MAX: Final = 255
"""Bytes of an address at most."""


_STATES: Final[Mapping[requests.BrokerRequestType, requests.BrokerState]] = {
    requests.BrokerRequestType.ONLINE: requests.BrokerState.RW,
    requests.BrokerRequestType.OFFLINE: requests.BrokerState.NRW,
}
"""The state that an event leads to; of a heartbeat it is the one that is reported."""

KINDS: Final[Mapping[requests.BrokerRole, GroupKind]] = {
    requests.BrokerRole.MASTER: GroupKind.NORMAL,
    requests.BrokerRole.DELAY: GroupKind.DELAY,
    requests.BrokerRole.DELAY_MASTER: GroupKind.DELAY,
}
"""Kinds of groups, by the role of their masters."""

_COPIED_FROM: Final[Mapping[requests.BrokerRole, tuple[requests.BrokerRole, ...]]] = {
    requests.BrokerRole.SLAVE: (requests.BrokerRole.MASTER,),
    requests.BrokerRole.BACKUP: (requests.BrokerRole.SLAVE,),
    requests.BrokerRole.DELAY_SLAVE: (requests.BrokerRole.DELAY_MASTER, requests.BrokerRole.DELAY),
    requests.BrokerRole.DELAY_BACKUP: (requests.BrokerRole.DELAY_SLAVE,),
}
"""Which role each copying role copies from."""

COPIES: Final = _COPIED_FROM.keys()
"""Roles that copy from another one: nothing follows from what they report."""


def plan_register(
    registry: Registry,
    request: requests.BrokerRegister,
    *,
    where: str,
    is_heard: bool,
    groups_max: int,
    now_ms: int,
) -> tuple[Change, ...]:
    """Return what follows from a BROKER_REGISTER; raise RefusedError.

    `where` is the IP address that it came from (of IPv6 the /64; "" if there is none); `is_heard`
    says whether the group's master was heard within the time-out.
    """
    check_group_name(registry, "the name of the group", request.group)
    check_address(request.address)
    if request.role in COPIES:
        return ()
    event, kind = request.request_type, _kind_with(request.role)
    state = _STATES.get(event, request.state)
    known = registry.groups.get(request.group)
    if known is None or known.master != request.address:
        check_place(registry, kind, request.address)
    is_entered = is_entered_at(registry, request.group, request.address, request.role)
    if known is None:
        if len(registry.groups) >= groups_max:
            raise RefusedError(f"there are {groups_max} broker groups, which is the limit")
        group = BrokerGroup(
            name=request.group,
            kind=kind,
            master=request.address,
            state=state,
            speaker=where,
            updated_ms=now_ms,
        )
        return (Save(group),)
    if known.kind is not kind:
        raise RefusedError(
            f"{known.name} is a group of kind {known.kind.name}, a {request.role.name} serves in "
            f"one of kind {kind.name}"
        )
    if known.is_retired:
        raise RefusedError(f"{known.name} was retired")
    is_move = known.master not in {"", request.address}
    if is_move and event is requests.BrokerRequestType.OFFLINE:
        raise RefusedError(f"{known.name} is at {known.master}, which has not gone off-line")
    is_online = event is requests.BrokerRequestType.ONLINE
    is_open = is_online and (is_entered or known.state is requests.BrokerState.NRW)
    if is_move and is_heard and not is_open:
        raise RefusedError(
            f"{known.name} is at {known.master}, which is heard; if it was moved, its heartbeats "
            "are taken once nothing comes from there for the time-out, or enter the new place"
        )
    speaker = _speaker(
        *(registry, known, where),
        is_heard=is_heard,
        goes_on=not is_move and state in {known.state, requests.BrokerState.RW},
        is_placed=is_move and is_entered and is_online,
    )
    changed = replace(known, master=request.address, state=state, is_static=False, speaker=speaker)
    changes = _saved(known, changed, now_ms)
    if not is_move:
        return changes
    # An operator may have said where it is.
    actor, action = f"broker at {request.address}", "broker-group.move"
    return (*changes, audited(action, known.name, known, changed, actor=actor, at_ms=now_ms))


def _kind_with(role: requests.BrokerRole) -> GroupKind:
    """Return the kind of a group whose master has this role; raise RefusedError if it is none's."""
    kind = KINDS.get(role)
    if kind is None:
        raise RefusedError(f"a broker with the role {role.name} serves nobody")
    return kind


def check_place(registry: Registry, kind: GroupKind, *addresses: str) -> None:
    """Raise StateError for an address at which a group of another kind is.

    Whoever serves in a group of this kind cannot be there, and a delay server that took itself for
    a broker would be sent its own messages, without end. Groups that are off-line or silent do not
    count; delay servers that have registered do until they are removed.
    """
    if kind is GroupKind.NORMAL:
        for node in registry.nodes.values():
            if node.address in addresses:
                raise StateError(
                    f"{node.address} is the address of the delay server {node.node_id} of "
                    f"{node.group}, which is no broker: give the broker's; if that one is gone for "
                    f"good, `delaywheel admin remove delay-node {node.group}/{node.node_id}`"
                )
    for group in registry.groups.values():
        is_there = group.master in addresses and group.state is not requests.BrokerState.NRW
        if is_there and group.kind is not kind:
            what = "broker" if group.kind is GroupKind.NORMAL else "delay"
            raise StateError(
                f"{group.master} is the address of the {what} group {group.name}, which is on-line "
                "there: one server is not of both kinds, so give its own address"
            )


def _speaker(
    registry: Registry,
    known: BrokerGroup,
    where: str,
    *,
    is_heard: bool,
    goes_on: bool,
    is_placed: bool,
) -> str:
    """Return who speaks for a group after a registration, "" for nobody; raise RefusedError.

    `goes_on` says that it leaves the group as it is, or well; `is_placed` that an operator wants
    the group where this one says that it is. Both may be said by anybody.
    """
    if _is_speaker(registry, known, where):
        return where
    if not (known.is_static or is_heard):
        return where
    if not is_placed and (known.is_static or not goes_on):
        raise RefusedError(
            f"{known.name} is spoken for from another IP address than this one, {where}: it may "
            "speak once nothing comes from there for the time-out, or when an operator gives the "
            "group another address" + (", or static=false" if known.is_static else "")
        )
    return "" if is_placed else known.speaker


def _is_speaker(registry: Registry, group: BrokerGroup, where: str) -> bool:
    """Say whether an IP address may speak for a group: it did, or it is that of its address."""
    host = group.master.rpartition(":")[0]
    places = {host, *(row.ip for row in registry.brokers_in(group.name) if host == row.hostname)}
    return bool(where) and (
        where == group.speaker or where in places or (is_loopback(where) and is_loopback(host))
    )


def watched(registry: Registry) -> list[str]:
    """Return the groups whose silence is to take them from routes."""
    return [name for name, group in registry.groups.items() if group.is_watched]


def plan_silence(registry: Registry, name: str, *, now_ms: int) -> tuple[Change, ...]:
    """Return what is to be stored because a group's master was silent for too long."""
    known = registry.groups.get(name)
    if known is None or not known.is_watched:
        return ()
    return _saved(known, replace(known, state=requests.BrokerState.NRW), now_ms)


def plan_state(registry: Registry, request: NodeRegister, *, now_ms: int) -> tuple[Change, ...]:
    """Return what stores the state that a node gives for producers; nothing if it is no master."""
    group, known = registry.delay_groups.get(request.group), registry.groups.get(request.group)
    own = Master(node_id=request.node_id, incarnation=request.incarnation)
    if (
        request.state is None
        or group is None
        or group.record.master != own
        or known is None
        or known.is_retired
    ):
        return ()
    state = requests.BrokerState[request.state]
    return _saved(known, replace(known, state=state, is_static=False, speaker=""), now_ms)


def _saved(known: BrokerGroup, changed: BrokerGroup, now_ms: int) -> tuple[Save, ...]:
    if changed == known:
        return ()
    return (Save(replace(changed, updated_ms=now_ms, version=known.version + 1)),)


def is_entered_at(
    registry: Registry, group: str, address: str, *roles: requests.BrokerRole
) -> bool:
    """Return True if an address is that of the broker that was entered with one of these roles.

    Raises StateError if it is another one's place.
    """
    entered = registry.broker_with_role(group, *roles)
    if entered is not None and address not in addresses_of(entered):
        raise StateError(
            f"the {entered.role.name} of {group} is entered as "
            f"{entered.hostname}:{entered.serve_port}"
        )
    return entered is not None


def addresses_of(broker: Broker) -> tuple[str, str]:
    """Return the addresses that a broker may give as its own."""
    return (f"{broker.ip}:{broker.serve_port}", f"{broker.hostname}:{broker.serve_port}")


def acquire(registry: Registry, request: requests.AcquireMeta) -> requests.AcquireMetaReply:
    """Return who a broker is; raise RefusedError if it is not entered, or has nobody to copy from.

    QMQ's brokers do not start then.
    """
    broker = registry.claimed(Broker, (request.hostname, request.serve_port))
    if broker is None:
        broker = _by_address(registry, request)
    source_roles = _COPIED_FROM.get(broker.role)
    if source_roles is None:
        return requests.AcquireMetaReply(group=broker.group, master="", role=broker.role)
    source = registry.broker_with_role(broker.group, *source_roles)
    if source is None:
        raise RefusedError(
            f"{broker.group} has no {source_roles[0].name} that a {broker.role.name} could copy"
        )
    return requests.AcquireMetaReply(
        group=broker.group, master=f"{source.ip}:{source.sync_port}", role=broker.role
    )


def _by_address(registry: Registry, request: requests.AcquireMeta) -> Broker:
    """Return the one broker whose address a server gave as its host name."""
    found = [
        broker
        for broker in registry.brokers.values()
        if broker.ip == request.hostname and broker.serve_port == request.serve_port
    ]
    if len(found) != 1:
        raise RefusedError(f"no broker is entered as {request.hostname}:{request.serve_port}")
    return found[0]


def check_room(what: str, known: Sized, most: int, more: Sized) -> None:
    """Raise StateError if there are more rows than there may be, with these that are to come."""
    if more and len(known) + len(more) > most:
        raise StateError(f"there are {most} {what}, which is the limit")


def check_name(what: str, name: str) -> None:
    """Raise RefusedError for a name that could not be told apart, or not be shown."""
    try:
        require_name(what, name)
    except ValueError as error:
        raise RefusedError(str(error)) from error


def check_group_name(registry: Registry, what: str, name: str) -> None:
    """Raise RefusedError for a name that a broker group may not have."""
    check_name(what, name)
    if name in registry.receivers:
        raise RefusedError(f"{name} is a name of receivers: a broker group needs another name")


def check_address(address: str) -> None:
    """Raise RefusedError for what a QMQ client could not connect to: it splits at the colon."""
    size = len(address.encode(errors="surrogatepass"))
    if size > ADDRESS_BYTES_MAX:
        raise RefusedError(f"an address of {size} bytes")
    try:
        host, _ = read_address(address, port_min=1)
    except AddressFaultError as fault:
        raise RefusedError(f"{address!a} is not of the form host:port: {fault}") from fault
    if ":" in host:
        raise RefusedError(
            f"{address!a} is not of the form host:port: QMQ's clients cannot read an IPv6 address"
        )
    if host == "0.0.0.0":  # noqa: S104 (a comparison)
        raise RefusedError(f"{address} is not an address of one host: it stands for every address")
