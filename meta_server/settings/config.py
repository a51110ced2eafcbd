"""The configuration of one meta server process.

A section of the file is a frozen dataclass that checks itself. Every field is followed by a line
that gives its unit and what follows from it; `delaywheel settings` prints them all. Nothing below
this reads files, environment or globals.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from delay_protocol.basics.levels import DEFAULT_LEVELS, parse_levels
from delay_transport.connections.limits import ConnectionLimits
from delay_transport.http.addresses import is_loopback
from delay_transport.seams.constants import constant
from delay_transport.seams.runtime import parse_address, parse_peer_address
from delay_transport.settings.http_port import HttpPort
from delay_transport.settings.sections import LogConfig, part_of, require_at_least
from meta_server.groups.routing import RoutingLimits
from meta_server.sql.databases import StoreUrl, file_of, read_url

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """The data directory of this meta server."""

    data_dir: Path
    """Directory of the store; made if it is missing. A directory with a SQLite store is locked for
    as long as the process lives."""

    group_may_read: bool = False
    """Whether the group of the user that this runs as may read what is in `data_dir`: modes 0750
    and 0640. Otherwise 0700 and 0600. The umask does not matter, and what is there already keeps
    its mode."""

    stop_ms_max: int = 4000
    """Milliseconds from SIGTERM in which what was asked is answered."""

    def __post_init__(self) -> None:
        """Refuse what is no time."""
        require_at_least(self, 0, "stop_ms_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """The database that everything is kept in."""

    url: str = ""
    """`sqlite:///PATH`, or `postgresql+psycopg://USER:PASSWORD@HOST:PORT/NAME`. Empty: a SQLite
    file `meta.db` in the data directory."""

    audit_keep_ms: int = 400 * 24 * 3_600_000
    """Milliseconds for which an entry of the audit is kept: 500 bytes on disk for a change of a
    route, 2 KiB for a delay server that registers. A clock that is set ahead while the server runs
    makes no entry older."""

    def __post_init__(self) -> None:
        """Refuse what the store refuses, and what would keep nothing."""
        self.url_in(Path("data"))
        require_at_least(self, 3_600_000, "audit_keep_ms")

    def url_in(self, data_dir: Path) -> StoreUrl:
        """Return where the store is opened."""
        return read_url(self.url or f"sqlite:///{data_dir / 'meta.db'}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig(ConnectionLimits):
    """The listener for clients, brokers and delay servers, and its limits."""

    address: str = "127.0.0.1:20880"
    """host:port to listen on; IPv6 in brackets, port 0 for any free one. The default takes
    connections from this machine only."""

    advertised: str = ""
    """host:port that /meta/address tells. Empty: the port listened on, and the address listened on
    or, where that is all of them, the one that was asked over HTTP."""

    connections_max: int = 16_384
    """Open connections: one for each client process. For one more another one is closed that is
    silent, of the address from which most come; if all of those are being answered, it is closed at
    once itself."""

    frame_bytes_max: int = 128 * KIB
    """Bytes of one frame: a registration has some hundred. A longer one ends the connection before
    its body is buffered."""

    receive_bytes: int = constant(8 * KIB)
    """Bytes asked of the socket at a time. More means fewer receives and more memory per peer."""

    in_flight_requests_max: int = constant(2048)
    """Requests of one connection that wait for their answer. At this many nothing is read from the
    peer until some are answered; one receive may go beyond."""

    unsent_bytes_pause: int = constant(1 * MIB)
    """Bytes of answers that one peer has not taken. At this many nothing more is read from it, and
    no route is pushed to it, until it takes some."""

    def __post_init__(self) -> None:
        """Refuse what is no address, and limits that no connection could live with."""
        parse_address(self.address)
        if self.advertised:
            parse_peer_address(self.advertised)
        part_of(ConnectionLimits, self)

    @property
    def reached_by_others(self) -> str:
        """The address by which other machines reach it; "" if only this machine does."""
        return next(
            (
                address
                for address in (self.address, self.advertised)
                if address and not is_loopback(parse_address(address)[0])
            ),
            "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationConfig:
    """Limits and time-outs of registrations."""

    subjects: Literal["entered", "open"] = "open"
    """Which subjects may be used. `open`: any. `entered`: those that are known when this is set,
    and those that an operator enters (`delaywheel admin set subject NAME`) or that have a route
    which an operator set or a receiver brought. Clients are refused any other one, and what
    delay servers have of it becomes dead letters."""

    subjects_max: int = 1_000_000
    """Subjects there may be. A further one is refused when it is first used; 600 bytes of
    memory each, with its route."""

    new_subjects_per_second_max: float = 1000.0
    """Subjects a second that may be used for the first time, for long; those beyond are refused
    for the moment."""

    new_subjects_burst_seconds: float = constant(20.0)
    """Seconds' worth of `new_subjects_per_second_max` that may come at once after a quiet time."""

    new_subjects_address_share: float = constant(0.25)
    """Part of `new_subjects_per_second_max`, and of its burst, that clients of one address may take
    (an IPv6 network /64 counts as one): so a flood from there leaves the rest to others. 1 lets one
    address take all."""

    groups: Literal["", "entered", "open"] = ""
    """Which groups may come into being by registering. `open`: any. `entered`: those whose brokers
    are entered, and delay servers that prove the secret; others wait until `delaywheel admin
    approve` lets them in. Groups that are known stay. Empty: `open` where only this
    machine reaches the listener, else `entered`."""

    groups_max: int = 2000
    """Broker groups there may be, delay groups among them. A further one is refused."""

    broker_timeout_ms: int = 30_000
    """Milliseconds without a word from a broker after which its group is taken from routes. QMQ's
    brokers send a heartbeat every 10 s."""

    node_timeout_ms: int = 15_000
    """Milliseconds without a word from a delay server after which another process may claim to be
    it, started on its disk elsewhere."""

    elect: Literal["automatic", "operator"] = "automatic"
    """How another master is elected in place of one that is silent: by the meta server, or by an
    operator (`delaywheel admin elect`). One that was started again is elected by
    itself, whatever this says."""

    node_again_ms: int = constant(1000)
    """Milliseconds after which a delay server says again that it is there: one of which nothing
    came for 2.5 s counts as silent (meta_server/groups/elections.py)."""

    secret_file: str = ""
    """The file of the secret that delay servers prove to have (`meta.secret_file` there), readable
    by its owner and group only; read again when it changes. Two lines are two secrets that count.
    Empty: anybody who reaches the listener may register as any of them."""

    secret_needed: bool = True
    """Whether a delay server without the secret is refused, if there is a `secret_file`. False is
    for the time until all of them have it."""

    waiting_max: int = constant(20_000)
    """Requests that wait for the store, and as many urgent ones: of delay servers, and of
    operators. A further one is refused for the moment."""

    commit_requests_max: int = constant(40)
    """Requests whose changes are stored together at most: what is urgent waits for one commit."""

    def __post_init__(self) -> None:
        """Refuse limits that exclude every registration."""
        require_at_least(self, 1, "subjects_max", "groups_max")
        require_at_least(self, 0.001, "new_subjects_per_second_max")
        require_at_least(self, 100, "broker_timeout_ms", "node_timeout_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConfig:
    """How connected clients learn that a route has changed."""

    gather_ms: int = constant(50)
    """Milliseconds for which changes gather before they are pushed together."""

    subscriptions_max: int = constant(500_000)
    """Routes of all connected clients that are kept up to date by pushes; 500 bytes of memory
    each. Clients of further ones ask for themselves every minute."""

    subscriptions_per_connection_max: int = constant(200_000)
    """The same for one connection: a delay server has one for each subject it delivers."""

    retry_ms: int = constant(50)
    """Milliseconds after which a push is tried again to a client that had not taken what was sent
    before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig(HttpPort):
    """The port for discovery, administration, metrics, health, status and QMQ's queries."""

    address: str = "127.0.0.1:8080"
    """host:port; port 0 for any free one, empty for no HTTP at all. QMQ's clients ask it for the
    address of the listener. The default takes connections from this machine only; another one needs
    `admin.token_file`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig:
    """Access to administration over HTTP, and its limits."""

    token_file: str = ""
    """The file of tokens that `delaywheel admin token add` writes; it is read again when it
    changes. Empty: no token is needed, and HTTP is served on this machine's own addresses only."""

    answer_ms_max: int = constant(8000)
    """Milliseconds for which an answer waits for the store. After that it is 504: whether the
    change is stored is to be looked up."""

    prefix_routes_max: int = constant(10_000)
    """Routes of prefixes there may be. A further one is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayConfig:
    """The delays that clients are told."""

    levels: str = DEFAULT_LEVELS
    """The delay of each level, for clients that send by level and receivers that retry by it: at
    most 64 whole numbers of s, m, h or d, with blanks between, of at most 180d. Level 1 is the
    first of them. Senders compute when a message is due, so a change moves nothing that waits."""

    def __post_init__(self) -> None:
        """Refuse what is no table of levels."""
        parse_levels(self.levels)


class MetaServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set of one meta server."""

    node: NodeConfig
    """The data directory."""

    store: StoreConfig = msgspec.field(default_factory=StoreConfig)
    """The database, and how long it keeps the audit."""

    listener: ListenerConfig = msgspec.field(default_factory=ListenerConfig)
    """The listener."""

    registration: RegistrationConfig = msgspec.field(default_factory=RegistrationConfig)
    """Registrations."""

    routing: RoutingLimits = msgspec.field(default_factory=RoutingLimits)
    """Which broker groups a subject gets."""

    delay: DelayConfig = msgspec.field(default_factory=DelayConfig)
    """The delays that clients are told."""

    push: PushConfig = msgspec.field(default_factory=PushConfig)
    """How clients learn of changes."""

    http: HttpConfig = msgspec.field(default_factory=HttpConfig)
    """Discovery, administration, metrics, health and status."""

    admin: AdminConfig = msgspec.field(default_factory=AdminConfig)
    """Administration."""

    log: LogConfig = msgspec.field(default_factory=LogConfig)
    """The log of the process."""

    @property
    def is_open(self) -> bool:
        """Whether groups that no operator knows of come into being by registering."""
        default = "entered" if self.listener.reached_by_others else "open"
        return (self.registration.groups or default) == "open"

    @property
    def is_alone(self) -> bool:
        """True if no other meta server can use the store."""
        return file_of(self.store.url_in(Path())) is not None

    @property
    def exposures(self) -> dict[str, str]:
        """Where HTTP is served, and said to be, by the setting that says so."""
        if not self.http.address:
            return {}
        return {
            "http.address": self.http.address,
            "listener.advertised": self.listener.advertised,
        }
