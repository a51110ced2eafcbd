"""Requests and answers of the administration API: its validation and its documentation.

Names are those of JSON. The string after a field is its description in the OpenAPI document. Times
are wall clock in ms since 1970 UTC.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from delay_protocol.nodes.controls import (
    PATTERN_BYTES_MAX,
    RATE_MAX,
    RATE_MIN,
    WEIGHT_MAX,
    WEIGHT_MIN,
    GroupControl,
    SubjectControl,
)
from delay_protocol.nodes.registration import REPLICAS_MAX
from meta_server.groups.liveness import Sign
from meta_server.known.model import EVERY

PAGE_MAX = 1000
"""Rows of one page."""

Name = Annotated[str, Meta(min_length=1, max_length=255)]
Text = Annotated[str, Meta(max_length=255)]
Version = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Weight = Annotated[int, Meta(ge=0, le=1_000_000)]
Pattern = Annotated[str, Meta(min_length=1, max_length=PATTERN_BYTES_MAX)]
Rate = Annotated[float, Meta(ge=RATE_MIN, le=RATE_MAX)]
ControlWeight = Annotated[float, Meta(ge=WEIGHT_MIN, le=WEIGHT_MAX)]
Limit = Annotated[int, Meta(ge=1, le=PAGE_MAX)]
Cursor = Annotated[str, Meta(max_length=8192)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Millis = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Groups = Annotated[tuple[Name, ...], Meta(min_length=1, max_length=1000)]
Ext = Annotated[
    dict[Annotated[str, Meta(min_length=1, max_length=100)], Annotated[str, Meta(max_length=1000)]],
    Meta(max_length=32),
]
Kind = Literal["normal", "delay", "receiver"]
State = Literal["RW", "R", "W", "NRW"]
Fit = Literal["fit", "behind", "last", "unfit", "excluded"]
EnteredRole = Literal[
    "MASTER", "SLAVE", "BACKUP", "DELAY", "DELAY_MASTER", "DELAY_SLAVE", "DELAY_BACKUP"
]


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that is asked: a misspelt field is refused, not overlooked."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is answered."""


# Refusals


class ProblemDetail(Answer, frozen=True, kw_only=True):
    """The error."""

    code: str
    """A word for programs: bad-value, not-found, conflict, token, role, host, origin, store, …"""
    message: str
    """A sentence for people."""
    field: str = ""
    """The field, parameter or part of the path that is not allowed; empty if none is to blame."""
    value: str = ""
    """The given value, cut after 100 characters."""
    allowed: str = ""
    """The allowed values."""


class Problem(Answer, frozen=True, kw_only=True):
    """The answer to a refused request."""

    error: ProblemDetail
    """The error."""


class Done(Answer, frozen=True, kw_only=True):
    """The requested state holds."""

    changed: bool
    """True: something was changed; false: it was so before."""


# Parts of the path


class NoPath(Request, frozen=True, kw_only=True):
    """Nothing in the path."""


class NamePath(Request, frozen=True, kw_only=True):
    """A broker group or delay group."""

    name: Name
    """Name of the group."""


class BrokerPath(Request, frozen=True, kw_only=True):
    """A broker's place."""

    group: Name
    """Name of the broker group."""
    role: EnteredRole
    """Its role there."""


class SubjectPath(Request, frozen=True, kw_only=True):
    """A subject."""

    subject: Name
    """Name of the subject, not a retry subject's."""


class PrefixPath(Request, frozen=True, kw_only=True):
    """A prefix of subjects."""

    prefix: Name
    """The prefix of subjects."""


class NodePath(Request, frozen=True, kw_only=True):
    """A delay server."""

    name: Name
    """Name of the delay group."""
    node_id: Name
    """The node in it."""


# Parameters


class NoQuery(Request, frozen=True, kw_only=True):
    """No parameters."""


class PageQuery(Request, frozen=True, kw_only=True):
    """A page of a list, in the order of the rows' names."""

    after: Cursor = ""
    """`next` of the page before; empty for the first page."""
    limit: Limit = 100
    """Rows that are wanted at most."""


class BrokerGroupQuery(PageQuery, frozen=True, kw_only=True):
    """A page of broker groups."""

    kind: Kind | Literal[""] = ""
    """Only groups of this kind."""
    state: State | Literal[""] = ""
    """Only groups in this state."""


