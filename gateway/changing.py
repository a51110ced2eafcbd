"""Messages that are cancelled or moved: one at a time by the client, or all of a filter."""

import asyncio
import math
from collections import Counter
from datetime import datetime
from typing import Final

import msgspec

from delay_client import Changed, ChangeState, Client, DelaywheelError, MessageName
from delay_client.messages.cancel_tokens import Place, encode_token
from delay_transport.http.problems import Problem, RequestError
from gateway.cluster import Cluster, NoAnswerError
from gateway.meant import CancelQuery
from gateway.sending import RETRY_AFTER_S, SendError
from gateway.times import rfc3339

FILTER_S: Final = 20.0
"""Seconds after which a cancel by filter begins no more slices."""


class ChangedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a message that was to be cancelled or moved."""

    id: str
    subject: str
    state: str
    """cancelled, moved, or why it is neither: docs/cancelling.md."""
    due_ms: int | None
    """When it is due, or was, in ms since 1970; of a moved one the new time."""
    at_ms: int | None
    """When it was delivered or changed before; since when it is being sent."""
    to: str
    """The broker group, or the name of receivers, of a delivery."""
    names: dict[str, str]
    """The state for each name of receivers that has a copy; empty where there is one message."""
    cancel_token: str | None
    """Names it from now on; null if its time is not known."""


class ChangeProblem(Problem, frozen=True, kw_only=True):
    """The refusal to cancel or move a message."""

    changed: ChangedMessage
    """Its state."""


class CancelledMessages(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a cancel by filter, as far as it got."""

    states: dict[str, int]
    """Messages by the state that they came to: cancelled; pending, of a dry run; or why not."""
    complete: bool
    """True if that was all. If not, the same request goes on."""
    away: dict[str, str]
    """Delay groups that gave no answer, and why: what they have was not, or not all, cancelled."""


class ChangeError(RequestError):
    """A message is not changed: it is gone, unknown, or on its way."""

    def __init__(self, changed: Changed, shown: ChangedMessage) -> None:
        code = {ChangeState.UNKNOWN: 404, ChangeState.IN_DOUBT: 503}.get(changed.state, 409)
        parts = [f"it is {changed.state}", changed.to, changed.reason]
        if changed.at_ms is not None:
            parts.insert(1, rfc3339(changed.at_ms))
        if code == 404:
            since = rfc3339(changed.facts_since_ms)
            parts.append(f"what became of messages is known since {since}")
        retry_after_s = changed.retry_after_s or (RETRY_AFTER_S if code == 503 else 0)
        super().__init__(
            code,
            changed.state.replace(" ", "-"),
            ", ".join(filter(None, parts)),
            retry_after_s=math.ceil(retry_after_s),
        )
        self._shown = shown

    @property
    def problem(self) -> Problem:
        """The answer, with what became of the message."""
        return ChangeProblem(
            status=self.code, code=self.kind, detail=str(self), changed=self._shown
        )


async def change(client: Client, meant: Place, to: datetime | None) -> ChangedMessage:
    """Cancel a message, or move it to a time, and return what it is then; raise RequestError."""
    subject, message_id = meant.subject, meant.message_id
    # A token has the cluster as well; without a due time there is none.
    named = MessageName(subject, message_id) if meant.due_ms is None else encode_token(meant)
    try:
        if to is None:
            changed = await client.cancel(named)
        else:
            changed = await client.move(named, to=to)
    except DelaywheelError as error:
        raise SendError(error) from error
    due_ms = changed.due_ms
    shown = ChangedMessage(
        id=changed.message_id,
        subject=changed.subject,
        state=changed.state.value,
        due_ms=due_ms,
        at_ms=changed.at_ms,
        to=changed.to,
        names={name: one.state.value for name, one in changed.by_name.items()},
        cancel_token=None if due_ms is None else encode_token(meant._replace(due_ms=due_ms)),
    )
    if changed.state not in {ChangeState.CANCELLED, ChangeState.MOVED}:
        raise ChangeError(changed, shown)
    return shown


async def cancel_all(cluster: Cluster, query: CancelQuery) -> CancelledMessages:
    """Cancel all messages of a filter, or count them, in slices at the master of each group.

    Ends after FILTER_S with what is done by then. Raises RequestError.
    """
    after_ms, before_ms = query.times()
    wanted = {"subject": query.subject or "*", "due_from": after_ms or 0, "due_to": before_ms}
    now = asyncio.get_running_loop().time
    until = now() + FILTER_S
    states, away = Counter[str](), dict[str, str]()

    async def cancel(group: str) -> bool:
        """Cancel what a group has; return whether that was all."""
        after = None
        while now() < until:
            body = wanted | {"dry_run": query.dry_run, "after": after}
            found = await cluster.ask_master(group, "POST", "messages", "change-all", body=body)
            states.update(found["states"])
            after = found["next"]
            if after is None:
                return True
        return False

    groups = sorted(await cluster.groups())
    ended = await asyncio.gather(*map(cancel, groups), return_exceptions=True)
    for group, end in zip(groups, ended, strict=True):
        if isinstance(end, RequestError) and end.code != 400:
            away[group] = str(end)
        elif isinstance(end, BaseException):
            raise end
    if away and not states:
        raise NoAnswerError("; ".join(away.values()))
    return CancelledMessages(states=states, complete=all(end is True for end in ended), away=away)
