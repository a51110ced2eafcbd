"""Every number that a meta server shows: one row for each, with its name, kind, text and source.

GET /metrics   all rows, as delaywheel_meta_<name>, counters with _total
GET /status    all but NUMBERS_OF_ROWS under the same names: it has the rows themselves
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import trio

from delay_protocol.meta.requests import BrokerState
from meta_server.admin.parts import Parts

GROUPS_SHOWN_MAX: Final = 200
"""Broker groups that get labels of their own; of further ones only the number in a state shows."""

ELECTION_KINDS: Final = ("restarted", "silent", "blocked", "unfit")
"""Why: the master was started again, was not heard, could not send, or was to hand over."""

Labelled = Mapping[tuple[str, ...], float]
"""Numbers by the values of their labels."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number."""

    name: str
    kind: Literal["counter", "gauge"]
    """A counter only grows."""
    text: str
    value: Callable[[Parts], float]


@dataclass(frozen=True, slots=True)
class Family:
    """A number for each of several labels, or of their combinations."""

    name: str
    kind: Literal["counter", "gauge"]
    text: str
    labels: tuple[str, ...]
    values: Callable[[Parts], Labelled]


def _by_one(counts: Mapping[str, int]) -> Labelled:
    return {(label,): count for label, count in sorted(counts.items())}


def _groups_by_state(parts: Parts) -> Labelled:
    states = Counter(group.state for group in parts.registry.groups.values())
    return {(BrokerState(state).name.lower(),): states[state] for state in BrokerState}


def _groups_up(parts: Parts) -> Labelled:
    groups = parts.registry.groups
    return {
        (name, groups[name].kind.name.lower()): int(groups[name].state is not BrokerState.NRW)
        for name in _shown(groups)
    }


def _epochs(parts: Parts) -> Labelled:
    groups = parts.registry.delay_groups
    return {(name,): groups[name].record.epoch for name in _shown(groups)}


def _controls_versions(parts: Parts) -> Labelled:
    controls = parts.registry.controls
    return {(cluster,): controls[cluster].version for cluster in _shown(controls)}


def _shown(names: Iterable[str]) -> list[str]:
    return sorted(names)[:GROUPS_SHOWN_MAX]


NUMBERS: Final[tuple[Number | Family, ...]] = (
    # Requests
    Family(
        "requests",
        "counter",
        "Requests.",
        ("command",),
        lambda parts: _by_one(parts.handlers.requests),
    ),
    Family(
        "requests_refused",
        "counter",
        "Refusals.",
        ("command",),
        lambda parts: _by_one(parts.handlers.replies.refusals.by_command),
    ),
    Number(
        "nodes_authenticated",
        "counter",
        "Proved the secret.",
        lambda parts: parts.credentials.authenticated,
    ),
    Number(
        "nodes_unauthenticated",
        "counter",
        "Did not.",
        lambda parts: parts.credentials.unauthenticated,
    ),
    Family(
        "admin_changes",
        "counter",
        "Changes by administrators.",
        ("action",),
        lambda parts: _by_one(parts.administration.changes),
    ),
    Family(
        "admin_denied",
        "counter",
        "Turned away.",
        ("reason",),
        lambda parts: _by_one(parts.entrance.gate.denied),
    ),
    Number("admin_requests", "gauge", "Worked on now.", lambda parts: parts.entrance.busy),
    Number(
        "requests_waiting",
        "gauge",
        "Waiting for the store.",
        lambda parts: parts.committer.waiting,
    ),
    Number(
        "subscriptions",
        "gauge",
        "Routes kept up to date.",
        lambda parts: parts.pusher.subscriptions,
    ),
    Number(
        "subscriptions_unkept",
        "counter",
        "One too many.",
        lambda parts: parts.pusher.counts.unkept,
    ),
    Number("pushes", "counter", "Routes pushed.", lambda parts: parts.pusher.counts.pushes),
    Number(
        "push_rounds",
        "counter",
        "Looks at all subscriptions.",
        lambda parts: parts.pusher.counts.rounds,
    ),
    Number(
        "pushes_delayed",
        "counter",
        "Clients not ready for one.",
        lambda parts: parts.pusher.counts.delayed,
    ),
    Number(
        "groups_set_back",
        "gauge",
        "Delay groups whose newest record the store lacks, or may lack.",
        lambda parts: len(parts.set_backs.all_behind()),
    ),
    Number(
        "controls_told",
        "counter",
        "Controls told to delay servers.",
        lambda parts: parts.telling.told,
    ),
    # What is known
    Number("subjects", "gauge", "Subjects.", lambda parts: len(parts.registry.subjects)),
    Number(
        "routes", "gauge", "Routes of single subjects.", lambda parts: len(parts.registry.routes)
    ),
    Number(
        "prefix_routes", "gauge", "Routes of prefixes.", lambda parts: len(parts.registry.prefixes)
    ),
    Number(
        "group_moves",
        "counter",
        "Groups that came from elsewhere.",
        lambda parts: parts.handlers.brokers.moves,
    ),
    Number(
        "groups_waiting",
        "gauge",
        "Groups that an operator has to let in.",
        lambda parts: len(parts.handlers.admission.waiting.all(trio.current_time())),
    ),
    Number("delay_nodes", "gauge", "Delay nodes.", lambda parts: len(parts.registry.nodes)),
    Number(
        "controls_nodes_behind",
        "gauge",
        "Nodes that go by other controls.",
        lambda parts: sum(bool(parts.telling.note_of(key)) for key in parts.registry.nodes),
    ),
    # The store
    Number(
        "load_seconds", "gauge", "Loading the store at the start.", lambda parts: parts.load_seconds
    ),
    Number("commits", "counter", "Commits of the store.", lambda parts: parts.committer.commits),
    Number("changes", "counter", "Changes in them.", lambda parts: parts.committer.changes),
    Number(
        "store_failures",
        "counter",
        "Failures of the store.",
        lambda parts: parts.committer.failures,
    ),
    Number(
        "store_conflicts",
        "counter",
        "Commits somebody was before.",
        lambda parts: parts.committer.conflicts,
    ),
    Number(
        "store_up",
        "gauge",
        "1 unless the store failed.",
        lambda parts: int(not parts.committer.is_stale),
    ),
    Number(
        "stalls",
        "counter",
        "Times the process was not running.",
        lambda parts: parts.silence.stalls,
    ),
)


def _elections(parts: Parts) -> Labelled:
    begun = parts.handlers.group_changes.begun
    groups = _shown(parts.registry.delay_groups)
    return {(name, kind): begun[name, kind] for name in groups for kind in ELECTION_KINDS}


NUMBERS_OF_ROWS: Final[tuple[Family, ...]] = (
    Family("groups", "gauge", "Groups, by state.", ("state",), _groups_by_state),
    Family("group_up", "gauge", "1 unless the group is NRW.", ("group", "kind"), _groups_up),
    Family("epoch", "gauge", "Epoch.", ("group",), _epochs),
    Family(
        "elections",
        "counter",
        "Elections and handovers that no operator asked for.",
        ("group", "reason"),
        _elections,
    ),
    Family("controls_version", "gauge", "Counted up by changes.", ("cluster",), _controls_versions),
)
