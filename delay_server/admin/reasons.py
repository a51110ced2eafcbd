"""Why a message has not been delivered yet: one reason at every moment. Pure.

`delaywheel explain`, the status and the tests collect the `Surroundings` and get the reason from
here, so all of them agree.

The reasons, in the order in which they are checked:

    dead                 it was refused for good and given up: a dead letter, until it is requeued
    dead_being_recorded  it was given up, and its record is not durable yet
    in_flight            sent, not answered
    retry_backoff        refused or not answered; tried again after a while
    clock_set_back       it was due, and by the clock as it was set since it is not
    paused_subject       an operator has paused its subject
    no_route             no broker group takes its subject, or none is known yet
    paused_group         an operator has paused all of its groups
    fenced               all of its groups refuse this node for good: another one is the master
    circuit_open         none of its groups can be reached, or is trusted, for now; probes are sent
    stopping             the node is being stopped
    clock_held           the clock has leapt and is not believed
    rate_limited         an operator has limited its subject, or all of its groups that work
    queued               it waits for its turn at a group that works
    damaged              its bytes are damaged, or were read in vain too often
    unreadable           its bytes cannot be read for now; tried again after a while
    waiting              it is not due yet
    backlog              more of its subject is due than is held in memory: it waits for its turn
    no_room              as much as may be is held in memory
    loading              it is due and on its way from disk
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum


class Reason(Enum):
    """Why a message has not been delivered yet."""

    DEAD = "dead"
    DEAD_BEING_RECORDED = "dead_being_recorded"
    IN_FLIGHT = "in_flight"
    RETRY_BACKOFF = "retry_backoff"
    CLOCK_SET_BACK = "clock_set_back"
    PAUSED_SUBJECT = "paused_subject"
    NO_ROUTE = "no_route"
    RATE_LIMITED = "rate_limited"
    PAUSED_GROUP = "paused_group"
    FENCED = "fenced"
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
    UNREAD = "unread"
    """In memory, until its item is read once more."""
    METERED = "metered"
    """In memory, until the rate lets it go."""
    PARKED = "parked"
    """On disk, for as long as its subject waits."""
    ELSEWHERE = "elsewhere"
    """In the wheel, on disk, or on its way between them."""


class LaneKind(Enum):
    """What a lane does with its entries."""

    PAUSED = "paused"
    NO_ROUTE = "no route"
    LIMITED = "limited"
    FREE = "free"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLook:
    """What counts of a broker group here."""

    is_paused: bool
    is_limited: bool
    is_up: bool
    """It is connected and trusted: with more than a probe."""
    is_fenced: bool = False
    """It is not tried any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The state of the node at one moment."""

    groups: Mapping[str, GroupLook]
    clock_held: bool
    stopping: bool
    has_room: bool
    """Whether more may be held for delivery."""
    now_ms: int
    """Up to when messages are due."""


def reason_of_lane(kind: LaneKind, groups: Collection[str], around: Surroundings) -> Reason:
    """Return why what waits in a lane with these groups has not been sent."""
    if kind is LaneKind.PAUSED:
        return Reason.PAUSED_SUBJECT
    looks = [around.groups[name] for name in groups if name in around.groups]
    if kind is LaneKind.NO_ROUTE or not looks:
        return Reason.NO_ROUTE
    reason = _reason_of_groups(looks, around)
    is_limited = kind is LaneKind.LIMITED and reason is Reason.QUEUED
    return Reason.RATE_LIMITED if is_limited else reason


def _reason_of_groups(looks: Collection[GroupLook], around: Surroundings) -> Reason:
    open_ones = [look for look in looks if not look.is_paused]
    if not open_ones:
        return Reason.PAUSED_GROUP
    working = [look for look in open_ones if look.is_up]
    if not working:
        is_over = all(look.is_fenced for look in open_ones)
        return Reason.FENCED if is_over else Reason.CIRCUIT_OPEN
    if around.stopping:
        return Reason.STOPPING
    if around.clock_held:
        return Reason.CLOCK_HELD
    if all(look.is_limited for look in working):
        return Reason.RATE_LIMITED
    return Reason.QUEUED


REASON_OF_PLACE = {
    Place.BURIED: Reason.DEAD_BEING_RECORDED,
    Place.IN_FLIGHT: Reason.IN_FLIGHT,
    Place.PUT_OFF: Reason.RETRY_BACKOFF,
    Place.EARLY: Reason.CLOCK_SET_BACK,
    Place.UNREAD: Reason.UNREADABLE,
}
"""Where a message is of which that is the reason already."""


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
    if place is Place.METERED:
        return Reason.RATE_LIMITED if of_lane is Reason.QUEUED else of_lane
    if of_lane is not Reason.QUEUED or place is Place.QUEUED:
        return of_lane
    on_disk = Reason.LOADING if around.has_room else Reason.NO_ROOM
    return Reason.BACKLOG if place is Place.PARKED else on_disk
