"""Messages from requests to the cluster, and its receipts and refusals as answers."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from delay_client import (
    Client,
    DelayTooLong,
    DelaywheelError,
    FatalError,
    IllegalSubject,
    InvalidMessage,
    MessageTooLarge,
    Outcome,
    OutgoingMessage,
    Overloaded,
    Receipt,
    RetryableError,
)
from delay_transport.http.access import Caller
from delay_transport.http.problems import Problem, RequestError

RETRY_AFTER_S: Final = 1
"""When to send again what the cluster could not take."""

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


class Accepted(msgspec.Struct, frozen=True, kw_only=True, tag_field="outcome", tag="accepted"):
    """A message that the cluster keeps."""

    id: str
    """Its id: the idempotency key, if one was given."""
    due: str
    """When it is due, RFC 3339, UTC."""
    due_ms: int
    """The same in ms since 1970."""
    duplicate: bool
    """Whether the cluster had it already: nothing was added."""


class SendProblem(Problem, frozen=True, kw_only=True, tag_field="outcome", tag="refused"):
    """The refusal of a message, or of a request that has one."""

    id: str = ""
    """The message's id: give it as Idempotency-Key to send it again."""
    maybe_kept: bool = False
    """Whether the cluster may have kept it all the same."""


class Accounted(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes of a list of messages, in its order."""

    accepted: int
    """Number that the cluster keeps."""
    refused: int
    """Number that were refused."""
    results: list[Accepted | SendProblem]
    """The outcome of each."""


class SendError(RequestError):
    """The cluster did not take a message."""

    def __init__(self, error: DelaywheelError) -> None:
        code, kind = next((c, k) for one, c, k in _REFUSED if isinstance(error, one))
        super().__init__(
            code, kind, str(error), retry_after_s=RETRY_AFTER_S if code in {429, 503} else 0
        )
        self._id = error.message_id or ""
        self._maybe_kept = isinstance(error, RetryableError) and error.maybe_kept

    @property
    def problem(self) -> Problem:
        """The answer, with the message's id."""
        return SendProblem(
            status=self.code,
            code=self.kind,
            detail=str(self),
            id=self._id,
            maybe_kept=self._maybe_kept,
        )


def check_subject(caller: Caller, subject: str) -> None:
    """Raise RequestError if a caller's token may not send a subject."""
    if not caller.subjects:
        return
    beginnings = tuple(one[:-1] for one in caller.subjects if one.endswith("*"))
    if subject not in caller.subjects and not subject.startswith(beginnings):
        raise RequestError(
            403, "role", f"the token {caller.name} may not send {subject[:100]!a}: ask for another"
        )


async def send(client: Client, message: OutgoingMessage) -> Accepted:
    """Return the answer for a message that is kept; raise RequestError."""
    try:
        return accepted(
            await client.send(
                message.subject,
                message.body,
                delay=message.delay,
                at=message.at,
                level=message.level,
                message_id=message.message_id,
                headers=message.headers,
                content_type=message.content_type,
            )
        )
    except DelaywheelError as error:
        raise SendError(error) from error


async def send_list(
    client: Client, messages: Sequence[OutgoingMessage | RequestError]
) -> Accounted:
    """Return the outcome of each message of a list; those that are none are not sent."""
    good = [one for one in messages if isinstance(one, OutgoingMessage)]
    outcomes = iter(await client.send_many(good) if good else [])
    results = [
        _result_of(next(outcomes)) if isinstance(one, OutgoingMessage) else _told(one)
        for one in messages
    ]
    kept = sum(isinstance(one, Accepted) for one in results)
    return Accounted(accepted=kept, refused=len(results) - kept, results=results)


def accepted(receipt: Receipt) -> Accepted:
    """Return the answer for a receipt."""
    due = datetime.fromtimestamp(receipt.due_ms / 1000, UTC)
    return Accepted(
        id=receipt.message_id,
        due=due.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        due_ms=receipt.due_ms,
        duplicate=receipt.duplicate,
    )


def _result_of(outcome: Outcome) -> Accepted | SendProblem:
    if isinstance(outcome, Receipt):
        return accepted(outcome)
    return _told(SendError(outcome))


def _told(error: RequestError) -> SendProblem:
    problem = error.problem
    if isinstance(problem, SendProblem):
        return problem
    return SendProblem(**{name: getattr(problem, name) for name in Problem.__struct_fields__})
