"""Refusals of a cluster, as problem details with its sentences."""

import math
from typing import Final

import msgspec

from delay_client import (
    Changed,
    ChangeState,
    DelayTooLong,
    DelaywheelError,
    FatalError,
    IllegalSubject,
    InvalidMessage,
    MessageTooLarge,
    Overloaded,
    RetryableError,
)
from delay_transport.http.problems import Problem, RequestError
from gateway.times import rfc3339

RETRY_AFTER_S: Final = 1
"""When to ask again what the cluster could not do."""

_REFUSED: Final = (
    (InvalidMessage, 400, "bad-value"),
    (IllegalSubject, 422, "subject"),
    (MessageTooLarge, 413, "too-large"),
    (DelayTooLong, 422, "too-far"),
    (FatalError, 422, "refused"),
    (Overloaded, 429, "overloaded"),
    (RetryableError, 503, "unavailable"),
)
"""Status and word for each error of the client; the first that fits."""


class SendProblem(Problem, frozen=True, kw_only=True, tag_field="outcome", tag="refused"):
    """The refusal of a message, or of a request that has one."""

    id: str = ""
    """The message's id: give it as Idempotency-Key to send it again."""
    maybe_kept: bool = False
    """True if the cluster may have kept it all the same."""

    @classmethod
    def of(cls, error: RequestError) -> "SendProblem":
        """Return the outcome of a message of a list."""
        return msgspec.convert(error.problem, cls, from_attributes=True)


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


class NoAnswerError(RequestError):
    """A server, or all of them, gave no answer: nothing is known of what was asked for."""

    def __init__(self, why: str) -> None:
        super().__init__(503, "unavailable", why, retry_after_s=RETRY_AFTER_S)


class SendError(RequestError):
    """The cluster did not take a message."""

    def __init__(self, error: DelaywheelError) -> None:
        code, kind = next((c, k) for one, c, k in _REFUSED if isinstance(error, one))
        super().__init__(
            code,
            kind,
            str(error),
            retry_after_s=RETRY_AFTER_S if code in {429, 503} else 0,
            problem_type=SendProblem,
            id=error.message_id or "",
            maybe_kept=isinstance(error, RetryableError) and error.maybe_kept,
        )


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
            problem_type=ChangeProblem,
            changed=shown,
        )
