"""Why a message has not been delivered yet: one reason at every moment. Pure.

`delaywheel explain`, the status and the tests describe the state of the node (`Surroundings`) and
get the reason from here, so all of them agree.

The reasons, in the order in which they are checked:

    dead                 the message was given up: it is a dead letter until it is requeued
    dead_being_recorded  the message was given up, and its dead letter is not yet durable
    being_moved          a receiver wants the message later, and that is not yet durable
    in_flight            the message was sent and is not answered
    retry_backoff        the message was refused or not answered, and is retried after a backoff
    clock_set_back       the message was due before the clock was set back
    paused_subject       a rule pauses its subject
    no_route             no broker group takes its subject, or no route is known yet
    not_taken            it is routed to receivers, and none that is attached takes its subject
    paused_group         a rule pauses all of its groups
    fenced               all of its groups fence this node: another one is the master
    no_receiver          nobody is attached to any of its groups, or none of those takes more now
    circuit_open         no group of it is connected with a closed circuit; probes are sent
    stopping             the node is being stopped
    clock_held           the clock is not trusted
    rate_limited         a rule limits all of its groups that work
    queued               the message waits for its turn at a group that works
    damaged              its bytes are damaged, or were unreadable too often
    unreadable           its bytes could not be read, and reading is retried
    waiting              the message is not due yet
    backlog              its subject has a backlog on disk: the message waits for its turn
    no_room              the limit of messages in memory is reached
    loading              the message is due and is being loaded from disk
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum


class Reason(Enum):
    """Why a message has not been delivered yet."""

    DEAD = "dead"
    DEAD_BEING_RECORDED = "dead_being_recorded"
    BEING_MOVED = "being_moved"
    IN_FLIGHT = "in_flight"
    RETRY_BACKOFF = "retry_backoff"
    CLOCK_SET_BACK = "clock_set_back"
    PAUSED_SUBJECT = "paused_subject"
    NO_ROUTE = "no_route"
    NOT_TAKEN = "not_taken"
    RATE_LIMITED = "rate_limited"
    PAUSED_GROUP = "paused_group"
    FENCED = "fenced"
    NO_RECEIVER = "no_receiver"
    CIRCUIT_OPEN = "circuit_open"
    STOPPING = "stopping"
    CLOCK_HELD = "clock_held"
    QUEUED = "queued"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"
    WAITING = "waiting"
    BACKLOG = "backlog"
    NO_ROOM = "no_room"
    LOADING = "loading"


class Place(Enum):
    """Where a message is."""

    QUEUED = "queued"
    """With the sender, not sent."""
    IN_FLIGHT = "in flight"
    PUT_OFF = "put off"
    """With the sender, until the end of a backoff."""
    EARLY = "early"
    """With the sender, until the clock, which was set back, has come to it again."""
    BURIED = "buried"
    """Given up by the sender, on its way to a record of a dead letter."""
    MOVED = "moved"
    """Put off by a receiver, on its way to a record with another due time."""
    UNREAD = "unread"
    """In memory, until reading its item is retried."""
    PARKED = "parked"
    """On disk, for as long as its subject waits."""
    ELSEWHERE = "elsewhere"
    """In the wheel, on disk, or on its way between them."""


class LaneKind(Enum):
    """What a lane does with its entries."""

    PAUSED = "paused"
    NO_ROUTE = "no route"
    NOT_TAKEN = "not taken"
    FREE = "free"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLook:
    """The state of a broker group, as far as a reason depends on it."""

    is_paused: bool
    is_limited: bool
    is_up: bool
    """It is connected, and its circuit is closed."""
    is_fenced: bool = False
    """It fences this node, and is not retried."""
    is_attached: bool = False
    """It is a group of receivers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The state of the node at one moment, as far as a reason depends on it."""

    groups: Mapping[str, GroupLook]
    clock_held: bool
    stopping: bool
    has_room: bool
    """Whether memory has room for more due messages."""
    now_ms: int
    """The time up to which messages are due."""


def reason_of_lane(kind: LaneKind, groups: Collection[str], around: Surroundings) -> Reason:
    """Return why what waits in a lane with these groups has not been sent."""
    if kind is LaneKind.PAUSED:
        return Reason.PAUSED_SUBJECT
    if kind is LaneKind.NOT_TAKEN:
        return Reason.NOT_TAKEN
    looks = [around.groups[name] for name in groups if name in around.groups]
    if kind is LaneKind.NO_ROUTE or not looks:
        return Reason.NO_ROUTE
    return _reason_of_groups(looks, around)


def _reason_of_groups(looks: Collection[GroupLook], around: Surroundings) -> Reason:
    open_ones = [look for look in looks if not look.is_paused]
    if not open_ones:
        return Reason.PAUSED_GROUP
    working = [look for look in open_ones if look.is_up]
    if not working:
        return _reason_of_broken(open_ones)
    if around.stopping:
        return Reason.STOPPING
    if around.clock_held:
        return Reason.CLOCK_HELD
    if all(look.is_limited for look in working):
        return Reason.RATE_LIMITED
    return Reason.QUEUED


def _reason_of_broken(looks: Collection[GroupLook]) -> Reason:
    if all(look.is_attached for look in looks):
        return Reason.NO_RECEIVER
    return Reason.FENCED if all(look.is_fenced for look in looks) else Reason.CIRCUIT_OPEN


REASON_OF_PLACE = {
    Place.BURIED: Reason.DEAD_BEING_RECORDED,
    Place.MOVED: Reason.BEING_MOVED,
    Place.IN_FLIGHT: Reason.IN_FLIGHT,
    Place.PUT_OFF: Reason.RETRY_BACKOFF,
    Place.EARLY: Reason.CLOCK_SET_BACK,
    Place.UNREAD: Reason.UNREADABLE,
}
"""Places that are a reason by themselves."""


def reason_of(
    place: Place,
    *,
    due_ms: int,
    kind: LaneKind,
    groups: Collection[str],
    is_damaged: bool,
    around: Surroundings,
) -> Reason:
    """Return why a message that is at this place has not been delivered.

    `kind` and `groups` are those of its subject's lane.
    """
    if is_damaged or place in REASON_OF_PLACE:
        return REASON_OF_PLACE.get(place, Reason.DAMAGED)
    if due_ms > around.now_ms and place in {Place.PARKED, Place.ELSEWHERE}:
        return Reason.CLOCK_HELD if around.clock_held else Reason.WAITING
    of_lane = reason_of_lane(kind, groups, around)
    if of_lane is not Reason.QUEUED or place is Place.QUEUED:
        return of_lane
    on_disk = Reason.LOADING if around.has_room else Reason.NO_ROOM
    return Reason.BACKLOG if place is Place.PARKED else on_disk
