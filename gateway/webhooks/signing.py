"""The headers of a request to an endpoint, signed as Standard Webhooks 1.0.0. Pure.

webhook-id           the message's id, the same at each try
webhook-timestamp    when it is posted, in seconds since 1970
webhook-signature    v1,BASE64 of each secret: HMAC-SHA256 of "ID.TIMESTAMP.BODY"
Delaywheel-Subject, Delaywheel-Due, Delaywheel-Attempt
Delaywheel-Header-*  the headers that the message was sent with
"""

import base64
import hmac
import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from delay_client import ReceivedMessage
from gateway.incoming import FORWARDED, OWN_URL
from gateway.times import rfc3339

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNFIT: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class Signer:
    """Signs with one secret, or with two while one is exchanged."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._keys = [base64.b64decode(one.removeprefix("whsec_")) for one in secrets]

    def signature(self, message_id: str, timestamp: int, body: bytes) -> str:
        """Return the value of `webhook-signature`."""
        signed = f"{message_id}.{timestamp}.".encode() + body
        digests = (hmac.digest(key, signed, "sha256") for key in self._keys)
        return " ".join(f"v1,{base64.b64encode(one).decode()}" for one in digests)


def headers_of(message: ReceivedMessage, signer: Signer) -> dict[str, str]:
    """Return the headers of the request for a message that is posted now."""
    message_id, timestamp = webhook_id(message.id), message.desk.now_ms() // 1000
    headers = {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signer.signature(message_id, timestamp, message.data),
        "content-type": _fit(message.content_type or _type_of(message)),
        "Delaywheel-Subject": quote(message.subject, safe="%:/@ "),
        "Delaywheel-Due": rfc3339(message.due_ms),
        "Delaywheel-Attempt": str(message.attempt),
    }
    for name, value in message.headers.items():
        # What can be no header of HTTP is left out: the message itself is not to blame.
        if name != OWN_URL and _TOKEN.fullmatch(name):
            headers[f"{FORWARDED}{name}"] = _fit(value)
    return headers


def webhook_id(message_id: str) -> str:
    """Return an id that has no dot, which stands between the parts of what is signed."""
    return quote(message_id, safe="").replace(".", "%2E")


def _type_of(message: ReceivedMessage) -> str:
    return "text/plain; charset=utf-8" if isinstance(message.body, str) else _BYTES


_BYTES: Final = "application/octet-stream"


def _fit(value: str) -> str:
    return _UNFIT.sub(" ", value)
