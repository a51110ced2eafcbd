"""Every number that a delay server shows: one row for each, with its name, kind, text and source.

    name                 GET /status                GET /metrics
    replay_lag           replay_lag                 delaywheel_replay_lag
    dead.requeued        dead: {requeued}           delaywheel_dead_requeued_total
    queued of a group    brokers: {group: queued}   delaywheel_sender_queued{target}
    lag of a replica     replicas: {node: lag}      delaywheel_replica_lag{node}

A name without a unit counts messages, or what it names. A row whose value is None is left out of
the metrics: there is nothing of the kind. Histograms are metrics only; the status has quantiles.
The status has the record of the group in place of NUMBERS_OF_REGISTRATION.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

import trio

from delay_protocol.nodes.registration import NodeRole
from delay_server.accepting.disk_budget import DiskBudget
from delay_server.admin.copies import Other, faults_of
from delay_server.admin.explain import counts
from delay_server.admin.parts import Observed, Parts
from delay_server.distribution import Distribution
from delay_server.fitness import why_unfit
from delay_server.lanes.routes import SubjectRoutes
from delay_server.membership.registration import Registration
from delay_server.node import Node
from sender.groups.group_status import GroupState, GroupStatus
from sender.health.circuit import CircuitState

SUBJECTS_SHOWN_MAX: Final = 50
"""Subjects that get a label of their own; the others are added up as `other`."""

Source = TypeVar("Source")
Value = int | float | None
Labelled = Mapping[str, float]
"""Numbers by the value of their label."""


@dataclass(frozen=True, slots=True)
class Number(Generic[Source]):
    """A number."""

    name: str
    kind: Literal["counter", "gauge"]
    """A counter only grows."""
    text: str
    value: Callable[[Source], Value]


@dataclass(frozen=True, slots=True)
class Family(Generic[Source]):
    """A number for each value of a label."""

    name: str
    kind: Literal["counter", "gauge"]
    text: str
    label: str
    values: Callable[[Source], Labelled]


@dataclass(frozen=True, slots=True)
class Histogram(Generic[Source]):
    """A distribution; in seconds."""

    name: str
    text: str
    values: Callable[[Source], Distribution]


def top_subjects(parts: Parts) -> dict[str, int]:
    """Return what is in the wheel by subject, most first, the rest as `other`."""
    names = parts.node.store.schedule.subjects.names
    top, rest = parts.master.wheel.top_subjects(SUBJECTS_SHOWN_MAX)
    shown = {names[number].decode(errors="replace"): count for number, count in top}
    return shown | ({"other": rest} if rest else {})


def _replay_lag(node: Node) -> int:
    store = node.store
    # Read while other threads write: what is filed may be newer than what is committed.
    return max(0, store.message_log.next_sequence - 1 - store.schedule.last_filed)


def _of_disk(value: Callable[[DiskBudget], int]) -> Callable[[Node], Value]:
    """Return a number of the disk; None until the node has looked at it."""
    return lambda node: value(node.budget) if node.budget.total else None


def _age_s(parts: Parts, since_ms: int | None) -> float:
    return 0 if since_ms is None else max(parts.pacer.now_ms() - since_ms, 0) / 1000


def _dead_age_s(parts: Parts) -> float:
    letters = parts.master.dead_letters
    return _age_s(parts, letters.oldest_ms) if letters.pending else 0


def _of_routes(value: Callable[[SubjectRoutes], Value]) -> Callable[[Parts], Value]:
    """Return a number of the routes; None where every message goes to the brokers of a setting."""
    return lambda parts: (
        None if parts.master.targets.routes is None else value(parts.master.targets.routes)
    )


def _of_unrouted(value: Callable[[Parts], Value]) -> Callable[[Parts], Value]:
    return lambda parts: None if parts.master.targets.routes is None else value(parts)


def _unrouted_messages(parts: Parts) -> int:
    unrouted = parts.master.lanes.unrouted(0)
    return unrouted.messages + unrouted.forgotten


def _routes_connected(parts: Parts) -> int:
    meta = parts.master.targets.meta_routes
    return int(meta is not None and meta.peer is not None)


def _put_off(parts: Parts) -> Value:
    new = parts.master.targets.new_subjects
    return None if new is None else new.put_off_count


def _controls_taken(node: Node) -> Value:
    controls_sync = node.controls_sync
    return None if controls_sync is None else controls_sync.taken


def _controls_kept(node: Node) -> Value:
    controls_sync = node.controls_sync
    return (
        None if controls_sync is None else int(bool(controls_sync.keeps or controls_sync.trouble))
    )


def _refused(observed: Observed) -> Labelled:
    return dict(sorted(observed.ingest.counts.refused.items()))


def _outcomes(parts: Parts) -> Labelled:
    outcomes = list(parts.master.fact_recorder.outcomes.items())
    return {outcome.name.lower(): count for outcome, count in outcomes}


def takes_messages(registration: Registration) -> bool:
    """Return whether the group's record lets the node accept messages."""
    return registration.accepts and not registration.is_retired


