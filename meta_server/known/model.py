"""What a meta server knows, how it changes, and what it asks of a store.

Three layers, all values:

* **Rows**: what is known, one frozen struct for each kind, all of them in KINDS. A row says its
  key, its version and its claim, if it has one; registry and stores are made from that.
* **Changes**: what may happen to rows. A commit is a sequence of changes that a store makes durable
  in one transaction, all or none; the registry applies the same changes in memory after that.
* **Store**: where rows are kept. Its methods are synchronous and called through the executor.

Compare-and-set. `Save(row)` succeeds if the store has the row in the version `over`, or has no such
row and `over` is None, and no other row of the kind has the same claim; else the commit raises
ConflictError. `Remove(row)` succeeds if the store has the row in the version of `row`.
`ForgetAudit` is idempotent.

Times are wall clock in ms since 1970 UTC. Texts are kept as they are, compared byte for byte (no
case folding), and have no bound here: whoever makes a row keeps the limits.
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from operator import attrgetter
from typing import Any, ClassVar, Final, Protocol, TypeVar
from uuid import UUID

import msgspec

from delay_protocol.meta.requests import BrokerRole, BrokerState
from delay_protocol.nodes.controls import Controls
from delay_protocol.nodes.registration import GroupRecord, Master, NodeRegister, NodeRole
from delay_protocol.receivers.masters import Level, Tries, Waits


class GroupKind(Enum):
    """The kind of a broker group."""

    NORMAL = "normal"
    """Hands messages to consumers at once."""
    DELAY = "delay"
    """Keeps messages until they are due."""


# Rows

Key = str | UUID | tuple[str | int, ...]
"""The values that distinguish a row from others of its kind."""


class Fields(Protocol):
    """Reads those fields of a row that count together, as `attrgetter` does."""

    def __call__(self, row: Any, /) -> Any:  # noqa: ANN401 (of each kind another one)
        """Return one field as it is, several as a tuple."""


class Row(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A row of a kind: its key, its version, and its claim.

    The API shows rows as they are: names in JSON, and the string after each field, are for it too.
    """

    KIND: ClassVar[str]
    """The name of the kind, in the store and in what is said of a row."""

    KEY: ClassVar[Fields]
    """Fields that distinguish a row from others of its kind."""

    CLAIM: ClassVar[Fields | None] = None
    """Fields that no two rows of the kind have alike, beside the key; None: there are none."""

    @property
    def key(self) -> Any:  # noqa: ANN401 (of each kind another one)
        """The values that distinguish it from other rows of its kind."""
        return self.KEY(self)

    @property
    def claim(self) -> Key | None:
        """The values that at most one row of its kind may have, beside the key; None: none."""
        return None if self.CLAIM is None else self.CLAIM(self)

    @property
    def version(self) -> int:
        """Goes up by one with each replacement; the first is 1."""
        raise NotImplementedError

    @property
    def etag(self) -> str:
        """Its version, by which a change finds that it is as expected."""
        return str(self.version)

    @property
    def before(self) -> str | None:
        """The etag of the row that this one usually replaces; None: it is usually added."""
        return None if self.version == 1 else str(self.version - 1)


class Versioned(Row, frozen=True, kw_only=True, gc=False):
    """A row that has its version in a field."""

    version: int = 1
    """Counts changes of the row; where none is shown that is stored it is 0."""


class BrokerGroup(Versioned, frozen=True, kw_only=True, gc=False):
    """A group of brokers, or of delay servers, as clients see it. Key: name."""

    KIND = "broker-group"
    KEY = attrgetter("name")

    name: str
    """Its name."""
    kind: GroupKind
    """normal or delay."""
    master: str = msgspec.field(name="address")
    """host:port of its master for clients; "" as long as none is known."""
    state: BrokerState = BrokerState.NRW
    """The last state that its master reported; NRW once it is off-line or timed out."""
    is_static: bool = msgspec.field(name="static", default=False)
    """True if it never registers, so its silence says nothing. Ends when it registers all the same.
    """
    is_entered: bool = msgspec.field(name="entered", default=False)
    """True if an operator added, approved or changed it, or, as it is shown, if it is static or has
    an entered broker. Others join no route that is there, and are forgotten when they are silent
    for long."""
    speaker: str = ""
    """The IP address from which its master speaks (of IPv6 the /64); "" if nobody does."""
    weight: int = 100
    """Share of subjects that are routed to it, against its neighbours; 0 for none any more."""
    is_read_only: bool = msgspec.field(name="read_only", default=False)
    """True if an operator took it from producers."""
    is_retired: bool = msgspec.field(name="retired", default=False)
    """True if no route leads to it any more; its name stays taken."""
    updated_ms: int = msgspec.field(name="since_ms", default=0)
    """When this row was changed last; goes to clients."""

    @property
    def is_watched(self) -> bool:
        """Whether its silence is to take it from routes."""
        return self.state is not BrokerState.NRW and not self.is_static


