"""Structs of the administration API, which validate its requests and document both sides.

Of each kind: the parts of its key, the filters of its list, and the fields that operators set. What
is shown is the row itself (`meta_server/known/model.py`) with what is known beside it. The string
that follows a field explains it. Names are those of JSON. Times are wall clock in ms since 1970
UTC.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from delay_protocol.nodes.controls import PATTERN_BYTES_MAX
from delay_protocol.nodes.registration import REPLICAS_MAX, GroupRecord
from delay_protocol.receivers.masters import Level, Tries, Waits
from delay_transport.http.operations import Answer, Request
from delay_transport.http.pages import Limit, PageQuery
from meta_server.known.model import (
    AuditEntry,
    Broker,
    BrokerGroup,
    DelayNode,
    GroupKind,
    Receiver,
    Route,
    Versioned,
    Webhook,
    WebhookSettings,
)

Name = Annotated[str, Meta(min_length=1, max_length=255)]
Text = Annotated[str, Meta(max_length=255)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Weight = Annotated[int, Meta(ge=0, le=1_000_000)]
Pattern = Annotated[str, Meta(min_length=1, max_length=PATTERN_BYTES_MAX)]
ROUTE_GROUPS_MAX: Final = 64
"""Broker groups of a route at most: clients get all of them."""
Groups = Annotated[tuple[Name, ...], Meta(min_length=1, max_length=ROUTE_GROUPS_MAX)]
Patterns = Annotated[tuple[Pattern, ...], Meta(max_length=1000)]
State = Literal["RW", "R", "W", "NRW"]
Fit = Literal["fit", "behind", "last", "unfit", "excluded"]
EnteredRole = Literal[
    "MASTER", "SLAVE", "BACKUP", "DELAY", "DELAY_MASTER", "DELAY_SLAVE", "DELAY_BACKUP"
]


class Done(Answer, frozen=True, kw_only=True):
    """The row is gone."""

    changed: bool = True
    """Always true."""


class Nothing(Request, frozen=True, kw_only=True):
    """No fields."""


class MayLose(Request, frozen=True, kw_only=True):
    """A change that may lose messages."""

    lose_messages: bool = False
    """Do it although messages are lost that nobody else has."""


class NameKey(Request, frozen=True, kw_only=True):
    """The key of a row that has a name."""

    name: Name
    """Its name."""


class ListQuery(PageQuery, frozen=True, kw_only=True):
    """A page of a list."""

    prefix: Annotated[str, Meta(max_length=PATTERN_BYTES_MAX)] = ""
    """Only rows whose key begins with this; between the parts of a key is a slash."""


# Broker groups


class BrokerGroupShown(BrokerGroup, frozen=True, kw_only=True):
    """A broker group, or a group of delay servers, as clients see it."""

    state: State  # type: ignore[assignment]
    """RW: takes messages; R: read-only; NRW: away."""
    heard_seconds_ago: float | None
    """Seconds since its last heartbeat, or since one is waited for; null: none came within the
    time-out, or nobody waits for one."""


class BrokerGroupSet(Request, frozen=True, kw_only=True):
    """A broker group as it is to be."""

    kind: GroupKind = GroupKind.NORMAL
    """normal: hands messages to consumers at once; delay: keeps them until they are due."""
    address: Text = ""
    """host:port of its master; empty: it is away until it registers. It counts until the group
    registers from elsewhere, which it may once nothing is heard from there for the time-out."""
    static: bool = True
    """Where it has an address it is on-line, whether it is heard or not. It ends when the group
    registers. false: it has one time-out to do so."""
    weight: Weight = 100
    """Its share of subjects against its neighbours'; 0: no new ones."""


class Approval(Request, frozen=True, kw_only=True):
    """A broker group that waits is to be let in."""

    address: Text | None = None
    """host:port that it must give as its own; null: whatever it gives."""


class ReadOnly(Request, frozen=True, kw_only=True):
    """A broker group is taken from producers, or given back."""

    read_only: bool = True
    """true: producers do not get it."""


# Brokers


