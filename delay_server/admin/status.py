"""The status of a running delay server, as plain values."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from delay_protocol.meta.session import RouteState
from delay_protocol.nodes.controls import id_of
from delay_server.admin.copies import copies_of, others_of
from delay_server.admin.metrics import numbers
from delay_server.admin.parts import Observed, Parts
from delay_server.distribution import Distribution
from delay_server.membership.registration import Registration
from delay_server.node import Node
from delay_server.sending.lateness import RECENT_MINUTES
from delay_transport.http.metric_families import installed_version, values_of
from delay_transport.seams.runtime import format_address
from sender.groups.group_status import GroupStatus


def failing_checks(observed: Observed) -> list[str]:
    """Return why the server does not do what it is there for; empty if it does."""
    failing = list(observed.duty.failing)
    if observed.listener is not None and (fullness := observed.listener.fullness):
        failing.append(fullness)
    parked = None if observed.parts is None else observed.parts.master.lanes.parked
    if parked is not None and parked.is_full_of_unrouted:
        failing.append(
            f"{parked.unrouted_max} subjects wait for a route, which is the limit: further ones "
            "without a route are late; subjects with a route are delivered"
        )
    return failing


def status_of(observed: Observed) -> dict[str, Any]:
    """Return the status as `GET /status` and `delaywheel status` show it.

    Numbers are those of `metrics.py`; the rest is here.
    """
    status = _of_process(observed)
    if observed.node is not None:
        status |= _of_node(observed.node)
    if observed.parts is not None:
        status |= _of_master(observed.parts)
    rows = (("sender_", "brokers"), ("receiver_", "brokers"), ("replica_", "replicas"))
    for name, value in values_of(numbers(observed), prefix="delaywheel_").items():
        for prefix, section in rows:
            if name.startswith(prefix):
                for of, number in value.items():
                    status[section][of][name.removeprefix(prefix)] = number
                break
        else:
            status[name] = value
    return status


def _of_process(observed: Observed) -> dict[str, Any]:
    """Return the fields of the process, which are there from its start to its end."""
    failing, listener = failing_checks(observed), observed.listener
    return {
        "version": installed_version(),
        "now_ms": observed.now_ms,
        "uptime_ms": observed.now_ms - observed.started_ms,
        "ready": not failing,
        "failing": failing,
        "listen": None if listener is None else format_address(listener.address),
    }


def _of_node(node: Node) -> dict[str, Any]:
    """Return the identity of the data directory, and the membership of the node."""
    store = node.store
    identity = store.identity
    found: dict[str, Any] = {
        "cluster": identity.cluster,
        "group": identity.group,
        "node_id": identity.node_id,
        "log_uuid": str(identity.log_uuid),
        "storage_uuid": str(identity.storage_uuid),
        "incarnation": identity.incarnation,
        "epoch": store.message_log.last_epoch,
        "last_sequence": store.message_log.next_sequence - 1,
        "recovery_seconds": node.recovery_seconds,
        "damages": [
            {"path": d.path, "position": d.position, "size": d.size, "reason": d.reason}
            for d in list(node.damages.first)
        ],
    }
    if node.registration is not None:
        found["meta"] = _membership(node.registration)
    if node.replica is not None:
        found["replication"] = copies_of(node, node.replica)
        found["replicas"] = {
            other.node: {
                "standing": other.standing.value,
                "sentence": other.sentence,
                "lag": other.lag,
            }
            for other in others_of(node)
        }
    return found


def _of_master(parts: Parts) -> dict[str, Any]:
    """Return the fields of a master that are no numbers."""
    master, store = parts.master, parts.node.store
    names = store.schedule.subjects.names
    return {
        "checkpoint_sequence": store.checkpoint.sequence,
        "waiting_subjects": sorted(
            names[subject].decode(errors="replace")
            for subject in islice(_waiting(parts), _SHOWN_MAX)
        ),
        "duplicates_from_ms": None if master.duplicates is None else master.duplicates.oldest_ms,
        "unrouted": unrouted_of(parts),
        "paused": paused_of(parts),
        "controls": {"version": master.outlet.applied.version, "meta": following_of(parts)},
        "routes": routes_of(parts),
        "next_due_ms": master.wheel.next_due_ms(),
        "lateness_ms": _lateness_of(parts.lateness.all),
        f"lateness_{RECENT_MINUTES}_minutes_ms": _lateness_of(parts.lateness.recent()),
        "brokers": {group.name: _broker(group) for group in master.sender.status()},
    }


def _broker(group: GroupStatus) -> dict[str, Any]:
    """Return the address, the connection and the rules of a group."""
    return {
        "address": group.address,
        "source": group.source,
        "state": group.state.value,
        "circuit": group.circuit.value,
        "circuit_reason": group.circuit_reason,
        "last_end": group.last_end,
        "why_none": group.why_none,
        "weight": group.weight,
        "effective_weight": round(group.effective_weight, 4),
        "paused": group.rule.paused,
    }


def _lateness_of(lateness: Distribution) -> dict[str, float | None]:
    """Return quantiles of the lateness in ms (upper bounds of buckets); None without a message."""
    most = lateness.most if lateness.total else None
    shares = {"p50": lateness.quantile(0.5), "p99": lateness.quantile(0.99), "max": most}
    return {name: None if value is None else value * 1000 for name, value in shares.items()}


def _membership(registration: Registration) -> dict[str, Any]:
    """Return the role of the node in its group, and the state of its registration."""
    found: dict[str, Any] = {
        "server": registration.meta,
        "away_ms": registration.away_ms,
        "trouble": registration.trouble,
        "role": None,
        "accepts": registration.accepts and not registration.closed,
        "authenticated": registration.is_authenticated,
    }
    permission = registration.permission
    if permission is None:
        return found
    record = permission.record
    return found | {
        "role": permission.role.value,
        "closed": permission.closed,
        "delivers": permission.delivers,
        "epoch": record.epoch,
        "version": record.version,
        "phase": record.phase.value,
        "master": None if record.master is None else record.master.node_id,
        "in_sync": sorted(record.in_sync),
        "min_isr": record.min_isr,
        "announced": registration.shown,
    }


def _waiting(parts: Parts) -> Iterator[int]:
    """Yield the subjects whose backlog waits on disk; there may be very many."""
    lanes = parts.master.lanes
    for subjects in lanes.parked.waiting_in.values():
        yield from subjects


def unrouted_of(parts: Parts) -> dict[str, Any]:
    """Return the oldest message without a route, and some subjects; empty without a meta server."""
    routes = parts.master.targets.routes
    if routes is None:
        return {}
    unrouted = parts.master.lanes.unrouted(_EXAMPLES)
    examples = [routes.standing(number) for number in unrouted.numbers]
    return {
        "messages": unrouted.messages + unrouted.forgotten,
        "oldest_due_ms": unrouted.oldest_due_ms,
        "examples": [
            f"{name}: {reason or _STANDINGS[standing]}" for name, standing, reason in examples
        ],
    }


def paused_of(parts: Parts) -> dict[str, Any]:
    """Return the messages of paused subjects, and some of these subjects."""
    paused = parts.master.lanes.paused(_EXAMPLES)
    names = parts.node.store.schedule.subjects.names
    return {
        "messages": paused.messages,
        "oldest_due_ms": paused.oldest_due_ms,
        "examples": [names[number].decode(errors="replace") for number in paused.numbers],
    }


def following_of(parts: Parts) -> dict[str, Any] | None:
    """Return the controls that the meta server has told; None where there is none."""
    controls_sync = parts.node.controls_sync
    if controls_sync is None:
        return None
    present = id_of(parts.master.outlet.applied)
    return {
        "store": None if present is None else str(present.store),
        "told_version": None if controls_sync.told is None else controls_sync.told.version,
        "keeps": controls_sync.keeps,
        "trouble": controls_sync.trouble,
    }


def routes_of(parts: Parts) -> dict[str, Any]:
    """Return the connection that asks for routes; empty without a meta server."""
    routes, meta = parts.master.targets.routes, parts.master.targets.meta_routes
    if routes is None or meta is None:
        return {}
    return {
        "meta_server": None if meta.peer is None else format_address(meta.peer),
        "meta_failures": meta.failures,
        "meta_last_end": meta.last_end,
    }


_EXAMPLES: Final = 5
_SHOWN_MAX: Final = 50
_STANDINGS = {
    RouteState.UNKNOWN: "the meta server has not answered yet",
    RouteState.REFUSED: "the meta server refuses the subject",
    RouteState.NONE: "no broker group takes its messages",
    RouteState.ROUTED: "its route has just arrived",
}
