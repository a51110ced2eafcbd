"""Decides what a node does now and why: admission, sending, and the state that clients see. Pure.

    the node                                          requests   sends   clients see the group as
    starts, waits for its role, or has lost it        hold       no      nothing new
    is a slave: another node is the master            elsewhere  no      nothing new
    is the master
      all is well                                     serve      yes     RW
      the record of its group forbids to accept       hold       yes     NRW, once it has served
      its group was retired                           refuse     yes     nothing new
      its group is read-only                          refuse     yes     R
      free disk is below its floor                    refuse     yes     R
      its clock is not trusted                        as above   no      as above
      outcomes wait too long, or too many, to         as above   no      as above
        become durable or applied, or for replicas
      too few replicas are heard                      hold       yes     as before
      it lacks promises of others in sync             as above   no      as above
      it stops                                        hold       *       OFFLINE, by the stop itself

    * what is due is left for the next start; what is with the sender goes on until the deadline

A held request is answered 51 after a while, and the producer sends it again, here or elsewhere.
Elsewhere says at once where the master is. A
refused request is answered at once with an item code, since the reason lasts.

A master is ready while it takes and delivers. A slave is ready while its group counts on its copy:
it follows, its log matches, and its disk is in sync.
"""

from dataclasses import dataclass
from enum import Enum

from delay_protocol.meta.requests import BrokerState

DISK_FULL_REMARK = "BROKER_READ_ONLY: the disk is at its floor"
RETIRED = "the group was retired"
READ_ONLY = "read-only by an operator"
"""Reasons for which a group takes no messages, as its meta server says."""


class Admits(Enum):
    """What happens to a request that arrives."""

    HOLD = "hold"
    SERVE = "serve"
    REFUSE = "refuse"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The inputs of a duty: role, stop, disk and clock."""

    is_master: bool = False
    """Whether the node has a mastership that nothing has ended."""
    is_recovered: bool = False
    """Whether all of it stands that takes and delivers messages."""
    has_served: bool = False
    """Whether requests were served since the process began."""
    is_stopping: bool = False
    fenced: str = ""
    """Why the last mastership of this process ended; empty once the node has its role again."""
    not_accepting: str = ""
    """Why the record of the group does not let this node accept; empty if it does."""
    closed: str = ""
    """An operator's reason for which the group takes no messages; empty if it does."""
    disk_is_full: bool = False
    """Whether free disk is below its floor."""
    clock_reason: str = ""
    """Why the clock is not trusted; empty if it is."""
    master_elsewhere: str = ""
    """Which node is the master, where this one follows it; empty if none does."""
    copy_fault: str = ""
    """Of a slave, why its group does not count on its copy; empty if it does."""
    appends_wait: str = ""
    """Why no message may be appended for now, of a master with replicas; empty if one may be."""
    replicas_wait: str = ""
    """Why nothing may be sent for now, of a master with replicas; empty if it may be."""
    outcomes_wait: str = ""
    """Why too many outcomes wait to become durable or applied, or wait too long; empty if not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duty:
    """What ingest, sender and registration do in a situation."""

    admits: Admits
    remark: str
    """What is said to producers that are refused; empty if they are not."""
    sends: bool
    """Whether due messages go to brokers."""
    clock_held: bool
    """Whether due messages wait until the clock is trusted again."""
    leaves_due: bool
    """Whether what is due is left for the next start, but for what the sender has already."""
    appends_wait: str
    """Why a master may append no message for now, not even in the place of another; empty if it
    may."""
    announces: BrokerState | None
    """How clients should see the group; None: nothing is to be said."""
    why: tuple[str, ...]
    """Why the node does not take and deliver; empty if it does both."""
    failing: tuple[str, ...]
    """Why the node is not ready: it does not do what it is there for; empty if it is."""


def duty_of(now: Situation) -> Duty:
    """Return what the node may do."""
    may_serve = now.is_recovered and not (now.is_stopping or now.not_accepting)
    is_slave = bool(now.master_elsewhere) and not (now.is_master or now.is_stopping)
    remark = ""
    if may_serve and now.closed:
        remark = f"BROKER_READ_ONLY: {now.closed}"
    elif may_serve and now.disk_is_full:
        remark = DISK_FULL_REMARK
    admits = Admits.HOLD
    if remark:
        admits = Admits.REFUSE
    elif may_serve and not now.appends_wait:
        admits = Admits.SERVE
    elif is_slave:
        admits, remark = Admits.ELSEWHERE, now.master_elsewhere
    why = tuple(_reasons(now))
    return Duty(
        admits=admits,
        remark=remark,
        sends=now.is_master and not (now.clock_reason or now.outcomes_wait or now.replicas_wait),
        clock_held=bool(now.clock_reason),
        leaves_due=now.is_stopping,
        appends_wait=now.appends_wait,
        announces=_announces(now, may_serve=may_serve),
        why=why,
        failing=tuple(filter(None, (now.copy_fault,))) if is_slave else why,
    )


def _announces(now: Situation, *, may_serve: bool) -> BrokerState | None:
    if not now.is_recovered or now.closed == RETIRED or not (may_serve or now.has_served):
        return None
    if not may_serve:
        return BrokerState.NRW
    return BrokerState.R if now.closed or now.disk_is_full else BrokerState.RW


def _reasons(now: Situation) -> list[str]:
    reasons = []
    if now.is_stopping:
        reasons.append("the server is stopping")
    if now.not_accepting:
        reasons.append(now.not_accepting)
    elif not now.is_recovered:
        reasons.append(now.fenced or "recovery has not finished")
    if now.is_recovered:
        if now.closed:
            reasons.append(f"{now.closed}: messages are refused, delivery goes on")
        if now.disk_is_full:
            reasons.append("free disk is below its floor: messages are refused, delivery goes on")
        if now.clock_reason:
            reasons.append(f"the clock is not trusted, delivery is held: {now.clock_reason}")
        if now.appends_wait:
            reasons.append(f"messages are held: {now.appends_wait}")
        if now.outcomes_wait or now.replicas_wait:
            reasons.append(f"delivery is held: {now.outcomes_wait or now.replicas_wait}")
    return reasons
