"""The routes of a gateway, an ASGI application on asyncio.

POST /v1/messages/SUBJECT   a message: its body as it is
POST /v1/messages           JSON: one message, or a list
GET  /v1/openapi.json       the document
GET  /livez, /readyz, /metrics
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from delay_client import Client
from delay_transport.http.access import AccessPolicy, Caller
from delay_transport.http.metric_families import Exposition, build_info, counters, gauge
from delay_transport.http.problems import RequestError
from delay_transport.http.server import METRICS_TYPE, json_response, problem_of
from delay_transport.http.tokens import Role
from gateway.cluster import Cluster
from gateway.document import document_json
from gateway.incoming import from_headers, from_json
from gateway.sending import check_subject, send, send_list

MESSAGE_BYTES_MAX: Final = 2 * 1024 * 1024
"""Bytes of the body of one message; the cluster's own limit is lower."""
LIST_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of a body of JSON."""
BODY_S: Final = 30.0
"""Seconds for the whole body of a request."""
REQUESTS_MAX: Final = 2000
"""Requests that are worked on at a time; one more is answered 429. Each has its body in memory."""
BODIES_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of the bodies of all of them."""

_Act = Callable[[Request, Caller], Awaitable[Response]]


class Gateway:
    """Requests in, answers out; keeps counts alone."""

    def __init__(self, client: Client, cluster: Cluster, access: AccessPolicy) -> None:
        self._client = client
        self._cluster = cluster
        self._access = access
        self._busy = 0
        self._body_bytes = 0
        self.answered: Counter[str] = Counter()
        """Answers by their status."""
        self.accepted = 0
        """Messages that the cluster keeps."""

    def application(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(
            routes=[
                Route("/v1/messages", self._acting(Role.SEND, self._send_json), methods=["POST"]),
                Route(
                    "/v1/messages/{subject:path}",
                    self._acting(Role.SEND, self._send_raw),
                    methods=["POST"],
                ),
                Route("/v1/openapi.json", _openapi),
                Route("/livez", _livez),
                Route("/metrics", self._acting(Role.READ, self._metrics, is_change=False)),
            ],
            exception_handlers={HTTPException: _stray},
        )

    def _acting(
        self, needed: Role, act: _Act, *, is_change: bool = True
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint: access, the number of requests, refusals, and counts around `act`."""

        async def answer(request: Request) -> Response:
            self._busy += 1
            try:
                response = await act(request, self._admit(request, needed, is_change=is_change))
            except RequestError as refusal:
                response = problem_of(refusal)
            except ClientDisconnect:
                response = Response(status_code=400)
            finally:
                self._busy -= 1
            self.answered[str(response.status_code)] += 1
            return response

        return answer

    def _admit(self, request: Request, needed: Role, *, is_change: bool) -> Caller:
        """Return who asks; raise RequestError, also where too much is asked."""
        if self._busy > REQUESTS_MAX:
            raise RequestError(429, "busy", "too many requests at a time", retry_after_s=1)
        reached = request.scope.get("server")
        return self._access.admit(
            request.headers,
            "" if request.client is None else request.client.host,
            needed=needed,
            is_change=is_change,
            reached_at=reached[0] if reached else "",
        )

    async def _send_raw(self, request: Request, caller: Caller) -> Response:
        subject = request.path_params["subject"]
        check_subject(caller, subject)
        body = await self._body_of(request, MESSAGE_BYTES_MAX)
        try:
            message = from_headers(subject, _texts(request.headers), body)
            answer = await send(self._client, message)
        finally:
            self._body_bytes -= len(body)
        self.accepted += 1
        return json_response(answer, 202)

    async def _send_json(self, request: Request, caller: Caller) -> Response:
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != "application/json":
            raise RequestError(
                415,
                "media-type",
                "Content-Type must be application/json; a body of another type goes to "
                "/v1/messages/SUBJECT",
            )
        body = await self._body_of(request, LIST_BYTES_MAX)
        try:
            messages, is_list = from_json(body)
            for one in messages:
                if not isinstance(one, RequestError):
                    check_subject(caller, one.subject)
            if not is_list:
                (one,) = messages
                if isinstance(one, RequestError):
                    raise one
                answer = await send(self._client, one)
                self.accepted += 1
                return json_response(answer, 202)
            accounted = await send_list(self._client, messages)
        finally:
            self._body_bytes -= len(body)
        self.accepted += accounted.accepted
        return json_response(accounted, 202)

    async def _body_of(self, request: Request, most: int) -> bytes:
        """Return a body, which counts as memory from then on; raise RequestError."""
        too_long = RequestError(413, "too-large", f"a body has at most {most} bytes here")
        length = request.headers.get("content-length", "0")
        if not length.isdigit() or len(length) > 18 or int(length) > most:
            raise too_long
        data = bytearray()
        try:
            async with asyncio.timeout(BODY_S):
                async for part in request.stream():
                    data += part
                    if len(data) > most:
                        raise too_long
        except TimeoutError as error:
            raise RequestError(408, "slow", f"the body took longer than {BODY_S:g} s") from error
        if self._body_bytes + len(data) > BODIES_BYTES_MAX:
            raise RequestError(429, "busy", "too much is being sent at a time", retry_after_s=1)
        self._body_bytes += len(data)
        return bytes(data)

    async def _metrics(self, _: Request, __: Caller) -> Response:
        families = [
            build_info(),
            counters("gateway_answers", "Answers, by status.", "status", dict(self.answered)),
            counters(
                "gateway_messages",
                "Messages that the cluster keeps.",
                "way",
                {"http": self.accepted},
            ),
            gauge("gateway_requests", "Requests that are worked on.", self._busy),
        ]
        text = await asyncio.to_thread(Exposition(families).render)
        return Response(text, media_type=METRICS_TYPE)


async def _livez(_: Request) -> Response:
    return json_response({"live": True})


async def _openapi(_: Request) -> Response:
    return Response(document_json(), media_type="application/json")


def _texts(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers as text: Starlette reads their bytes as Latin-1, people send UTF-8."""
    return {name: _text(value) for name, value in headers.items()}


def _text(value: str) -> str:
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


def _stray(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = "method" if error.status_code == 405 else "not-found"
    detail = f"{error.detail}: see /v1/openapi.json for what there is"
    response = problem_of(RequestError(error.status_code, kind, detail))
    response.headers.update(error.headers or {})
    return response