class GroupQuery(PageQuery, frozen=True, kw_only=True):
    """A page of what belongs to a broker group."""

    group: Text = ""
    """Only rows of this broker group."""


class RouteQuery(PageQuery, frozen=True, kw_only=True):
    """A page of routes."""

    group: Text = ""
    """Only routes that lead to this broker group."""
    prefix: Text = ""
    """Only names that begin with this."""


class SubjectQuery(PageQuery, frozen=True, kw_only=True):
    """A page of subjects."""

    prefix: Text = ""
    """Only names that begin with this."""
    tag: Text | None = None
    """Only subjects with this tag; an empty one is the default tag."""


class ConsumerQuery(PageQuery, frozen=True, kw_only=True):
    """A page of consumers."""

    subject: Text = ""
    """Only those of this subject."""
    consumer_group: Text = ""
    """Only those of this consumer group."""


class VersionQuery(Request, frozen=True, kw_only=True):
    """The expected version."""

    version: Version | None = None
    """The version that it must have; without it whatever is there is removed."""


class RemovalQuery(Request, frozen=True, kw_only=True):
    """The expected version, and whether messages may be lost."""

    version: Version | None = None
    """The version that it must have; without it whatever is there is removed."""
    lose_messages: bool = False
    """Remove it even if subjects are routed to it and its messages are never consumed."""


class AuditQuery(Request, frozen=True, kw_only=True):
    """A page of the audit, newest first."""

    before: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None
    """`next` of the page before."""
    limit: Limit = 100
    """Rows that are wanted at most."""
    actor: Text = ""
    """Only by this one."""
    action: Text = ""
    """Only this action, or all that begin with it and a dot: `route` stands for `route.set` too."""
    target: Text = ""
    """Only of this target."""
    since_ms: Millis = 0
    """Only from then on."""
    until_ms: Millis | None = None
    """Only before then."""


# Broker groups


class BrokerGroupShown(Answer, frozen=True, kw_only=True):
    """A broker group, or a group of delay servers, as clients see it."""

    name: str
    """Its name."""
    kind: Kind
    """normal: hands messages to consumers at once; delay: keeps them until they are due; receiver:
    services that attach to delay servers."""
    address: str
    """host:port of its master for clients; empty while none is known."""
    state: State
    """RW: takes messages; R: read-only; NRW: away."""
    since_ms: int
    """When its row was changed last."""
    liveness: Sign
    """heard: its master was, within the time-out; assumed: it has not been yet, since this meta
    server began or the group was entered; none: nobody waits for it."""
    heard_seconds_ago: float | None
    """Seconds since its master was heard; null unless it was."""
    tag: str
    """Subjects with this tag are routed to it; empty: the default tag."""
    weight: int
    """Its share of subjects against its neighbours'; 0: no new ones."""
    ext: dict[str, str]
    """Further attributes."""
    static: bool
    """It never registers: its state is what an operator said."""
    entered: bool
    """An operator added, approved or changed it, or entered a broker of it. Others join no route
    that is there, and are forgotten when they are silent for long."""
    read_only: bool
    """It is taken from all producers."""
    retired: bool
    """No route leads to it any more."""
    version: int
    """Counts changes of its row."""


class BrokerGroups(Answer, frozen=True, kw_only=True):
    """A page of broker groups."""

    items: list[BrokerGroupShown]
    """The rows."""
    next: str | None
    """The value of `after` for the next page; null: this is the last page."""


class BrokerGroupNew(Request, frozen=True, kw_only=True):
    """A broker group that is to be added."""

    name: Name
    """Its name; no blanks, slashes or control characters."""
    kind: Kind = "normal"
    """normal: hands messages to consumers at once; delay: keeps them until they are due; receiver:
    services that attach to delay servers."""
    address: Text = ""
    """host:port of its master; empty: it is away until it registers."""
    static: bool | None = None
    """Its silence says nothing. Default: yes if there is an address. It ends when the group
    registers."""
    tag: Text = ""
    """Subjects with this tag are routed to it; empty: the default tag."""
    weight: Weight = 100
    """Its share of subjects against its neighbours'; 0: none."""
    ext: Ext = {}
    """Further attributes."""


