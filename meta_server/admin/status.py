"""What can be seen of a running meta server, as plain values."""

from typing import Any

from delay_transport.http.metric_families import installed_version, values_of
from delay_transport.seams.runtime import format_address
from meta_server.admin.metrics import numbers
from meta_server.admin.parts import Observed


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
        status["node_authentication"] = observed.parts.credentials.policy
    return status
