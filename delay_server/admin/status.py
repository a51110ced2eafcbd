"""What can be seen of a running delay server, as plain values."""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from delay_protocol.meta.session import Standing
from delay_protocol.nodes.controls_exchange import id_of
from delay_server.admin.explain import counts
from delay_server.admin.metrics import SUBJECTS_SHOWN_MAX, top_subjects
from delay_server.membership.registration import Registration
from delay_server.sending.lateness import RECENT_MINUTES, Distribution
from delay_transport.http.metric_families import installed_version
from delay_transport.seams.runtime import format_address

if TYPE_CHECKING:
    from delay_server.server import DelayServer


def failing_checks(server: "DelayServer") -> list[str]:
    """Return why the server does not take and deliver messages; empty if it does."""
    failing = list(server.duty().why)
    if server.listener is not None and (fullness := server.listener.fullness):
        failing.append(fullness)
    if server.is_master and server.master.lanes.is_full_of_unrouted:
        failing.append(
            f"{server.master.lanes.unrouted_max} subjects wait for a route, which is the limit: "
            "further ones without a route are late; subjects with a route are delivered"
        )
    return failing


def warnings_of(server: "DelayServer") -> list[str]:
    """Return what is well enough for most producers, but not for all; empty if all is well."""
    warnings = []
    if server.listener is not None and (crowding := server.listener.crowding):
        warnings.append(crowding)
    if server.is_master and (new := server.master.new_subjects) is not None and new.puts_off:
        warnings.append("new subjects are put off: a producer, or all of them, have sent too many")
    return warnings


def status_of(server: "DelayServer") -> dict[str, Any]:
    """Return the status as `GET /status` and `delaywheel status` show it."""
    status = _of_process(server)
    if server.is_open:
        status |= _of_node(server)
    if server.is_master:
        status |= _of_disk(server) | _of_messages(server)
    return status


def _of_process(server: "DelayServer") -> dict[str, Any]:
    """Return what there is to say as long as the process runs."""
    now_ms = server.runtime.clock.now_ms()
    failing = failing_checks(server)
    return {
        "version": installed_version(),
        "now_ms": now_ms,
        "uptime_ms": now_ms - server.started_ms,
        "ready": not failing,
        "failing": failing,
        "warnings": warnings_of(server),
        "listen": format_address(server.listener.address) if server.listener else None,
        "connections": server.connections,
        "accepted": server.ingest.counts.accepted,
        "refused": dict(server.ingest.counts.refused),
        "held_requests": server.ingest.held_requests,
        "clock_held": server.clock_held,
        "demotions": server.demotions,
    }


def _of_node(server: "DelayServer") -> dict[str, Any]:
    """Return whose data directory is open, and what is in its log."""
    store = server.node.store
    identity = store.identity
    found: dict[str, Any] = {
        "cluster": identity.cluster,
        "group": identity.group,
        "node_id": identity.node_id,
        "log_uuid": str(identity.log_uuid),
        "storage_uuid": str(identity.storage_uuid),
        "incarnation": identity.incarnation,
        "epoch": store.message_log.last_epoch,
        "first_sequence": store.message_log.first_sequence,
        "last_sequence": store.message_log.next_sequence - 1,
        "pending": store.schedule.pending,
        "recovery_seconds": server.node.recovery_seconds,
    }
    if server.registration is not None:
        found["meta"] = _membership(server.registration)
    return found


def _of_disk(server: "DelayServer") -> dict[str, Any]:
    """Return what is on the disk, and how much of that is good."""
    node, store, schedule = server.node, server.node.store, server.node.store.schedule
    return {
        "replay_lag": max(0, store.message_log.next_sequence - 1 - schedule.last_filed),
        "checkpoint_sequence": store.checkpoint.sequence,
        "segments": len(schedule.segments),
        "sealed": store.sealed,
        "sealed_on_disk": len(store.seals_log.live),
        "retired_files": store.retention.retired,
        "files_deleted": store.retention.files_deleted,
        "disk_free_bytes": node.budget.free,
        "disk_owed_bytes": node.budget.owed,
        "disk_floor_bytes": node.budget.floor,
        "disk_full": node.disk_is_full,
        "unreadable": [
            {"path": x.path, "errno": x.errno, "reason": x.reason, "failures": x.failures}
            for x in islice(list(schedule.unread.values()), SUBJECTS_SHOWN_MAX)
        ],
        "damaged": server.damages.count,
        "undeliverable": server.master.undeliverable,
        "damages": [
            {"path": d.path, "position": d.position, "size": d.size, "reason": d.reason}
            for d in list(server.damages.first)
        ],
    }


def _of_messages(server: "DelayServer") -> dict[str, Any]:
    """Return where messages are, and how they leave."""
    master, names = server.master, server.node.store.schedule.subjects.names
    dead = master.dead_letters
    return {
        "wheel": len(master.wheel),
        "held": master.loader.held,
        "evicted": master.loader.evicted,
        "waiting_subjects": sorted(
            names[subject].decode(errors="replace")
            for subject in islice(_waiting(server), SUBJECTS_SHOWN_MAX)
        ),
        "unrouted": unrouted_of(server),
        "paused": paused_of(server),
        "undelivered": counts(server),
        "controls": controls_of(server),
        "routes": routes_of(server),
        "next_due_ms": master.wheel.next_due_ms(),
        "late": master.late_now,
        "dead": {
            "pending": dead.pending,
            "being_recorded": master.burying.count,
            "oldest_ms": dead.oldest_ms if dead.pending else None,
            "requeued": dead.requeued,
            "dropped": dead.dropped,
        },
        "dispatched": {
            outcome.name.lower(): count for outcome, count in master.crossing_off.outcomes.items()
        },
        "lateness_ms": _lateness_of(server.lateness.all),
        f"lateness_{RECENT_MINUTES}_minutes_ms": _lateness_of(server.lateness.recent()),
        "subjects": dict(top_subjects(server)),
        "brokers": master.sender_numbers(),
    }