def _roles(registration: Registration) -> Labelled:
    permission = registration.permission
    return {
        role.value: int(permission is not None and permission.role is role) for role in NodeRole
    }


def _epoch(registration: Registration) -> Value:
    permission = registration.permission
    return None if permission is None else permission.record.epoch


def _in_sync(registration: Registration) -> Value:
    permission = registration.permission
    return None if permission is None else len(permission.record.in_sync)


def _min_isr(registration: Registration) -> Value:
    permission = registration.permission
    return None if permission is None else permission.record.min_isr


def _replicas(registration: Registration) -> int:
    return len(registration.members)


def _uncommitted(node: Node) -> int:
    leading = node.leading
    return 0 if leading is None else leading.master.outcomes.uncommitted


def _paused(rules: Iterable[object]) -> int:
    return sum(bool(getattr(rule, "paused")) for rule in rules)  # noqa: B009 (of either kind)


NUMBERS_OF_PROCESS: Final[tuple[Number[Observed] | Family[Observed], ...]] = (
    Number(
        "accepted",
        "counter",
        "Messages accepted: they are durable.",
        lambda seen: seen.ingest.counts.accepted,
    ),
    Number(
        "accepted_bytes",
        "counter",
        "Bytes of accepted messages.",
        lambda seen: seen.ingest.counts.accepted_bytes,
    ),
    Family("refused", "counter", "Messages refused, by item code.", "reason", _refused),
    Number(
        "requests",
        "counter",
        "SEND_MESSAGE requests received.",
        lambda seen: seen.ingest.counts.requests,
    ),
    Number(
        "requests_indivisible",
        "counter",
        "Requests answered 51, of which no message was accepted.",
        lambda seen: seen.ingest.counts.indivisible,
    ),
    Number(
        "requests_expired",
        "counter",
        "Requests that waited for admission for too long and were answered 51.",
        lambda seen: seen.ingest.counts.expired,
    ),
    Number(
        "requests_held",
        "gauge",
        "Requests that wait for admission.",
        lambda seen: seen.ingest.held_requests,
    ),
    Family(
        "receivers.settled",
        "counter",
        "Verdicts of receivers on messages, by verdict.",
        "verdict",
        lambda seen: dict(sorted(seen.receivers.settled.items())),
    ),
    Number(
        "receivers.unknown",
        "counter",
        "Verdicts among them on what was not unsettled on their connection.",
        lambda seen: seen.receivers.unknown,
    ),
    Number(
        "receivers.attached",
        "counter",
        "Times that a receiver was attached.",
        lambda seen: seen.receivers.attached,
    ),
    Number(
        "receivers.refused",
        "counter",
        "Times that a receiver was not attached.",
        lambda seen: seen.receivers.refused,
    ),
    Number(
        "clock_held",
        "gauge",
        "1 while the clock is not trusted, so that nothing is delivered.",
        lambda seen: seen.duty.clock_held,
    ),
    Number(
        "demotions",
        "counter",
        "Times the node lost the role of the master.",
        lambda seen: seen.demotions,
    ),
)