class BrokerKey(Request, frozen=True, kw_only=True):
    """The key of a broker."""

    group: Name
    """Its broker group, which need not be there yet."""
    role: EnteredRole
    """Its role there; one broker for each."""


class BrokerSet(Request, frozen=True, kw_only=True):
    """The place of a broker."""

    hostname: Name
    """As it calls itself: host name, or address."""
    serve_port: Port
    """Port for messages: hostname and port tell who asks."""
    ip: Name
    """IPv4 address that others reach it by."""
    sync_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Port for its slaves; required for masters and slaves, 0 for backups."""


class BrokerShown(Broker, frozen=True, kw_only=True):
    """An entered broker: the answer when it asks for its role."""

    role: EnteredRole  # type: ignore[assignment]
    """Its role in its group."""


# Routes and subjects


class RouteKey(Request, frozen=True, kw_only=True):
    """The key of a route."""

    pattern: Pattern
    """A subject, not a retry subject; with a * at its end all that begin so."""


class RouteQuery(ListQuery, frozen=True, kw_only=True):
    """A page of routes."""

    group: Text = ""
    """Only routes that lead to this broker group."""


class RouteShown(Route, frozen=True, kw_only=True):
    """The route that a subject follows, its own or a prefix's; or the route of a prefix."""

    pattern: str
    """The subject, or the prefix with a * at its end."""
    follows: str
    """The pattern whose route it is: its own, or a prefix's; empty: there is none."""
    unserved: str
    """Why no broker group takes its messages now; empty if one does."""


class RouteSet(Request, frozen=True, kw_only=True):
    """The route that an operator wants."""

    groups: Groups
    """Groups of kind normal, each once, in the order in which clients are to get them."""


class ReceiverShown(Receiver, frozen=True, kw_only=True):
    """A name of receivers, and who has it."""

    connected: int
    """Instances that are connected to this meta server."""


class ReceiverSet(Request, frozen=True, kw_only=True):
    """A name of receivers as it is to be."""

    patterns: Patterns = ()
    """Subjects that it gets; with a * at its end all that begin so, * alone all that there are."""
    tries: Tries | None = None
    """Times that a handler has a message before it is a dead letter; null: as each receiver says.
    """
    waits: Waits = ""
    """Delays after each try, such as `10s 30s 1m`; empty: as each receiver says."""
    first_level: Level | None = None
    """In their place: the level of the first wait, by the table of `delay.levels`."""
    unsettled_tries: Tries | None = None
    """Receivers that end with a message before it is a dead letter; null: as each receiver says."""


class WebhookShown(WebhookSettings, frozen=True, kw_only=True):
    """A webhook, without its secrets, and the subscription and policy of its name."""

    secret_count: int
    """Secrets that it has; two while one is exchanged."""
    subjects: tuple[str, ...]
    """Subjects that it gets."""
    tries: Tries | None
    """Times that a message is posted before it is a dead letter; null: 16."""
    waits: Waits
    """Delays after each try; empty: from 1 s, each twice as long, up to an hour."""
    first_level: Level | None
    """In their place: the level of the first wait."""


class WebhookSet(Request, frozen=True, kw_only=True):
    """A webhook as it is to be."""

    url: Annotated[str, Meta(max_length=2000)] = ""
    """The address that its messages are posted to, http or https; empty: each message names its
    own, whose host is one of `hosts`."""
    subjects: Patterns = ()
    """Subjects that it gets; with a * at its end all that begin so, * alone all that there are."""
    secrets: Annotated[tuple[Text, ...], Meta(max_length=2)] = ()
    """`whsec_` and base64 of 24 to 64 random bytes; two while one is exchanged. Empty: those that
    it has stay."""
    hosts: Annotated[tuple[Name, ...], Meta(max_length=100)] = ()
    """Where there is no `url`: hosts that messages may name, such as `api.example.com`,
    `*.example.com`, and with a port where it is not that of http or https."""
    private: Annotated[tuple[Name, ...], Meta(max_length=100)] = ()
    """Addresses and networks that it may be at though they are loopback, private or link-local,
    such as `10.1.0.0/16`."""
    concurrency: Annotated[int, Meta(ge=1, le=1000)] = 10
    """Requests of one gateway at a time at the most."""
    rate_per_s: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    """Requests of one gateway in a second at the most; null: as many as it takes."""
    timeout_s: Annotated[float, Meta(ge=0.1, le=120)] = 15.0
    """Seconds for a request and its answer."""
    tries: Tries | None = None
    """Times that a message is posted before it is a dead letter; null: 16."""
    waits: Waits = ""
    """Delays after each try, such as `5s 5m 30m 2h`; empty: from 1 s, each twice as long, up to an
    hour."""
    first_level: Level | None = None
    """In their place: the level of the first wait, by the table of `delay.levels`."""
    disabled: Text = ""
    """Why nothing is to be posted: its messages wait. Empty: messages are posted."""


