"""The routes of a gateway, an ASGI application on asyncio.

POST   /v1/messages/SUBJECT          a message: its body as it is
POST   /v1/messages                  JSON: one message, or a list
GET, DELETE, PATCH                   what became of a message; cancel it; move it
       /v1/messages/TOKEN
       /v1/messages/SUBJECT/ID
GET    /v1/messages?subject=         what waits, in pages
DELETE /v1/messages?subject=         cancel all of a filter
GET    /v1/openapi.json              the document
GET    /ui                           the page
GET    /livez, /metrics
       /v1/cluster, …                what operators look at and change: operating.py
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from delay_client import Client, OutgoingMessage
from delay_transport.http.access import AccessPolicy, Caller
from delay_transport.http.convert import check_is_json, decode_body
from delay_transport.http.metric_families import Exposition, build_info, counters, gauge
from delay_transport.http.problems import RequestError
from delay_transport.http.server import (
    METRICS_TYPE,
    json_response,
    make_application,
    problem_of,
)
from delay_transport.http.tokens import Role
from gateway.changing import cancel_all, change
from gateway.cluster import Cluster
from gateway.document import DOCUMENT, document_json
from gateway.incoming import from_headers, from_json
from gateway.looking import find, list_waiting
from gateway.meant import CancelQuery, ListQuery, Move, NameQuery, meant_message, query_of
from gateway.operating import Operating
from gateway.page import Page
from gateway.sending import check_subject, send, send_list
from gateway.times import parse_moment
from gateway.webhooks.following import Webhooks
from gateway.webhooks.settings import OWN_URL

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

MESSAGE_BYTES_MAX: Final = 2 * 1024 * 1024
"""Bytes of the body of one message; the cluster's own limit is lower."""
LIST_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of a body of JSON with messages."""
MOVE_BYTES_MAX: Final = 1024
"""Bytes of a body of JSON with a time."""
BODY_S: Final = 30.0
"""Seconds for the whole body of a request."""
REQUESTS_MAX: Final = 2000
"""Requests that are worked on at a time; one more is answered 429. Each has its body in memory."""
BODIES_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of the bodies of all of them."""

_Act = Callable[[Request, Caller], Awaitable[Response]]