class BrokerGroupChange(Request, frozen=True, kw_only=True):
    """Changes of a broker group; fields that are left out stay."""

    version: Version | None = None
    """The version that it must have; without it whatever it has is changed."""
    address: Text | UnsetType = UNSET
    """host:port of its (new) master. It counts until the group registers from elsewhere, which it
    may once nothing is heard from there for the time-out."""
    state: State | UnsetType = UNSET
    """The state of a static group; other groups report their own."""
    static: bool | UnsetType = UNSET
    """Whether its silence says nothing."""
    tag: Text | UnsetType = UNSET
    """Subjects with this tag are routed to it, from their next route on."""
    weight: Weight | UnsetType = UNSET
    """Its share of subjects against its neighbours'; 0: no new ones."""
    ext: Ext | UnsetType = UNSET
    """Further attributes, in place of all that it has."""


class MayLose(Request, frozen=True, kw_only=True):
    """A directory of a delay server is to be given up, or an older copy taken in its place."""

    lose_messages: bool = False
    """Although messages are lost that nobody else has."""


class HandoverWish(Request, frozen=True, kw_only=True):
    """A request that the master of a delay group hands it over."""

    to: Name | None = None
    """Another member in sync; null: the one with the longest log."""


class MinIsr(Request, frozen=True, kw_only=True):
    """How many disks at least have to be in sync."""

    min_isr: Annotated[int, Meta(ge=1, le=REPLICAS_MAX)]
    """With fewer nothing is accepted."""


class Retirement(Request, frozen=True, kw_only=True):
    """A request to retire a broker group."""

    version: Version | None = None
    """The version that it must have."""
    lose_messages: bool = False
    """Retire it even if its messages are never consumed."""


class Approval(Request, frozen=True, kw_only=True):
    """A broker group that waits is to be let in."""

    address: Text | None = None
    """host:port that it must give as its own; without it whatever it gives."""


class Restoration(Request, frozen=True, kw_only=True):
    """A retired broker group is to be used again."""

    version: Version | None = None
    """The version that it must have."""


class ReadOnlyChange(Request, frozen=True, kw_only=True):
    """A broker group is taken from producers, or given back."""

    read_only: bool
    """true: producers do not get it."""
    subject: Name = EVERY
    """Producers of this subject only; * for all."""


class ReadOnlyShown(Answer, frozen=True, kw_only=True):
    """A broker group taken from the producers of a subject."""

    subject: str
    """The subject; * for all."""
    group: str
    """The broker group."""


class ReadOnlys(Answer, frozen=True, kw_only=True):
    """A page of them."""

    items: list[ReadOnlyShown]
    """The rows."""
    next: str | None
    """The value of `after` for the next page; null: this is the last page."""


# Brokers


class BrokerShown(Answer, frozen=True, kw_only=True):
    """An entered broker: the answer when it asks for its role."""

    group: str
    """Its broker group."""
    role: str
    """Its role there; one broker for each."""
    hostname: str
    """As it calls itself."""
    serve_port: int
    """As it says too: hostname and port tell who asks."""
    ip: str
    """IPv4 address that others reach it by."""
    sync_port: int
    """Port for its slaves; 0: none."""
    version: int
    """Counts changes of its row."""


class Brokers(Answer, frozen=True, kw_only=True):
    """A page of brokers."""

    items: list[BrokerShown]
    """The rows."""
    next: str | None
    """The value of `after` for the next page; null: this is the last page."""


