"""Who may ask for more than a look at the server: this machine, and no page in a browser on it.

`Access` is all that handlers know of it, so that tokens, or something else, can take its place.
"""

from typing import TYPE_CHECKING, Protocol

from starlette.requests import Request

from delay_transport import parse_address
from delay_transport.http_access import PlaceError, check_local, check_same_site

if TYPE_CHECKING:
    from delay_server.config import HttpConfig


class AccessError(Exception):
    """A request that is turned away before it is looked at; `code` is HTTP's."""

    def __init__(self, code: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.kind = kind
        """A word for programs."""


class Access(Protocol):
    """Decides about requests by their headers and where they come from."""

    def __call__(self, request: Request, *, is_change: bool) -> str:
        """Return who asks, for the log; raise AccessError."""


class ThisMachine:
    """Lets whoever is on this machine do everything, but no page of another place in a browser.

    A change with a body comes as application/json, which browsers let no page send elsewhere
    without asking us first, and we do not answer that question.
    """

    def __init__(self, settings: "HttpConfig") -> None:
        self._host = parse_address(settings.address)[0].lower() if settings.address else ""

    def check_operator(self, request: Request) -> None:
        """Raise PlaceError unless somebody on this machine asks, for no page of another place."""
        self._check_local(request)
        check_same_site(request.headers)

    def __call__(self, request: Request, *, is_change: bool) -> str:
        """Return who asks, for the log; raise AccessError."""
        try:
            self._check_local(request)
            if is_change:
                check_same_site(request.headers)
        except PlaceError as error:
            raise AccessError(403, error.kind, str(error)) from error
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if is_change and kind != "application/json":
            raise AccessError(415, "type", "a change has Content-Type: application/json")
        return "this machine"

    def _check_local(self, request: Request) -> None:
        server = request.scope.get("server")
        own_hosts = {self._host, *([server[0]] if server else ())} - {""}
        check_local(request.headers, peer_of(request), own_hosts)


def peer_of(request: Request) -> str:
    """Return the address that asks, as far as it is known."""
    return "" if request.client is None else request.client.host