class Gateway:
    """Requests in, answers out; keeps counts alone."""

    def __init__(
        self, client: Client, cluster: Cluster, access: AccessPolicy, webhooks: Webhooks
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._webhooks = webhooks
        self._access = access
        self.operating = Operating(cluster)
        self._busy = 0
        self._body_bytes = 0
        self.answered: Counter[str] = Counter()
        """Answers by their status."""
        self.accepted = 0
        """Messages that the cluster keeps."""

    def application(self) -> Starlette:
        """Return the ASGI application."""
        one = {
            "GET": (Role.READ, self._find),
            "DELETE": (Role.SEND, self._cancel),
            "PATCH": (Role.SEND, self._move),
        }
        many = {
            "POST": (Role.SEND, self._send_json),
            "GET": (Role.READ, self._list),
            "DELETE": (Role.CHANGE, self._cancel_all),
        }
        page = Page()
        return make_application(
            [
                *(self._route(path, acts) for path, acts in self.operating.acts().items()),
                self._route("/v1/messages", many),
                self._route("/v1/messages/{subject}", {"POST": (Role.SEND, self._send_raw)}),
                self._route("/v1/messages/{token}", one),
                self._route("/v1/messages/{subject}/{id:path}", one),
                self._route("/metrics", {"GET": (Role.READ, self._metrics)}),
                Route(DOCUMENT, _openapi),
                Route("/ui", page.answer),
                Route("/ui/{file}", page.answer),
                Route("/livez", _livez),
            ],
            document=DOCUMENT,
        )

    def _route(self, path: str, acts: Mapping[str, tuple[Role, _Act]]) -> Route:
        """Return a route: access, the number of requests, refusals, and counts around each act."""

        async def answer(request: Request) -> Response:
            # A HEAD is a GET whose body HTTP leaves out.
            needed, act = acts["GET" if request.method == "HEAD" else request.method]
            self._busy += 1
            try:
                response = await act(request, self._admit(request, needed))
            except RequestError as refusal:
                response = problem_of(refusal)
                if refusal.code in {408, 413}:
                    # The rest of the body would be read to its end, which may be far.
                    response.headers["Connection"] = "close"
            except ClientDisconnect:
                response = Response(status_code=400)
            finally:
                self._busy -= 1
            self.answered[str(response.status_code)] += 1
            return response

        return Route(path, answer, methods=list(acts))

    def _admit(self, request: Request, needed: Role) -> Caller:
        """Return who asks; raise RequestError, also where too much is asked."""
        if self._busy > REQUESTS_MAX:
            raise RequestError(429, "busy", "too many requests at a time", retry_after_s=1)
        reached = request.scope.get("server")
        return self._access.admit(
            request.headers,
            "" if request.client is None else request.client.host,
            needed=needed,
            is_change=request.method not in {"GET", "HEAD"},
            reached_at=reached[0] if reached else "",
        )

    async def _send_raw(self, request: Request, caller: Caller) -> Response:
        subject = request.path_params["subject"]
        check_subject(caller, subject)
        body = await self._body_of(request, MESSAGE_BYTES_MAX)
        try:
            message = from_headers(subject, _texts(request.headers), body)
            self._check_url(message)
            answer = await send(self._client, message)
        finally:
            self._body_bytes -= len(body)
        self.accepted += 1
        return json_response(answer, 202)

    async def _send_json(self, request: Request, caller: Caller) -> Response:
        check_is_json(request)
        body = await self._body_of(request, LIST_BYTES_MAX)
        try:
            messages, is_list = from_json(body)
            for place, one in enumerate(messages):
                if not isinstance(one, RequestError):
                    check_subject(caller, one.subject)
                    try:
                        self._check_url(one)
                    except RequestError as refusal:
                        messages[place] = refusal
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

    async def _find(self, request: Request, caller: Caller) -> Response:
        meant = meant_message(request.path_params, query_of(request, NameQuery))
        check_subject(caller, meant.subject)
        return json_response(await find(self._cluster, meant))

    async def _cancel(self, request: Request, caller: Caller) -> Response:
        meant = meant_message(request.path_params, query_of(request, NameQuery))
        check_subject(caller, meant.subject)
        return json_response(await change(self._client, meant, None))

    async def _move(self, request: Request, caller: Caller) -> Response:
        meant = meant_message(request.path_params, query_of(request, NameQuery))
        check_subject(caller, meant.subject)
        check_is_json(request)
        body = await self._body_of(request, MOVE_BYTES_MAX)
        self._body_bytes -= len(body)
        to = parse_moment(str(decode_body(body, Move).due), "due")
        return json_response(await change(self._client, meant, to))

    async def _list(self, request: Request, caller: Caller) -> Response:
        query = query_of(request, ListQuery)
        check_subject(caller, query.subject or "*")
        return json_response(await list_waiting(self._cluster, query))

    async def _cancel_all(self, request: Request, caller: Caller) -> Response:
        query = query_of(request, CancelQuery)
        check_subject(caller, query.subject or "*")
        found = await cancel_all(self._cluster, query)
        if not query.dry_run:
            asked = {name: text[:100] for name, text in request.query_params.items()}
            _log.warning("cancelled messages", who=caller.name, states=found.states, **asked)
        return json_response(found)

    def _check_url(self, message: OutgoingMessage) -> None:
        """Raise RequestError if a message names a URL that no webhook of its subject allows."""
        url = (message.headers or {}).get(OWN_URL)
        if url is not None:
            self._webhooks.check_url(message.subject, url)

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
            counters(
                "gateway_webhook_answers",
                "Answers of endpoints, by status.",
                "status",
                dict(self._webhooks.answered),
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
