"""Messages from requests to the cluster, and its receipts as answers."""

from typing import Final

import msgspec

from delay_client import Outcome, OutgoingMessage, Receipt
from delay_transport.http.operations import Call, NoPath, NoQuery
from delay_transport.http.problems import RequestError
from delay_transport.http.tokens import Role
from gateway.api import API, CURL_URL, Parts, check_subject
from gateway.incoming import (
    OWN_URL,
    JsonMessage,
    JsonMessages,
    SendHeaders,
    from_headers,
    from_json,
)
from gateway.meant import TokenPath
from gateway.refusals import SendError, SendProblem
from gateway.times import rfc3339

LIST_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of a body of JSON with messages."""


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


class Accounted(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes of a list of messages, in its order."""

    accepted: int
    """Number that the cluster keeps."""
    refused: int
    """Number that were refused."""
    results: list[Accepted | SendProblem]
    """The outcome of each."""


@API.operation(
    "POST",
    "/messages/{subject_or_token}",
    code=202,
    role=Role.SEND,
    header_type=SendHeaders,
    example=f"curl -d 'it works' -H 'Delaywheel-Delay: 90s' {CURL_URL}/messages/hello",
)
async def send(call: Call[Parts, TokenPath, NoQuery, bytes]) -> Accepted:
    """Send a message."""
    subject = call.path.subject_or_token
    check_subject(call.caller, subject)
    return await _send(call.context, from_headers(subject, call.headers, call.body))


@API.operation(
    "POST",
    "/messages",
    code=202,
    role=Role.SEND,
    body_bytes_max=LIST_BYTES_MAX,
    example='curl --json \'[{"subject": "hello", "body": "it works", "delay": "90s"}]\' '
    f"{CURL_URL}/messages",
)
async def send_json(call: Call[Parts, NoPath, NoQuery, JsonMessages]) -> Accepted | Accounted:
    """Send a message, or a list."""
    given, parts = call.body, call.context
    for one in [given] if isinstance(given, JsonMessage) else given:
        check_subject(call.caller, one.subject)
    if isinstance(given, JsonMessage):
        return await _send(parts, from_json(given))
    made = [_made(parts, one, place) for place, one in enumerate(given)]
    good = [one for one in made if isinstance(one, OutgoingMessage)]
    outcomes = iter(await parts.client.send_many(good) if good else [])
    results = [
        _result_of(next(outcomes)) if isinstance(one, OutgoingMessage) else one for one in made
    ]
    kept = sum(isinstance(one, Accepted) for one in results)
    parts.accepted += kept
    return Accounted(accepted=kept, refused=len(results) - kept, results=results)


async def _send(parts: Parts, message: OutgoingMessage) -> Accepted:
    """Return the answer for a message that is kept; raise RequestError, or DelaywheelError."""
    _check_url(parts, message)
    receipt = await parts.client.send(**message._asdict())
    parts.accepted += 1
    return _accepted(receipt)


def _made(parts: Parts, given: JsonMessage, place: int) -> OutgoingMessage | SendProblem:
    """Return a message of a list, or why it is none."""
    try:
        message = from_json(given, f"[{place}].")
        _check_url(parts, message)
    except RequestError as refusal:
        return SendProblem.of(refusal)
    return message


def _check_url(parts: Parts, message: OutgoingMessage) -> None:
    """Raise RequestError if a message names a URL that no webhook of its subject allows."""
    url = (message.headers or {}).get(OWN_URL)
    if url is not None:
        parts.webhooks.check_url(message.subject, url)


def _result_of(outcome: Outcome) -> Accepted | SendProblem:
    if isinstance(outcome, Receipt):
        return _accepted(outcome)
    return SendProblem.of(SendError(outcome))


def _accepted(receipt: Receipt) -> Accepted:
    return Accepted(
        id=receipt.message_id,
        due=rfc3339(receipt.due_ms),
        due_ms=receipt.due_ms,
        cancel_token=receipt.cancel_token,
        duplicate=receipt.duplicate,
    )