def _lateness_of(lateness: Distribution) -> dict[str, float | None]:
    """Return how late messages were, in ms: bounds of buckets, and the most; None without any."""
    most = lateness.most if lateness.total else None
    shares = {"p50": lateness.quantile(0.5), "p99": lateness.quantile(0.99), "max": most}
    return {name: None if value is None else value * 1000 for name, value in shares.items()}


def _membership(registration: Registration) -> dict[str, Any]:
    """Return what the node is in its group, and how it stands with the meta server."""
    found: dict[str, Any] = {
        "server": registration.meta,
        "answered_ms": registration.answered_ms_ago,
        "away_ms": registration.away_ms,
        "trouble": registration.trouble,
        "role": None,
        "accepts": registration.accepts and not registration.is_retired,
        "authenticated": registration.is_authenticated,
    }
    standing = registration.standing
    if standing is None:
        return found
    record = standing.record
    announced = registration.announced
    return found | {
        "role": standing.role.value,
        "retired": standing.is_retired,
        "delivers": standing.delivers,
        "epoch": record.epoch,
        "version": record.version,
        "phase": record.phase.value,
        "master": None if record.master is None else record.master.node_id,
        "in_sync": sorted(record.in_sync),
        "min_isr": record.min_isr,
        "lease_ms": registration.lease_ms,
        "announced": None if announced is None else announced.name,
        "announce_trouble": registration.announce_trouble,
    }


def _waiting(server: "DelayServer") -> Iterator[int]:
    """Yield the subjects that wait on disk for room, of which there may be very many."""
    lanes = server.master.lanes
    for place in (lanes.opened, lanes.unopened, lanes.leaving):
        for subjects in place.values():
            yield from subjects


def unrouted_of(server: "DelayServer") -> dict[str, Any]:
    """Return what waits for want of a route, with a few of the subjects; empty if nothing could."""
    routes = server.master.routes
    if routes is None:
        return {}
    unrouted = server.master.lanes.unrouted(_EXAMPLES)
    examples = [routes.standing(number) for number in unrouted.numbers]
    return {
        "subjects": unrouted.subjects,
        "messages": unrouted.messages + unrouted.forgotten,
        "oldest_due_ms": unrouted.oldest_due_ms,
        "examples": [
            f"{name}: {reason or _STANDINGS[standing]}" for name, standing, reason in examples
        ],
    }


def paused_of(server: "DelayServer") -> dict[str, Any]:
    """Return what waits because its subject is paused, with a few of the subjects."""
    paused = server.master.lanes.paused(_EXAMPLES)
    names = server.node.store.schedule.subjects.names
    return {
        "subjects": paused.subjects,
        "messages": paused.messages,
        "oldest_due_ms": paused.oldest_due_ms,
        "examples": [names[number].decode(errors="replace") for number in paused.numbers],
    }


def controls_of(server: "DelayServer") -> dict[str, Any]:
    """Return what an operator has closed and narrowed, in numbers."""
    controls = server.master.operator.applied
    rules = controls.subjects.values()
    return {
        "version": controls.version,
        "paused_rules": sum(rule.paused for rule in rules),
        "limits": len(server.master.gates.rates),
        "group_rules": len(controls.groups),
        "metered": server.master.meters.count,
        "unmetered": server.master.gates.unmetered,
        "meta": following_of(server),
    }


def following_of(server: "DelayServer") -> dict[str, Any] | None:
    """Return what the meta server has told about controls; None where there is none."""
    following = server.node.following
    if following is None:
        return None
    present = id_of(server.master.operator.applied)
    return {
        "store": None if present is None else str(present.store),
        "told_version": None if following.told is None else following.told.version,
        "keeps": following.keeps,
        "trouble": following.trouble,
    }


def routes_of(server: "DelayServer") -> dict[str, Any]:
    """Return how it stands with the meta server; empty if there is none to be asked."""
    routes, meta = server.master.routes, server.master.meta_routes
    if routes is None or meta is None:
        return {}
    asked = routes.session.counts
    return {
        "meta_server": None if meta.peer is None else format_address(meta.peer),
        "meta_failures": meta.failures,
        "meta_last_end": meta.last_end,
        "subjects": len(routes.session),
        "routes": routes.routes,
        "changes": routes.counts.changes,
        "questions": asked.questions,
        "answers": asked.answers,
        "pushes": asked.pushes,
        "refusals": asked.refusals,
        "doubted": asked.doubted,
    }


_EXAMPLES = 5
_STANDINGS = {
    Standing.UNKNOWN: "the meta server has not answered yet",
    Standing.REFUSED: "refused by the meta server",
    Standing.NONE: "no broker group that can be written to",
    Standing.ROUTED: "its route came just now",
}