class Disabling(Request, frozen=True, kw_only=True):
    """A webhook is to be disabled."""

    reason: Annotated[str, Meta(min_length=1, max_length=255)] = "an operator disabled it"
    """Why."""


class WebhookRevealed(Webhook, frozen=True, kw_only=True):
    """A webhook with its secrets."""

    subjects: tuple[str, ...]
    """Subjects that it gets."""
    receiver_token: str
    """The token to receive under its name; empty where the cluster has no secret."""


class WebhooksRevealed(Answer, frozen=True, kw_only=True):
    """All webhooks, as gateways need them."""

    webhooks: list[WebhookRevealed]
    """In no order."""


class RouteExtension(Request, frozen=True, kw_only=True):
    """A broker group that is to join another one in all routes."""

    new_group: Name
    """Routes that have the one group get this one too, as their last."""


class RoutesChanged(Answer, frozen=True, kw_only=True):
    """The result of a change of many routes."""

    changed: int
    """Routes that are stored as was asked."""
    left: int
    """Routes left as they were: they are full, or time was up."""
    complete: bool
    """false: time was up; ask again for the rest."""


# Delay groups


class NodeKey(Request, frozen=True, kw_only=True):
    """The key of a delay server."""

    group: Name
    """Its delay group."""
    node: Name
    """Which node of it."""


class HandoverWish(Request, frozen=True, kw_only=True):
    """The master of a delay group is to hand it over."""

    to: Name | None = None
    """Another member in sync; null: the one with the longest log."""


class MinIsr(Request, frozen=True, kw_only=True):
    """The least number of disks that have to be in sync."""

    min_isr: Annotated[int, Meta(ge=1, le=REPLICAS_MAX)]
    """With fewer nothing is accepted."""


class NodeShown(DelayNode, frozen=True, kw_only=True):
    """A delay server."""

    role: str
    """master or slave."""
    in_sync: bool
    """It has every acknowledged message of the group: it is the master, or may become that at any
    moment. Another node delivers nothing."""
    last_sequence: int | None  # type: ignore[assignment]
    """The last record of its log, as it reported last; null: this meta server has not heard it."""
    committed: int | None
    """The last record that it knew to be committed then."""
    uncommitted: int | None
    """Outcomes of deliveries that were durable there and not committed then."""
    heard_seconds_ago: float | None
    """As of a broker group."""
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


class DelayGroupShown(GroupRecord, frozen=True, kw_only=True):
    """A group of delay servers, by its record."""

    name: str
    """Its name, and that of its broker group."""
    cluster: str
    """Its cluster."""
    log_uuid: UUID
    """Its log, alike on all replicas."""
    election: str
    """The reason why an election has not ended; empty if none is under way."""
    master: str | None  # type: ignore[assignment]
    """The node that accepts."""
    in_sync: list[str]  # type: ignore[assignment]
    """Nodes that have every acknowledged message."""
    controls_version: int
    """The current version of its cluster's controls; 0: no rule was ever set."""
    nodes: list[NodeShown]
    """Everybody who registered."""
    refused: dict[str, str]
    """Nodes that were refused within an hour and have not registered since, with why."""

    @property
    def etag(self) -> str:
        """Epoch and version of the record."""
        return f"{self.epoch}.{self.version}"


