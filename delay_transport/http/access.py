"""Decides which HTTP requests are allowed: by token or by being on this machine, and no web page.

Without a file of tokens every caller on this machine is an administrator. What keeps out pages in a
browser on this machine is in delay_transport/http/addresses.py; beside that a change has a content
type (`application/json`), a method (PATCH, PUT, DELETE) or a header (`X-Api-Token`) which browsers
let no page send elsewhere without asking us first; and we do not answer that question.

With a file of tokens there is nothing that a browser would send by itself.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import structlog
import trio
from starlette.requests import Request

from delay_transport.http.addresses import PlaceError, check_local, check_same_site, is_loopback
from delay_transport.http.problems import RequestError
from delay_transport.http.tokens import LOOPBACK, Role, Tokens
from delay_transport.seams.errors import ConfigError
from delay_transport.seams.leaky_bucket import LeakyBucket
from delay_transport.seams.runtime import parse_address

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_DENIALS_PER_S: Final = 10.0
"""Wrong tokens, of all callers, that are answered 401 and noted in the log; further ones are
answered 429. Good tokens count all the same."""
_DENIALS_AT_ONCE: Final = 30.0
"""Wrong tokens that may come at once after a quiet time."""

REQUESTS_MAX: Final = 64
"""Requests to an API that are worked on at a time. One more is answered 503."""
BODY_BYTES_MAX: Final = 256 * 1024
"""Bytes of a request's body. A longer one is answered 413."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller of a request: its name in the audit, and its role."""

    name: str
    role: Role
    subjects: tuple[str, ...] = ()
    """Patterns of the subjects that it may use; none: all."""


def check_exposure(addresses: Mapping[str, str], tokens: Tokens) -> None:
    """Raise ConfigError if others could administer without a token.

    `addresses`: host:port by the setting that says so, of all that tell where HTTP is served.
    """
    if tokens.fault:
        raise ConfigError(source="settings", key="admin.token_file", reason=tokens.fault)
    if tokens.entries:
        return
    for key, address in addresses.items():
        if address and not is_loopback(parse_address(address)[0]):
            raise ConfigError(
                source="settings",
                key=key,
                reason=f"other machines can reach {address}, and administration needs no token",
                remedy=(
                    "run `delaywheel admin token add NAME --role admin --file FILE` and set "
                    "admin.token_file to FILE, or stay on 127.0.0.1"
                ),
            )


class AccessPolicy:
    """Decides about each request by its headers alone."""

    def __init__(
        self,
        tokens: Tokens,
        *,
        own_address: str,
        now: Callable[[], float] = trio.current_time,
    ) -> None:
        """`own_address` is the host:port that HTTP is served on; `now` in seconds."""
        self._tokens = tokens
        self._own_hosts = {parse_address(own_address)[0].lower()} if own_address else set()
        self._now = now
        self._denials = LeakyBucket(rate=_DENIALS_PER_S, size=_DENIALS_AT_ONCE)
        self.denied: Counter[str] = Counter()
        """Requests turned away, by reason."""

    def admit(
        self,
        headers: Mapping[str, str],
        peer: str,
        *,
        needed: Role,
        is_change: bool,
        reached_at: str = "",
    ) -> Caller:
        """Return who asks; raise RequestError. Names of headers are in lower case.

        `reached_at` is the address that was connected to, where that is known.
        """
        try:
            own_hosts = {*self._own_hosts, reached_at.lower()} - {""}
            self._check_place(headers, peer, own_hosts, is_change=is_change)
            return self._caller(headers, peer, needed)
        except RequestError as error:
            self.denied[error.kind] += 1
            raise

    def _check_place(
        self, headers: Mapping[str, str], peer: str, own_hosts: set[str], *, is_change: bool
    ) -> None:
        try:
            if not self._tokens.is_set:
                check_local(headers, peer, own_hosts)
            if is_change:
                check_same_site(headers)
        except PlaceError as error:
            raise RequestError(403, error.kind, str(error)) from error

    def _caller(self, headers: Mapping[str, str], peer: str, needed: Role) -> Caller:
        if not self._tokens.is_set:
            return Caller(name=LOOPBACK, role=Role.ADMIN)
        if self._tokens.fault:
            # What is wrong names the file, which is nobody's business who has proved nothing.
            raise RequestError(
                503,
                "tokens",
                "the token file is not usable, so all requests are denied: see the log",
            )
        presented = presented_token(headers)
        if presented is None:
            raise RequestError(
                401, "token", "a token is needed: Authorization: Bearer TOKEN, or X-Api-Token"
            )
        token = self._tokens.find(presented)
        if token is None:
            now = self._now()
            wait_s = self._denials.seconds_until_room(now)
            if wait_s:
                raise RequestError(
                    429, "denials", "too many wrong tokens", retry_after_s=int(wait_s) + 1
                )
            self._denials.pour(now, 1)
            _log.warning("denied a request with an unknown token", peer=peer)
            raise RequestError(401, "token", "unknown token")
        if not token.role.covers(needed):
            raise RequestError(
                403,
                "role",
                f"the token {token.name} has the role {token.role.value}; this needs the role "
                f"{needed.value}",
            )
        return Caller(name=token.name, role=token.role, subjects=token.subjects)


def presented_token(headers: Mapping[str, str]) -> str | None:
    """Return the token of a request, None if it has none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-token") or None


class HttpAccess:
    """Admits HTTP requests: by their tokens, and so many at a time."""

    def __init__(
        self,
        tokens: Tokens,
        *,
        own_address: str,
        requests_max: int = REQUESTS_MAX,
        body_bytes_max: int = BODY_BYTES_MAX,
    ) -> None:
        """`own_address` is where HTTP is served."""
        self.tokens = tokens
        self.policy = AccessPolicy(tokens, own_address=own_address)
        self.requests_max = requests_max
        self.body_bytes_max = body_bytes_max
        self.busy = 0
        """Requests in progress."""

    def admit(self, request: Request, needed: Role, *, is_change: bool) -> Caller:
        """Return who asks; raise RequestError."""
        reached = request.scope.get("server")
        return self.policy.admit(
            request.headers,
            self.peer_of(request),
            needed=needed,
            is_change=is_change,
            reached_at=reached[0] if reached else "",
        )

    @staticmethod
    def peer_of(request: Request) -> str:
        """Return the address of the caller; empty if it has none."""
        return "" if request.client is None else request.client.host

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Count a request in progress; raise RequestError if there are too many."""
        if self.busy >= self.requests_max:
            why = f"{self.requests_max} requests are worked on, the most at a time: ask again"
            raise RequestError(503, "busy", why, retry_after_s=1)
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1
