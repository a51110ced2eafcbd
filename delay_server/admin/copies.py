"""What a node and the other disks of its group are to each other, in plain values.

The master says of each other disk how it stands, in the sentence of the core that decides
(`replication/core/in_sync.py`). A slave says whom it follows, or why it does not.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from delay_server.fitness import why_behind, why_unfit
from delay_server.node import Node
from delay_server.replicas import Replica
from replication.core.in_sync import Decision, Standing
from replication.core.peers import Peer
from replication.leading import Leading


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """Another node of the group with its disk, as the master sees it."""

    node: str
    standing: Standing
    sentence: str
    is_in_sync: bool = False
    """Whether its disk is in the recorded in-sync set."""
    lag: int | None = None
    """Records that are not durable there; None: it has said nothing in this epoch."""
    lag_s: float | None = None
    filing_lag_s: float | None = None
    drops: int = 0
    """How often it was dropped lately."""
    clock_ahead_s: float | None = None
    """By how much its wall clock is ahead of the master's."""


def others_of(node: Node) -> list[Other]:
    """Return the other nodes of the group by name; none where this node is not the master."""
    leading, replica, registration = node.leading, node.replica, node.registration
    if leading is None or replica is None or registration is None:
        return []
    names = set(registration.members) - {replica.own.node}
    found = {name: _away(name) for name in names}
    in_sync = leading.master.record.in_sync
    for peer, decision in _decided(leading):
        name, is_recorded = peer.member.node, peer.member in in_sync
        if is_recorded or peer.connection is not None or name in names:
            found[name] = _other(leading, peer, decision, is_in_sync=is_recorded)
    return [found[name] for name in sorted(found)]


def _away(name: str) -> Other:
    return Other(node=name, standing=Standing.AWAY, sentence=f"{name} is not connected")


def _decided(leading: Leading) -> Iterator[tuple[Peer, Decision]]:
    """Yield the disks; of a node that has another disk than before the one that counts last."""
    members, in_sync = leading.master.members, leading.master.record.in_sync
    decisions = {decision.member: decision for decision in members.decisions(leading.now)}

    def counts(peer: Peer) -> tuple[bool, bool]:
        return peer.connection is not None, peer.member in in_sync

    for peer in sorted(members.peers(), key=counts):
        yield peer, decisions[peer.member]


def _other(leading: Leading, peer: Peer, decision: Decision, *, is_in_sync: bool) -> Other:
    now, end = leading.now, leading.master.members.end
    committed = leading.master.commit_point.committed
    return Other(
        node=peer.member.node,
        standing=decision.standing,
        sentence=decision.sentence,
        is_in_sync=is_in_sync,
        lag=max(end - peer.acked, 0) if peer.acked > 0 else None,
        lag_s=round(peer.log.lag(end, now), 3),
        filing_lag_s=round(peer.filing.lag(committed, now), 3),
        drops=peer.drops_lately(now),
        clock_ahead_s=leading.clocks_ahead_s.get(peer.member),
    )


def copies_of(node: Node, replica: Replica) -> dict[str, Any]:
    """Return the part of a node in its group, but for numbers that `metrics.py` has."""
    record, leading, condition = replica.record, node.leading, node.condition()
    found: dict[str, Any] = {
        "role": _role_of(replica),
        "epoch": None if record is None else record.epoch,
        "durable": node.commit_point.durable - 1,
        "committed": node.commit_point.committed - 1,
        "why_unfit": why_unfit(condition),
        "why_behind": why_behind(condition),
    }
    if leading is not None:
        return found | {
            "messages_held": leading.why_not_append,
            "sending_held": leading.why_not_send,
        }
    return found | _of_slave(node, replica)


def _role_of(replica: Replica) -> str:
    if replica.leading is not None:
        return "master"
    return "slave" if replica.master_elsewhere else "waiting"


def _of_slave(node: Node, replica: Replica) -> dict[str, Any]:
    following, record = replica.following, replica.record
    is_matched = following is not None and following.is_matched
    master = None if record is None else record.master
    return {
        "follows": None if master is None else master.node_id,
        "matched_ms": None
        if following is None or not is_matched
        else round((replica.now - following.matched_at) * 1000),
        "trouble": replica.copy_fault,
        "applied": node.store.schedule.last_filed,
    }


def faults_of(node: Node) -> dict[str, int]:
    """Return how often something came of a slave, or of the master, that may not."""
    leading = node.leading
    following = None if node.replica is None else node.replica.following
    return {
        "follow_refused": 0 if leading is None else leading.refused,
        "slave_fault": 0 if leading is None else leading.protocol_faults,
        "copy_refused": 0 if following is None else following.copies_refused,
    }
