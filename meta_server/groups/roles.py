"""Roles of delay servers in their groups, and refusals. Pure.

A node is what its disk says: cluster, group and node id, a storage uuid for this disk, a log uuid
for the group's log, how often it was started (its incarnation), and where the log ends. A start of
it adds an id of its own, drawn at random (the boot id): two starts on copies of one directory have
the same incarnation.

    node that registers                  result
    the first of a group                 master; the group's record begins: {self}, min_isr 1
    any further one                      slave, outside the in-sync set, until the master wants it
    the same start again                 nothing changes; it is heard of, and where its log ends
    alone in sync, started again         master, with epoch + 1
    the master, started again, others    slave: an election begins (`elections.py`)
    being in sync
    another one, started again           slave
    another disk of a node, others       slave, outside the in-sync set: a new replica, beside which
    being in sync                        the set names the other disk until the master drops it
    the first, no node being in sync     master, with epoch + 1: an operator gave up the last copy
                                         of the group's messages, so it begins again

    refused                              because
    an older incarnation                 a newer one has registered: it is fenced
    the same incarnation, another start  two processes have copies of one directory
    an end before one that was reported  the directory of a node in sync is an older copy; where
                                         others are in sync for now: until the master drops it
    another start, newer incarnation     … for now, while the older one is connected and speaks
    another address, newer incarnation   … unless the older one has been silent for a time-out
    another disk under a known node id   … unless the older one is silent, and not alone in sync
    a known disk under another node id   it is a copy
    records with another log uuid        they would have to be cut away; without any it is told the
                                         group's, which is its own from then on
    a log uuid that another group has    it is that group's log
    any, where the store was set back    … for now: until it has the newest record (`set_back.py`)

Whether a node is the master follows from the record alone. A record is only ever changed by
compare-and-set on its epoch and version.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from delay_protocol.meta.requests import BrokerState
from delay_protocol.nodes.registration import GroupRecord, Master, NodeRegister, NodeRole, Phase
from meta_server.groups.broker_groups import check_address, check_name, check_place
from meta_server.groups.elections import following
from meta_server.known import model
from meta_server.known.errors import NotNowError, RefusedError
from meta_server.known.registry import Registry

NODES_PER_GROUP_MAX: Final = 7
"""Nodes that a group may have; three are the recommended group."""


class Registered(NamedTuple):
    """The role of a node, and the changes to store for it."""

    role: NodeRole
    record: GroupRecord
    changes: tuple[model.Change, ...]


class _Case(NamedTuple):
    """A registration, and what is known when it comes."""

    registry: Registry
    request: NodeRegister
    known: model.DelayNode | None
    group: model.DelayGroup | None
    is_heard: bool
    is_present: bool


def plan_node(
    registry: Registry,
    request: NodeRegister,
    *,
    is_heard: bool,
    is_present: bool,
    now_ms: int,
) -> Registered:
    """Return the role of a node whose group is its own; raise RefusedError if it does not belong.

    `is_heard` says whether this cluster's and group's node of that id was heard within the
    time-out; `is_present` whether what registered as it last has a connection, not the one that
    this came by, and was heard on it within its lease. Raises NotNowError where it is to try again.
    """
    known = registry.nodes.get((request.cluster, request.group, request.node_id))
    group = registry.delay_groups.get(request.group)
    case = _Case(registry, request, known, group, is_heard, is_present)
    _check_identity(case)
    _check_start(case)
    if known is None or known.address != request.address:
        check_place(registry, model.GroupKind.DELAY, request.address)
    changed_group: model.DelayGroup | None = None
    if group is None or not group.record.in_sync:
        changed_group = _begun(request, group)
    else:
        _check_number(case)
        if _is_alone(request, group):
            changed_group = _started_again(request, group)
    now_group = changed_group or group
    assert now_group is not None
    node = _node(request, known, is_alone=_is_alone(request, now_group), now_ms=now_ms)
    role = now_group.role_of(node)
    changes: list[model.Change] = []
    if node != known:
        changes.append(model.Save(node))
    if changed_group is not None:
        changes.append(model.Save(changed_group, over=None if group is None else group.etag))
    if role is NodeRole.MASTER:
        changes += _broker_group(registry, request, now_ms=now_ms)
    is_new = known is None or known.storage_uuid != request.storage_uuid
    if is_new or changed_group is not None:
        target = f"{request.cluster}/{request.group}/{request.node_id}"
        before = None if known is None else {"node": known, "group": group}
        after = {"node": node, "group": now_group}
        actor = f"node {request.node_id} at {request.address}"
        entry = model.audited("node.register", target, before, after, actor=actor, at_ms=now_ms)
        changes.append(entry)
    return Registered(role, now_group.record, tuple(changes))


def check_belongs(registry: Registry, request: NodeRegister, *, groups_max: int) -> None:
    """Raise RefusedError for a node whose group, log or directory is not its own."""
    group = registry.delay_groups.get(request.group)
    _check_texts(request)
    _check_group(registry, request, group, groups_max=groups_max)
    _check_log(registry, request, group)
    _check_copy(registry, request)


def _check_texts(request: NodeRegister) -> None:
    for what in ("cluster", "group", "node_id"):
        check_name(what.replace("_", " "), getattr(request, what))
    check_address(request.address)
    if request.http_address:
        check_address(request.http_address)


def _check_group(
    registry: Registry, request: NodeRegister, group: model.DelayGroup | None, *, groups_max: int
) -> None:
    """Refuse a node whose group is another kind of thing, or one too many."""
    shown = registry.groups.get(request.group)
    if request.group in registry.receivers:
        raise RefusedError(f"{request.group} is a name of receivers")
    if group is not None and group.cluster != request.cluster:
        raise RefusedError(f"the group {group.name} belongs to the cluster {group.cluster}")
    if shown is not None:
        if shown.kind is not model.GroupKind.DELAY:
            raise RefusedError(f"{shown.name} is a group of real-time brokers")
        own = (request.cluster, request.group, request.node_id)
        # Those it had go on: what they keep has to be delivered.
        if shown.is_retired and own not in registry.nodes:
            raise RefusedError(f"{shown.name} was retired: it takes no further nodes")
        if group is None and registry.brokers_in(request.group):
            raise RefusedError(f"{shown.name} is entered as a group of QMQ's delay servers")
        if group is None and shown.master not in {"", request.address}:
            raise RefusedError(f"{shown.name} is at {shown.master}, which registers as QMQ does")
    elif group is None and len(registry.groups) >= groups_max:
        raise RefusedError(f"there are {groups_max} broker groups, which is the limit")


def _check_log(registry: Registry, request: NodeRegister, group: model.DelayGroup | None) -> None:
    """Refuse a node whose log is another group's, or has records that its group's has not."""
    other = registry.claimed(model.DelayGroup, request.log_uuid)
    if other is not None and other.name != request.group:
        raise RefusedError(f"its log {request.log_uuid} is that of the group {other.name}")
    if (
        group is not None
        and group.record.in_sync
        and group.log_uuid != request.log_uuid
        and (request.last_sequence or group.has_in_sync(request))
    ):
        raise RefusedError(
            f"it has records of the log {request.log_uuid}, the group's is {group.log_uuid}"
        )


def _check_copy(registry: Registry, request: NodeRegister) -> None:
    """Refuse a node whose data directory is that of another one."""
    own = (request.cluster, request.group, request.node_id)
    other = registry.claimed(model.DelayNode, request.storage_uuid)
    if other is not None and other.key != own:
        raise RefusedError(
            f"its storage {request.storage_uuid} is that of {other.node_id} in {other.group}: "
            "a data directory cannot be copied"
        )


def _check_identity(case: _Case) -> None:
    """Refuse another disk under a known node id: a second claim, or one wiped with messages."""
    request, known, group = case.request, case.known, case.group
    if known is None or request.storage_uuid == known.storage_uuid:
        return
    name = f"{known.node_id} at {known.address}"
    if case.is_heard and request.replaces != known.storage_uuid:
        raise RefusedError(f"{name} is alive, with another data directory")
    if group is None or group.has_in_sync(request):
        return
    if set(group.record.in_sync) == {known.node_id}:
        raise RefusedError(
            f"{name} is in sync with the storage {known.storage_uuid}, which this is not: "
            "bring that directory back, or have an operator give up what is in it"
        )


def _check_start(case: _Case) -> None:
    """Refuse a start that is not the last one of its directory, or one of a copy of that."""
    request, known = case.request, case.known
    if known is None or request.storage_uuid != known.storage_uuid:
        return
    name = f"{known.node_id} at {known.address}"
    if request.incarnation < known.incarnation:
        raise RefusedError(
            f"{name} has registered with incarnation {known.incarnation}, after this one, "
            f"{request.incarnation}"
        )
    if is_same_start(request, known):
        if request.address != known.address:
            raise RefusedError(f"{name} has the same incarnation: one of the two runs on a copy")
        return
    if request.incarnation == known.incarnation:
        raise RefusedError(
            f"{name} has registered with the same incarnation, {known.incarnation}, by another "
            "start: one of the two runs on a copy of the other's directory. Find out which one has "
            "all messages, stop the other and delete its directory"
        )
    _check_end(case, known)
    if request.address != known.address:
        if case.is_heard:
            raise RefusedError(f"{name} is alive; wait until it has been silent for the time-out")
    elif case.is_present:
        raise NotNowError(
            f"{name} is connected, by an earlier start: this one may take its place "
            "when that connection is closed, or silent for a lease"
        )


def _check_end(case: _Case, known: model.DelayNode) -> None:
    """Refuse a log that ends before what the node was known to have, if others rely on that.

    Every record that is in sync was durable when it was reported, and a log in sync loses none. Its
    epoch counts as well: what two copies wrote after they parted is in different epochs. With
    others in sync a log may be cut, and then lacks an epoch, but nothing that was committed.
    """
    request, group = case.request, case.group
    if group is None or not group.has_in_sync(request):
        return
    missing = known.last_sequence - request.last_sequence
    is_later = request.last_epoch >= known.last_epoch or not _is_alone(request, group)
    if missing <= 0 and is_later:
        return
    lost = f"{missing} records that it had are missing" if missing > 0 else "it lacks that epoch"
    older = (
        f"this directory is an older copy: {known.node_id} had record {known.last_sequence} in "
        f"epoch {known.last_epoch}, and its log ends with {request.last_sequence} in epoch "
        f"{request.last_epoch}, so {lost}"
    )
    if not _is_alone(request, group):
        raise NotNowError(f"{older}. It may follow once the master has dropped it")
    raise RefusedError(
        f"{older}. Bring the newer directory back, or have an operator give up what is only there: "
        f"delaywheel admin approve {request.group} {request.node_id} --lose-messages"
    )


def _is_alone(request: NodeRegister, group: model.DelayGroup) -> bool:
    """Return True if a disk alone is in sync: whatever is durable there is committed."""
    return group.record.in_sync == {request.node_id: request.storage_uuid}


def is_same_start(request: NodeRegister, known: model.DelayNode) -> bool:
    """Say whether a node's row is about the very start that asks."""
    return (known.storage_uuid, known.incarnation, known.boot_id) == (
        request.storage_uuid,
        request.incarnation,
        request.boot_id,
    )