# Rules of clusters


class SubjectRuleKey(Request, frozen=True, kw_only=True):
    """The key of a rule of a subject."""

    cluster: Name
    """A cluster of delay servers."""
    subject: Pattern
    """The subject, or prefix with a * at its end."""


class GroupRuleKey(Request, frozen=True, kw_only=True):
    """The key of a rule of a broker group."""

    cluster: Name
    """A cluster of delay servers."""
    group: Name
    """The broker group; there may be none of this name yet."""


class SubjectRuleShown(Versioned, frozen=True, kw_only=True):
    """The rule of a subject, or prefix; its version is that of all rules of the cluster."""

    cluster: str
    """The cluster of delay servers."""
    subject: str
    """The subject, or prefix with a * at its end."""
    paused: bool
    """Nothing of them is sent; they wait."""


class GroupRuleShown(Versioned, frozen=True, kw_only=True):
    """The rule of a broker group; its version is that of all rules of the cluster."""

    cluster: str
    """The cluster of delay servers."""
    group: str
    """The broker group."""
    paused: bool
    """Nothing is sent to it; others take over."""
    rate_per_s: float | None
    """Messages a second at the most; null: as many as it takes."""
    weight: float | None
    """Its share of messages, in proportion to others'; null: as in the nodes' settings."""


class ClusterShown(Versioned, frozen=True, kw_only=True):
    """A cluster of delay servers, and which of them apply its rules; their version is its own."""

    name: str
    """Its name."""
    rules: int
    """The number of its rules."""
    store: UUID
    """The store of a meta server in which it is the version."""
    unknown_groups: list[str]
    """Groups with a rule that this meta server does not know; it holds once it does."""
    nodes: list[NodeShown]
    """Its delay servers."""


# Audit, topology


class AuditQuery(Request, frozen=True, kw_only=True):
    """A page of the audit, newest first."""

    before: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None
    """`next` of the page before."""
    limit: Limit = 100
    """Rows that are wanted at most."""
    actor: Text = ""
    """Only by this one."""
    action: Text = ""
    """Only this action, or all that begin with it and a dot: `route` stands for `route.change`."""
    target: Text = ""
    """Only of this target."""


class AuditShown(AuditEntry, frozen=True, kw_only=True):
    """An audit entry: who changed what."""

    number: int
    """Goes up from entry to entry."""
    before: msgspec.Raw  # type: ignore[assignment]
    """The row before; null if there was none."""
    after: msgspec.Raw  # type: ignore[assignment]
    """The row after; null if there is none."""


class AuditPage(Answer, frozen=True, kw_only=True):
    """A page of the audit, newest first."""

    items: list[AuditShown]
    """The entries. Few may be there though more follow: only so many are looked at."""
    next: int | None
    """The value of `before` for the next page; null: this is the last page."""


class NextStep(Answer, frozen=True, kw_only=True):
    """An operator's next step for one group."""

    group: str
    """Name of the group."""
    step: str
    """A sentence with a command."""


class Unserved(Answer, frozen=True, kw_only=True):
    """Routes whose messages no broker group takes now, for one reason."""

    why: str
    """The groups of the routes, each with what keeps messages from it."""
    patterns: int
    """The number of routes, or of subjects without one."""
    examples: list[str]
    """A few of their patterns."""


class Topology(Answer, frozen=True, kw_only=True):
    """Everything at a glance."""

    now_ms: int
    """The clock of this meta server."""
    failing: list[str]
    """The missing parts, if it does not answer everything."""
    next_steps: list[NextStep]
    """The next step of each group for which there is one."""
    broker_groups: list[BrokerGroupShown]
    """All groups that are known; those that wait for approval have a next step."""
    receivers: list[ReceiverShown]
    """All names of receivers."""
    delay_groups: list[DelayGroupShown]
    """All groups of delay servers that register here."""
    routes_by_group: Mapping[str, int]
    """The number of routes, of subjects and prefixes, by broker group."""
    unserved: list[Unserved]
    """Why routes are not served, the reason of most first; of very many the first ones."""
