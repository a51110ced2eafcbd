"""Webhooks as the meta server reveals them. Pure."""

from collections.abc import Mapping
from typing import Final

import msgspec
from yarl import URL

from gateway.incoming import OWN_URL

URL_LENGTH_MAX: Final = 2000


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how the messages of a name of receivers are posted."""

    name: str
    version: int
    url: str
    """Empty: each message names its own."""
    hosts: tuple[str, ...]
    """Hosts, with a port where it is not the scheme's, that messages may name."""
    private: tuple[str, ...]
    """Networks that are allowed though they are not public."""
    concurrency: int
    rate_per_s: float | None
    timeout_s: float
    disabled: str
    """Why nothing is posted; empty: messages are."""
    secrets: tuple[str, ...]
    """The first is the present one; a second one is being exchanged."""
    receiver_token: str
    """The token to receive under its name."""
    subjects: tuple[str, ...]
    """Patterns of its messages."""

    def takes(self, subject: str) -> bool:
        """Return True if messages of a subject go to it."""
        beginnings = tuple(one[:-1] for one in self.subjects if one.endswith("*"))
        return subject in self.subjects or subject.startswith(beginnings)

    def url_for(self, headers: Mapping[str, str]) -> URL:
        """Return the URL that a message is posted to; raise ValueError with what is wrong."""
        if self.url:
            return URL(self.url)
        text = headers.get(OWN_URL, "")
        if not text:
            raise ValueError(
                f"it names no URL, and neither does the webhook {self.name}: send it with "
                "Delaywheel-Url"
            )
        return self.allowed_url(text)

    def allowed_url(self, text: str) -> URL:
        """Return a URL that a message names; raise ValueError unless its host is allowed."""
        if len(text) > URL_LENGTH_MAX:
            raise ValueError(f"a URL has at most {URL_LENGTH_MAX} characters")
        try:
            url = URL(text)
            host, port = url.host or "", url.port
        except ValueError as error:
            raise ValueError(f"it is no URL: {error}") from error
        if url.scheme not in {"http", "https"} or not host or url.user is not None:
            raise ValueError("a URL begins with http:// or https://, and has a host and no user")
        place = host if url.is_default_port() else f"{host}:{port}"
        if not any(_fits(place, one) for one in self.hosts):
            raise ValueError(
                f"the webhook {self.name} does not allow {place[:255]}; an operator has to: "
                f"`delaywheel admin set webhook {self.name} hosts=…`"
            )
        return url.with_fragment(None)


class Revealed(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the meta server."""

    webhooks: list[Webhook]


def _fits(place: str, allowed: str) -> bool:
    if allowed.startswith("*."):
        return place.endswith(allowed[1:])
    return place == allowed