def plan_end(registry: Registry, request: NodeRegister) -> tuple[model.Change, ...]:
    """Return what notes how far the log of a start that is registered goes; nothing if known."""
    known = registry.nodes.get((request.cluster, request.group, request.node_id))
    group = registry.delay_groups.get(request.group)
    if (
        known is None
        or group is None
        or not is_same_start(request, known)
        or request.last_epoch != known.last_epoch
    ):
        return ()
    last_sequence = _needed(request, is_alone=_is_alone(request, group))
    if last_sequence <= known.last_sequence:
        return ()
    return (model.Save(replace(known, last_sequence=last_sequence, version=known.version + 1)),)


def _needed(request: NodeRegister, *, is_alone: bool) -> int:
    """Return the last record that a log has to have: what is behind it may be cut away."""
    unsaid = request.last_sequence if is_alone else 0
    return min(request.committed or unsaid, request.last_sequence)


def _check_number(case: _Case) -> None:
    """Refuse one node too many."""
    request = case.request
    others = case.registry.nodes_in(request.cluster, request.group)
    if case.known is None and len(others) >= NODES_PER_GROUP_MAX:
        raise RefusedError(
            f"{request.group} has {NODES_PER_GROUP_MAX} nodes, which is the limit: "
            + ", ".join(node.node_id for node in others)
        )


