"""Settings of a client. The defaults suit a service that sends now and then and one that floods."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

from delay_protocol.basics.addresses import AddressFaultError, read_address
from delay_protocol.basics.levels import DEFAULT_LEVELS, parse_levels

_DEFAULT_SERVERS: Final = ("127.0.0.1:20801",)
"""The address of a delay server on a developer's machine."""

_KIB: Final = 1024
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """How long, how much and how many."""

    timeout_s: float = 15.0
    """How long a message may take to be accepted, tries and pauses included, where the call does
    not say."""

    try_timeout_s: float = 6.0
    """How long one try waits for its answer. A delay server in a passing state (start-up, change
    of master) holds a request for up to 4 s, so less than that makes needless tries."""

    connect_timeout_s: float = 3.0
    """How long connecting to one server may take."""

    linger_s: float = 0.001
    """How long a send() may wait for others to share its request, while other requests are in
    flight. A lone send() never waits."""

    request_items_max: int = 500
    """Messages in one request."""

    request_bytes_max: int = 256 * _KIB
    """Bytes of messages in one request; a larger message travels alone."""

    requests_in_flight_max: int = 16
    """Unanswered requests per server."""

    bytes_in_flight_max: int = 4 * _MIB
    """Unanswered bytes per server beyond which no further request goes out."""

    item_bytes_max: int = 1 * _MIB
    """A larger message is refused before it is sent. A server has a limit of its own."""

    answer_bytes_max: int = 16 * _MIB
    """A server whose answer is larger does not speak the protocol; its connection is closed."""

    backoff_min_s: float = 0.05
    """The pause before the second try, drawn between half of it and all of it. It doubles with
    each try."""

    backoff_max_s: float = 2.0
    """The longest pause between tries."""

    idle_s: float = 30.0
    """A connection unused for so long is closed, before the server closes it in the middle of a
    send."""

    requests_queued_max: int = 256
    """Requests of all send_many() calls that wait for a server, or for a route; calls take no
    further messages meanwhile. Beside it a bound of two for each server holds."""

    circuit_failures: int = 3
    """Failures in a row after which a server gets one request at a time, as a probe. A connection
    that cannot be made, or an answer that it takes no messages at all, is enough alone."""

    probe_max_s: float = 30.0
    """The longest pause between probes of a server while others take its messages."""

    same_group_s: float = 1.0
    """With a meta server: how long what was lost unanswered with its connection waits for the same
    group before another group gets it: so a short break leaves all copies of a message with one."""

    meta_answer_timeout_s: float = 5.0
    """How long a meta server may take to answer before another connection is made."""

    meta_heartbeat_s: float = 60.0
    """How often a meta server is asked for each subject. It tells of changes by itself, at once."""

    meta_backoff_min_s: float = 1.0
    """The pause before a lost meta server is connected to again, drawn between nothing and all of
    it. It doubles with each try. Messages go on meanwhile, by the routes that are known."""

    meta_backoff_max_s: float = 2.5
    """The longest such pause, and the longest until a refused subject is asked for again."""

    servers_max: int = 1000
    """Servers of all routes together; groups beyond it are done without."""

    subjects_max: int = 100_000
    """Subjects whose routes are kept, about 600 bytes each; one that was not used for ten minutes
    may be forgotten."""

    levels: str = DEFAULT_LEVELS
    """The delay of each level, where no meta server has told its own table (`delay.levels`): at
    most 64 whole numbers of s, m, h or d, with blanks between. Level 1 is the first of them."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, naming the setting."""
        for setting in fields(self):
            value = getattr(self, setting.name)
            if setting.name == "levels":
                continue
            # Not `value <= 0`: that lets a NaN through.
            if not value > 0 and setting.name != "linger_s":
                raise ValueError(f"{setting.name} must be positive, not {value!r}")
        if not self.linger_s >= 0:
            raise ValueError(f"linger_s must not be negative, not {self.linger_s!r}")
        for name in ("backoff", "meta_backoff"):
            if getattr(self, f"{name}_max_s") < getattr(self, f"{name}_min_s"):
                raise ValueError(f"{name}_max_s must not be less than {name}_min_s")
        parse_levels(self.levels)

    def timeout(self, timeout_s: object) -> float:
        """Return how long a message may take, given what the call says."""
        if timeout_s is None:
            return self.timeout_s
        if type(timeout_s) is bool or not isinstance(timeout_s, int | float) or not timeout_s > 0:
            raise ValueError(f"a timeout of {timeout_s!r} s: give a positive number of seconds")
        return timeout_s


def named_servers(servers: Sequence[str] | None, meta: str | Sequence[str] | None) -> Sequence[str]:
    """Return the servers that a user gave, none with a meta server, this machine's with neither.

    Raises ValueError for what cannot be meant.
    """
    if meta is not None:
        if servers is not None:
            raise ValueError("give either servers or meta=, not both")
        return ()
    if servers is None:
        return _DEFAULT_SERVERS
    if isinstance(servers, str) or not servers:
        raise ValueError("these are no servers: give a list of one or more host:port")
    return servers


def parse_server(text: str) -> tuple[str, int]:
    """Return host and port of `host:port`; an IPv6 literal stands in brackets, `[::1]:20801`.

    Raises ValueError for anything else.
    """
    if "@" in text:
        # Not repeated: who writes so has put a password before it.
        raise ValueError("not an address: give host:port alone, without a user or password")
    try:
        return read_address(text, port_min=1)
    except AddressFaultError as fault:
        raise ValueError(f"{text!r} is not an address: {fault}") from fault
