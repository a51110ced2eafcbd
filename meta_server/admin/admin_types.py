"""Requests and answers of the administration API: its validation and its documentation.

Names are those of JSON. Times are wall clock in ms since 1970 UTC.
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


def about(text: str) -> Meta:
    """Return the description of a field in the OpenAPI document."""
    return Meta(description=text)


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
Expected = Annotated[
    Version | None, about("The version that it must have; without it any is changed or removed.")
]
ExpectedControls = Annotated[
    Annotated[int, Meta(ge=0, le=2**62)] | None,
    about("The version that the controls must have; without it whatever they have is changed."),
]
RowVersion = Annotated[int, about("Counts changes of its row.")]
GroupKind = Annotated[
    Kind,
    about(
        "normal: hands messages to consumers at once; delay: keeps them until they are due; "
        "receiver: services that attach to delay servers."
    ),
]
MayDeliver = Annotated[
    bool,
    about(
        "It is the master of its group, or in sync and may become that at any moment; another one "
        "delivers nothing."
    ),
]
Next = Annotated[
    str | None, about("The value of `after` for the next page; null: this is the last page.")
]


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that is asked: a misspelt field is refused, not overlooked."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is answered."""


# Refusals


class ProblemDetail(Answer, frozen=True, kw_only=True):
    """The error."""

    code: Annotated[
        str,
        about(
            "A word for programs: bad-value, not-found, conflict, token, role, host, origin, "
            "store, …"
        ),
    ]
    message: Annotated[str, about("A sentence for people.")]
    field: Annotated[
        str,
        about(
            "The field, parameter or part of the path that is not allowed; empty if none is to "
            "blame."
        ),
    ] = ""
    value: Annotated[str, about("The given value, cut after 100 characters.")] = ""
    allowed: Annotated[str, about("The allowed values.")] = ""


class Problem(Answer, frozen=True, kw_only=True):
    """The answer to a refused request."""

    error: Annotated[ProblemDetail, about("The error.")]


class Done(Answer, frozen=True, kw_only=True):
    """The requested state holds."""

    changed: Annotated[bool, about("True: something was changed; false: it was so before.")]


# Parts of the path


class NoPath(Request, frozen=True, kw_only=True):
    """Nothing in the path."""


class NamePath(Request, frozen=True, kw_only=True):
    """A broker group or delay group."""

    name: Annotated[Name, about("Name of the group.")]


class BrokerPath(Request, frozen=True, kw_only=True):
    """A broker's place."""

    group: Annotated[Name, about("Name of the broker group.")]
    role: Annotated[EnteredRole, about("Its role there.")]


class SubjectPath(Request, frozen=True, kw_only=True):
    """A subject."""

    subject: Annotated[Name, about("Name of the subject, not a retry subject's.")]


class PrefixPath(Request, frozen=True, kw_only=True):
    """A prefix of subjects."""

    prefix: Annotated[Name, about("The prefix of subjects.")]


class NodePath(Request, frozen=True, kw_only=True):
    """A delay server."""

    name: Annotated[Name, about("Name of the delay group.")]
    node_id: Annotated[Name, about("The node in it.")]


# Parameters


class NoQuery(Request, frozen=True, kw_only=True):
    """No parameters."""


class PageQuery(Request, frozen=True, kw_only=True):
    """A page of a list, in the order of the rows' names."""

    after: Annotated[Cursor, about("`next` of the page before; empty for the first page.")] = ""
    limit: Annotated[Limit, about("Rows that are wanted at most.")] = 100


class BrokerGroupQuery(PageQuery, frozen=True, kw_only=True):
    """A page of broker groups."""

    kind: Annotated[Kind | Literal[""], about("Only groups of this kind.")] = ""
    state: Annotated[State | Literal[""], about("Only groups in this state.")] = ""


class GroupQuery(PageQuery, frozen=True, kw_only=True):
    """A page of what belongs to a broker group."""

    group: Annotated[Text, about("Only rows of this broker group.")] = ""


class RouteQuery(PageQuery, frozen=True, kw_only=True):
    """A page of routes."""

    group: Annotated[Text, about("Only routes that lead to this broker group.")] = ""
    prefix: Annotated[Text, about("Only names that begin with this.")] = ""


class SubjectQuery(PageQuery, frozen=True, kw_only=True):
    """A page of subjects."""

    prefix: Annotated[Text, about("Only names that begin with this.")] = ""
    tag: Annotated[
        Text | None, about("Only subjects with this tag; an empty one is the default tag.")
    ] = None


