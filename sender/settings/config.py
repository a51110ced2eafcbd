"""The sender's settings, each with its unit and consequence."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from delay_protocol.nodes.controls import WEIGHT_MAX, WEIGHT_MIN
from delay_transport.seams.constants import constant
from sender.settings.errors import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerGroup:
    """A broker group to deliver to."""

    name: str
    """Goes into the facts, the logs and the metrics; must be unique."""

    host: str
    """Name or literal of the group's master; an IPv6 literal without brackets."""

    port: int
    """20881 where nothing else was set on a QMQ broker."""

    source: str = "settings"
    """Who says so, for people."""

    weight: float = 1.0
    """Its share of what several groups may take is in proportion to this while all are well; from
    delay_protocol.nodes.controls.WEIGHT_MIN to WEIGHT_MAX."""

    is_attached: bool = False
    """Whether it is a group of receivers, who connect to us and attach: it has no address."""

    def __post_init__(self) -> None:
        if not WEIGHT_MIN <= self.weight <= WEIGHT_MAX:
            raise SettingError(
                f"the weight of broker group {self.name!r} must be {WEIGHT_MIN:g} to "
                f"{WEIGHT_MAX:g}, got {self.weight}; a group that is to get nothing is paused"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderConfig:
    """Settings of one delay server's sender; a node may choose its own and change them on restart.

    Memory: in flight at most `in_flight_bytes_max` per group (plus one item larger than that),
    and about 50 bytes of index for each entry that was offered; 0.7 KiB for one that waits for its
    backoff alone.
    """

    batch_items: int = 1024
    """Most items of one request: more cost less each, and more are sent twice when a broker takes
    a request whose answer is lost."""

    turn_items: int = constant(256)
    """Entries of one lane after which it is the next one's turn; a request may be of several turns,
    a turn is never more than a request."""

    batch_bytes: int = constant(256 * 1024)
    """Most bytes of the items of one request; a larger item goes alone."""

    in_flight_requests_start: int = constant(1)
    """Requests that may be unanswered on a new connection; more with each quick answer."""

    in_flight_requests_max: int = 4
    """Requests that may be unanswered on one connection at the most."""

    in_flight_bytes_max: int = 4 * 1024 * 1024
    """Bytes of items that may be unanswered on one connection; a part of them while fewer requests
    may be."""

    queue_s: float = constant(0.1)
    """As many entries wait for one group as it answers in this long, by its pace of late. The rest
    waits for whichever group has room next."""

    queue_items_max: int = constant(8192)
    """Entries that wait for one group at the most."""

    queue_lane_batches_min: int = constant(2)
    """Turns of each lane that may wait for one group even while other lanes fill its queue, or it
    would get no turns there. With one only, a lane can miss a turn while more of it is fetched.
    However slow a group is, as many may wait for it."""

    entries_max: int = 1_000_000
    """Entries that the sender should hold in all; `Sender.room` counts down from here."""

    connect_timeout_s: float = 2.0
    """To connect, and again to be answered to the HELLO."""

    request_timeout_s: float = 5.0
    """After this long without an answer a request is sent again, elsewhere if possible: the broker
    may have it, so its items may be delivered twice."""

    heartbeat_s: float = 15.0
    """A connection that is idle this long is asked whether it still lives."""

    quick_s: float = constant(0.02)
    """Answers within this are quick, and so are those within twice the time of the quickest of
    late, up to `usual_s_max`. If the answers of a group take twice as long its share is a quarter,
    and so on."""

    usual_s_max: float = 0.1
    """Answers that take longer than this, and more than twice as long as the quickest of late, let
    fewer requests be in flight."""

    slow_s: float = 0.25
    """A group whose answers take longer than this is slow: beside others that are not it gets
    `trial_items` at a time, and what waits for it goes to them."""

    retry_base_s: float = 0.1
    """Wait before the second try of an item; doubles with each try."""

    retry_max_s: float = 30.0
    """Longest wait between two tries of an item."""

    refused_base_s: float = 1.0
    """As retry_base_s, for items that the broker refused in a way which a retry hardly cures."""

    refused_max_s: float = 300.0
    """As retry_max_s, for those items."""

    dead_letter_tries: int = 3
    """How often brokers refuse an item for good (its subject is illegal or not served, or the item
    is blocked) before it becomes a dead letter; by two groups at least, where it has several, or
    twice as often by one."""

    reconnect_base_s: float = constant(0.1)
    """Wait before a group that failed is tried again: the time for which its circuit is open.
    Doubles with each opening, until the circuit has stayed closed for 2 s."""

    reconnect_max_s: float = 2.0
    """Longest wait before a group that failed is tried again."""

    refusals_max: int = constant(3)
    """Requests refused one after another that open the circuit of a group. No answer in time, a
    connection that is lost or cannot be made, and code 52 open it at once."""

    trial_items: int = constant(1)
    """Items risked at a time on a group that failed, until it takes one, and on one that is slow,
    as long as others are not."""

    groups_max: int = 256
    """Broker groups at a time, where they are named at run time. What has none of them in its route
    waits until there are fewer."""

    receivers_max: int = 256
    """Receivers that may be attached under one name at a time; a further one is refused. All are
    looked at with each message that comes alone: 256 take a millisecond."""

    @property
    def lane_turn_items(self) -> int:
        """Entries of a lane's turn."""
        return min(self.turn_items, self.batch_items)

    @property
    def queue_items_min(self) -> int:
        """Entries that may wait for one group however slow it is."""
        return min(self.queue_lane_batches_min * self.lane_turn_items, self.queue_items_max)

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise SettingError(f"sender.{field.name} must be positive")
        for base, most in (
            ("retry_base_s", "retry_max_s"),
            ("refused_base_s", "refused_max_s"),
            ("reconnect_base_s", "reconnect_max_s"),
            ("in_flight_requests_start", "in_flight_requests_max"),
            ("quick_s", "usual_s_max"),
            ("usual_s_max", "slow_s"),
        ):
            if getattr(self, base) > getattr(self, most):
                raise SettingError(f"sender.{base} must not exceed sender.{most}")


def check_groups(groups: Sequence[BrokerGroup]) -> None:
    """Raise SettingError unless there is a group and each has a name of its own."""
    if not groups:
        raise SettingError("there is no broker group to deliver to")
    names = [group.name for group in groups]
    if len(set(names)) < len(names) or not all(names):
        raise SettingError(f"broker groups need a name each, got {names}")