NUMBERS_OF_REGISTRATION: Final[tuple[Number[Registration] | Family[Registration], ...]] = (
    Number(
        "meta_connected",
        "gauge",
        "1 while a meta server answers.",
        lambda registration: bool(registration.meta),
    ),
    Number(
        "meta_away_seconds",
        "gauge",
        "Seconds for which no meta server has answered.",
        lambda registration: registration.away_ms / 1000,
    ),
    Number(
        "meta_answers",
        "counter",
        "Answers of meta servers with the group's record.",
        lambda registration: registration.answers,
    ),
    Number(
        "meta_failures",
        "counter",
        "Registrations that were not answered.",
        lambda registration: registration.failures,
    ),
    Family("role", "gauge", "1 for the role that the node has.", "role", _roles),
    Number("accepts", "gauge", "1 while the group's record lets the node accept.", takes_messages),
    Number("epoch", "gauge", "Epoch of the group.", _epoch),
    Number("in_sync", "gauge", "Size of the group's in-sync set.", _in_sync),
    Number("min_isr", "gauge", "Size below which the in-sync set never gets.", _min_isr),
    Number("replicas", "gauge", "Nodes of the group that are registered.", _replicas),
    Number(
        "clock_ahead_seconds",
        "gauge",
        "By how much the wall clock is ahead of the meta server's, beyond what a delay explains.",
        lambda registration: registration.clock_ahead_ms / 1000,
    ),
)


def _snapshot_s(node: Node) -> float:
    copy = None if node.replica is None else node.replica.snapshot
    return 0 if copy is None else round(trio.current_time() - copy.began_at, 3)


NUMBERS_OF_REPLICATION: Final[tuple[Number[Node] | Family[Node], ...]] = (
    Number(
        "replication.committed",
        "gauge",
        "Last record that is committed: each disk that has to have it has it.",
        lambda node: node.commit_point.committed - 1,
    ),
    Number(
        "replication.outcomes_uncommitted",
        "gauge",
        "Outcomes that are durable here and not committed: a takeover would send again.",
        _uncommitted,
    ),
    Number(
        "replication.snapshot_seconds",
        "gauge",
        "Time since the copy of a snapshot began that is under way here; 0 if none is.",
        _snapshot_s,
    ),
    Number(
        "replication.unfit",
        "gauge",
        "1 while another node in sync should be the master.",
        lambda node: bool(why_unfit(node.condition())),
    ),
    Family(
        "replication.faults",
        "counter",
        "Requests to follow refused, slaves that said what cannot be, batches not appended.",
        "kind",
        faults_of,
    ),
)
"""Of a node that is a replica, or has any."""

NUMBERS_OF_OTHER: Final[tuple[Number[Other], ...]] = (
    Number(
        "in_sync",
        "gauge",
        "1 while its disk is in the group's in-sync set.",
        lambda other: int(other.is_in_sync),
    ),
    Number("lag", "gauge", "Records that are not durable there.", lambda other: other.lag),
    Number(
        "lag_seconds",
        "gauge",
        "Time since the end of the log was where it has got to.",
        lambda other: other.lag_s,
    ),
    Number(
        "filing_lag_seconds",
        "gauge",
        "Time since the commit was where its filing has got to.",
        lambda other: other.filing_lag_s,
    ),
    Number(
        "drops",
        "gauge",
        "Times that it was dropped from the in-sync set in the last ten minutes.",
        lambda other: other.drops,
    ),
    Number(
        "clock_ahead_seconds",
        "gauge",
        "By how much its wall clock is ahead of the master's, beyond what a delay explains.",
        lambda other: other.clock_ahead_s,
    ),
)
"""Of each other node of a group, as its master sees it."""

