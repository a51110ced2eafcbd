"""Rules of delay groups and their nodes. Pure, as those of `meta_server/admin/rules.py`."""

from typing import Final

from msgspec.structs import replace

from delay_protocol.nodes.registration import GroupRecord, Phase
from delay_transport.http.operations import Request
from meta_server.admin.admin_types import HandoverWish, MayLose, MinIsr, NameKey, NodeKey
from meta_server.admin.parts import Parts, Planned
from meta_server.admin.rules import put
from meta_server.groups.elections import following, set_min_isr
from meta_server.groups.group_records import ELECT, HAND_OVER, MIN_ISR
from meta_server.known.errors import StateError
from meta_server.known.model import DelayGroup, DelayNode, Remove

_COMMAND: Final = "delaywheel admin"


# Nodes


def remove_node(parts: Parts, key: NodeKey, node: DelayNode, _body: Request) -> Planned:
    """Remove a delay server whose disk the group does not need: its master has dropped it."""
    record = _newest_of(parts, key.group).record
    if key.node in record.in_sync:
        raise StateError(_why_needed(key, record))
    if parts.handlers.sessions.of_node(node.key):
        raise StateError(
            f"{key.node} at {node.address} is alive, and would register again: stop it"
        )
    return Planned([Remove(node)])


def _newest_of(parts: Parts, name: str) -> DelayGroup:
    """Return a delay group of which the store has the newest record; raise StateError."""
    if behind := parts.set_backs.why_behind(name):
        raise StateError(f"{name}: {behind}")
    return parts.registry.delay_groups[name]


def _check_silent(parts: Parts, key: NodeKey, node: DelayNode) -> None:
    if parts.handlers.group_changes.heard_at(node.key) is not None:
        raise StateError(
            f"{key.node} at {node.address} was heard lately: stop it, and try again when it was "
            "silent for registration.node_timeout_ms (15 s)"
        )


def _why_needed(key: NodeKey, record: GroupRecord) -> str:
    """Return what has to happen before a member in sync can be removed, or given up."""
    name, node, count = key.group, key.node, len(record.in_sync)
    if count == 1:
        return (
            f"{node} has the only disk with the messages of {name}: bring it back, or say that "
            f"messages may be lost: `{_COMMAND} give-up {name} {node} --lose-messages`"
        )
    if count <= record.min_isr:
        return (
            f"{node} is one of {count} members in sync, and min_isr of {name} is "
            f"{record.min_isr}: let another one get in sync first, or let fewer be enough by "
            f"`{_COMMAND} min-isr {name} {count - 1}`"
        )
    master = "nobody now" if record.master is None else record.master.node_id
    return (
        f"{node} is in sync: stop it, and the master ({master}) drops it within seconds. A master "
        f"hands over first (`{_COMMAND} handover {name}`); in place of a dead one another is "
        f"elected (`{_COMMAND} elect {name}`). Where that waits for {node}, whose disk is lost: "
        f"`{_COMMAND} give-up {name} {node}`"
    )


def give_up_node(parts: Parts, key: NodeKey, node: DelayNode, body: MayLose) -> Planned:
    """Give up a disk in sync that will not come back, where no master is there who could drop it.

    If its disk is the only one with the group's messages they are lost with it: then, if that is
    allowed, the group has no member in sync any more, and begins again with the next node that
    registers.
    """
    _check_silent(parts, key, node)
    group = _newest_of(parts, key.group)
    record = group.record
    if key.node not in record.in_sync:
        raise StateError(
            f"{key.node} is not in sync, and nothing has to be given up: "
            f"`{_COMMAND} remove delay-node {key.group}/{key.node}`"
        )
    others = {other: uuid for other, uuid in record.in_sync.items() if other != key.node}
    if others:
        is_allowed = record.master is None and len(others) >= record.min_isr
    else:
        is_allowed = body.lose_messages
    if not is_allowed:
        raise StateError(_why_needed(key, record))
    epoch = record.epoch if others else record.epoch + 1
    after = following(record, epoch=epoch, master=None, in_sync=others, phase=Phase.ELECTING)
    changes = parts.handlers.group_changes.plan_record(group, after, "", parts.actor)
    return Planned([Remove(node), *changes], replace(group, record=after))


def approve_node(parts: Parts, key: NodeKey, node: DelayNode, body: MayLose) -> Planned:
    """Let a delay server come back with an older copy of its directory than it had.

    What only the newer one has is given up; it is refused from the moment the older one has begun
    an epoch. Until then whichever comes first is taken.
    """
    _check_silent(parts, key, node)
    if not body.lose_messages:
        raise StateError(
            f"{key.node} had record {node.last_sequence} in epoch {node.last_epoch}: what an older "
            "directory lacks of that is lost; bring the newer one back, or say that messages may "
            "be lost"
        )
    return put(node, replace(node, last_sequence=0, last_epoch=0))


# Groups


def elect_master(parts: Parts, key: NameKey, _known: DelayGroup, _body: Request) -> Planned:
    """Elect a master in place of one that does not speak, or may not send.

    Nothing changes while an election is under way.
    """
    group, groups = _newest_of(parts, key.name), parts.handlers.group_changes
    state = groups.state_of(key.name)
    begun = state.elect(group.record, now=parts.now)
    if begun == group.record:
        return Planned()
    why = "" if state.cause is None else state.cause.sentence
    return Planned(groups.plan_record(group, begun, ELECT, parts.actor, why=why))


def hand_over(parts: Parts, key: NameKey, _known: DelayGroup, body: HandoverWish) -> Planned:
    """Ask the master to hand its group over; it does so, or begins anew, within seconds."""
    group, groups = _newest_of(parts, key.name), parts.handlers.group_changes
    state = groups.state_of(key.name)
    target = state.ask_to_hand_over(group.record, body.to, now=parts.now)
    path = f"{group.cluster}/{key.name}"
    entry = parts.entry(HAND_OVER, path, group.record, {"to": target})
    return Planned([entry], stored=groups.news)


def set_group_min_isr(parts: Parts, key: NameKey, _known: DelayGroup, body: MinIsr) -> Planned:
    """Set how many disks at least have to be in sync."""
    group = _newest_of(parts, key.name)
    if body.min_isr == group.record.min_isr:
        return Planned()
    record = set_min_isr(group.record, body.min_isr)
    groups = parts.handlers.group_changes
    return Planned(groups.plan_record(group, record, MIN_ISR, parts.actor))


def recover_group(parts: Parts, key: NameKey, _known: object, body: MayLose) -> Planned:
    """Go on with a group whose record was lost, without those who have not spoken."""
    changes = parts.set_backs.plan_recover(
        key.name,
        lose_messages=body.lose_messages,
        actor=parts.actor,
        now_ms=parts.now_ms,
    )
    return Planned(changes)