def _node(
    request: NodeRegister, known: model.DelayNode | None, *, is_alone: bool, now_ms: int
) -> model.DelayNode:
    """Return the row of a node; the known one itself if only heard of again.

    That its log is in a new epoch is kept before it is answered; further records, whose number
    grows all the time, now and then (`plan_end`).
    """
    before = known if known is not None and is_same_start(request, known) else None
    end = (request.last_epoch, _needed(request, is_alone=is_alone))
    if known is not None and known.storage_uuid == request.storage_uuid and not is_alone:
        # After a start it knows less of what is committed.
        end = (request.last_epoch, max(end[1], known.last_sequence))
    if before is not None and (
        before.last_epoch >= request.last_epoch
        if is_alone
        else before.last_epoch == request.last_epoch
    ):
        end = (before.last_epoch, before.last_sequence)
    node = model.DelayNode(
        cluster=request.cluster,
        group=request.group,
        node_id=request.node_id,
        log_uuid=request.log_uuid,
        storage_uuid=request.storage_uuid,
        incarnation=request.incarnation,
        boot_id=request.boot_id,
        last_sequence=end[1],
        last_epoch=end[0],
        address=request.address,
        http_address=request.http_address,
        software=request.version,
        registered_ms=before.registered_ms if before else now_ms,
        version=known.version if known else 1,
    )
    if known is None or node == known:
        return node
    return replace(node, version=known.version + 1)