NUMBERS_OF_NODE: Final[tuple[Number[Node], ...]] = (
    # The logs
    Number(
        "replay_lag",
        "gauge",
        "Records, facts included, that are committed and not yet filed.",
        _replay_lag,
    ),
    Number(
        "replay_lag_bytes",
        "gauge",
        "Bytes that are committed and not yet filed.",
        lambda node: node.filer.backlog_bytes,
    ),
    Number(
        "gathered_bytes",
        "gauge",
        "Bytes that are filed in memory and not yet written.",
        lambda node: node.store.schedule.pile_bytes,
    ),
    Number("checkpoints", "counter", "Checkpoints written.", lambda node: node.checkpoints.written),
    Number("segments_sealed", "counter", "Segments sealed.", lambda node: node.store.sealed),
    Number(
        "segments", "gauge", "Unsealed segments.", lambda node: len(node.store.schedule.segments)
    ),
    Number(
        "segments_sealed_on_disk",
        "gauge",
        "Sealed segments on disk.",
        lambda node: len(node.store.seals_log.live),
    ),
    Number(
        "retired_files",
        "gauge",
        "Files that are not needed and wait to be deleted.",
        lambda node: node.store.retention.retired,
    ),
    Number(
        "files_deleted",
        "counter",
        "Files deleted.",
        lambda node: node.store.retention.files_deleted,
    ),
    Number(
        "first_sequence",
        "gauge",
        "First sequence that the message_log keeps.",
        lambda node: node.store.message_log.first_sequence,
    ),
    Number(
        "last_sequence",
        "gauge",
        "Last sequence of the message_log.",
        lambda node: node.store.message_log.next_sequence - 1,
    ),
    # Files and free disk
    Number(
        "damaged",
        "gauge",
        "Damaged places found since the start, or since all was copied anew.",
        lambda node: node.damages.count,
    ),
    Number(
        "copies_anew",
        "counter",
        "Damaged data directories given up for a new copy.",
        lambda node: node.damages.copies,
    ),
    Number(
        "unreadable_files",
        "gauge",
        "Files whose reading failed and is retried.",
        lambda node: len(node.store.schedule.troubles.unread),
    ),
    Number(
        "disk_free_bytes",
        "gauge",
        "Free bytes of the file system.",
        _of_disk(lambda budget: budget.free),
    ),
    Number(
        "disk_owed_bytes",
        "gauge",
        "Bytes that accepted messages will still take on disk.",
        _of_disk(lambda budget: budget.owed),
    ),
    Number(
        "disk_floor_bytes",
        "gauge",
        "Free bytes below which messages are refused.",
        _of_disk(lambda budget: budget.floor),
    ),
    Number(
        "disk_bytes", "gauge", "Size of the file system.", _of_disk(lambda budget: budget.total)
    ),
    Number(
        "disk_full",
        "gauge",
        "1 while messages are refused because free disk is at its floor.",
        lambda node: node.upkeep.disk_is_full,
    ),
    # What is known
    Number(
        "pending", "gauge", "Messages without an outcome.", lambda node: node.store.schedule.pending
    ),
    Number(
        "subjects",
        "gauge",
        "Subjects whose names are in memory.",
        lambda node: len(node.store.schedule.subjects),
    ),
    Number(
        "subjects_bytes",
        "gauge",
        "Bytes of memory that the names of subjects take.",
        lambda node: node.store.schedule.subjects.bytes_held,
    ),
    Number("controls.taken", "counter", "Controls taken over from a meta server.", _controls_taken),
    Number(
        "controls.kept",
        "gauge",
        "1 while the node keeps other controls than those of its meta server.",
        _controls_kept,
    ),
    Number(
        "recovery_seconds", "gauge", "Duration of the recovery.", lambda node: node.recovery_seconds
    ),
)

