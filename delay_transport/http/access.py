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

import anyio
import structlog
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Bounds of the requests to an API."""

    requests_max: int = 64
    """Requests that are worked on at a time. One more is answered `busy_code`."""
    bodies_bytes_max: int = 16 * 1024 * 1024
    """Bytes of the bodies of all of them, as far as they have come. The request that goes beyond is
    answered `busy_code`."""
    busy_code: int = 503
    """The status of a request that is one too many; `Retry-After` says when to ask again."""
    body_bytes_max: int = 256 * 1024
    """Bytes of a request's body. A longer one is answered 413."""
    body_s: float = 5.0
    """Seconds for the whole body of a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller of a request: its name in the audit, and its role."""

    name: str
    role: Role
    subjects: tuple[str, ...] = ()
    """Patterns of the subjects that it may use; none: all."""


def check_exposure(
    addresses: Mapping[str, str],
    tokens: Tokens,
    token_key: str = "admin.token_file",  # noqa: S107 (the name of a setting)
    *,
    role: Role = Role.ADMIN,
) -> None:
    """Raise ConfigError if others could ask for anything without a token.

    addresses: host:port by the setting that says so, of all that tell where HTTP is served
    token_key: the setting, or the option, that names the file of tokens
    role: one that a token for it may have
    """
    source = "options" if token_key.startswith("-") else "settings"
    if tokens.fault:
        raise ConfigError(source=source, key=token_key, reason=tokens.fault)
    if tokens.entries:
        return
    for key, address in addresses.items():
        if address and not is_loopback(parse_address(address)[0]):
            raise ConfigError(
                source=source,
                key=key,
                reason=f"other machines can reach {address}, and no token is needed",
                remedy=(
                    f"run `delaywheel admin token add NAME --role {role.value} --file FILE` and "
                    f"set {token_key} to FILE, or stay on 127.0.0.1"
                ),
            )


class AccessPolicy:
    """Decides about each request by its headers alone."""

    def __init__(
        self,
        tokens: Tokens,
        *,
        own_address: str,
        now: Callable[[], float] = anyio.current_time,
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


def headers_of(request: Request) -> dict[str, str]:
    """Return the headers by name, in lower case; the first of a name counts.

    Each that is looked up in Starlette's own mapping takes some microseconds.
    """
    return dict(reversed(request.headers.items()))


class HttpAccess:
    """Admits HTTP requests: by their tokens, and so many at a time."""

    def __init__(
        self, tokens: Tokens, *, own_address: str, limits: HttpLimits = HttpLimits()
    ) -> None:
        """`own_address` is where HTTP is served."""
        self.tokens = tokens
        self.policy = AccessPolicy(tokens, own_address=own_address)
        self.limits = limits
        self.busy = 0
        """Requests in progress."""
        self.bodies_bytes = 0
        """Bytes of their bodies that have come."""
        self.answered: Counter[str] = Counter()
        """Answers to requests of the API, by status."""

    def admit(self, request: Request, needed: Role, *, is_change: bool) -> Caller:
        """Return who asks; raise RequestError."""
        reached = request.scope.get("server")
        return self.policy.admit(
            headers_of(request),
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
    def slot(self) -> Iterator[Callable[[int], None]]:
        """Count a request in progress; raise RequestError if there are too many.

        Yields what counts bytes of its body as they come, and raises RequestError as well.
        """
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            if self.bodies_bytes + size > self.limits.bodies_bytes_max:
                raise self._busy_error("bodies that long")
            held += size
            self.bodies_bytes += size

        if self.busy >= self.limits.requests_max:
            raise self._busy_error(f"{self.limits.requests_max} requests")
        self.busy += 1
        try:
            yield hold
        finally:
            self.busy -= 1
            self.bodies_bytes -= held

    def _busy_error(self, what: str) -> RequestError:
        why = f"{what} are worked on, the most at a time: ask again"
        return RequestError(self.limits.busy_code, "busy", why, retry_after_s=1)