def _begun(request: NodeRegister, group: model.DelayGroup | None) -> model.DelayGroup:
    """Return a group that begins with this node, above whatever epoch its log has.

    It is a new one, or one whose messages were given up, with the node's log in place of its own.
    """
    epoch, version = (0, 0) if group is None else group.pair
    record = GroupRecord(
        epoch=max(epoch, request.last_epoch) + 1,
        version=version + 1,
        master=Master(node_id=request.node_id, incarnation=request.incarnation),
        in_sync={request.node_id: request.storage_uuid},
        min_isr=1,
        phase=Phase.ACTIVE,
    )
    return model.DelayGroup(
        name=request.group, cluster=request.cluster, log_uuid=request.log_uuid, record=record
    )


def _started_again(request: NodeRegister, group: model.DelayGroup) -> model.DelayGroup | None:
    """Return the group with the disk alone in sync master of a new epoch; None if it is already."""
    record = group.record
    master = Master(node_id=request.node_id, incarnation=request.incarnation)
    # A log with a later epoch than the record: the store was set back to an older state.
    if record.master == master and request.last_epoch <= record.epoch:
        return None
    epoch = max(record.epoch, request.last_epoch) + 1
    after = following(record, epoch=epoch, master=master, phase=Phase.ACTIVE)
    return replace(group, record=after)


def _broker_group(
    registry: Registry, request: NodeRegister, *, now_ms: int
) -> Iterator[model.Change]:
    """Yield what makes clients see the group at its master's address.

    It takes messages when it gives that state (`plan_state`); a restart changes nothing of that,
    since a delay server holds requests until it has recovered.
    """
    shown = registry.groups.get(request.group)
    if shown is None:
        yield model.Save(
            model.BrokerGroup(
                name=request.group,
                kind=model.GroupKind.DELAY,
                master=request.address,
                state=BrokerState.NRW,
                updated_ms=now_ms,
            )
        )
    elif shown.master != request.address:
        yield model.Save(
            replace(shown, master=request.address, updated_ms=now_ms, version=shown.version + 1)
        )
