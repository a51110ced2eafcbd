"""Messages to be cancelled or moved, as users name them, and what became of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from delay_client.messages.cancel_tokens import Place, decode_token
from delay_client.messages.errors import DelaywheelError, InvalidMessage
from delay_client.messages.item_encoder import due_ms_of
from delay_client.messages.message import Delay, Receipt, moment
from delay_protocol.basics.strings import STR_SIZE_MAX
from delay_protocol.messages.changes import Change, ChangeResult, ChangeState


class MessageName(NamedTuple):
    """A message by the names that its sender gave it."""

    subject: str
    message_id: str
    at: datetime | None = None
    """When it is due, as its receipt says. None: it is looked for at all times, which takes
    longer."""


Named = Receipt | MessageName | str
"""A message that was sent: its receipt, its names, or the receipt's `cancel_token`."""

When = datetime | Delay
"""A new due time: a moment, or a timedelta or seconds from now."""


class Wanted(NamedTuple):
    """A change that is to be made."""

    change: Change
    cluster: int
    """Hash of the name of the cluster that may have the message; 0: any."""
    is_delay: bool
    """True if the new due time counts from now."""


def wanted(named: Named, to: When | None, now_ms: int) -> Wanted:
    """Return the change of a message; `to` None cancels it. Raises FatalError for what is none."""
    if isinstance(named, Receipt):
        place = Place(named.cluster, named.due_ms, named.subject, named.message_id)
    elif isinstance(named, MessageName):
        at_ms = None if named.at is None else due_ms_of(None, named.at, now_ms)
        place = Place(0, at_ms, named.subject, named.message_id)
    elif isinstance(named, str):
        place = decode_token(named)
    else:
        raise InvalidMessage(
            f"a {type(named).__name__} names no message: give a Receipt, a MessageName or a token"
        )
    for name in (place.subject, place.message_id):
        if not _is_name(name):
            raise InvalidMessage(
                f"{name!a:.60} names nothing: a subject and an id are text of 1 to {STR_SIZE_MAX} "
                "bytes"
            )
    to_ms, is_delay = None, to is not None and not isinstance(to, datetime)
    if isinstance(to, datetime):
        to_ms = due_ms_of(None, to, now_ms)
    elif to is not None:
        to_ms = due_ms_of(to, None, now_ms)
    change = Change(place.subject, place.message_id, place.due_ms, to_ms)
    return Wanted(change, place.cluster, is_delay)


def _is_name(name: object) -> bool:
    try:
        return isinstance(name, str) and 0 < len(name.encode()) <= STR_SIZE_MAX
    except UnicodeEncodeError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """The outcome of a message that was to be cancelled or moved."""

    subject: str
    message_id: str
    state: ChangeState
    """Of several names the one that needs the most attention, in the order SENDING, DELIVERED,
    DEAD, CHANGED_BEFORE, MOVED, CANCELLED."""
    due_ms: int | None = None
    """When it is due, or was, in ms since 1970 UTC; of MOVED the new time."""
    at_ms: int | None = None
    """When it was delivered or changed before; since when it is being sent."""
    to: str = ""
    """The broker group or the receiver name of a delivery."""
    retry_after_s: float | None = None
    """Of SENDING: after so many seconds it is worth asking again."""
    reason: str = ""
    """What to know beside it; of IN_DOUBT which groups gave no answer, and why."""
    facts_since_ms: int = 0
    """The time since which all groups that answered know what became of messages: what is UNKNOWN
    may have been delivered before."""
    by_name: Mapping[str, "Changed"] = field(default_factory=dict)
    """The same for each receiver name that has a copy; empty where there is one message."""

    @property
    def due_at(self) -> datetime | None:
        """When it is due, or was, in UTC."""
        return None if self.due_ms is None else moment(self.due_ms)


ChangeOutcome = Changed | DelaywheelError
"""The result of one change; the error where it could not be asked for."""

_ATTENTION: Final = (
    ChangeState.SENDING,
    ChangeState.DELIVERED,
    ChangeState.DEAD,
    ChangeState.CHANGED_BEFORE,
    ChangeState.MOVED,
    ChangeState.CANCELLED,
    ChangeState.IN_DOUBT,
    ChangeState.UNKNOWN,
)


def known(results: Iterable[ChangeResult]) -> list[ChangeResult]:
    """Return what a group knows of a message; IN_DOUBT where it cannot read what it would know."""
    return [
        replace(one, state=ChangeState.IN_DOUBT) if one.state is ChangeState.UNKNOWN else one
        for one in results
        if one.state is not ChangeState.UNKNOWN or one.reason
    ]


def changed(
    change: Change, found: Sequence[ChangeResult], *, doubts: str, facts_since_ms: int
) -> Changed:
    """Return what became of a message.

    found: results of all groups but those that do not know it; doubts: why others gave no answer
    """
    common: dict[str, Any] = {"subject": change.subject, "message_id": change.message_id}
    common["facts_since_ms"] = facts_since_ms
    if not found:
        state = ChangeState.IN_DOUBT if doubts else ChangeState.UNKNOWN
        return Changed(state=state, reason=doubts, **common)

    def first(results: Iterable[ChangeResult], **more: Any) -> Changed:  # noqa: ANN401 (fields)
        one = min(results, key=lambda result: _ATTENTION.index(result.state))
        after_ms = one.retry_after_ms
        return Changed(
            state=one.state,
            due_ms=one.due_ms,
            at_ms=one.at_ms,
            to=one.to,
            retry_after_s=None if after_ms is None else after_ms / 1000,
            reason=one.reason,
            **common,
            **more,
        )

    names = dict.fromkeys(one.name for one in found if one.name)
    return first(
        found, by_name={name: first(one for one in found if one.name == name) for name in names}
    )
