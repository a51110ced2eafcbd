"""The configuration of one delay server process, composed of the limits of its parts.

A section of the file is a frozen dataclass that checks itself, by the rules of the parts that take
its settings: sections are cut as an operator thinks, parts as the code is. Every field is followed
by a line that gives its unit and what follows from it; `delaywheel settings` prints them all.
Nothing below this reads files, environment or globals.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from delay_protocol.basics.subjects import SENT_SUBJECT_BYTES_MAX
from delay_protocol.meta.session import MetaSessionConfig
from delay_server.accepting.admission import AdmissionConfig
from delay_server.accepting.duplicates import DuplicatesConfig
from delay_server.holding.wheel import WheelConfig
from delay_transport.connections.limits import ConnectionLimits
from delay_transport.http.addresses import is_loopback
from delay_transport.http.shared_secret import SharedSecret
from delay_transport.seams.constants import constant
from delay_transport.seams.errors import AddressError
from delay_transport.seams.runtime import Address, format_address, parse_address, parse_peer_address
from delay_transport.settings.http_port import HttpPort
from delay_transport.settings.sections import LogConfig, part_of, require_at_least, require_name
from sender.settings.config import BrokerGroup, SenderConfig
from storage.batch.entries import SUBJECT_BYTES
from storage.limits import MIB, StorageLimits
from storage.node.store import StoreSettings

KIB = 1024

_DISK_FLOOR_LEAST = MIB
"""Bytes below which a disk counts as full whatever the settings say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """The identity of this node, and its data directory."""

    data_dir: Path
    """Directory of all logs. The node creates it if it is missing, and locks it while it runs."""

    cluster: str | None = None
    """Name of the cluster, fixed at the first start. Not set: the name in the data directory."""

    group: str | None = None
    """Name of the delay group, the same on all replicas, fixed at the first start. Not set: the
    name in the data directory."""

    node_id: str | None = None
    """Name of the node, fixed at the first start. Not set: the name in the data directory."""

    group_may_read: bool = False
    """Whether the Unix group of the process may read `data_dir`: new directories get mode 0750 and
    new files 0640. Otherwise 0700 and 0600. The umask does not matter. Existing files keep their
    mode."""

    stop_ms_max: int = 4000
    """Milliseconds from SIGTERM in which the node answers requests and waits for confirmations of
    deliveries. An unconfirmed message is delivered again after the next start."""

    rules_file: str = ""
    """File with the pauses, limits and weights of a node without a meta server (JSON); the node
    reads it again when it changes. Empty: there are none, or the meta server has them."""

    def __post_init__(self) -> None:
        """Refuse names that could not be written down."""
        for name in ("cluster", "group", "node_id"):
            value = getattr(self, name)
            if value is not None:
                require_name(name, value)
        require_at_least(self, 0, "stop_ms_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig(ConnectionLimits):
    """The listener for producers, and the limits of a connection."""

    address: str = "127.0.0.1:20801"
    """host:port to listen on; IPv6 in brackets, port 0 for any free port. The default accepts
    connections from this machine only."""

    def __post_init__(self) -> None:
        """Refuse what is no address, and limits that no connection could live with."""
        parse_address(self.address)
        part_of(ConnectionLimits, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig(StorageLimits):
    """Size and retention of the files of the logs, checkpoints, and limits of the disk."""

    def __post_init__(self) -> None:
        """Refuse values under which the logs could not move on."""
        require_at_least(self, MIB, "message_log_file_bytes_max", "subjects_bytes_max")
        require_at_least(self, 0, "fact_sync_ms_max", "retired_grace_ms")
        require_at_least(self, 0, "message_log_keep_ms", "segments_keep_ms", "seals_keep_ms")
        require_at_least(self, 0, "disk_free_bytes_min", "disk_free_share_min")
        require_at_least(self, 1, "open_files_max")
        require_at_least(self, 100, "checkpoint_interval_ms")
        if not self.disk_free_share_min < 1:
            raise ValueError("disk_free_share_min must be below 1: it is a share of the disk")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockConfig:
    """The clock guard: which steps of the wall clock hold delivery."""

    step_forward_ms_max: int = 60_000
    """Milliseconds. If the wall clock gains more than this on the boot clock, the node holds
    delivery until the step is confirmed or reverted: a clock that is a year ahead would deliver a
    year's messages."""

    def __post_init__(self) -> None:
        """Refuse a limit that ordinary clock discipline would reach."""
        require_at_least(self, 1000, "step_forward_ms_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig(HttpPort):
    """The port for metrics, health, status and administration."""

    address: str = "127.0.0.1:20811"
    """host:port; port 0 for any free port, empty for no HTTP. The default accepts connections from
    this machine only; any other address needs `admin.token_file`. Health needs no token. All other
    endpoints are for callers with a token, or on this machine if there is no token file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig:
    """Who may read the status, and who may drain and change dead letters."""

    token_file: str = ""
    """The token file that `delaywheel admin token add` writes; the node reloads it when it changes.
    Empty: no token is needed, and HTTP must listen on a loopback address."""


_ALL_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104 (a comparison)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaConfig:
    """The meta server: it gives this node its role and its routes, and clients its address."""

    addresses: str = ""
    """host:port of the HTTP port of each meta server, separated by commas; the node tries them in
    turn. Empty: the node is the only one of its group and delivers to `brokers`."""

    advertised: str = ""
    """host:port that clients get from the meta server for this node. Empty: the address that it
    listens on. Needed if that is every address of the machine; IPv4 or a name, since QMQ's clients
    know no IPv6."""

    secret_file: str = ""
    """The file of the secret that this node shares with its meta servers
    (`registration.secret_file` there), readable by its owner and group only. The node signs with
    the first line, and reloads the file when it changes. Empty: it sends no proof and accepts any
    answer."""

    reconnect_seconds_max: float = 1.0
    """Seconds. The longest wait before a meta server that failed is asked again. A meta server that
    was started takes who is not heard for 3 s for dead."""

    controls_seconds_max: float = 2.0
    """Seconds that delivery waits at the start for the rules of the meta server. After that the
    last rules that the node stored are in force until it gets newer ones."""

    def __post_init__(self) -> None:
        """Refuse addresses that cannot be read, and times in which nothing could be asked."""
        self.http_addresses()
        require_at_least(self, 0.1, "reconnect_seconds_max")
        require_at_least(self, 0, "controls_seconds_max")
        if self.advertised and not parse_address(self.advertised)[1]:
            raise ValueError(f"advertised must have a port, not {self.advertised!r}")

    def http_addresses(self) -> tuple[Address, ...]:
        """Return where to ask for a meta server; nothing if there is none."""
        found = []
        for text in filter(None, (part.strip() for part in self.addresses.split(","))):
            try:
                found.append(parse_peer_address(text))
            except AddressError as error:
                raise ValueError(f"addresses: {error}") from error
        return tuple(found)

    def told(self, listening: Address) -> str:
        """Return the address that clients get for this listener; ValueError if they cannot use it.

        The meta server and QMQ's clients split it at its colon.
        """
        told = self.advertised or format_address(listening)
        host, _ = parse_address(told)
        if host in _ALL_ADDRESSES or ":" in host:
            raise ValueError(
                f"meta.advertised must be set to an IPv4 address or a name and a port: clients "
                f"cannot use {told}"
            )
        return told

    def told_http(self, listening: Address) -> str:
        """Return the HTTP address as other machines can use it; empty if they cannot."""
        host, port = listening
        if host in _ALL_ADDRESSES and self.advertised:
            host, _ = parse_address(self.advertised)
        return "" if host in _ALL_ADDRESSES or ":" in host else format_address((host, port))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    """Copies of this node's messages on the other nodes of its group. Needs a meta server."""

    lag_ms_max: int = 2500
    """Milliseconds. A replica that is further behind leaves the in-sync set, so that commits wait
    for it no longer."""

    def __post_init__(self) -> None:
        """Refuse a lag that every fsync would exceed."""
        require_at_least(self, 100, "lag_ms_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutesConfig:
    """The routes of subjects that the meta server gives."""

    subjects_max: int = 200_000
    """Subjects whose route is in memory, about 1 KB each; at most half of them may be unrouted.
    Messages of further subjects wait on disk until there is room."""

    unused_ms: int = 600_000
    """Milliseconds after which the route of a subject without a due message is evicted. The node
    asks for it again when a message is nearly due, and leaves a broker group without subjects."""

    questions_max: int = constant(256)
    """Questions without an answer at a time."""

    def __post_init__(self) -> None:
        """Refuse what could not work."""
        require_at_least(self, 1, "subjects_max", "questions_max")
        require_at_least(self, 1000, "unused_ms")

    def session_config(self) -> MetaSessionConfig:
        """Return what the session takes."""
        return MetaSessionConfig(
            unused_s=self.unused_ms / 1000,
            questions_max=self.questions_max,
            subjects_max=self.subjects_max,
        )


ATTACHED: Final = "attached"
"""In the place of an address: receivers connect to us."""


class DelayServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set of one delay server."""

    node: NodeConfig
    """The identity of this node."""

    brokers: dict[str, str] = msgspec.field(default_factory=dict)
    """Name and host:port of each broker group, or `attached` for a group of receivers, which
    connect to this server under that name. Needed without a meta server; with one, they replace its
    routes. The dispatch_log records the name, so do not give it to another group later. With
    `host:port,weight=3` (0.001 to 1000) a group gets three times as many messages as one without a
    weight, while both are well."""

    meta: MetaConfig = msgspec.field(default_factory=MetaConfig)
    """The meta server."""

    replication: ReplicationConfig = msgspec.field(default_factory=ReplicationConfig)
    """Copies on other nodes."""

    routes: RoutesConfig = msgspec.field(default_factory=RoutesConfig)
    """Which broker groups a subject's messages go to."""

    sender: SenderConfig = msgspec.field(default_factory=SenderConfig)
    """How messages are delivered."""

    listener: ListenerConfig = msgspec.field(default_factory=ListenerConfig)
    """The listener for producers."""

    admission: AdmissionConfig = msgspec.field(default_factory=AdmissionConfig)
    """Which messages the node accepts."""

    duplicates: DuplicatesConfig = msgspec.field(default_factory=DuplicatesConfig)
    """Messages that a producer sends again."""

    storage: StorageConfig = msgspec.field(default_factory=StorageConfig)
    """The logs."""

    wheel: WheelConfig = msgspec.field(default_factory=WheelConfig)
    """The index of messages that are due soon."""

    clock: ClockConfig = msgspec.field(default_factory=ClockConfig)
    """The clock guard."""

    http: HttpConfig = msgspec.field(default_factory=HttpConfig)
    """Metrics, health, status and administration."""

    admin: AdminConfig = msgspec.field(default_factory=AdminConfig)
    """Tokens and limits of administration."""

    log: LogConfig = msgspec.field(default_factory=LogConfig)
    """The log."""

    def __post_init__(self) -> None:
        """Refuse brokers that cannot be reached, and what fits in each section but not together."""
        if self.has_meta:
            if self.node.rules_file:
                raise ValueError("node.rules_file is for a node without a meta server")
            self.meta.told(parse_address(self.listener.address))
        elif not self.brokers:
            raise ValueError("brokers must name at least one broker group to deliver to")
        self._check_own_addresses()
        if self.storage.minute_horizon_minutes * 60_000 < 2 * self.wheel.load_ahead_ms:
            raise ValueError(
                "wheel.load_ahead_ms must be at most half of the "
                f"{self.storage.minute_horizon_minutes} minutes for which segments of one minute "
                "are kept: a segment is split long before it is loaded"
            )
        if self.admission.item_bytes_max + 64 * KIB > self.listener.frame_bytes_max:
            raise ValueError(
                "listener.frame_bytes_max must be at least 64 KiB above admission.item_bytes_max: "
                "an item comes in a frame"
            )

    def _check_own_addresses(self) -> None:
        """Refuse a broker group whose messages would come back here, again and again."""
        own = {
            "listener.address": self.listener.address,
            "meta.advertised": self.meta.advertised,
            "http.address": self.http.address,
        }
        for group in self.broker_groups():
            for setting, address in own.items():
                if group.is_attached:
                    continue
                if address and _is_at(parse_address(address), group.host, group.port):
                    raise ValueError(
                        f"the broker group {group.name} is at "
                        f"{format_address((group.host, group.port))}, which is this "
                        f"node's {setting}: messages would come back; give the address of a broker"
                    )

    @property
    def has_meta(self) -> bool:
        """Whether a meta server says what this node is."""
        return bool(self.meta.http_addresses())

    @property
    def has_routes(self) -> bool:
        """Whether a meta server says where messages go."""
        return self.has_meta and not self.brokers

    def broker_groups(self) -> tuple[BrokerGroup, ...]:
        """Return the broker groups in the order in which they were given."""
        groups = []
        for name, address in self.brokers.items():
            require_name("the name of a broker group", name)
            place, *more = address.split(",")
            is_attached = place == ATTACHED
            try:
                host, port = ("", 0) if is_attached else parse_peer_address(place)
            except AddressError as error:
                raise ValueError(f"the address of broker {name!r}: {error}") from error
            weight = _weight_of(name, more)
            groups.append(
                BrokerGroup(name=name, host=host, port=port, weight=weight, is_attached=is_attached)
            )
        return tuple(groups)

    def disk_floor_bytes(self, total_bytes: int) -> int:
        """Return how much of a file system of this size has to be free to take messages."""
        storage = self.storage
        share = int(total_bytes * storage.disk_free_share_min)
        return max(min(storage.disk_free_bytes_min, share), _DISK_FLOOR_LEAST)

    @property
    def disk_bytes_least(self) -> int:
        """Bytes of the smallest file system on which the node starts.

        The message_log is deleted by whole files, which must not be all there is.
        """
        return 4 * self.storage.message_log_file_bytes_max

    def store_settings(self) -> StoreSettings:
        """Return what the data directory is opened with."""
        return StoreSettings(
            cluster=self.node.cluster,
            group=self.node.group,
            node_id=self.node.node_id,
            begins_new_log=not self.has_meta,
            limits=dataclasses.replace(
                self.storage,
                duplicate_window_ms=self.duplicates.window_ms if self.duplicates.is_on else 0,
                duplicate_window_items=self.duplicates.messages_max if self.duplicates.is_on else 0,
            ),
        )

    def sender_config(self) -> SenderConfig:
        """Return what the sender takes: it never holds more than half of what may be in memory."""
        entries_max = min(self.sender.entries_max, self.wheel.entries_max // 2)
        return dataclasses.replace(self.sender, entries_max=entries_max)

    @property
    def lane_entries_min(self) -> int:
        """Messages of one subject from which on it has a lane: long before it fills the sender."""
        return max(min(self.wheel.lane_entries_min, self.sender_config().entries_max // 8), 1)

    @property
    def unrouted_max(self) -> int:
        """Subjects that may be unrouted at a time: their names stay in memory."""
        name_bytes = SENT_SUBJECT_BYTES_MAX + SUBJECT_BYTES
        of_names = self.storage.subjects_bytes_max // name_bytes
        return max(min(self.routes.subjects_max // 2, of_names), 1)


def _is_at(listening: Address, host: str, port: int) -> bool:
    """Say whether who connects there comes to what listens; of names only the same is known."""
    own, own_port = listening
    if port != own_port:
        return False
    if own in _ALL_ADDRESSES:
        return is_loopback(host)
    loopback = {"localhost", "127.0.0.1", "::1"}
    return host.lower() == own.lower() or ("localhost" in {host, own} and {host, own} <= loopback)


def _weight_of(name: str, more: Sequence[str]) -> float:
    """Return the weight that follows the address of a broker group; 1 if none does."""
    if not more:
        return 1.0
    key, equals, text = more[0].partition("=")
    if len(more) > 1 or key.strip() != "weight" or not equals:
        raise ValueError(
            f"broker {name!r}: after host:port there may be ,weight=NUMBER, "
            f"and not {','.join(more)!r}"
        )
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"the weight of broker {name!r} is not a number: {text!r}") from error


def secret_of(config: DelayServerConfig) -> SharedSecret:
    """Return the secret of the settings, unread."""
    path = config.meta.secret_file
    return SharedSecret(Path(path) if path else None)
