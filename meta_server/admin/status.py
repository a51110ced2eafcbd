"""What can be seen of a running meta server, as plain values."""

from typing import Any

import trio

from delay_protocol.meta.requests import BrokerState
from delay_protocol.nodes.registration import NodeRole
from delay_transport.http.metric_families import installed_version, values_of
from delay_transport.seams.runtime import format_address
from meta_server.admin.metrics import numbers
from meta_server.admin.parts import Observed, Parts
from meta_server.known.model import STATIC, DelayGroup, DelayNode
from meta_server.known.registry import NodeKey


def failing_checks(observed: Observed) -> list[str]:
    """Return why the server does not answer everything; empty if it does."""
    failing = []
    if observed.is_stopping:
        failing.append("the server is stopping")
    if observed.listener is not None and (fullness := observed.listener.fullness):
        failing.append(fullness)
    if observed.parts is None:
        failing.append("the store has not been loaded")
        return failing
    if observed.parts.committer.is_stale:
        failing.append("the store cannot be reached: known routes are served, nothing can change")
    return failing


def warnings_of(observed: Observed) -> list[str]:
    """Return what is well enough for most, but not for all; empty if all is well."""
    crowding = "" if observed.listener is None else observed.listener.crowding
    return [crowding] if crowding else []


def status_of(observed: Observed) -> dict[str, Any]:
    """Return the status as `GET /status` shows it."""
    failing = failing_checks(observed)
    status: dict[str, Any] = {
        "kind": "meta server",
        "version": installed_version(),
        "now_ms": observed.now_ms,
        "uptime_ms": observed.now_ms - observed.started_ms,
        "ready": not failing,
        "failing": failing,
        "listen": format_address(observed.listener.address) if observed.listener else None,
        "connections": observed.listener.open_connections if observed.listener else 0,
    }
    if observed.parts is not None:
        status |= values_of(numbers(observed.parts), prefix="delaywheel_meta_")
        status |= _rows(observed.parts)
    return status


def _rows(parts: Parts) -> dict[str, Any]:
    registry = parts.registry
    return {
        "node_authentication": parts.credentials.policy,
        "groups": [_group(parts, name) for name in sorted(registry.groups)],
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
            _delay_group(parts, registry.delay_groups[name])
            for name in sorted(registry.delay_groups)
        ],
        "controls": {
            cluster: registry.controls[cluster].version for cluster in sorted(registry.controls)
        },
    }


def _silent_s(heard_at: float | None) -> float | None:
    return None if heard_at is None else round(trio.current_time() - heard_at, 3)


def _group(parts: Parts, name: str) -> dict[str, Any]:
    group = parts.registry.groups[name]
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
        "liveness": parts.heard.groups.sign_of(name),
        "heard_seconds_ago": _silent_s(parts.heard.groups.heard_at(name)),
    }


def _delay_group(parts: Parts, group: DelayGroup) -> dict[str, Any]:
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
            _node(parts, group, node) for node in parts.registry.nodes_in(group.cluster, group.name)
        ],
    }


def _node(parts: Parts, group: DelayGroup, node: DelayNode) -> dict[str, Any]:
    key: NodeKey = (node.cluster, node.group, node.node_id)
    in_sync, role = group.has_in_sync(node), group.role_of(node)
    return {
        "node_id": node.node_id,
        "role": role.value,
        "in_sync": in_sync,
        "accepts": role is NodeRole.MASTER,
        "note": note_of(group, node),
        "address": node.address,
        "http_address": node.http_address,
        "storage_uuid": str(node.storage_uuid),
        "incarnation": node.incarnation,
        "software": node.software,
        "registered_ms": node.registered_ms,
        "liveness": parts.heard.nodes.sign_of(key),
        "heard_seconds_ago": _silent_s(parts.heard.nodes.heard_at(key)),
        "controls_version": parts.telling.version_at(key),
        "controls_note": parts.telling.note_of(key),
    }


def note_of(group: DelayGroup, node: DelayNode) -> str:
    """Return why a node accepts nothing; empty if it may."""
    if group.role_of(node) is NodeRole.MASTER:
        return ""
    if group.has_in_sync(node):
        return "in sync: its disk has every acknowledged message"
    return "outside the in-sync set: its disk may lack messages"