class VersionQuery(Request, frozen=True, kw_only=True):
    """The expected version."""

    version: Expected = None


class RemovalQuery(Request, frozen=True, kw_only=True):
    """The expected version, and whether messages may be lost."""

    version: Expected = None
    lose_messages: Annotated[
        bool,
        about("Remove it even if subjects are routed to it and its messages are never consumed."),
    ] = False


class AuditQuery(Request, frozen=True, kw_only=True):
    """A page of the audit, newest first."""

    before: Annotated[
        Annotated[int, Meta(ge=1, le=2**63 - 1)] | None, about("`next` of the page before.")
    ] = None
    limit: Annotated[Limit, about("Rows that are wanted at most.")] = 100
    actor: Annotated[Text, about("Only by this one.")] = ""
    action: Annotated[
        Text,
        about(
            "Only this action, or all that begin with it and a dot: `route` stands for "
            "`route.set` too."
        ),
    ] = ""
    target: Annotated[Text, about("Only of this target.")] = ""
    since_ms: Annotated[Millis, about("Only from then on.")] = 0
    until_ms: Annotated[Millis | None, about("Only before then.")] = None


# Broker groups


class BrokerGroupShown(Answer, frozen=True, kw_only=True):
    """A broker group, or a group of delay servers, as clients see it."""

    name: Annotated[str, about("Its name.")]
    kind: GroupKind
    address: Annotated[
        str, about("host:port of its master for clients; empty while none is known.")
    ]
    state: Annotated[State, about("RW: takes messages; R: read-only; NRW: away.")]
    since_ms: Annotated[int, about("When its row was changed last.")]
    liveness: Annotated[
        Sign,
        about(
            "heard: its master was, within the time-out; assumed: it has not been yet, since this "
            "meta server began or the group was entered; none: nobody waits for it."
        ),
    ]
    heard_seconds_ago: Annotated[
        float | None, about("Seconds since its master was heard; null unless it was.")
    ]
    tag: Annotated[str, about("Subjects with this tag are routed to it; empty: the default tag.")]
    weight: Annotated[int, about("Its share of subjects against its neighbours'; 0: no new ones.")]
    ext: Annotated[dict[str, str], about("Further attributes.")]
    static: Annotated[bool, about("It never registers: its state is what an operator said.")]
    entered: Annotated[
        bool,
        about(
            "An operator added, approved or changed it, or entered a broker of it. Others join no "
            "route that is there, and are forgotten when they are silent for long."
        ),
    ]
    read_only: Annotated[bool, about("It is taken from producers.")]
    retired: Annotated[bool, about("No route leads to it any more.")]
    version: RowVersion


class BrokerGroups(Answer, frozen=True, kw_only=True):
    """A page of broker groups."""

    items: Annotated[list[BrokerGroupShown], about("The rows.")]
    next: Next


class BrokerGroupNew(Request, frozen=True, kw_only=True):
    """A broker group that is to be added."""

    name: Annotated[Name, about("Its name; no blanks, slashes or control characters.")]
    kind: GroupKind = "normal"
    address: Annotated[
        Text, about("host:port of its master; empty: it is away until it registers.")
    ] = ""
    static: Annotated[
        bool | None,
        about(
            "Its silence says nothing. Default: yes if there is an address. It ends when the "
            "group registers."
        ),
    ] = None
    tag: Annotated[
        Text, about("Subjects with this tag are routed to it; empty: the default tag.")
    ] = ""
    weight: Annotated[Weight, about("Its share of subjects against its neighbours'; 0: none.")] = (
        100
    )
    ext: Annotated[Ext, about("Further attributes.")] = {}


class BrokerGroupChange(Request, frozen=True, kw_only=True):
    """Changes of a broker group; fields that are left out stay."""

    version: Expected = None
    address: Annotated[
        Text | UnsetType,
        about(
            "host:port of its (new) master. It counts until the group registers from elsewhere, "
            "which it may once nothing is heard from there for the time-out."
        ),
    ] = UNSET
    state: Annotated[
        State | UnsetType, about("The state of a static group; other groups report their own.")
    ] = UNSET
    static: Annotated[bool | UnsetType, about("Whether its silence says nothing.")] = UNSET
    tag: Annotated[
        Text | UnsetType,
        about("Subjects with this tag are routed to it, from their next route on."),
    ] = UNSET
    weight: Annotated[
        Weight | UnsetType, about("Its share of subjects against its neighbours'; 0: no new ones.")
    ] = UNSET
    ext: Annotated[Ext | UnsetType, about("Further attributes, in place of all that it has.")] = (
        UNSET
    )


