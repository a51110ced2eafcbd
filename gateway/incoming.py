"""Messages from requests. Pure.

    POST /v1/messages/SUBJECT   the body as it is; all else in headers
    POST /v1/messages           JSON: one message, or a list of up to 1,000

Both make the same OutgoingMessage, and name what is wrong by its header or its field.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from delay_client import OutgoingMessage
from delay_transport.http.convert import convert_request
from delay_transport.http.operations import Request
from delay_transport.http.problems import BadValueError
from gateway.times import parse_delay, parse_moment

FORWARDED: Final = "Delaywheel-Header-"
"""Headers that begin so go along with the message, without this prefix."""
OWN_URL: Final = "delaywheel-url"
"""The header of a message that names the URL that it is posted to."""

Level = Annotated[int, Meta(ge=0)]
Key = Annotated[str, Meta(min_length=1, max_length=100)]
"""An idempotency key, which becomes the id of the message."""

_HEADERS: Final = {
    "delay": "Delaywheel-Delay",
    "not_before": "Delaywheel-Not-Before",
    "level": "Delaywheel-Level",
    "id": "Idempotency-Key",
    "url": "Delaywheel-Url",
}
_FIELDS: Final = {name: name for name in _HEADERS}
_NAMES: Final = {name.lower(): name for name in _HEADERS.values()}
OWN: Final = "delaywheel-"
"""Headers of messages begin so."""
_FORWARDED: Final = FORWARDED.lower()


class SendHeaders(Request, frozen=True, kw_only=True, rename=_HEADERS):
    """The headers of a raw message; `Delaywheel-Header-NAME` goes along as its header NAME."""

    delay: str | None = None
    """Deliver this long after now: 90s, 1h52m, 2d, PT90S."""
    not_before: str | None = None
    """Deliver at this moment: RFC 3339, or seconds since 1970."""
    level: Level | None = None
    """Deliver after the delay of this level of the cluster's table."""
    id: Key | None = None
    """Becomes the message's id, 1 to 100 characters."""
    url: str | None = None
    """Post it to this URL when it is due, where an operator has allowed the host."""


class JsonMessage(Request, frozen=True, kw_only=True):
    """A message in JSON."""

    subject: str
    """The subject that receivers take."""
    body: Any = ""
    """Text, which is kept as it is, or a value, which is kept as its JSON."""
    body_base64: str | None = None
    """In the place of `body`: bytes that are no text."""
    content_type: str | None = None
    """The type of the body; of a value application/json by itself."""
    delay: str | None = None
    """Deliver this long after now: 90s, 1h52m, PT90S."""
    not_before: str | int | None = None
    """Deliver at this moment: RFC 3339, or seconds since 1970."""
    level: Level | None = None
    """Deliver after the delay of this level of the cluster's table."""
    id: Key | None = None
    """Its idempotency key; one is made if there is none."""
    headers: dict[str, str] | None = None
    """Text by name, for receivers."""
    url: str | None = None
    """Where it is posted to, where an operator has allowed the host for its subject."""


_Element = Annotated[
    msgspec.Raw, Meta(extra_json_schema={"$ref": "#/components/schemas/JsonMessage"})
]
JsonMessages = JsonMessage | Annotated[list[_Element], Meta(min_length=1, max_length=1000)]
"""A body of JSON: one message, or a list, each of which is decoded by itself."""


def from_headers(subject: str, headers: Mapping[str, str], body: bytes) -> OutgoingMessage:
    """Return the message of a raw request; names of headers are in lower case.

    Raises RequestError, also for a header `Delaywheel-…` that there is not.
    """
    given, forwarded = dict[str, str](), dict[str, str]()
    for name, value in headers.items():
        if name.startswith(_FORWARDED):
            forwarded[name.removeprefix(_FORWARDED)] = _text(value)
        elif name in _NAMES or name.startswith(OWN):
            given[_NAMES.get(name, name)] = _text(value)
    if "" in forwarded:
        raise BadValueError(field=FORWARDED, value="", allowed="the name of a header behind it")
    asked = convert_request(given, SendHeaders, strict=False)
    kind = headers.get("content-type")
    return _message(subject, body, asked, _HEADERS, headers=forwarded, content_type=kind)


def from_json(given: JsonMessage) -> OutgoingMessage:
    """Return the message of a struct; raise RequestError."""
    body, kind, headers = given.body, given.content_type, given.headers or {}
    if given.body_base64 is not None:
        if body != "":
            raise BadValueError(field="body", value=body, allowed="it or body_base64, not both")
        try:
            body = base64.b64decode(given.body_base64, validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadValueError(
                field="body_base64", value=given.body_base64, allowed=f"base64 ({error})"
            ) from error
    elif not isinstance(body, str):
        # As it came, not as a client of Python would write a mapping.
        body, kind = msgspec.json.encode(body), kind or "application/json"
    return _message(given.subject, body, given, _FIELDS, headers=headers, content_type=kind)


def _message(
    subject: str,
    body: bytes | str,
    given: SendHeaders | JsonMessage,
    names: Mapping[str, str],
    *,
    headers: dict[str, str],
    content_type: str | None,
) -> OutgoingMessage:
    """Return a message; raise BadValueError if more than one field says when it is due.

    names: what the caller calls the fields
    """
    delay, moment, level = given.delay, given.not_before, given.level
    times = {"delay": delay, "not_before": moment, "level": level}
    said = [name for name, value in times.items() if value is not None]
    if len(said) > 1:
        allowed = f"it or {names[said[0]]}, not both"
        raise BadValueError(field=names[said[1]], value=times[said[1]], allowed=allowed)
    delay_s = None if said else 0.0
    return OutgoingMessage(
        subject,
        body,
        delay_s if delay is None else parse_delay(delay, names["delay"]),
        None if moment is None else parse_moment(str(moment), names["not_before"]),
        given.id,
        headers=(headers if given.url is None else {**headers, OWN_URL: given.url}) or None,
        content_type=content_type or None,
        level=level,
    )


def _text(value: str) -> str:
    """Return a header as text: Starlette reads its bytes as Latin-1, people send UTF-8."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value
