"""The group's record as the wire has it, and as the core of replication sees it."""

from delay_protocol.nodes.registration import GroupRecord
from replication.core.record import Member, Record


def record_of(told: GroupRecord) -> Record:
    """Return a record as the core sees it."""
    master = told.master
    return Record(
        epoch=told.epoch,
        version=told.version,
        master=None if master is None else (master.node_id, master.incarnation),
        in_sync=frozenset(Member(node, storage) for node, storage in told.in_sync.items()),
        min_isr=told.min_isr,
    )