class BrokerPlace(Request, frozen=True, kw_only=True):
    """The place of a broker."""

    hostname: Name
    """As it calls itself: host name, or address."""
    serve_port: Port
    """Port for messages."""
    ip: Name
    """IPv4 address that others reach it by."""
    sync_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Port for its slaves; required for masters and slaves, 0 for backups."""


class BrokerNew(BrokerPlace, frozen=True, kw_only=True):
    """A broker that is to be entered."""

    group: Name
    """Its broker group, which need not be there yet."""
    role: EnteredRole
    """Its role there."""


class BrokerReplacement(BrokerPlace, frozen=True, kw_only=True):
    """The broker that takes the place of the one with this role in this group."""

    version: Version | None = None
    """The version that the row to be replaced must have."""


# Routes


class RouteShown(Answer, frozen=True, kw_only=True):
    """A route as it is stored."""

    name: str
    """The subject, or the prefix."""
    groups: list[str]
    """Broker groups, in the order in which clients get them."""
    chosen: bool
    """The meta server chose it at the first use; false: an operator did."""
    version: int
    """Counts changes of its row."""


class PrefixRouteShown(RouteShown, frozen=True, kw_only=True):
    """The route of a prefix, and whom it reaches."""

    subjects: int
    """Subjects that it leads, as far as clients that use them are remembered."""
    kept: int
    """Subjects with this prefix that have a route of their own and keep it, until it is removed:
    DELETE /routes/{subject}."""
    kept_examples: list[str]
    """A few of them."""


class Routes(Answer, frozen=True, kw_only=True):
    """A page of routes."""

    items: list[RouteShown]
    """The rows."""
    next: str | None
    """The value of `after` for the next page; null: this is the last page."""


class SubjectRouteShown(Answer, frozen=True, kw_only=True):
    """The route of a subject and its source."""

    subject: str
    """The subject."""
    groups: list[str]
    """Broker groups that it has; empty: none yet."""
    delay_groups: list[str]
    """Delay groups that its delay producers get now."""
    source: Literal["subject", "prefix", "none"]
    """Whose route it is."""
    prefix: str
    """The prefix, if it is that one's."""
    chosen: bool
    """The meta server chose it."""
    version: int
    """Of the subject's own route; 0 if it has none."""
    unserved: str
    """Why no broker group takes its messages now; empty if one does."""


class RouteSet(Request, frozen=True, kw_only=True):
    """The route that an operator wants."""

    groups: Groups
    """Groups of kind normal or receiver, each once, in the order in which clients are to get them.
    """
    version: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    """The version that the route must have, 0: there must be none; without it any is replaced."""


class RouteExtension(Request, frozen=True, kw_only=True):
    """A broker group that is to join others."""

    group: Name
    """Routes that have this one…"""
    new_group: Name
    """… get this one too, as their last."""
    subject: Name = EVERY
    """Only the route of this subject; * for all."""


class RouteReduction(Request, frozen=True, kw_only=True):
    """A broker group that is to leave routes."""

    group: Name
    """It leaves every route but those whose only one it is."""
    subject: Name = EVERY
    """Only the route of this subject; * for all."""


class RoutesChanged(Answer, frozen=True, kw_only=True):
    """The result of a change of many routes."""

    changed: int
    """Routes that are stored as was asked."""
    left: int
    """Routes left as they were, because the group is their only one."""
    complete: bool
    """false: time was up; ask again for the rest."""


class UnservedShown(Answer, frozen=True, kw_only=True):
    """Subjects whose messages no broker group takes now, for one reason."""

    why: str
    """The groups of their routes, each with what keeps messages from it."""
    subjects: int
    """How many there are."""
    examples: list[str]
    """A few of them."""


class RouteSummary(Answer, frozen=True, kw_only=True):
    """All routes, counted."""

    subjects: int
    """Subjects that were used, or entered."""
    routes: int
    """Subjects with a route of their own."""
    prefixes: int
    """Prefixes with a route."""
    without_route: int
    """Subjects that no route leads anywhere: no broker group could take them."""
    subjects_by_group: dict[str, int]
    """How many subjects' own routes lead to each broker group."""
    unserved: int
    """Subjects whose messages no broker group takes now, those without a route among them."""
    unserved_why: list[UnservedShown]
    """Why, the reason of most subjects first; of very many reasons the first ones."""


# Subjects


class SubjectShown(Answer, frozen=True, kw_only=True):
    """A subject."""

    name: str
    """Its name."""
    tag: str
    """It is routed to groups with this tag; empty: the default tag."""
    created_ms: int
    """When it was used first, or entered."""
    version: int
    """Counts changes of its row."""


class Subjects(Answer, frozen=True, kw_only=True):
    """A page of subjects."""

    items: list[SubjectShown]
    """The rows."""
    next: str | None
    """The value of `after` for the next page; null: this is the last page."""


class SubjectSet(Request, frozen=True, kw_only=True):
    """A subject as it is to be; it is added if it is not there."""

    tag: Text = ""
    """It is routed to groups with this tag, if its route is chosen from now on."""
    version: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    """The version that it must have, 0: there must be none; without it any is changed."""