class Broker(Versioned, frozen=True, kw_only=True, gc=False):
    """One server that may ask which group and role it has. Key: group and role.

    There is at most one broker with a hostname and serve_port.
    """

    KIND = "broker"
    KEY = attrgetter("group", "role")
    CLAIM = attrgetter("hostname", "serve_port")

    hostname: str
    """As it calls itself: host name, or address."""
    serve_port: int
    """Port for messages."""
    ip: str
    """IPv4 address that others reach it by."""
    group: str
    """Its broker group."""
    role: BrokerRole
    """Its role in it."""
    sync_port: int = 0
    """Port for its slaves; 0 if there are none."""


class Subject(Versioned, frozen=True, kw_only=True, gc=False):
    """A subject that was used. Key: name (never a retry subject's)."""

    KIND = "subject"
    KEY = attrgetter("name")

    name: str
    """Its name."""
    created_ms: int = 0
    """When it was used first, or entered."""


class Route(Versioned, frozen=True, kw_only=True, gc=False):
    """Which broker groups a subject, or every subject with a prefix, has. Key: name and is_prefix.

    A subject's own route goes before that of a prefix, a longer prefix before a shorter one.
    """

    KIND = "route"
    KEY = attrgetter("name", "is_prefix")

    name: str
    """The subject, or the prefix."""
    is_prefix: bool = False
    """True of a prefix."""
    groups: tuple[str, ...]
    """Names of broker groups, in the order in which clients get them; never empty, no name twice.
    """
    is_chosen: bool = msgspec.field(name="chosen", default=True)
    """True if the meta server chose it at first use; False: an operator did."""

    @property
    def pattern(self) -> str:
        """Return the pattern of which it is the route."""
        return f"{self.name}*" if self.is_prefix else self.name


class Receiver(Versioned, frozen=True, kw_only=True, gc=False):
    """A name of receivers, and its subscription. Key: name, which no broker group has.

    A subject goes to each name of which a pattern takes it, and to no broker group then. Members of
    a name attach to the delay servers, which hand them what is due.
    """

    KIND = "receiver"
    KEY = attrgetter("name")

    name: str
    """Its name."""
    patterns: tuple[str, ...] = ()
    """Subjects, and beginnings of subjects with a * behind, that it gets; sorted, each once."""
    is_entered: bool = msgspec.field(name="entered", default=False)
    """True if an operator set or approved it; else it has registered by itself."""
    tries: Tries | None = None
    """Times that a handler has a message before it is a dead letter; null: as each receiver says.
    """
    waits: Waits = ""
    """Delays after each try, such as `10s 30s 1m`; the last one is that of further tries, too.
    Empty: as each receiver says."""
    first_level: Level | None = None
    """In their place: the level of the first wait, by the table of `delay.levels`."""
    unsettled_tries: Tries | None = None
    """Receivers that end with a message before it is a dead letter; null: as each receiver says."""
    updated_ms: int = msgspec.field(name="since_ms", default=0)
    """When this row was changed last."""


class WebhookSettings(Versioned, frozen=True, kw_only=True, gc=False):
    """Where and how gateways post the messages of a name of receivers; secrets are beside it."""

    name: str
    """Its name, which is the name of receivers that its messages go to."""
    url: str = ""
    """The address that its messages are posted to; empty: each message names its own."""
    hosts: tuple[str, ...] = ()
    """Hosts that the addresses of messages may have where there is no `url`: `api.example.com`,
    `*.example.com`, `api.example.com:8443`."""
    private: tuple[str, ...] = ()
    """Networks and addresses that it may be at though they are loopback, private or link-local,
    such as `10.1.0.0/16`."""
    concurrency: int = 10
    """Requests of one gateway at a time at the most."""
    rate_per_s: float | None = None
    """Requests of one gateway in a second at the most; null: as many as it takes."""
    timeout_s: float = 15.0
    """Seconds for a request and its answer."""
    disabled: str = ""
    """Why nothing is posted: its messages wait. Empty: messages are posted."""


