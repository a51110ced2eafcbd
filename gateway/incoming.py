"""Messages from requests. Pure.

    POST /v1/messages/SUBJECT   the body as it is; all else in headers
    POST /v1/messages           JSON: one message, or a list of up to 1,000

Both make the same OutgoingMessage, and name what is wrong by its header or its field.
"""

import base64
import binascii
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from delay_client import OutgoingMessage
from delay_transport.http.problems import BadValueError, RequestError
from gateway.times import parse_delay, parse_moment

MESSAGES_MAX: Final = 1000
"""Messages of one request."""
DELAY: Final = "Delaywheel-Delay"
NOT_BEFORE: Final = "Delaywheel-Not-Before"
LEVEL: Final = "Delaywheel-Level"
IDEMPOTENCY_KEY: Final = "Idempotency-Key"
URL: Final = "Delaywheel-Url"
FORWARDED: Final = "Delaywheel-Header-"
"""Headers that begin so go along with the message, without this prefix."""
KEY_LENGTH_MAX: Final = 100
"""Characters of an idempotency key, which becomes the id of the message."""


class When(NamedTuple):
    """When a message is due: one of them is set, or none for now."""

    delay_s: float | None
    at: datetime | None
    level: int | None


class JsonMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    level: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Deliver after the delay of this level of the cluster's table."""
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=KEY_LENGTH_MAX)] | None = None
    """Its idempotency key; one is made if there is none."""
    headers: dict[str, str] | None = None
    """Text by name, for receivers."""
    url: str | None = None
    """Where it is posted to, where an operator has allowed the host for its subject."""


_BODY = msgspec.json.Decoder(list[JsonMessage] | JsonMessage)


def from_headers(subject: str, headers: Mapping[str, str], body: bytes) -> OutgoingMessage:
    """Return the message of a raw request; names of headers are in lower case.

    Raises RequestError.
    """
    delay, moment = headers.get(DELAY.lower()), headers.get(NOT_BEFORE.lower())
    level = headers.get(LEVEL.lower())
    when = _when(
        {DELAY: delay, NOT_BEFORE: moment, LEVEL: level},
        None if delay is None else parse_delay(delay, DELAY),
        None if moment is None else parse_moment(moment, NOT_BEFORE),
        None if level is None else _level_of(level),
    )
    prefix = FORWARDED.lower()
    forwarded = {
        name[len(prefix) :]: value for name, value in headers.items() if name.startswith(prefix)
    }
    if "" in forwarded:
        raise BadValueError(field=FORWARDED, value="", allowed="the name of a header behind it")
    if (url := headers.get(URL.lower())) is not None:
        forwarded[URL.lower()] = url
    return OutgoingMessage(
        subject,
        body,
        *(when.delay_s, when.at, _key_of(headers)),
        headers=forwarded or None,
        content_type=headers.get("content-type"),
        level=when.level,
    )


def from_json(data: bytes) -> tuple[list[OutgoingMessage | RequestError], bool]:
    """Return the messages of a body of JSON, or why one of them is none; and if it is a list.

    Raises RequestError for a body that cannot be divided into messages.
    """
    try:
        found = _BODY.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(400, "bad-body", f"the body is no message in JSON: {error}") from error
    if isinstance(found, JsonMessage):
        return [_from_struct(found)], False
    if not 1 <= len(found) <= MESSAGES_MAX:
        raise RequestError(
            400,
            "bad-body",
            f"a list of {len(found)} messages: give 1 to {MESSAGES_MAX} in a request",
        )
    made: list[OutgoingMessage | RequestError] = []
    for place, one in enumerate(found):
        try:
            made.append(_from_struct(one, f"[{place}]."))
        except RequestError as refusal:
            made.append(refusal)
    return made, True


def _from_struct(given: JsonMessage, where: str = "") -> OutgoingMessage:
    moment = given.not_before
    when = _when(
        {
            f"{where}delay": given.delay,
            f"{where}not_before": moment,
            f"{where}level": given.level,
        },
        None if given.delay is None else parse_delay(given.delay, f"{where}delay"),
        None if moment is None else parse_moment(str(moment), f"{where}not_before"),
        given.level,
    )
    body = given.body
    if given.body_base64 is not None:
        if body != "":
            raise BadValueError(
                field=f"{where}body", value=body, allowed="it or body_base64, not both"
            )
        try:
            body = base64.b64decode(given.body_base64, validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadValueError(
                field=f"{where}body_base64", value=given.body_base64, allowed=f"base64 ({error})"
            ) from error
    elif not isinstance(body, str):
        # As it came, not as a client of Python would write a mapping.
        body = msgspec.json.encode(body)
    is_value = given.body_base64 is None and not isinstance(given.body, str)
    return OutgoingMessage(
        given.subject,
        body,
        *(when.delay_s, when.at, given.id),
        headers=given.headers
        if given.url is None
        else {**(given.headers or {}), URL.lower(): given.url},
        content_type=given.content_type or ("application/json" if is_value else None),
        level=when.level,
    )


def _when(
    given: Mapping[str, object], delay_s: float | None, at: datetime | None, level: int | None
) -> When:
    """Return when a message is due; raise BadValueError if that is said twice."""
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise BadValueError(
            field=names[1], value=given[names[1]], allowed=f"it or {names[0]}, not both"
        )
    return When(0.0 if not names else delay_s, at, level)


def _level_of(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise BadValueError(field=LEVEL, value=text, allowed="0, 1, 2 and so on")
    return int(text[:20])


def _key_of(headers: Mapping[str, str]) -> str | None:
    """Return the idempotency key; it may stand in quotes, as a string of structured fields."""
    key = headers.get(IDEMPOTENCY_KEY.lower())
    if key is None:
        return None
    if len(key) > 1 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if not 1 <= len(key) <= KEY_LENGTH_MAX:
        raise BadValueError(
            field=IDEMPOTENCY_KEY, value=key, allowed=f"1 to {KEY_LENGTH_MAX} characters"
        )
    return key
