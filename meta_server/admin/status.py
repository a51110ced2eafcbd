"""The status of a running meta server, as plain values."""

from typing import TYPE_CHECKING, Any

from delay_protocol.meta.requests import BrokerState
from delay_protocol.nodes.registration import NodeRole
from delay_transport.http.metric_families import installed_version
from delay_transport.seams.runtime import format_address
from meta_server.known.model import STATIC, DelayGroup, DelayNode
from meta_server.known.registry import NodeKey

if TYPE_CHECKING:
    from meta_server.server import MetaServer


def failing_checks(server: "MetaServer") -> list[str]:
    """Return why the server does not answer everything; empty if it does."""
    failing = []
    if server.stopping:
        failing.append("the server is stopping")
    if server.listener is not None and (fullness := server.listener.fullness):
        failing.append(fullness)
    if not server.ready.is_set():
        failing.append("the store has not been loaded")
        return failing
    if server.committing.is_stale:
        failing.append("the store cannot be reached: known routes are served, nothing can change")
    return failing


def warnings_of(server: "MetaServer") -> list[str]:
    """Return what is well enough for most, but not for all; empty if all is well."""
    crowding = "" if server.listener is None else server.listener.crowding
    return [crowding] if crowding else []


def status_of(server: "MetaServer") -> dict[str, Any]:
    """Return the status as `GET /status` shows it."""
    now_ms = server.runtime.clock.now_ms()
    failing = failing_checks(server)
    status: dict[str, Any] = {
        "version": installed_version(),
        "now_ms": now_ms,
        "uptime_ms": now_ms - server.started_ms,
        "ready": not failing,
        "failing": failing,
        "listen": format_address(server.listener.address) if server.listener else None,
        "connections": server.listener.open_connections if server.listener else 0,
    }
    if not server.ready.is_set():
        return status
    registry = server.registry
    status |= {
        "subjects": len(registry.subjects),
        "routes": len(registry.routes),
        "prefix_routes": len(registry.prefixes),
        "clients": len(registry.clients),
        "subscriptions": server.pushing.subscriptions,
        "pushes": server.pushing.counts.pushes,
        "requests": dict(server.handlers.requests),
        "refused": dict(server.handlers.refusals.by_command),
        "node_authentication": server.credentials.policy,
        "unauthenticated": server.credentials.unauthenticated,
        "store_failures": server.committing.failures,
        "load_seconds": server.load_seconds,
        "groups": [_group(server, name) for name in sorted(registry.groups)],
        "brokers": [
            {
                "group": broker.group,
                "role": broker.role.name,
                "hostname": broker.hostname,
                "serve_port": broker.serve_port,
                "ip": broker.ip,
                "sync_port": broker.sync_port,
            }
            for broker in sorted(registry.brokers.values(), key=lambda row: (row.group, row.role))
        ],
        "delay_groups": [
            _delay_group(server, registry.delay_groups[name])
            for name in sorted(registry.delay_groups)
        ],
        "controls": {
            cluster: registry.controls[cluster].version for cluster in sorted(registry.controls)
        },
    }
    return status


def _silent_s(server: "MetaServer", heard_at: float | None) -> float | None:
    return None if heard_at is None else round(server.now() - heard_at, 3)


def _group(server: "MetaServer", name: str) -> dict[str, Any]:
    group = server.registry.groups[name]
    return {
        "name": group.name,
        "kind": group.kind.name.lower(),
        "master": group.master,
        "state": BrokerState(group.state).name,
        "tag": group.tag,
        "weight": group.weight,
        "read_only": group.is_read_only,
        "retired": group.is_retired,
        "static": STATIC in group.ext,
        "updated_ms": group.updated_ms,
        "liveness": server.heard.groups.sign_of(name),
        "heard_seconds_ago": _silent_s(server, server.heard.groups.heard_at(name)),
    }


def _delay_group(server: "MetaServer", group: DelayGroup) -> dict[str, Any]:
    record = group.record
    return {
        "name": group.name,
        "cluster": group.cluster,
        "log_uuid": str(group.log_uuid),
        "epoch": record.epoch,
        "version": record.version,
        "phase": record.phase.value,
        "master": None if record.master is None else record.master.node_id,
        "in_sync": sorted(record.in_sync),
        "min_isr": record.min_isr,
        "nodes": [
            _node(server, group, node)
            for node in server.registry.nodes_in(group.cluster, group.name)
        ],
    }


def _node(server: "MetaServer", group: DelayGroup, node: DelayNode) -> dict[str, Any]:
    key: NodeKey = (node.cluster, node.group, node.node_id)
    in_sync = group.record.in_sync.get(node.node_id) == node.storage_uuid
    return {
        "node_id": node.node_id,
        "role": node.role.value,
        "in_sync": in_sync,
        "accepts": in_sync and node.role is NodeRole.MASTER,
        "note": "" if in_sync else NOT_IN_SYNC,
        "address": node.address,
        "http_address": node.http_address,
        "storage_uuid": str(node.storage_uuid),
        "incarnation": node.incarnation,
        "software": node.software,
        "registered_ms": node.registered_ms,
        "liveness": server.heard.nodes.sign_of(key),
        "heard_seconds_ago": _silent_s(server, server.heard.nodes.heard_at(key)),
        "controls_version": server.telling.version_at(key),
        "controls_note": server.telling.note_of(key),
    }


NOT_IN_SYNC = (
    "outside the in-sync set: it has no copy of the messages and accepts none, "
    "since replication does not exist yet"
)