class Webhook(WebhookSettings, frozen=True, kw_only=True, gc=False):
    """A webhook with its secrets, which are shown to gateways alone. Key: name."""

    KIND = "webhook"
    KEY = attrgetter("name")

    secrets: tuple[str, ...] = ()
    """One secret, or two while one is exchanged: each signs."""


class DelayNode(Versioned, frozen=True, kw_only=True, gc=False):
    """A delay server of ours as it registered last. Key: cluster, group and node_id.

    No two have the same storage_uuid.
    """

    KIND = "delay-node"
    KEY = attrgetter("cluster", "group", "node_id")
    CLAIM = attrgetter("storage_uuid")

    cluster: str
    """Its cluster."""
    group: str
    """Its delay group."""
    node_id: str
    """Which node of it."""
    log_uuid: UUID
    """Of its message_log."""
    storage_uuid: UUID
    """Of its data directory: a wiped disk is another replica."""
    incarnation: int
    """How often it was started on that directory."""
    boot_id: UUID
    """Of the start that registered, which is one of several if the directory was copied."""
    last_sequence: int
    """The last record that its log has to have, as it was reported, but for the last while: alone
    in sync its end, else what it knows to be committed; 0: none. What was reported was durable."""
    last_epoch: int = 0
    """The newest epoch in its log, as this start has reported it; 0 while that is empty."""
    address: str
    """host:port for producers, receivers, and the other nodes of its group."""
    http_address: str = ""
    """host:port of metrics and status; "" if it has none."""
    software: str = ""
    """The version that it runs."""
    registered_ms: int = 0
    """When this incarnation registered first."""


class DelayGroup(Row, frozen=True, kw_only=True, gc=False):
    """A group of delay servers of ours. Key: name, over all clusters. Its BrokerGroup has the same.

    No two have the same log_uuid.
    """

    KIND = "delay-group"
    KEY = attrgetter("name")
    CLAIM = attrgetter("log_uuid")

    name: str
    cluster: str
    log_uuid: UUID
    """Of its message_log, alike on all replicas."""
    record: GroupRecord
    """Who is master and who is in sync, as delay_protocol has it: changed by compare-and-set only.
    """

    @property
    def etag(self) -> str:
        """Epoch and version of its record."""
        return f"{self.record.epoch}.{self.record.version}"

    @property
    def before(self) -> None:
        """None: whoever replaces it names the etag that it has."""

    @property
    def pair(self) -> tuple[int, int]:
        """Epoch and version of its record: what a commit that changes it names."""
        return self.record.epoch, self.record.version

    def has_in_sync(self, node: DelayNode | NodeRegister) -> bool:
        """Say whether the disk of a node is in sync."""
        return self.record.in_sync.get(node.node_id) == node.storage_uuid

    def role_of(self, node: DelayNode) -> NodeRole:
        """Return the role of a start: master if the record names it, on its disk."""
        own = Master(node_id=node.node_id, incarnation=node.incarnation)
        is_master = self.record.master == own and self.has_in_sync(node)
        return NodeRole.MASTER if is_master else NodeRole.SLAVE


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An audit entry: who changed what."""

    at_ms: int
    """When."""
    actor: str
    """Name of the token, or the address of the peer that registered."""
    action: str
    """Such as `broker-group.add`."""
    target: str
    """Such as the name of the group."""
    before: str = ""
    """The row before, as JSON; "" if there was none."""
    after: str = ""
    """The row after, as JSON; "" if there is none."""


class ClusterControls(Row, frozen=True, kw_only=True, gc=False):
    """The rules of a cluster: pauses, limits, weights. Key: cluster."""

    KIND = "controls"
    KEY = attrgetter("cluster")

    cluster: str
    controls: Controls
    """Its version is the row's; it names no store, which is the one that it is in."""

    @property
    def version(self) -> int:
        """Which version of the row this is."""
        return self.controls.version