class MayLose(Request, frozen=True, kw_only=True):
    """A directory of a delay server is to be given up, or an older copy taken in its place."""

    lose_messages: Annotated[bool, about("Although messages are lost that nobody else has.")] = (
        False
    )


class HandoverWish(Request, frozen=True, kw_only=True):
    """A request that the master of a delay group hands it over."""

    to: Annotated[
        Name | None, about("Another member in sync; null: the one with the longest log.")
    ] = None


class MinIsr(Request, frozen=True, kw_only=True):
    """How many disks at least have to be in sync."""

    min_isr: Annotated[
        Annotated[int, Meta(ge=1, le=REPLICAS_MAX)], about("With fewer nothing is accepted.")
    ]


class Retirement(Request, frozen=True, kw_only=True):
    """A request to retire a broker group."""

    version: Expected = None
    lose_messages: Annotated[bool, about("Retire it even if its messages are never consumed.")] = (
        False
    )


class Approval(Request, frozen=True, kw_only=True):
    """A broker group that waits is to be let in."""

    address: Annotated[
        Text | None, about("host:port that it must give as its own; without it whatever it gives.")
    ] = None


class Restoration(Request, frozen=True, kw_only=True):
    """A retired broker group is to be used again."""

    version: Expected = None


class ReadOnlyChange(Request, frozen=True, kw_only=True):
    """A broker group is taken from producers, or given back."""

    read_only: Annotated[bool, about("true: producers do not get it.")]


# Brokers


class BrokerShown(Answer, frozen=True, kw_only=True):
    """An entered broker: the answer when it asks for its role."""

    group: Annotated[str, about("Its broker group.")]
    role: Annotated[str, about("Its role there; one broker for each.")]
    hostname: Annotated[str, about("As it calls itself.")]
    serve_port: Annotated[int, about("As it says too: hostname and port tell who asks.")]
    ip: Annotated[str, about("IPv4 address that others reach it by.")]
    sync_port: Annotated[int, about("Port for its slaves; 0: none.")]
    version: RowVersion


class Brokers(Answer, frozen=True, kw_only=True):
    """A page of brokers."""

    items: Annotated[list[BrokerShown], about("The rows.")]
    next: Next


class BrokerPlace(Request, frozen=True, kw_only=True):
    """The place of a broker."""

    hostname: Annotated[Name, about("As it calls itself: host name, or address.")]
    serve_port: Annotated[Port, about("Port for messages.")]
    ip: Annotated[Name, about("IPv4 address that others reach it by.")]
    sync_port: Annotated[
        Annotated[int, Meta(ge=0, le=65535)],
        about("Port for its slaves; required for masters and slaves, 0 for backups."),
    ] = 0


class BrokerNew(BrokerPlace, frozen=True, kw_only=True):
    """A broker that is to be entered."""

    group: Annotated[Name, about("Its broker group, which need not be there yet.")]
    role: Annotated[EnteredRole, about("Its role there.")]


class BrokerReplacement(BrokerPlace, frozen=True, kw_only=True):
    """The broker that takes the place of the one with this role in this group."""

    version: Expected = None


# Routes


class RouteShown(Answer, frozen=True, kw_only=True):
    """A route as it is stored."""

    name: Annotated[str, about("The subject, or the prefix.")]
    groups: Annotated[list[str], about("Broker groups, in the order in which clients get them.")]
    chosen: Annotated[
        bool, about("The meta server chose it at the first use; false: an operator did.")
    ]
    version: RowVersion


class PrefixRouteShown(RouteShown, frozen=True, kw_only=True):
    """The route of a prefix, and whom it reaches."""

    subjects: Annotated[
        int, about("Subjects that it leads: those with a row, and those of connected clients.")
    ]
    kept: Annotated[
        int,
        about(
            "Subjects with this prefix that have a route of their own and keep it, until it is "
            "removed: DELETE /routes/{subject}."
        ),
    ]
    kept_examples: Annotated[list[str], about("A few of them.")]


class Routes(Answer, frozen=True, kw_only=True):
    """A page of routes."""

    items: Annotated[list[RouteShown], about("The rows.")]
    next: Next


