"""Messages from requests to the cluster, and its receipts as answers."""

from typing import Any, Final

import msgspec

from delay_client import Outcome, OutgoingMessage, Receipt
from delay_transport.http.convert import convert_request, decode_body
from delay_transport.http.operations import Call, NoHeaders, NoPath, NoQuery
from delay_transport.http.problems import RequestError
from delay_transport.http.tokens import Role
from gateway.api import API, CURL_URL, Parts, check_subject
from gateway.incoming import (
    OWN,
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
    return await _send(call, from_headers(call.path.subject_or_token, call.headers, call.body))


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
    # They would be overlooked: JSON has fields for them.
    own = {name: value for name, value in call.headers.items() if name.startswith(OWN)}
    convert_request(own, NoHeaders, strict=False)
    if isinstance(given, JsonMessage):
        return await _send(call, from_json(given))
    made = [_made(call, one) for one in given]
    good = [one for one in made if isinstance(one, OutgoingMessage)]
    outcomes = iter(await parts.client.send_many(good) if good else [])
    results = [
        _result_of(next(outcomes)) if isinstance(one, OutgoingMessage) else one for one in made
    ]
    kept = sum(isinstance(one, Accepted) for one in results)
    parts.accepted += kept
    return Accounted(accepted=kept, refused=len(results) - kept, results=results)


async def _send(call: Call[Parts, Any, NoQuery, Any], message: OutgoingMessage) -> Accepted:
    """Return the answer for a message that is kept; raise RequestError, or DelaywheelError."""
    _check(call, message)
    receipt = await call.context.client.send(**message._asdict())
    call.context.accepted += 1
    return _accepted(receipt)


def _made(call: Call[Parts, Any, NoQuery, Any], one: msgspec.Raw) -> OutgoingMessage | SendProblem:
    """Return a message of a list, or why it is none."""
    try:
        message = from_json(decode_body(bytes(one), JsonMessage))
        _check(call, message)
    except RequestError as refusal:
        return SendProblem.of(refusal)
    return message


def _check(call: Call[Parts, Any, NoQuery, Any], message: OutgoingMessage) -> None:
    """Raise RequestError for a subject that is not the caller's, or a URL that nobody allows."""
    check_subject(call.caller, message.subject)
    url = (message.headers or {}).get(OWN_URL)
    if url is not None:
        call.context.webhooks.check_url(message.subject, url)


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
