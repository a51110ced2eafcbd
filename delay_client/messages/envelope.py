"""The envelope: a body, its headers and its content type as the attributes of an item, and back.

    attribute           what it holds
    body                text of at most 32,767 bytes of UTF-8
    body#part0, …       longer text, in parts of at most 8,192 characters, as QMQ's setLargeString
                        writes it; a reader joins them up to the first that is missing
    dw_encoding         `base64`: the text is bytes in base64
    dw_content_type     the content type, where the sender named one or the body is JSON
    h:<name>            a header, its name in lower case

A mapping or list is sent as the text of its JSON.

A character counts as Java counts it, so text with characters beyond U+FFFF, which are two there, is
cut after each 4,096: no pair is divided. docs/compatibility.md has examples.

Bytes that are UTF-8 travel as the text that they are, because consumers of QMQ's read text. So a
receiver gets them as text; the bytes of a text are what was sent.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Final

from delay_client.messages.errors import InvalidMessage
from delay_protocol.basics.errors import MalformedItemError
from delay_protocol.basics.strings import STR_SIZE_MAX

BODY_ATTRIBUTE: Final = "body"
"""The attribute under which consumers find a body that was given as text."""

_PART: Final = "body#part"
_PART_LENGTH: Final = 8192
_ENCODING: Final = "dw_encoding"
_BASE64: Final = "base64"
_CONTENT_TYPE: Final = "dw_content_type"
_HEADER: Final = "h:"
_NOT_FOR_USERS: Final = ("qmq_", "dw_", _HEADER, f"{BODY_ATTRIBUTE}#")
"""How names of attributes begin that we or QMQ give a meaning."""
_NAME_SHOWN: Final = 60
"""Characters of a name that an error repeats."""

JSON_TYPE: Final = "application/json"
"""The content type of a body that is written as JSON here."""


def encode_envelope(
    body: str | bytes, headers: Mapping[str, str] | None = None, content_type: str | None = None
) -> dict[str, str]:
    """Return the attributes of a body; raise InvalidMessage for headers that would be lost."""
    attributes: dict[str, str] = {}
    if isinstance(body, bytes):
        data = body
        try:
            body = data.decode()
        except UnicodeDecodeError:
            body = base64.b64encode(data).decode("ascii")
            attributes[_ENCODING] = _BASE64
    if _utf8_size(body) <= STR_SIZE_MAX:
        attributes[BODY_ATTRIBUTE] = body
    else:
        is_wide = len(body.encode("utf-16-le", "surrogatepass")) > 2 * len(body)
        length = _PART_LENGTH // 2 if is_wide else _PART_LENGTH
        for number, start in enumerate(range(0, len(body), length)):
            attributes[f"{_PART}{number}"] = body[start : start + length]
    return attributes | encode_headers(headers, content_type)


def encode_headers(headers: Mapping[str, str] | None, content_type: str | None) -> dict[str, str]:
    """Return the attributes of headers and content type; raise InvalidMessage."""
    attributes: dict[str, str] = {} if content_type is None else {_CONTENT_TYPE: content_type}
    for name, value in texts_by_name(headers or {}, "headers").items():
        if not name:
            raise InvalidMessage("a header without a name: give it one")
        key = _HEADER + name.lower()
        if key in attributes:
            raise InvalidMessage(f"two headers named {name.lower()!r}: join their values")
        attributes[key] = value
    return attributes


def encode_json(body: object) -> str:
    """Return the JSON of a mapping or list; raise InvalidMessage for other objects.

    What in it has no JSON raises as json.dumps() does.
    """
    if not isinstance(body, Mapping | list):
        raise InvalidMessage(
            "a body is text or bytes, or a mapping or list that is sent as JSON, not "
            f"{type(body).__name__}"
        )
    plain = body if isinstance(body, list) else dict(body)
    return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def texts_by_name(given: object, what: str) -> Mapping[str, str]:
    """Return headers or attributes as they are; raise InvalidMessage if they are none."""
    if isinstance(given, Mapping) and all(isinstance(x, str) for x in (*given, *given.values())):
        return given
    raise InvalidMessage(f"give {what}= as a mapping of text to text")


def user_attributes(attributes: Mapping[str, str]) -> Mapping[str, str]:
    """Return the attributes that a user gave; raise InvalidMessage for a name that is not free."""
    for name in texts_by_name(attributes, "attributes"):
        if name == BODY_ATTRIBUTE or name.startswith(_NOT_FOR_USERS):
            raise InvalidMessage(
                f"the attribute {name[:_NAME_SHOWN]!a} has a meaning for delaywheel or QMQ: give "
                "body=, headers= or content_type=, or choose another name"
            )
    return attributes


def decode_envelope(
    attributes: Mapping[str, str],
) -> tuple[str | bytes, dict[str, str], str | None]:
    """Return body, headers by name in lower case, and content type.

    The body is bytes only if the sender's were no UTF-8, and empty where a message has none, only
    attributes of its own. Raises MalformedItemError for base64 that is none.
    """
    body: str | bytes | None = attributes.get(BODY_ATTRIBUTE)
    if body is None:
        body = _joined(attributes)
    if attributes.get(_ENCODING) == _BASE64:
        try:
            body = base64.b64decode(body, validate=True)
        except (binascii.Error, ValueError) as error:
            raise MalformedItemError(f"the body is not the base64 that it says: {error}") from error
    headers = {
        key[len(_HEADER) :]: value for key, value in attributes.items() if key.startswith(_HEADER)
    }
    return body, headers, attributes.get(_CONTENT_TYPE)


def _joined(attributes: Mapping[str, str]) -> str:
    """Return the parts of a long text, as QMQ's getLargeString does."""
    parts: list[str] = []
    while (part := attributes.get(f"{_PART}{len(parts)}")) is not None:
        parts.append(part)
    return "".join(parts)


def _utf8_size(text: str) -> int:
    """Return the bytes of a text; one that is no Unicode is refused where it is written."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