class SubjectRouteShown(Answer, frozen=True, kw_only=True):
    """The route of a subject and its source."""

    subject: Annotated[str, about("The subject.")]
    groups: Annotated[list[str], about("Broker groups that it has; empty: none yet.")]
    delay_groups: Annotated[list[str], about("Delay groups that its delay producers get now.")]
    source: Annotated[Literal["subject", "prefix", "none"], about("Whose route it is.")]
    prefix: Annotated[str, about("The prefix, if it is that one's.")]
    chosen: Annotated[bool, about("The meta server chose it.")]
    version: Annotated[int, about("Of the subject's own route; 0 if it has none.")]
    unserved: Annotated[
        str, about("Why no broker group takes its messages now; empty if one does.")
    ]


class RouteSet(Request, frozen=True, kw_only=True):
    """The route that an operator wants."""

    groups: Annotated[
        Groups,
        about(
            "Groups of kind normal or receiver, each once, in the order in which clients are to "
            "get them."
        ),
    ]
    version: Annotated[
        Count | None,
        about(
            "The version that the route must have, 0: there must be none; without it any is "
            "replaced."
        ),
    ] = None


class RouteExtension(Request, frozen=True, kw_only=True):
    """A broker group that is to join others."""

    group: Annotated[Name, about("Routes that have this one…")]
    new_group: Annotated[Name, about("… get this one too, as their last.")]
    subject: Annotated[Name, about("Only the route of this subject; * for all.")] = EVERY


class RouteReduction(Request, frozen=True, kw_only=True):
    """A broker group that is to leave routes."""

    group: Annotated[Name, about("It leaves every route but those whose only one it is.")]
    subject: Annotated[Name, about("Only the route of this subject; * for all.")] = EVERY


class RoutesChanged(Answer, frozen=True, kw_only=True):
    """The result of a change of many routes."""

    changed: Annotated[int, about("Routes that are stored as was asked.")]
    left: Annotated[int, about("Routes left as they were, because the group is their only one.")]
    complete: Annotated[bool, about("false: time was up; ask again for the rest.")]


class UnservedShown(Answer, frozen=True, kw_only=True):
    """Subjects whose messages no broker group takes now, for one reason."""

    why: Annotated[str, about("The groups of their routes, each with what keeps messages from it.")]
    subjects: Annotated[int, about("How many there are.")]
    examples: Annotated[list[str], about("A few of them.")]


class RouteSummary(Answer, frozen=True, kw_only=True):
    """All routes, counted."""

    subjects: Annotated[int, about("Subjects that were used, or entered.")]
    routes: Annotated[int, about("Subjects with a route of their own.")]
    prefixes: Annotated[int, about("Prefixes with a route.")]
    without_route: Annotated[
        int, about("Subjects that no route leads anywhere: no broker group could take them.")
    ]
    subjects_by_group: Annotated[
        dict[str, int], about("How many subjects' own routes lead to each broker group.")
    ]
    unserved: Annotated[
        int,
        about(
            "Subjects whose messages no broker group takes now, those without a route among them."
        ),
    ]
    unserved_why: Annotated[
        list[UnservedShown],
        about("Why, the reason of most subjects first; of very many reasons the first ones."),
    ]


# Subjects


class SubjectShown(Answer, frozen=True, kw_only=True):
    """A subject."""

    name: Annotated[str, about("Its name.")]
    tag: Annotated[str, about("It is routed to groups with this tag; empty: the default tag.")]
    created_ms: Annotated[int, about("When it was used first, or entered.")]
    version: RowVersion


class Subjects(Answer, frozen=True, kw_only=True):
    """A page of subjects."""

    items: Annotated[list[SubjectShown], about("The rows.")]
    next: Next


class SubjectSet(Request, frozen=True, kw_only=True):
    """A subject as it is to be; it is added if it is not there."""

    tag: Annotated[
        Text, about("It is routed to groups with this tag, if its route is chosen from now on.")
    ] = ""
    version: Annotated[
        Count | None,
        about("The version that it must have, 0: there must be none; without it any is changed."),
    ] = None


# Delay groups