NUMBERS: Final[tuple[Number[Parts] | Family[Parts] | Histogram[Parts], ...]] = (
    # Commits
    Number(
        "commits",
        "counter",
        "Group commits of the message_log.",
        lambda parts: parts.master.committer.commits,
    ),
    Histogram(
        "fsync_seconds",
        "Duration of the write and fsync of a group commit.",
        lambda parts: parts.master.committer.seconds,
    ),
    # What cannot be read
    Number(
        "read_failures",
        "counter",
        "Reads of files that failed.",
        lambda parts: parts.master.loader.read_failures + parts.master.read_retries.failures,
    ),
    Number(
        "unread_messages",
        "gauge",
        "Due messages whose reading failed and is retried.",
        lambda parts: parts.master.read_retries.count,
    ),
    Number(
        "undeliverable",
        "gauge",
        "Due messages whose bytes are damaged.",
        lambda parts: parts.master.undeliverable.count,
    ),
    # Where messages are
    Family("undelivered", "gauge", "Messages without an outcome, by place.", "place", counts),
    Number(
        "wheel_entries",
        "gauge",
        "Index entries in the wheel.",
        lambda parts: len(parts.master.wheel),
    ),
    Family(
        "wheel_messages", "gauge", "Messages in the wheel, by subject.", "subject", top_subjects
    ),
    Number(
        "held_entries",
        "gauge",
        "Index entries in the wheel and the sender.",
        lambda parts: parts.master.loader.held,
    ),
    Number(
        "wheel_evicted",
        "counter",
        "Index entries evicted from the wheel to make room.",
        lambda parts: parts.master.loader.evicted,
    ),
    Number(
        "slices_loaded",
        "counter",
        "Slices of segments loaded into the wheel.",
        lambda parts: parts.master.loader.slices,
    ),
    Number(
        "late",
        "gauge",
        "Messages that are due and not yet confirmed.",
        lambda parts: parts.master.late_now,
    ),
    # Lanes and routes
    Number(
        "lanes_waiting",
        "gauge",
        "Subjects whose backlog waits on disk.",
        lambda parts: parts.master.lanes.parked.waiting_count,
    ),
    Number(
        "lanes_opened",
        "counter",
        "Times that a backlog of a subject went to disk.",
        lambda parts: parts.master.lanes.parked.opened,
    ),
    Number(
        "lane_messages",
        "counter",
        "Messages of backlogs read from disk.",
        lambda parts: parts.master.backlog_reader.drained,
    ),
    Number(
        "lane_dropped",
        "counter",
        "Index entries dropped from memory to be read again.",
        lambda parts: parts.master.lanes.backlog.total,
    ),
    Number(
        "unrouted.subjects",
        "gauge",
        "Subjects that wait for a route.",
        _of_unrouted(lambda parts: parts.master.lanes.unrouted(0).subjects),
    ),
    Number(
        "unrouted.subjects_max",
        "gauge",
        "Limit of the subjects that wait for a route.",
        _of_unrouted(lambda parts: parts.master.lanes.parked.unrouted_max),
    ),
    Number(
        "subjects_put_off",
        "counter",
        "First messages of new subjects put off.",
        _put_off,
    ),
    Number(
        "unrouted.messages",
        "gauge",
        "Due messages on disk that wait for a route.",
        _of_unrouted(_unrouted_messages),
    ),
    Number(
        "unrouted.oldest_seconds",
        "gauge",
        "Lateness of the first message that waits for a route.",
        _of_unrouted(lambda parts: _age_s(parts, parts.master.lanes.unrouted(0).oldest_due_ms)),
    ),
    Number(
        "routes.connected",
        "gauge",
        "1 while a meta server answers requests for routes.",
        _of_unrouted(_routes_connected),
    ),
    Number(
        "routes.subjects",
        "gauge",
        "Subjects whose routes are kept.",
        _of_routes(lambda routes: len(routes.session)),
    ),
    Number(
        "routes.distinct",
        "gauge",
        "Routes that differ in their broker groups.",
        _of_routes(lambda routes: routes.routes),
    ),
    Number(
        "routes.changes",
        "counter",
        "Routes added, changed or removed.",
        _of_routes(lambda routes: routes.counts.changes),
    ),
    Number(
        "routes.questions",
        "counter",
        "Requests for a route.",
        _of_routes(lambda routes: routes.session.counts.questions),
    ),
    Number(
        "routes.answers",
        "counter",
        "Answers to requests for a route.",
        _of_routes(lambda routes: routes.session.counts.answers),
    ),
    Number(
        "routes.pushes",
        "counter",
        "Changes of routes pushed by a meta server.",
        _of_routes(lambda routes: routes.session.counts.pushes),
    ),
    Number(
        "routes.refusals",
        "counter",
        "Requests for a route that a meta server refused.",
        _of_routes(lambda routes: routes.session.counts.refusals),
    ),
    # Controls
    Number(
        "paused.subjects",
        "gauge",
        "Paused subjects that have messages waiting.",
        lambda parts: parts.master.lanes.paused(0).subjects,
    ),
    Number(
        "controls.paused_rules",
        "gauge",
        "Rules that pause subjects.",
        lambda parts: _paused(parts.master.outlet.applied.subjects.values()),
    ),
    Number(
        "controls.paused_groups",
        "gauge",
        "Broker groups that are paused.",
        lambda parts: _paused(parts.master.outlet.applied.groups.values()),
    ),
    Number(
        "controls.group_rules",
        "gauge",
        "Rules that pause or limit broker groups.",
        lambda parts: len(parts.master.outlet.applied.groups),
    ),
    Number(
        "controls.version",
        "gauge",
        "Version of the controls.",
        lambda parts: parts.master.outlet.applied.version,
    ),
    # Dead letters
    Number(
        "dead.pending",
        "gauge",
        "Dead letters, neither requeued nor dropped.",
        lambda parts: parts.master.dead_letters.pending,
    ),
    Number("dead.oldest_seconds", "gauge", "Age of the oldest dead letter.", _dead_age_s),
    Number(
        "dead.max",
        "gauge",
        "Limit of the dead letters; beyond it refused messages are retried.",
        lambda parts: parts.master.dead_letters.config.pending_max,
    ),
    Number(
        "dead.being_recorded",
        "gauge",
        "Messages given up whose dead letter is not yet durable.",
        lambda parts: parts.master.dead_recorder.count,
    ),
    Number(
        "dead.requeued",
        "counter",
        "Dead letters requeued.",
        lambda parts: parts.master.dead_letters.requeued,
    ),
    Number(
        "dead.dropped",
        "counter",
        "Dead letters dropped.",
        lambda parts: parts.master.dead_letters.dropped,
    ),
    # Deliveries
    Family("dispatched", "counter", "Messages with an outcome, by outcome.", "outcome", _outcomes),
    Histogram(
        "delivery_lateness_seconds",
        "Time from the due time to the broker's confirmation.",
        lambda parts: parts.lateness.all,
    ),
    Histogram(
        "fact_age_seconds",
        "Time from an outcome until it is durable; a crash in between delivers again.",
        lambda parts: parts.master.fact_recorder.ages,
    ),
)

