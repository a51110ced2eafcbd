"""An HTTP API made of its operations: routes, checks, and the answers to errors.

A request to an operation is answered as its function says, or refused:

    400 bad-value      not what the struct or the rule allows: field, value and what is allowed
    401 token          no token, or one that is not known
    403 role, host, …  the token may not, or a browser's page of another place
    404, 405           no such path, or no such method there
    408, 413, 415      a body that is slow, too long, or no JSON
    412 version        If-Match or If-None-Match does not hold
    429 denials        too many wrong tokens
    503 busy           too much is asked at a time

Each API adds the refusals of its own errors. A bug is logged, and answered 500. A GET ends when its
caller closes the connection; a change is made to its end.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_type_hints

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from delay_transport.http.access import HttpAccess, headers_of
from delay_transport.http.convert import convert_request, decode_body, read_body, single_values
from delay_transport.http.operations import (
    B,
    C,
    Call,
    Operation,
    P,
    Precondition,
    Q,
    alternatives_of,
)
from delay_transport.http.problems import BadValueError, Problem, RequestError
from delay_transport.http.server import json_response, problem_of

A = TypeVar("A")
Act = Callable[[Call[C, P, Q, B]], Awaitable[A]]


class Refusal(NamedTuple):
    """The answer to an error of one kind."""

    error: type[Exception]
    code: int
    kind: str
    hint: str = ""
    """The sentence of the answer beside the error's text."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Api:
    """An API: its operations and the refusals of its errors."""

    title: str
    about: str
    """The text about it in its document."""
    prefix: str = ""
    refusals: Sequence[Refusal] = ()
    """The first that fits an error counts."""
    other_refusals: Callable[[Exception], RequestError | None] = lambda _: None
    """Returns the refusal of any other error; None for a bug."""
    problem_types: Sequence[type[Problem]] = (Problem,)
    """The structs of its refusals, for the document."""
    refusal_text: str = ""
    """The text of the document for all refusals together; empty: it has one for each status."""
    operations: list[Operation] = field(default_factory=list)

    def operation(
        self,
        method: str,
        path: str,
        **declared: Any,  # noqa: ANN401 (other fields of Operation)
    ) -> Callable[[Act[C, P, Q, B, A]], Act[C, P, Q, B, A]]:
        """Make an operation of a function: its structs are those of its signature.

        A function may be several operations: of several structs for the parts of the path, it gets
        the one whose fields they are.
        """

        def declare(act: Act[C, P, Q, B, A]) -> Act[C, P, Q, B, A]:
            hints = get_type_hints(act, include_extras=True)
            _, path_types, query_type, body_type = get_args(hints["call"])
            parts = tuple(re.findall(r"{(\w+)", path))
            signature = {
                "name": act.__name__,
                "summary": (act.__doc__ or "").strip(),
                "path_type": next(
                    one for one in alternatives_of(path_types) if one.__struct_fields__ == parts
                ),
                "query_type": query_type,
                "body_type": None if body_type is type(None) else body_type,
                "answer_type": hints["return"],
            }
            self.operations.append(
                Operation(method=method, path=path, act=act, **signature | declared)
            )
            return act

        return declare

    def routes(self, access: HttpAccess, context: Callable[[], Any]) -> Iterator[Route]:
        """Yield a route for each path; `context` returns what operations get, or raises."""
        by_path: dict[str, dict[str, Operation]] = {}
        for operation in self.operations:
            by_path.setdefault(operation.path, {})[operation.method] = operation
        for path, operations in by_path.items():
            endpoint = _Endpoint(self, operations, access, context)
            yield Route(self.prefix + path, endpoint.answer, methods=list(operations))

    def refusal_of(self, error: Exception) -> RequestError | None:
        """Return the refusal that answers an error; None for a bug."""
        if isinstance(error, RequestError):
            return error
        for refusal in self.refusals:
            if isinstance(error, refusal.error):
                text = f"{error}; {refusal.hint}" if refusal.hint else str(error)
                retry_after_s = 1 if refusal.code == 503 else 0
                return RequestError(refusal.code, refusal.kind, text, retry_after_s=retry_after_s)
        return self.other_refusals(error)


@dataclass(frozen=True, slots=True)
class _Endpoint(Generic[C]):
    """The operations of one path."""

    api: Api
    operations: dict[str, Operation]
    access: HttpAccess
    context: Callable[[], C]

    async def answer(self, request: Request) -> Response:
        """Answer one request."""
        # A HEAD is a GET whose body HTTP leaves out.
        operation = self.operations["GET" if request.method == "HEAD" else request.method]
        try:
            response = await self._answer(operation, request)
        except ClientDisconnect:
            response = Response(status_code=400)
        except Exception as error:
            refusal = self.api.refusal_of(error)
            if refusal is None:
                raise
            response = problem_of(refusal)
        self.access.answered[str(response.status_code)] += 1
        return response

    async def _answer(self, operation: Operation, request: Request) -> Response:
        caller = self.access.admit(request, operation.needed, is_change=operation.is_change)
        context = self.context()
        with self.access.slot() as hold:
            path = convert_request(dict(request.path_params), operation.path_type, strict=False)
            query = convert_request(single_values(request), operation.query_type, strict=False)
            headers = headers_of(request)
            precondition = Precondition()
            if operation.is_change:
                precondition = Precondition.of(headers)
            if precondition != Precondition() and not operation.is_versioned:
                raise BadValueError(
                    field="If-Match", value="given", allowed="none: this takes no version"
                )
            body = None
            if operation.body_type is not None:
                kind, limits = operation.body_type, self.access.limits
                most = operation.body_bytes_max or limits.body_bytes_max
                data = await read_body(
                    request, kind, bytes_max=most, seconds=limits.body_s, hold=hold
                )
                body = decode_body(data, kind)
            call = Call(
                context=context,
                caller=caller,
                peer=self.access.peer_of(request),
                precondition=precondition,
                path=path,
                query=query,
                body=body,
                headers=headers,
            )
            answer = operation.act(call)
            answer = await (answer if operation.is_change else _while_there(request, answer))
        if isinstance(answer, Response):
            return answer
        response = json_response(answer, operation.code)
        if etag := getattr(answer, "etag", ""):
            response.headers["ETag"] = f'"{etag}"'
        return response


async def _while_there(request: Request, answer: Awaitable[A]) -> A:
    """Return an answer; raise ClientDisconnect, with no more work done, once its caller leaves."""
    found: list[A] = []
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_without, request, tasks.cancel_scope)
        try:
            found.append(await answer)
        except Exception as error:  # noqa: BLE001 (raised below: a group would wrap it)
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if not found:
        raise ClientDisconnect
    return found[0]


async def _cancel_without(request: Request, scope: anyio.CancelScope) -> None:
    """Cancel a scope once the caller of a request has left; its body counts for nothing."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
