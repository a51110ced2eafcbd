"""What a meta server knows, how it changes, and what it asks of a store.

Three layers, all values:

* **Rows**: what is known, one frozen dataclass for each table. A row that is replaced carries a
  `version`, which goes up by one with each replacement; the first is 1.
* **Changes**: what may happen to rows. A commit is a sequence of changes that a store makes durable
  in one transaction, all or none; the registry applies the same changes in memory after that.
* **Store**: where rows are kept. Its methods are synchronous and called through the executor.

Compare-and-set. A `Save…` of a row with version v succeeds if the store has the row with version
v - 1, or has no such row and v is 1; else the commit raises ConflictError. A `Remove…` of a
versioned row names the version that it removes. `SaveDelayGroup` names the epoch and version that
it replaces, as failover wants it. `ForgetAudit` is idempotent.

Times are wall clock in ms since 1970 UTC. Texts are kept as they are, compared byte for byte (no
case folding), and have no bound here: whoever makes a row keeps the limits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol
from uuid import UUID

from delay_protocol.meta.requests import BrokerRole, BrokerState
from delay_protocol.nodes.controls import Controls
from delay_protocol.nodes.registration import GroupRecord, Master, NodeRole

EVERY = "*"
"""In requests of operators every subject."""


NO_BOOT = UUID(int=0)
"""In a DelayNode whose row was made before starts had an id of their own."""


STATIC = "static"
"""In a BrokerGroup's `ext`, with any value: it never registers, so its silence says nothing. Its
state is what an operator set. Taken out when the group registers all the same."""

ENTERED = "entered"
"""In a BrokerGroup's `ext`, with any value: an operator added, approved or changed it."""

SPOKE = "spoke"
"""In a BrokerGroup's `ext`: the IP address from which its master speaks (of IPv6 the /64)."""

OWN_EXT = frozenset({STATIC, ENTERED, SPOKE})
"""Names in `ext` that are ours: no operator gives them, and they are shown otherwise or not."""


class GroupKind(IntEnum):
    """The kind of a broker group."""

    NORMAL = 1
    """Hands messages to consumers at once."""
    DELAY = 2
    """Keeps messages until they are due."""
    RECEIVER = 3
    """Has no address: its members attach to delay servers, which hand them what is due."""


# Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerGroup:
    """A group of brokers, or of delay servers, as clients see it. Key: name."""

    name: str
    kind: GroupKind
    master: str
    """host:port of its master for clients; "" as long as none is known, and of receivers."""
    state: BrokerState = BrokerState.NRW
    """The last state that its master reported; NRW once it is off-line or timed out. Of receivers
    always RW: messages wait for them in the delay server."""
    tag: str = ""
    """Subjects with this tag are routed to it; "" is the default tag."""
    ext: Mapping[str, str] = field(default_factory=dict)
    """Further attributes, as QMQ's table has them."""
    weight: int = 100
    """Share of subjects that are routed to it, against its neighbours; 0 for none any more."""
    is_read_only: bool = False
    """True if an operator took it from producers."""
    is_retired: bool = False
    """Whether no route leads to it any more; its name stays taken."""
    updated_ms: int = 0
    """When this row was changed last; goes to clients."""
    version: int = 1

    @property
    def is_watched(self) -> bool:
        """Whether its silence is to take it from routes."""
        return (
            self.kind is not GroupKind.RECEIVER
            and self.state is not BrokerState.NRW
            and STATIC not in self.ext
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """One server that may ask which group and role it has. Key: hostname and serve_port.

    There is at most one broker of a role in a group.
    """

    hostname: str
    """As it calls itself: host name, or address."""
    serve_port: int
    ip: str
    """IPv4 address that others reach it by."""
    group: str
    role: BrokerRole
    sync_port: int = 0
    """Port for its slaves; 0 if there are none."""
    version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A subject that was used. Key: name (never a retry subject's)."""

    name: str
    tag: str = ""
    """It is routed to groups with this tag; "" is the default tag."""
    created_ms: int = 0
    version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Which broker groups a subject, or every subject with a prefix, has. Key: name and is_prefix.

    A subject's own route goes before that of a prefix, a longer prefix before a shorter one.
    """

    name: str
    """The subject, or the prefix."""
    is_prefix: bool = False
    groups: tuple[str, ...]
    """Names of broker groups, in the order in which clients get them; never empty, no name twice.
    """
    is_chosen: bool = True
    """Whether the meta server chose it at first use; False: an operator or a receiver did."""
    is_brought: bool = False
    """True if a receiver of its only group brought it, and no operator has set it since."""
    version: int = 1

    @property
    def pattern(self) -> str:
        """Return the pattern of which it is the route."""
        return f"{self.name}*" if self.is_prefix else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayNode:
    """A delay server of ours as it registered last. Key: cluster, group and node_id."""

    cluster: str
    group: str
    node_id: str
    log_uuid: UUID
    """Of its message_log."""
    storage_uuid: UUID
    """Of its data directory: a wiped disk is another replica."""
    incarnation: int
    """How often it was started on that directory."""
    boot_id: UUID = NO_BOOT
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
    version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayGroup:
    """A group of delay servers of ours. Key: name, over all clusters. Its BrokerGroup has the same.

    No two have the same log_uuid.
    """

    name: str
    cluster: str
    log_uuid: UUID
    """Of its message_log, alike on all replicas."""
    record: GroupRecord
    """Who is master and who is in sync, as delay_protocol has it: changed by compare-and-set only.
    """

    @property
    def pair(self) -> tuple[int, int]:
        """Epoch and version of its record: what a commit that changes it names."""
        return self.record.epoch, self.record.version

    def has_in_sync(self, node: DelayNode) -> bool:
        """Say whether the disk of a node is in sync."""
        return self.record.in_sync.get(node.node_id) == node.storage_uuid

    def role_of(self, node: DelayNode) -> NodeRole:
        """Return the role of a start: master if the record names it, on its disk."""
        own = Master(node_id=node.node_id, incarnation=node.incarnation)
        is_master = self.record.master == own and self.has_in_sync(node)
        return NodeRole.MASTER if is_master else NodeRole.SLAVE


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """An audit entry: who changed what."""

    at_ms: int
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterControls:
    """The rules of a cluster: pauses, limits, weights. Key: cluster."""

    cluster: str
    controls: Controls
    """Its version is the row's; it names no store, which is the one that it is in."""

    @property
    def version(self) -> int:
        """Which version of the row this is."""
        return self.controls.version


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Everything a store has, but the audit. The order of rows says nothing."""

    broker_groups: tuple[BrokerGroup, ...] = ()
    brokers: tuple[Broker, ...] = ()
    subjects: tuple[Subject, ...] = ()
    routes: tuple[Route, ...] = ()
    delay_nodes: tuple[DelayNode, ...] = ()
    delay_groups: tuple[DelayGroup, ...] = ()
    controls: tuple[ClusterControls, ...] = ()
    timestamp_ms: int = 0
    """No answer ever carried a later time than this one."""


# Changes


@dataclass(frozen=True, slots=True)
class SaveBrokerGroup:
    """Add or replace a broker group."""

    group: BrokerGroup


@dataclass(frozen=True, slots=True)
class RemoveBrokerGroup:
    """Remove a broker group, which has the version given."""

    group: BrokerGroup


@dataclass(frozen=True, slots=True)
class SaveBroker:
    """Add or replace a broker."""

    broker: Broker


@dataclass(frozen=True, slots=True)
class RemoveBroker:
    """Remove a broker, which is as given."""

    broker: Broker


@dataclass(frozen=True, slots=True)
class SaveSubject:
    """Add or replace a subject."""

    subject: Subject


@dataclass(frozen=True, slots=True)
class RemoveSubject:
    """Remove a subject, which has the version given."""

    subject: Subject


@dataclass(frozen=True, slots=True)
class SaveRoute:
    """Add or replace a route."""

    route: Route


@dataclass(frozen=True, slots=True)
class RemoveRoute:
    """Remove a route, which has the version given."""

    route: Route


@dataclass(frozen=True, slots=True)
class SaveDelayNode:
    """Add or replace a delay node."""

    node: DelayNode


@dataclass(frozen=True, slots=True)
class RemoveDelayNode:
    """Remove a delay node, which has the version given."""

    node: DelayNode


@dataclass(frozen=True, slots=True)
class SaveDelayGroup:
    """Add a delay group, or replace its row if its record has the epoch and version expected."""

    group: DelayGroup
    expected: tuple[int, int] | None
    """(epoch, version) of the record that is replaced; None: there is no such group."""


@dataclass(frozen=True, slots=True)
class RemoveDelayGroup:
    """Remove a delay group without a node in sync; its record is as given."""

    group: DelayGroup


@dataclass(frozen=True, slots=True)
class RaiseTimestamp:
    """Raise `Contents.timestamp_ms` to at least this; a lower one changes nothing."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Audit:
    """Append an entry to the audit."""

    entry: AuditEntry


@dataclass(frozen=True, slots=True)
class ForgetAudit:
    """Forget the entries of the audit that are older."""

    before_ms: int


@dataclass(frozen=True, slots=True)
class SaveControls:
    """Add or replace the controls of a cluster."""

    row: ClusterControls


Change = (
    SaveBrokerGroup
    | RemoveBrokerGroup
    | SaveBroker
    | RemoveBroker
    | SaveSubject
    | RemoveSubject
    | SaveRoute
    | RemoveRoute
    | SaveDelayNode
    | RemoveDelayNode
    | SaveDelayGroup
    | RemoveDelayGroup
    | RaiseTimestamp
    | Audit
    | ForgetAudit
    | SaveControls
)
"""Everything that may happen to what is known."""


# The store


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
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
        """Which store it is, drawn when it was made: one that takes its place has another."""

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