class SubjectRemoval(Request, frozen=True, kw_only=True):
    """Subjects that are to be forgotten, with the routes that were chosen for them.

    One that a connected client uses, or that an operator gave a tag or a route, stays. Whoever uses
    a removed one again makes it anew.
    """

    subject: Name = EVERY
    """Only this one; * for all with the prefix."""
    prefix: Text = ""
    """The prefix; must not be empty for all subjects."""
    unseen_ms: Annotated[int, Meta(ge=0, le=2**53)] = 24 * 3_600_000
    """Only those that are older, and were not used by any client for so long; clients that stay are
    noted once in `client_seen_refresh_ms`."""
    dry_run: bool = False
    """Nothing is removed: how many would be is said."""


class SubjectsRemoved(Answer, frozen=True, kw_only=True):
    """The result of removing subjects."""

    removed: int
    """Those that are gone; with `dry_run`, would be."""
    left: int
    """Those that stay, because they are used, were made or used too lately, or an operator gave
    them a tag or a route."""
    complete: bool
    """false: time was up; ask again for the rest."""


# Consumers


class ConsumerState(Request, frozen=True, kw_only=True):
    """Which consumers: (client, subject, group), (*, subject, group) or (client, *, *)."""

    subject: Name
    """Its subject; * with a client and consumer group *."""
    consumer_group: Name
    """Its consumer group; * with a client and subject *."""
    client_id: Annotated[str, Meta(min_length=1, max_length=512)] = EVERY
    """Its client id; * for every one of the group."""


class OfflineShown(Answer, frozen=True, kw_only=True):
    """Consumers that an operator took off-line."""

    client_id: str
    """Or *."""
    subject: str
    """Or *."""
    consumer_group: str
    """Or *."""


class Offlines(Answer, frozen=True, kw_only=True):
    """A page of them."""

    items: list[OfflineShown]
    """The rows."""
    next: str | None
    """The value of `after` for the next page; null: this is the last page."""


# Limits


class Limits(Answer, frozen=True, kw_only=True):
    """Limits that may be changed while the server runs."""

    subjects_max: int
    """Subjects there may be."""
    groups_max: int
    """Broker groups there may be."""
    clients_max: int
    """Uses of a subject by a client that are remembered."""
    new_subjects_per_second_max: float
    """Subjects a second that may be used for the first time."""


class StoredLimits(Answer, frozen=True, kw_only=True):
    """Limits that were set while the server ran; null where the settings count."""

    subjects_max: int | None = None
    """Subjects there may be."""
    groups_max: int | None = None
    """Broker groups there may be."""
    clients_max: int | None = None
    """Uses of a subject by a client that are remembered."""
    new_subjects_per_second_max: float | None = None
    """Subjects a second that may be used for the first time."""


class LimitsShown(Answer, frozen=True, kw_only=True):
    """Limits as they are, and why."""

    in_force: Limits
    """As they are now, and after a restart: what is stored, else what the settings say."""
    stored: StoredLimits
    """As they were set."""
    configured: Limits
    """As the settings say."""


class LimitsChange(Request, frozen=True, kw_only=True):
    """Limits that are to be set; null: as the settings say; what is left out stays."""

    subjects_max: Annotated[int, Meta(ge=1, le=1_000_000_000)] | UnsetType | None = UNSET
    """Subjects there may be; 600 bytes of memory each."""
    groups_max: Annotated[int, Meta(ge=1, le=1_000_000)] | UnsetType | None = UNSET
    """Broker groups there may be."""
    clients_max: Annotated[int, Meta(ge=0, le=1_000_000_000)] | UnsetType | None = UNSET
    """Uses of a subject by a client that are remembered."""
    new_subjects_per_second_max: Annotated[float, Meta(ge=0.001, le=1e9)] | UnsetType | None = UNSET
    """Subjects a second that may be used for the first time."""


# Delay groups


