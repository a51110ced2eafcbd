"""What a node may do in its group, from what a meta server answered. Pure.

The master of the record accepts and delivers, as far as the core of replication lets it
(replication/core): how many are in sync, and heard, is asked there at each request.
"""

from dataclasses import dataclass

from delay_protocol.nodes.registration import GroupRecord, Master, NodeRegistered, NodeRole, Phase
from delay_server.duty import READ_ONLY, RETIRED
from storage.state.identity import Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """What a node may do by one record of its group."""

    role: NodeRole
    record: GroupRecord
    reason: str
    """Why it is not the master; empty if it is."""
    closed: str = ""
    """Why messages are to be refused, instead of held, while what is there goes out; empty if they
    are not."""

    @property
    def delivers(self) -> bool:
        """True if messages may be acknowledged, and sent, as far as replicas allow it."""
        return not self.reason

    @property
    def pair(self) -> tuple[int, int]:
        """Epoch and version: an answer with a higher pair is newer."""
        return (self.record.epoch, self.record.version)


def permission_of(
    reply: NodeRegistered, identity: Identity, *, log_epoch: int, own_epoch: int
) -> Permission:
    """Return what the node of this identity may do by an answer to its NODE_REGISTER.

    log_epoch: the newest epoch in its log; own_epoch: the one that this start of it has begun, 0 if
    it has begun none.
    """
    record = reply.record
    obstacle = _not_master(reply, identity) or _not_ahead(record, log_epoch, own_epoch)
    obstacle = obstacle or _not_in_sync(record, identity)
    return Permission(
        role=reply.role,
        record=record,
        reason=obstacle,
        closed=RETIRED if reply.is_retired else READ_ONLY if reply.is_read_only else "",
    )


def _not_master(reply: NodeRegistered, identity: Identity) -> str:
    record = reply.record
    if record.phase is not Phase.ACTIVE or record.master is None:
        return f"{identity.group} elects a master, in epoch {record.epoch}"
    master = record.master
    if master.node_id != identity.node_id:
        article = "a" if reply.role is not NodeRole.MASTER else "no longer the"
        return (
            f"this node is {article} {reply.role.value}: the master of {identity.group} in epoch "
            f"{record.epoch} is {master.node_id}"
        )
    if master != Master(node_id=identity.node_id, incarnation=identity.incarnation):
        return (
            f"the master of {identity.group} in epoch {record.epoch} is another start of this "
            f"node: incarnation {master.incarnation}, this one is {identity.incarnation}"
        )
    if reply.role is not NodeRole.MASTER:
        return f"this node is a {reply.role.value}, though the record names it as the master"
    return ""


def _not_ahead(record: GroupRecord, log_epoch: int, own_epoch: int) -> str:
    if record.epoch > log_epoch or 0 < own_epoch == record.epoch:
        return ""
    return f"epoch {record.epoch} has ended: the log of this node has epoch {log_epoch} already"


def _not_in_sync(record: GroupRecord, identity: Identity) -> str:
    if record.in_sync.get(identity.node_id) != identity.storage_uuid:
        return f"the disk of this node is not in sync with {identity.group}"
    return ""