NUMBERS_OF_GROUP: Final[tuple[Number[GroupStatus], ...]] = (
    Number(
        "tries",
        "counter",
        "Requests sent to the broker group.",
        lambda group: group.counts.requests,
    ),
    Number(
        "delivered",
        "counter",
        "Messages that the broker group took.",
        lambda group: group.counts.delivered,
    ),
    Number(
        "known",
        "counter",
        "Messages that the broker group had already.",
        lambda group: group.counts.known,
    ),
    Number(
        "refused",
        "counter",
        "Messages that the broker group refused.",
        lambda group: group.counts.refused,
    ),
    Number(
        "retries",
        "counter",
        "Messages retried, by any group, after this group failed or refused them.",
        lambda group: group.counts.refused + group.counts.possible_duplicates,
    ),
    Number(
        "possible_duplicates",
        "counter",
        "Messages retried that the broker group may have taken.",
        lambda group: group.counts.possible_duplicates,
    ),
    Number(
        "in_flight",
        "gauge",
        "Messages sent to the broker group and not answered.",
        lambda group: group.in_flight,
    ),
    Number(
        "queued", "gauge", "Messages that wait for the broker group.", lambda group: group.queued
    ),
    Number(
        "queue_items_max",
        "gauge",
        "Limit of the messages that wait for the broker group.",
        lambda group: group.queue_items,
    ),
    Number(
        "failures",
        "gauge",
        "Failures in a row; 0 while the broker group takes messages.",
        lambda group: group.failures,
    ),
    Number(
        "up",
        "gauge",
        "1 while the broker group is connected and its circuit is closed.",
        lambda group: int(group.is_trusted),
    ),
    Number(
        "fenced",
        "gauge",
        "1 if the broker group fences this node: it knows a newer epoch.",
        lambda group: int(group.state is GroupState.FENCED),
    ),
    Number(
        "circuit_openings",
        "counter",
        "Times that the circuit opened.",
        lambda group: group.counts.changes[CircuitState.OPEN],
    ),
    Number("weight", "gauge", "Configured weight.", lambda group: group.weight),
    Number(
        "effective_weight",
        "gauge",
        "Weight that counts now; 0 while the broker group gets nothing.",
        lambda group: round(group.effective_weight, 4),
    ),
    Number(
        "slow",
        "gauge",
        "1 while answers take longer than sender.slow_s.",
        lambda group: int(group.is_slow),
    ),
    Number(
        "answer_seconds",
        "gauge",
        "Recent time to an answer.",
        lambda group: round(group.answer_s, 6),
    ),
    Number(
        "window_requests",
        "gauge",
        "Limit of the unanswered requests.",
        lambda group: group.window_requests,
    ),
    Number(
        "paused",
        "gauge",
        "1 while a rule pauses the broker group.",
        lambda group: int(group.rule.paused),
    ),
    Number(
        "rate_limit",
        "gauge",
        "Rate limit in messages a second.",
        lambda group: group.rule.rate_per_s,
    ),
)
