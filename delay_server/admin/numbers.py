"""Every number that a delay server shows: one row for each, with its name, kind, text and source.

    GET /metrics   all rows, as delaywheel_<name>, counters with _total
    GET /status    the rows that have a place there: `key`, in sections parted by a dot

A row whose value is None is left out: there is nothing of the kind.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

from delay_protocol.nodes.registration import NodeRole
from delay_server.admin.explain import counts
from delay_server.admin.parts import Observed, Parts
from delay_server.lanes.routes import SubjectRoutes
from delay_server.membership.registration import Registration
from delay_server.sending.lateness import Distribution

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
    key: str = ""
    """Its place in the status; empty: it is not there."""


@dataclass(frozen=True, slots=True)
class Family(Generic[Source]):
    """A number for each value of a label."""

    name: str
    kind: Literal["counter", "gauge"]
    text: str
    label: str
    values: Callable[[Source], Labelled]
    key: str = ""


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


def _replay_lag(parts: Parts) -> int:
    store = parts.node.store
    # Read while other threads write: what is filed may be newer than what is committed.
    return max(0, store.message_log.next_sequence - 1 - store.schedule.last_filed)


def _age_s(parts: Parts, since_ms: int | None) -> float:
    return 0 if since_ms is None else max(parts.pacer.now_ms() - since_ms, 0) / 1000


def _dead_age_s(parts: Parts) -> float:
    letters = parts.master.dead_letters
    return _age_s(parts, letters.oldest_ms) if letters.pending else 0


def _of_routes(value: Callable[[SubjectRoutes], Value]) -> Callable[[Parts], Value]:
    """Return a number of the routes; None where every message goes to the brokers of a setting."""
    return lambda parts: None if parts.master.routes is None else value(parts.master.routes)


def _of_unrouted(value: Callable[[Parts], Value]) -> Callable[[Parts], Value]:
    return lambda parts: None if parts.master.routes is None else value(parts)


def _unrouted_messages(parts: Parts) -> int:
    unrouted = parts.master.lanes.unrouted(0)
    return unrouted.messages + unrouted.forgotten


def _routes_connected(parts: Parts) -> int:
    meta = parts.master.meta_routes
    return int(meta is not None and meta.peer is not None)


def _put_off(parts: Parts) -> Value:
    new = parts.master.new_subjects
    return None if new is None else new.put_off_count


def _controls_taken(parts: Parts) -> Value:
    following = parts.node.controls_sync
    return None if following is None else following.taken


def _controls_kept(parts: Parts) -> Value:
    following = parts.node.controls_sync
    return None if following is None else int(bool(following.keeps or following.trouble))


def _refused(observed: Observed) -> Labelled:
    return dict(sorted(observed.ingest.counts.refused.items()))


def _outcomes(parts: Parts) -> Labelled:
    outcomes = list(parts.master.fact_recorder.outcomes.items())
    return {outcome.name.lower(): count for outcome, count in outcomes}


def _roles(registration: Registration) -> Labelled:
    standing = registration.permission
    return {role.value: int(standing is not None and standing.role is role) for role in NodeRole}


def _epoch(registration: Registration) -> Value:
    standing = registration.permission
    return None if standing is None else standing.record.epoch


def _in_sync(registration: Registration) -> Value:
    standing = registration.permission
    return None if standing is None else len(standing.record.in_sync)


def _paused(rules: Iterable[object]) -> int:
    return sum(bool(getattr(rule, "paused")) for rule in rules)  # noqa: B009 (of either kind)


NUMBERS_OF_PROCESS: Final[tuple[Number[Observed] | Family[Observed], ...]] = (
    Number(
        "messages_accepted",
        "counter",
        "Messages made durable.",
        lambda seen: seen.ingest.counts.accepted,
        "accepted",
    ),
    Number(
        "accepted_bytes",
        "counter",
        "Bytes of accepted messages.",
        lambda seen: seen.ingest.counts.accepted_bytes,
    ),
    Family(
        "messages_refused",
        "counter",
        "Refused messages, by item code.",
        "reason",
        _refused,
        "refused",
    ),
    Number(
        "requests",
        "counter",
        "SEND_MESSAGE requests received.",
        lambda seen: seen.ingest.counts.requests,
    ),
    Number(
        "requests_indivisible",
        "counter",
        "Requests answered 51: none of their messages was accepted.",
        lambda seen: seen.ingest.counts.indivisible,
    ),
    Number(
        "requests_expired",
        "counter",
        "Held requests whose time ran out.",
        lambda seen: seen.ingest.counts.expired,
    ),
    Number(
        "requests_held",
        "gauge",
        "Requests that wait for admission.",
        lambda seen: seen.ingest.held_requests,
        "held_requests",
    ),
    Number(
        "clock_held",
        "gauge",
        "1 while the clock is not trusted and nothing is delivered.",
        lambda seen: seen.clock_held,
        "clock_held",
    ),
    Number(
        "demotions",
        "counter",
        "Times the node lost the role of the master.",
        lambda seen: seen.demotions,
        "demotions",
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
        "Registrations that no meta server answered.",
        lambda registration: registration.failures,
    ),
    Family("role", "gauge", "1 for the present role of the node.", "role", _roles),
    Number(
        "accepts",
        "gauge",
        "1 while the group's record lets the node accept.",
        lambda registration: registration.accepts,
    ),
    Number(
        "epoch",
        "gauge",
        "Epoch of the group.",
        _epoch,
    ),
    Number(
        "in_sync",
        "gauge",
        "Disks in the group's in-sync set.",
        _in_sync,
    ),
)

NUMBERS: Final[tuple[Number[Parts] | Family[Parts] | Histogram[Parts], ...]] = (
    # The logs
    Number(
        "commits",
        "counter",
        "Group commits of the message_log.",
        lambda parts: parts.master.committer.commits,
    ),
    Histogram(
        "fsync_seconds", "Write and fsync of a group commit.", lambda parts: parts.commit_seconds
    ),
    Number(
        "replay_lag_messages",
        "gauge",
        "Messages that are committed and not filed yet.",
        _replay_lag,
        "replay_lag",
    ),
    Number(
        "replay_lag_bytes",
        "gauge",
        "Bytes that are committed and not filed yet.",
        lambda parts: parts.node.filer.backlog_bytes,
    ),
    Number(
        "gathered_bytes",
        "gauge",
        "Bytes that are filed in memory and wait to be written.",
        lambda parts: parts.node.store.schedule.pile_bytes,
    ),
    Number(
        "checkpoints",
        "counter",
        "Checkpoints written.",
        lambda parts: parts.node.checkpoints.written,
    ),
    Number(
        "segments_sealed",
        "counter",
        "Segments sealed.",
        lambda parts: parts.node.store.sealed,
        "sealed",
    ),
    Number(
        "segments",
        "gauge",
        "Unsealed segments.",
        lambda parts: len(parts.node.store.schedule.segments),
        "segments",
    ),
    Number(
        "sealed_segments",
        "gauge",
        "Sealed segments on disk.",
        lambda parts: len(parts.node.store.seals_log.live),
        "sealed_on_disk",
    ),
    Number(
        "retired_files",
        "gauge",
        "Files that nothing needs and that are deleted soon.",
        lambda parts: parts.node.store.retention.retired,
        "retired_files",
    ),
    Number(
        "files_deleted",
        "counter",
        "Files deleted.",
        lambda parts: parts.node.store.retention.files_deleted,
        "files_deleted",
    ),
    Number(
        "first_sequence",
        "gauge",
        "First sequence that the message_log still has.",
        lambda parts: parts.node.store.message_log.first_sequence,
    ),
    # What cannot be read
    Number(
        "unreadable_files",
        "gauge",
        "Unreadable files that are retried.",
        lambda parts: len(parts.node.store.schedule.unread),
    ),
    Number(
        "read_failures",
        "counter",
        "Reads of files that failed.",
        lambda parts: parts.master.loader.read_failures + parts.master.read_retries.failures,
    ),
    Number(
        "unread_messages",
        "gauge",
        "Due messages that could not be read and are retried.",
        lambda parts: parts.master.read_retries.count,
    ),
    Number(
        "damaged",
        "gauge",
        "Damaged places found since the start.",
        lambda parts: parts.damages.count,
        "damaged",
    ),
    Number(
        "undeliverable_messages",
        "gauge",
        "Due messages whose bytes are damaged.",
        lambda parts: parts.master.undeliverable,
        "undeliverable",
    ),
    # The disk
    Number(
        "disk_free_bytes",
        "gauge",
        "Free bytes of the file system.",
        lambda parts: parts.node.budget.free,
        "disk_free_bytes",
    ),
    Number(
        "disk_owed_bytes",
        "gauge",
        "Bytes still to be written for accepted messages.",
        lambda parts: parts.node.budget.owed,
        "disk_owed_bytes",
    ),
    Number(
        "disk_floor_bytes",
        "gauge",
        "Disk floor: bytes that stay free beside those owed.",
        lambda parts: parts.node.budget.floor,
        "disk_floor_bytes",
    ),
    Number(
        "disk_bytes",
        "gauge",
        "Size of the file system.",
        lambda parts: parts.node.budget.total,
    ),
    Number(
        "disk_full",
        "gauge",
        "1 while messages are refused because free disk is at its floor.",
        lambda parts: parts.node.disk_is_full,
        "disk_full",
    ),
    # Where messages are
    Number(
        "scheduled_messages",
        "gauge",
        "Messages without an outcome.",
        lambda parts: parts.node.store.schedule.pending,
    ),
    Family(
        "undelivered_messages",
        "gauge",
        "Messages without an outcome, by place.",
        "place",
        counts,
        "undelivered",
    ),
    Number(
        "wheel_entries",
        "gauge",
        "Index entries in the wheel.",
        lambda parts: len(parts.master.wheel),
        "wheel",
    ),
    Family(
        "wheel_messages",
        "gauge",
        "Messages in the wheel, by subject.",
        "subject",
        top_subjects,
        "subjects",
    ),
    Number(
        "held_entries",
        "gauge",
        "Index entries in the wheel and the sender.",
        lambda parts: parts.master.loader.held,
        "held",
    ),
    Number(
        "wheel_evicted",
        "counter",
        "Index entries evicted from the wheel to make room.",
        lambda parts: parts.master.loader.evicted,
        "evicted",
    ),
    Number(
        "slices_loaded",
        "counter",
        "Slices of segments loaded into the wheel.",
        lambda parts: parts.master.loader.slices,
    ),
    Number(
        "late_messages",
        "gauge",
        "Messages that are due and not delivered.",
        lambda parts: parts.master.late_now,
        "late",
    ),
    Number(
        "subjects",
        "gauge",
        "Subjects whose names are in memory.",
        lambda parts: len(parts.node.store.schedule.subjects),
    ),
    Number(
        "subjects_bytes",
        "gauge",
        "Bytes of memory for subjects, by their names.",
        lambda parts: parts.node.store.schedule.subjects.bytes_held,
    ),
    # Lanes and routes
    Number(
        "lanes_waiting",
        "gauge",
        "Subjects whose backlog waits on disk.",
        lambda parts: parts.master.lanes.waiting_count,
    ),
    Number(
        "lanes_opened",
        "counter",
        "Times a backlog went to disk.",
        lambda parts: parts.master.backlog_reader.opened,
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
        lambda parts: parts.master.lanes.dropped,
    ),
    Number(
        "unrouted_subjects",
        "gauge",
        "Subjects that wait for a route.",
        _of_unrouted(lambda parts: parts.master.lanes.unrouted(0).subjects),
        "unrouted.subjects",
    ),
    Number(
        "unrouted_subjects_max",
        "gauge",
        "Subjects that may wait for a route at a time.",
        _of_unrouted(lambda parts: parts.master.lanes.unrouted_max),
    ),
    Number(
        "subjects_put_off",
        "counter",
        "First messages of new subjects put off.",
        _put_off,
    ),
    Number(
        "unrouted_messages",
        "gauge",
        "Due messages on disk that wait for a route.",
        _of_unrouted(_unrouted_messages),
        "unrouted.messages",
    ),
    Number(
        "unrouted_oldest_seconds",
        "gauge",
        "Lateness of the first message that waits for a route.",
        _of_unrouted(lambda parts: _age_s(parts, parts.master.lanes.unrouted(0).oldest_due_ms)),
    ),
    Number(
        "routes_connected",
        "gauge",
        "1 while a meta server answers questions for routes.",
        _of_unrouted(_routes_connected),
    ),
    Number(
        "routed_subjects",
        "gauge",
        "Subjects whose routes are kept.",
        _of_routes(lambda routes: len(routes.session)),
        "routes.subjects",
    ),
    Number(
        "routes",
        "gauge",
        "Different sets of broker groups.",
        _of_routes(lambda routes: routes.routes),
        "routes.routes",
    ),
    Number(
        "route_changes",
        "counter",
        "Routes added, changed or removed.",
        _of_routes(lambda routes: routes.counts.changes),
        "routes.changes",
    ),
    Number(
        "route_questions",
        "counter",
        "Requests for a route sent to the meta server.",
        _of_routes(lambda routes: routes.session.counts.questions),
        "routes.questions",
    ),
    Number(
        "route_answers",
        "counter",
        "Answers to requests for a route.",
        _of_routes(lambda routes: routes.session.counts.answers),
        "routes.answers",
    ),
    Number(
        "route_pushes",
        "counter",
        "Changes of routes pushed by a meta server.",
        _of_routes(lambda routes: routes.session.counts.pushes),
        "routes.pushes",
    ),
    Number(
        "route_refusals",
        "counter",
        "Requests for a route that a meta server refused.",
        _of_routes(lambda routes: routes.session.counts.refusals),
        "routes.refusals",
    ),
    Number(
        "route_doubts",
        "counter",
        "Answers and pushes without groups, not applied before routes.doubt_ms.",
        _of_routes(lambda routes: routes.session.counts.doubted),
        "routes.doubted",
    ),
    # Controls
    Number(
        "paused_subjects",
        "gauge",
        "Paused subjects that have messages waiting.",
        lambda parts: parts.master.lanes.paused(0).subjects,
        "paused.subjects",
    ),
    Number(
        "paused_rules",
        "gauge",
        "Rules that pause subjects.",
        lambda parts: _paused(parts.master.outlet.applied.subjects.values()),
        "controls.paused_rules",
    ),
    Number(
        "paused_groups",
        "gauge",
        "Broker groups that are paused.",
        lambda parts: _paused(parts.master.outlet.applied.groups.values()),
    ),
    Number(
        "group_rules",
        "gauge",
        "Rules that pause or limit broker groups.",
        lambda parts: len(parts.master.outlet.applied.groups),
        "controls.group_rules",
    ),
    Number(
        "limits",
        "gauge",
        "Rate limits of subjects.",
        lambda parts: len(parts.master.lane_rules.rates),
        "controls.limits",
    ),
    Number(
        "metered_messages",
        "gauge",
        "Messages held in memory for their rate limit.",
        lambda parts: parts.master.rate_limits.count,
        "controls.metered",
    ),
    Number(
        "metered",
        "counter",
        "Messages that passed a rate limit.",
        lambda parts: parts.master.rate_limits.passed,
    ),
    Number(
        "unmetered",
        "counter",
        "Times a rate limit was not applied because too many lanes have one.",
        lambda parts: parts.master.lane_rules.unmetered,
        "controls.unmetered",
    ),
    Number(
        "controls_version",
        "gauge",
        "Version of the controls; each change counts it up.",
        lambda parts: parts.master.outlet.applied.version,
        "controls.version",
    ),
    Number(
        "controls_taken",
        "counter",
        "Versions of the meta server's controls that the node applied.",
        _controls_taken,
    ),
    Number(
        "controls_kept",
        "gauge",
        "1 while the node applies other controls than those of its meta server.",
        _controls_kept,
    ),
    # Dead letters
    Number(
        "dead_letters",
        "gauge",
        "Dead letters, neither requeued nor dropped.",
        lambda parts: parts.master.dead_letters.pending,
        "dead.pending",
    ),
    Number("dead_letters_oldest_seconds", "gauge", "Age of the oldest dead letter.", _dead_age_s),
    Number(
        "dead_letters_max",
        "gauge",
        "Limit of dead letters; at the limit refused messages are retried.",
        lambda parts: parts.master.dead_letters.config.pending_max,
    ),
    Number(
        "burying_messages",
        "gauge",
        "Messages given up whose dead letter is not durable yet.",
        lambda parts: parts.master.dead_recorder.count,
        "dead.being_recorded",
    ),
    Number(
        "dead_letters_requeued",
        "counter",
        "Dead letters requeued.",
        lambda parts: parts.master.dead_letters.requeued,
        "dead.requeued",
    ),
    Number(
        "dead_letters_dropped",
        "counter",
        "Dead letters dropped.",
        lambda parts: parts.master.dead_letters.dropped,
        "dead.dropped",
    ),
    # Deliveries
    Family(
        "messages_dispatched",
        "counter",
        "Messages with an outcome, by outcome.",
        "outcome",
        _outcomes,
        "dispatched",
    ),
    Histogram(
        "delivery_lateness_seconds",
        "From the due time to the broker's confirmation.",
        lambda parts: parts.lateness.all,
    ),
)

NUMBERS_OF_GROUPS: Final[tuple[tuple[str, Literal["counter", "gauge"], str], ...]] = (
    ("tries", "counter", "Requests sent to a broker group."),
    ("retries", "counter", "Messages retried, at any group, after this one failed."),
    ("possible_duplicates", "counter", "Messages retried that the group may already have."),
    ("in_flight", "gauge", "Messages sent to the group and not answered."),
    ("queued", "gauge", "Messages queued for the group."),
    ("failures", "gauge", "Consecutive failures; 0 while it delivers."),
    ("up", "gauge", "1 while it is connected and its circuit is closed."),
    ("fenced", "gauge", "1 if the group has fenced this node: it refuses its epoch."),
    ("circuit_openings", "counter", "Times its circuit opened."),
    ("weight", "gauge", "Configured weight."),
    ("effective_weight", "gauge", "Effective weight: its present share; 0 if it has none."),
    ("slow", "gauge", "1 while its answers take too long to wait for beside others."),
    ("answer_seconds", "gauge", "Recent response time of the group, in seconds."),
    ("window_requests", "gauge", "Window: requests that the group may leave unanswered."),
    ("paused", "gauge", "1 while an operator has paused it."),
    ("rate_limit", "gauge", "Rate limit of the group, in messages a second; 0 is no limit."),
)
"""Name, kind and text of each number of a broker group: `Mastership.sender_numbers` has them under
that name, the status in `brokers`, the metrics as delaywheel_sender_<name>{target}."""