class NodeShown(Answer, frozen=True, kw_only=True):
    """A delay server."""

    node_id: Annotated[str, about("Which node of its group.")]
    role: Annotated[str, about("master or slave.")]
    in_sync: Annotated[bool, about("It has every acknowledged message of the group.")]
    accepts: Annotated[bool, about("It may accept messages.")]
    may_deliver: MayDeliver
    note: Annotated[str, about("Why it accepts nothing; empty if it does.")]
    last_sequence: Annotated[
        int | None, about("Of its log, as it said last; null: this meta server has not heard it.")
    ]
    committed: Annotated[int | None, about("The last record that it knew to be committed then.")]
    uncommitted: Annotated[
        int | None, about("Outcomes of deliveries that were durable there and not committed then.")
    ]
    address: Annotated[str, about("host:port for producers.")]
    http_address: Annotated[str, about("host:port of its status; empty if it has none.")]
    storage_uuid: Annotated[str, about("Its data directory.")]
    incarnation: Annotated[int, about("How often it was started on it.")]
    software: Annotated[str, about("The version that it runs.")]
    registered_ms: Annotated[int, about("When this incarnation registered first.")]
    liveness: Annotated[
        Sign,
        about(
            "heard: within the time-out; assumed: not yet, since this meta server began; none: "
            "silent for longer than that."
        ),
    ]
    heard_seconds_ago: Annotated[
        float | None, about("Seconds since it was heard; null unless it was.")
    ]
    controls_version: Annotated[
        int | None,
        about(
            "The version of its cluster's controls that it applies; null: none of this meta "
            "server's."
        ),
    ]
    controls_note: Annotated[
        str, about("Why it does not go by the present version; empty if it does.")
    ]
    clock_note: Annotated[str, about("The difference of its wall clock; empty if it is well.")]
    fitness: Annotated[
        Fit,
        about(
            "The rank for the next master: of those that are fit the one with the longest log, "
            "then of those that rank behind, and so on; who is excluded never, unless it is alone "
            "in sync."
        ),
    ]
    fitness_note: Annotated[str, about("Why it is not fit; empty if it is.")]


class DelayGroupShown(Answer, frozen=True, kw_only=True):
    """A group of delay servers, by its record."""

    name: Annotated[str, about("Its name, and that of its broker group.")]
    cluster: Annotated[str, about("Its cluster.")]
    log_uuid: Annotated[str, about("Its log, alike on all replicas.")]
    epoch: Annotated[int, about("Counted up by every election.")]
    version: Annotated[int, about("Counted up by every change of the record.")]
    phase: Annotated[str, about("active, or electing (no node accepts).")]
    election: Annotated[
        str,
        about("What an election waits for, or why it does not end; empty if none is under way."),
    ]
    master: Annotated[str | None, about("The node that accepts.")]
    in_sync: Annotated[list[str], about("Nodes that have every acknowledged message.")]
    min_isr: Annotated[int, about("The in-sync set never gets smaller.")]
    controls_version: Annotated[
        int, about("The current version of its cluster's controls; 0: no rule was ever set.")
    ]
    nodes: Annotated[list[NodeShown], about("Everybody who registered.")]


class DelayGroups(Answer, frozen=True, kw_only=True):
    """A page of delay groups."""

    items: Annotated[list[DelayGroupShown], about("The rows.")]
    next: Next


# Controls


class ClusterPath(Request, frozen=True, kw_only=True):
    """A cluster of delay servers."""

    cluster: Annotated[Name, about("Its name.")]


class SubjectRuleQuery(Request, frozen=True, kw_only=True):
    """The rule of a subject that is to go."""

    subject: Annotated[Pattern, about("The subject, or prefix with a * at its end.")]
    version: Expected = None


class GroupRuleQuery(Request, frozen=True, kw_only=True):
    """The rule of a broker group that is to go."""

    group: Annotated[Name, about("The broker group.")]
    version: Expected = None


class SubjectRuleChange(Request, frozen=True, kw_only=True):
    """The rule of a subject."""

    subject: Annotated[Pattern, about("The subject, or prefix with a * at its end.")]
    version: ExpectedControls = None
    paused: Annotated[bool, about("Whether nothing of it is sent.")]


class GroupRuleChange(Request, frozen=True, kw_only=True):
    """Changes of the rule of a broker group; fields that are left out stay."""

    group: Annotated[Name, about("The broker group; there may be none of this name yet.")]
    version: ExpectedControls = None
    paused: Annotated[bool | UnsetType, about("Whether nothing is sent to it.")] = UNSET
    rate_per_s: Annotated[
        Rate | UnsetType | None,
        about("Messages a second that are sent to it at the most; null: as many as it takes."),
    ] = UNSET
    weight: Annotated[
        ControlWeight | UnsetType | None,
        about(
            "Its share of messages, in proportion to those of others; null: as in the nodes' "
            "settings."
        ),
    ] = UNSET


