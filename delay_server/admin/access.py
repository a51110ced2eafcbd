"""Checks access for every endpoint that shows messages or changes anything.

`delay_transport/http/access.py` decides from the headers alone, before the server reads a body.
Refusals have the form {"error": {"code": word, "message": sentence}}.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Final

import trio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from delay_protocol.nodes.controls import ControlsError
from delay_server.admin.parts import Administered, NotMasterError
from delay_transport.http.access import AccessError, AccessPolicy, Caller
from delay_transport.http.server import problem
from delay_transport.http.tokens import Role
from storage.disk.errors import StorageError

_BODY_S: Final = 5.0
"""Seconds in which a body has to arrive."""
BODY_BYTES_MAX: Final = 256 * 1024
"""Bytes of a request: 10,000 dead letters by their numbers, as many as one may name, take up to
200,000."""

Endpoint = Callable[[Request, Caller], Awaitable[Response]]


class RequestError(Exception):
    """A request that is wrong; `code` is the HTTP status, `kind` a word for programs."""

    def __init__(self, code: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.kind = kind


class Guard:
    """Makes routes that check the caller's role before they call an endpoint."""

    def __init__(self, administered: Administered) -> None:
        config = administered.config
        self._administered = administered
        self._gate = AccessPolicy(administered.tokens, own_address=config.http.address)

    def route(
        self,
        path: str,
        endpoints: Mapping[str, Endpoint],
        *,
        needs_json: bool = True,
        needs_master: bool = True,
    ) -> Route:
        """Return the route of a path, with an endpoint for each method.

        needs_json: a POST is refused unless it says that its body is JSON; needs_master: all are
        refused while the node is no master.
        """

        async def answer(request: Request) -> Response:
            # A HEAD is a GET whose body HTTP leaves out.
            method = "GET" if request.method == "HEAD" else request.method
            try:
                caller = self._admit(request, is_change=method != "GET")
                if needs_json and method == "POST":
                    _check_media_type(request)
                if needs_master:
                    self._administered.parts()
                return await endpoints[method](request, caller)
            except NotMasterError as error:
                return problem(503, "starting", f"this node is not the master now: {error}")
            except AccessError as error:
                response = problem(error.code, error.kind, str(error))
                if error.retry_after_s:
                    response.headers["Retry-After"] = str(error.retry_after_s)
                return response
            except RequestError as error:
                return problem(error.code, error.kind, str(error))
            except ControlsError as error:
                return problem(400, "bad-value", str(error))
            except StorageError as error:
                return problem(503, "store", f"the change could not be stored: {error}")

        return Route(path, answer, methods=list(endpoints))

    def _admit(self, request: Request, *, is_change: bool) -> Caller:
        headers = {name.lower(): value for name, value in request.headers.items()}
        reached = request.scope.get("server")
        return self._gate.admit(
            headers,
            peer_of(request),
            needed=Role.ADMIN if is_change else Role.READ,
            is_change=is_change,
            reached_at=reached[0] if reached else "",
        )


def _check_media_type(request: Request) -> None:
    """Refuse a body that is not JSON: a page of another origin may send one without a preflight."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(415, "media-type", "Content-Type must be application/json")


def peer_of(request: Request) -> str:
    """Return the address of the caller; empty where it is not known."""
    return "" if request.client is None else request.client.host


async def read_body(request: Request) -> bytes:
    """Return the body of a request. Raises RequestError if it is too long or too slow."""
    parts: list[bytes] = []
    size = 0
    try:
        with trio.fail_after(_BODY_S):
            async with aclosing(request.stream()) as stream:
                async for part in stream:
                    size += len(part)
                    if size > BODY_BYTES_MAX:
                        raise RequestError(
                            413, "too-long", f"a body has at most {BODY_BYTES_MAX} bytes"
                        )
                    parts.append(part)
    except trio.TooSlowError as error:
        raise RequestError(408, "slow", f"no body within {_BODY_S:g} s") from error
    except ClientDisconnect as error:
        raise RequestError(
            400, "gone", "the connection ended before the end of the body"
        ) from error
    return b"".join(parts)