KINDS: Final[tuple[type[Row], ...]] = (
    BrokerGroup,
    Broker,
    Subject,
    Route,
    Receiver,
    Webhook,
    DelayNode,
    DelayGroup,
    ClusterControls,
)
"""All kinds of rows that a store has."""

R = TypeVar("R", bound=Row)


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a store has, but the audit. The order of rows of different kinds says nothing."""

    rows: tuple[Row, ...] = ()
    timestamp_ms: int = 0
    """No answer ever carried a later time than this one."""

    def of(self, kind: type[R]) -> tuple[R, ...]:
        """Return the rows of a kind."""
        return tuple(row for row in self.rows if isinstance(row, kind))


# Changes


class Save(msgspec.Struct, frozen=True, gc=False):
    """Add a row, or replace the one that has its key."""

    row: Row
    over: str | msgspec.UnsetType | None = msgspec.UNSET
    """The etag of the row that is replaced; None: there is none. Left out: what `row.before` says.
    """

    @property
    def expected(self) -> str | None:
        """The etag that the row of this key must have; None: there must be none."""
        return self.row.before if self.over is msgspec.UNSET else self.over


class Remove(msgspec.Struct, frozen=True, gc=False):
    """Remove a row, which has the version given."""

    row: Row


class RaiseTimestamp(msgspec.Struct, frozen=True, gc=False):
    """Raise `Contents.timestamp_ms` to at least this; a lower one changes nothing."""

    timestamp_ms: int


class Audit(msgspec.Struct, frozen=True, gc=False):
    """Append an entry to the audit."""

    entry: AuditEntry


class ForgetAudit(msgspec.Struct, frozen=True, gc=False):
    """Forget the entries of the audit that are older."""

    before_ms: int


Change = Save | Remove | RaiseTimestamp | Audit | ForgetAudit
"""Everything that may happen to what is known."""


def audited(
    action: str, target: str, before: object, after: object, *, actor: str, at_ms: int
) -> Audit:
    """Return the entry of the audit for a change, with the rows as JSON; None: there is none."""
    old, new = ("" if row is None else msgspec.json.encode(row).decode() for row in (before, after))
    entry = AuditEntry(
        at_ms=at_ms, actor=actor, action=action, target=target, before=old, after=new
    )
    return Audit(entry)


def saved(changes: Iterable[Change], kind: type[R]) -> list[R]:
    """Return the rows of a kind that are saved, in order."""
    rows = (change.row for change in changes if isinstance(change, Save))
    return [row for row in rows if isinstance(row, kind)]


def removed(changes: Iterable[Change], kind: type[R]) -> list[R]:
    """Return the rows of a kind that are removed, in order."""
    rows = (change.row for change in changes if isinstance(change, Remove))
    return [row for row in rows if isinstance(row, kind)]


def touches(changes: Iterable[Change], *kinds: type[Row]) -> bool:
    """Return True if a row of one of these kinds is saved or removed."""
    rows = (change.row for change in changes if isinstance(change, Save | Remove))
    return any(isinstance(row, kinds) for row in rows)


# The store


class AuditRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An entry of the audit with its place in it."""

    number: int
    """Goes up from entry to entry, not necessarily by one."""
    entry: AuditEntry


class MetaStore(Protocol):
    """Where rows are kept. All methods are synchronous and may block; one call at a time.

    Whatever fails is raised as a StoreError. After StoreUnavailableError the next call tries anew
    (reconnects); the caller loads before it commits again.
    """

    @property
    def uuid(self) -> UUID:
        """Which store it is, drawn when it was made, or taken along with an export."""

    def load(self) -> Contents:
        """Return everything, as of one moment; raise StoreUnavailableError."""

    def commit(self, changes: Sequence[Change], /) -> None:
        """Make all of these durable, in order, in one transaction, or none of them.

        A later change sees what an earlier one of the same commit did. Raises ConflictError (none
        of them is kept) or StoreUnavailableError (all of them may be kept, or none).
        """

    def read_audit(self, *, before: int | None = None, limit: int) -> tuple[AuditRow, ...]:
        """Return up to `limit` entries, newest first, those with a lower number than `before`."""

    def close(self) -> None:
        """Let go of the store; nothing else is called afterwards."""