class ControlsAtNode(Answer, frozen=True, kw_only=True):
    """By which controls a delay server goes."""

    group: Annotated[str, about("Its delay group.")]
    node_id: Annotated[str, about("Which node of it.")]
    version: Annotated[int | None, about("The version; null: none of this meta server's.")]
    note: Annotated[str, about("Why it is not the present one; empty if it is.")]
    may_deliver: MayDeliver
    liveness: Annotated[
        Sign,
        about(
            "heard: within the time-out; assumed: not yet, since this meta server began; none: "
            "silent."
        ),
    ]


class ControlsShown(Answer, frozen=True, kw_only=True):
    """The rules of a cluster: pauses of subjects; pauses, rate limits and weights of groups."""

    cluster: Annotated[str, about("Its name.")]
    version: Annotated[int, about("Counts changes; 0: there never was one.")]
    store: Annotated[str, about("Which store of a meta server it is the version in.")]
    subjects: Annotated[
        dict[str, SubjectControl], about("Rules by subject, or prefix with a * at its end.")
    ]
    groups: Annotated[dict[str, GroupControl], about("Rules by broker group.")]
    unknown_groups: Annotated[
        list[str],
        about("Those of them that this meta server does not know; their rules hold once it does."),
    ]
    nodes: Annotated[
        list[ControlsAtNode], about("By which version each delay server of the cluster goes.")
    ]


class ClusterSummary(Answer, frozen=True, kw_only=True):
    """A cluster of delay servers."""

    cluster: Annotated[str, about("Its name.")]
    version: Annotated[int, about("The version of its controls; 0: no rule was ever set.")]
    rules: Annotated[int, about("How many there are.")]


class Clusters(Answer, frozen=True, kw_only=True):
    """A page of clusters."""

    items: Annotated[list[ClusterSummary], about("The rows.")]
    next: Next


# Audit, topology


class AuditShown(Answer, frozen=True, kw_only=True):
    """An audit entry: who changed what."""

    number: Annotated[int, about("Goes up from entry to entry.")]
    at_ms: Annotated[int, about("When.")]
    actor: Annotated[
        str, about("Name of the token, `loopback` without tokens, or the node that registered.")
    ]
    action: Annotated[str, about("Such as broker-group.add.")]
    target: Annotated[str, about("Such as the name of the group.")]
    before: Annotated[msgspec.Raw, about("The row before; null if there was none.")]
    after: Annotated[msgspec.Raw, about("The row after; null if there is none.")]


class AuditPage(Answer, frozen=True, kw_only=True):
    """A page of the audit, newest first."""

    items: Annotated[
        list[AuditShown],
        about("The entries. Few may be there though more follow: only so many are looked at."),
    ]
    next: Annotated[
        int | None, about("The value of `before` for the next page; null: this is the last page.")
    ]


class WaitingGroupShown(Answer, frozen=True, kw_only=True):
    """A broker group, delay group or receiver that registers and waits for approval."""

    name: Annotated[str, about("Its name.")]
    kind: GroupKind
    address: Annotated[str, about("host:port that it gives as its own; empty of receivers.")]
    patterns: Annotated[
        list[str],
        about("Of receivers: the subjects, or prefixes with a *, that approval routes to it."),
    ]
    speaks_from: Annotated[str, about("The IP address from which it speaks; of IPv6 the network.")]
    waits_seconds: Annotated[float, about("Seconds since it spoke first.")]


class Topology(Answer, frozen=True, kw_only=True):
    """Everything at a glance."""

    version: Annotated[str, about("Of this meta server.")]
    now_ms: Annotated[int, about("Its clock.")]
    ready: Annotated[bool, about("It answers everything.")]
    failing: Annotated[
        list[str],
        about(
            "The missing parts, if it is not complete, and delay groups whose newest record it "
            "lacks."
        ),
    ]
    broker_groups: Annotated[list[BrokerGroupShown], about("All groups.")]
    waiting: Annotated[
        list[WaitingGroupShown], about("Groups that wait for approval; they serve no client.")
    ]
    delay_groups: Annotated[
        list[DelayGroupShown], about("All groups of delay servers that register here.")
    ]
    routes: Annotated[RouteSummary, about("Routes, counted.")]
