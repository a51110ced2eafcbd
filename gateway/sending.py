"""Messages from requests to the cluster, and its receipts and refusals as answers."""

from collections.abc import Sequence
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
from delay_protocol.basics.subjects import Patterns
from delay_transport.http.access import Caller
from delay_transport.http.problems import Problem, RequestError
from gateway.times import rfc3339

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
    cancel_token: str
    """Names it to look at it, cancel it or move it. It is no secret."""
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
    """Raise RequestError if a caller's token is not for a subject, or for all with a beginning."""
    if not Patterns(caller.subjects).take(subject):
        raise RequestError(
            403,
            "role",
            f"the token {caller.name} is not for {subject[:100]!a}: ask for another",
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
    return Accepted(
        id=receipt.message_id,
        due=rfc3339(receipt.due_ms),
        due_ms=receipt.due_ms,
        cancel_token=receipt.cancel_token,
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