class NodeShown(Answer, frozen=True, kw_only=True):
    """A delay server."""

    node_id: str
    """Which node of its group."""
    role: str
    """master or slave."""
    in_sync: bool
    """It has every acknowledged message of the group."""
    accepts: bool
    """It may accept messages."""
    may_deliver: bool
    """It is the master of its group, or in sync and may become that at any moment; another one
    delivers nothing."""
    note: str
    """Why it accepts nothing; empty if it does."""
    last_sequence: int | None
    """Of its log, as it said last; null: this meta server has not heard it."""
    committed: int | None
    """The last record that it knew to be committed then."""
    uncommitted: int | None
    """Outcomes of deliveries that were durable there and not committed then."""
    address: str
    """host:port for producers."""
    http_address: str
    """host:port of its status; empty if it has none."""
    storage_uuid: str
    """Its data directory."""
    incarnation: int
    """How often it was started on it."""
    software: str
    """The version that it runs."""
    registered_ms: int
    """When this incarnation registered first."""
    liveness: Sign
    """heard: within the time-out; assumed: not yet, since this meta server began; none: silent for
    longer than that."""
    heard_seconds_ago: float | None
    """Seconds since it was heard; null unless it was."""
    controls_version: int | None
    """The version of its cluster's controls that it applies; null: none of this meta server's."""
    controls_note: str
    """Why it does not go by the present version; empty if it does."""
    clock_note: str
    """The difference of its wall clock; empty if it is well."""
    fitness: Fit
    """The rank for the next master: of those that are fit the one with the longest log, then of
    those that rank behind, and so on; who is excluded never, unless it is alone in sync."""
    fitness_note: str
    """Why it is not fit; empty if it is."""


class DelayGroupShown(Answer, frozen=True, kw_only=True):
    """A group of delay servers, by its record."""

    name: str
    """Its name, and that of its broker group."""
    cluster: str
    """Its cluster."""
    log_uuid: str
    """Its log, alike on all replicas."""
    epoch: int
    """Counted up by every election."""
    version: int
    """Counted up by every change of the record."""
    phase: str
    """active, or electing (no node accepts)."""
    election: str
    """What an election waits for, or why it does not end; empty if none is under way."""
    master: str | None
    """The node that accepts."""
    in_sync: list[str]
    """Nodes that have every acknowledged message."""
    min_isr: int
    """The in-sync set never gets smaller."""
    controls_version: int
    """The current version of its cluster's controls; 0: no rule was ever set."""
    nodes: list[NodeShown]
    """Everybody who registered."""


class DelayGroups(Answer, frozen=True, kw_only=True):
    """A page of delay groups."""

    items: list[DelayGroupShown]
    """The rows."""
    next: str | None
    """The value of `after` for the next page; null: this is the last page."""


# Controls


class ClusterPath(Request, frozen=True, kw_only=True):
    """A cluster of delay servers."""

    cluster: Name
    """Its name."""


class SubjectRuleQuery(Request, frozen=True, kw_only=True):
    """The rule of a subject that is to go."""

    subject: Pattern
    """The subject, or prefix with a * at its end."""
    version: Version | None = None
    """The version that the controls must have; without it whatever they have is changed."""


class GroupRuleQuery(Request, frozen=True, kw_only=True):
    """The rule of a broker group that is to go."""

    group: Name
    """The broker group."""
    version: Version | None = None
    """The version that the controls must have; without it whatever they have is changed."""


class SubjectRuleChange(Request, frozen=True, kw_only=True):
    """Changes of the rule of a subject; fields that are left out stay."""

    subject: Pattern
    """The subject, or prefix with a * at its end."""
    version: Annotated[int, Meta(ge=0, le=2**62)] | None = None
    """The version that the controls must have; without it whatever they have is changed."""
    paused: bool | UnsetType = UNSET
    """Whether nothing of it is sent."""
    rate_per_s: Rate | UnsetType | None = UNSET
    """Messages a second that are sent at the most; null: as many as there are."""


class GroupRuleChange(Request, frozen=True, kw_only=True):
    """Changes of the rule of a broker group; fields that are left out stay."""

    group: Name
    """The broker group; there may be none of this name yet."""
    version: Annotated[int, Meta(ge=0, le=2**62)] | None = None
    """The version that the controls must have; without it whatever they have is changed."""
    paused: bool | UnsetType = UNSET
    """Whether nothing is sent to it."""
    rate_per_s: Rate | UnsetType | None = UNSET
    """Messages a second that are sent to it at the most; null: as many as it takes."""
    weight: ControlWeight | UnsetType | None = UNSET
    """Its share of messages, in proportion to those of others; null: as in the nodes' settings."""


