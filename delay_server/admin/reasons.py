"""Why a message has not been delivered yet: one reason at every moment. Pure.

`delaywheel explain` and the tests describe a message and what it waits for (`Look`), and get the
reason from here, so all of them agree.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from sender.queues.places import Where


class Reason(Enum):
    """Why a message has not been delivered yet."""

    DEAD = "dead"
    """It was given up: it is, or becomes, a dead letter until it is requeued."""
    IN_FLIGHT = "in_flight"
    """It was sent and is not answered, or a receiver's wish for a later time is not yet durable."""
    RETRYING = "retrying"
    """It was refused or not answered, and is retried after a backoff."""
    DAMAGED = "damaged"
    """Its bytes are damaged or could not be read."""
    CLOCK_HELD = "clock_held"
    """The clock is not trusted, or was set back after the message was due."""
    WAITING = "waiting"
    """It is not due yet."""
    PAUSED = "paused"
    """A rule pauses its subject, or all of its groups."""
    NO_ROUTE = "no_route"
    """No group or attached receiver takes its subject, or no route is known yet."""
    GROUP_DOWN = "group_down"
    """None of its groups that are not paused takes anything: brokers are away, no receiver is."""
    RATE_LIMITED = "rate_limited"
    """A rule limits all of its groups that work."""
    QUEUED = "queued"
    """It waits for its turn, in memory or on disk behind others of its subject."""
    LOADING = "loading"
    """It is being loaded from disk, or waits for room in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLook:
    """The state of a group, as far as a reason depends on it."""

    is_paused: bool = False
    is_limited: bool = False
    is_up: bool = True
    """It is connected, and its circuit is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Where a message is, and what it waits for."""

    where: Where | None = None
    """Where in the sender; None: in the wheel, on disk, or on its way between them."""
    is_given_up: bool = False
    is_moved: bool = False
    """Put off by a receiver, on its way to a record with another due time."""
    is_damaged: bool = False
    is_due: bool = True
    is_parked: bool = False
    """On disk, for as long as its subject waits."""
    is_paused: bool = False
    """Its subject is."""
    groups: tuple[GroupLook, ...] = ()
    clock_held: bool = False


def _works(group: GroupLook) -> bool:
    return group.is_up and not group.is_paused


_HOLDS: Final[Mapping[Reason, Callable[[Look], bool]]] = {
    Reason.DEAD: lambda look: look.is_given_up,
    Reason.IN_FLIGHT: lambda look: look.where is Where.IN_FLIGHT or look.is_moved,
    Reason.RETRYING: lambda look: look.where is Where.PUT_OFF,
    Reason.DAMAGED: lambda look: look.is_damaged,
    Reason.CLOCK_HELD: lambda look: look.where is Where.EARLY or look.clock_held,
    Reason.WAITING: lambda look: look.where is None and not look.is_due,
    Reason.PAUSED: lambda look: (
        look.is_paused or (bool(look.groups) and all(group.is_paused for group in look.groups))
    ),
    Reason.NO_ROUTE: lambda look: not look.groups,
    Reason.GROUP_DOWN: lambda look: not any(map(_works, look.groups)),
    Reason.RATE_LIMITED: lambda look: all(one.is_limited for one in filter(_works, look.groups)),
    Reason.QUEUED: lambda look: look.where is Where.QUEUED or look.is_parked,
}
"""When each reason holds. The first that does is the reason; LOADING holds else."""


def reason_of(look: Look) -> Reason:
    """Return why a message has not been delivered."""
    return next((reason for reason, holds in _HOLDS.items() if holds(look)), Reason.LOADING)
