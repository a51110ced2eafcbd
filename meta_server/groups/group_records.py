"""What is stored with a record of a delay group: where clients find the group, and the audit. Pure.

The address belongs to the record: whoever becomes the master, its address becomes the group's in
the same commit. The group takes messages when its master says so (BROKER_REGISTER).
"""

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from delay_protocol.meta.requests import BrokerState
from delay_protocol.nodes.registration import GroupMember, GroupRecord
from meta_server.known.errors import RefusedError
from meta_server.known.model import Change, DelayGroup, Save, audited
from meta_server.known.registry import Registry

ELECT = "delay-group.elect"
"""In the audit: an election began, or has ended."""
IN_SYNC = "delay-group.in-sync"
"""In the audit: the master changed the in-sync set."""
HAND_OVER = "delay-group.handover"
"""In the audit: an operator wants the group handed over; the master did so, or gave that up."""
MIN_ISR = "delay-group.min-isr"
"""In the audit: an operator set how many disks at least have to be in sync."""


def members_of(registry: Registry, group: DelayGroup) -> dict[str, GroupMember]:
    """Return the nodes of a group as they need to know one another."""
    return {
        node.node_id: GroupMember(
            storage_uuid=node.storage_uuid,
            incarnation=node.incarnation,
            boot_id=node.boot_id,
            address=node.address,
        )
        for node in registry.nodes_in(group.cluster, group.name)
    }


def plan_record(
    registry: Registry,
    group: DelayGroup,
    record: GroupRecord,
    action: str,
    *,
    actor: str,
    now_ms: int,
    **more: object,
) -> tuple[Change, ...]:
    """Return what stores another record of a group; an empty action is not worth an audit entry.

    more: what the entry has beside the group: why, and the votes.
    Raises RefusedError where another disk has registered in the place of the new master's.
    """
    after = replace(group, record=record)
    changes = (Save(after, over=group.etag), *_place(registry, group, after, now_ms=now_ms))
    if not action:
        return changes
    path, shown = f"{group.cluster}/{group.name}", msgspec.to_builtins(after) | more
    return (*changes, audited(action, path, group, shown, actor=actor, at_ms=now_ms))


def _place(
    registry: Registry, group: DelayGroup, after: DelayGroup, *, now_ms: int
) -> Iterator[Save]:
    """Yield what keeps clients away until a new master accepts; nothing if it is the old one.

    From the address of a disk that was given up they are kept for good.
    """
    shown, record = registry.groups.get(group.name), after.record
    if shown is None or (record.master == group.record.master and record.in_sync):
        return
    address = shown.master if record.in_sync else ""
    if record.master is not None:
        node = registry.nodes.get((group.cluster, group.name, record.master.node_id))
        if node is None or not after.has_in_sync(node):
            raise RefusedError(
                f"the disk of {record.master.node_id} in sync is not the one registered"
            )
        address = node.address
    changed = replace(shown, master=address, state=BrokerState.NRW)
    if changed != shown:
        yield Save(replace(changed, updated_ms=now_ms, version=shown.version + 1))