class ControlsAtNode(Answer, frozen=True, kw_only=True):
    """By which controls a delay server goes."""

    group: str
    """Its delay group."""
    node_id: str
    """Which node of it."""
    version: int | None
    """The version; null: none of this meta server's."""
    note: str
    """Why it is not the present one; empty if it is."""
    may_deliver: bool
    """It is the master of its group, or in sync and may become that at any moment; another one
    delivers nothing."""
    liveness: Sign
    """heard: within the time-out; assumed: not yet, since this meta server began; none: silent."""


class ControlsShown(Answer, frozen=True, kw_only=True):
    """The rules of a cluster: pauses, rate limits and weights of its delay servers."""

    cluster: str
    """Its name."""
    version: int
    """Counts changes; 0: there never was one."""
    store: str
    """Which store of a meta server it is the version in."""
    subjects: dict[str, SubjectControl]
    """Rules by subject, or prefix with a * at its end."""
    groups: dict[str, GroupControl]
    """Rules by broker group."""
    unknown_groups: list[str]
    """Those of them that this meta server does not know; their rules hold once it does."""
    nodes: list[ControlsAtNode]
    """By which version each delay server of the cluster goes."""


class ClusterSummary(Answer, frozen=True, kw_only=True):
    """A cluster of delay servers."""

    cluster: str
    """Its name."""
    version: int
    """The version of its controls; 0: no rule was ever set."""
    rules: int
    """How many there are."""


class Clusters(Answer, frozen=True, kw_only=True):
    """A page of clusters."""

    items: list[ClusterSummary]
    """The rows."""
    next: str | None
    """The value of `after` for the next page; null: this is the last page."""


# Clients, audit, topology


class ClientShown(Answer, frozen=True, kw_only=True):
    """A client that used a subject."""

    subject: str
    """As it registered it."""
    client_type: str
    """producer, consumer, delay_producer, other, or a number."""
    consumer_group: str
    """Empty for producers."""
    client_id: str
    """As it calls itself."""
    app_code: str
    """Its application."""
    room: str
    """Its room."""
    seen_ms: int
    """When it was seen last, roughly."""
    online: bool
    """No operator took it off-line."""


class Clients(Answer, frozen=True, kw_only=True):
    """A page of clients."""

    items: list[ClientShown]
    """The rows."""
    next: str | None
    """The value of `after` for the next page; null: this is the last page."""


class AuditShown(Answer, frozen=True, kw_only=True):
    """An audit entry: who changed what."""

    number: int
    """Goes up from entry to entry."""
    at_ms: int
    """When."""
    actor: str
    """Name of the token, `loopback` without tokens, or the node that registered."""
    action: str
    """Such as broker-group.add."""
    target: str
    """Such as the name of the group."""
    before: msgspec.Raw
    """The row before; null if there was none."""
    after: msgspec.Raw
    """The row after; null if there is none."""


class AuditPage(Answer, frozen=True, kw_only=True):
    """A page of the audit, newest first."""

    items: list[AuditShown]
    """The entries. Few may be there though more follow: only so many are looked at."""
    next: int | None
    """The value of `before` for the next page; null: this is the last page."""


class WaitingGroupShown(Answer, frozen=True, kw_only=True):
    """A broker group, delay group or receiver that registers and waits for approval."""

    name: str
    """Its name."""
    kind: Kind
    """normal: hands messages to consumers at once; delay: keeps them until they are due; receiver:
    services that attach to delay servers."""
    address: str
    """host:port that it gives as its own; empty of receivers."""
    patterns: list[str]
    """Of receivers: the subjects, or prefixes with a *, that approval routes to it."""
    speaks_from: str
    """The IP address from which it speaks; of IPv6 the network."""
    waits_seconds: float
    """Seconds since it spoke first."""


class Topology(Answer, frozen=True, kw_only=True):
    """Everything at a glance."""

    version: str
    """Of this meta server."""
    now_ms: int
    """Its clock."""
    ready: bool
    """It answers everything."""
    failing: list[str]
    """The missing parts, if it is not complete, and delay groups whose newest record it lacks."""
    broker_groups: list[BrokerGroupShown]
    """All groups."""
    waiting: list[WaitingGroupShown]
    """Groups that wait for approval; they serve no client."""
    delay_groups: list[DelayGroupShown]
    """All groups of delay servers that register here."""
    routes: RouteSummary
    """Routes, counted."""
