"""Operations of an HTTP API, each declared once: method, path, and the structs of its function.

Routes, checks of requests and the OpenAPI document are made from the declarations.

    @API.operation("PUT", "/routes/{subject}")
    async def set_route(call: Call[Parts, SubjectPath, NoQuery, RouteSet]) -> RouteShown:
        \"\"\"Set the route of a subject.\"\"\"
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Final, Generic, Self, TypeVar, Union, get_args, get_origin

import msgspec

from delay_transport.http.access import Caller
from delay_transport.http.problems import BadValueError
from delay_transport.http.tokens import Role


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that is asked: a misspelt field is refused, not overlooked."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is answered; what has an `etag` is answered with it as the header ETag."""


class NoPath(Request, frozen=True, kw_only=True):
    """Nothing in the path."""


class NoQuery(Request, frozen=True, kw_only=True):
    """No parameters."""


class NoHeaders(Request, frozen=True, kw_only=True):
    """No headers of its own."""


C = TypeVar("C")
P = TypeVar("P", bound=Request)
Q = TypeVar("Q", bound=Request)
B = TypeVar("B")


_TAG: Final = re.compile(r'"([\x21\x23-\x7e]{1,100})"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Precondition:
    """The version that a row must have for a change, as If-Match and If-None-Match give it."""

    version: str = ""
    """Empty: any."""
    is_new: bool = False
    """There must be no such row."""

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Self:
        """Return what the headers ask; raise BadValueError."""
        match, none_match = headers.get("if-match"), headers.get("if-none-match")
        if none_match is not None and (none_match != "*" or match is not None):
            allowed = "*, without If-Match"
            raise BadValueError(field="If-None-Match", value=none_match, allowed=allowed)
        if match is None:
            return cls(is_new=none_match is not None)
        found = _TAG.fullmatch(match)
        if found is None:
            allowed = 'one version in quotes, such as "3"'
            raise BadValueError(field="If-Match", value=match, allowed=allowed)
        return cls(version=found[1])

    def fault(self, found: str | None) -> str:
        """Return why a row of this version (None: no row) is not as asked; empty if it is."""
        if self.is_new and found is not None:
            return f"it is there already, with version {found}"
        if self.version and found is None:
            return f"version {self.version} was expected, and there is no such row"
        if self.version and found != self.version:
            return f"version {self.version} was expected, and it has version {found}"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[C, P, Q, B]):
    """An admitted, checked request: parts of the path, parameters, body."""

    context: C
    """The object that the operations of this API work on."""
    caller: Caller
    peer: str
    """Address of the caller; empty if it has none."""
    precondition: Precondition
    path: P
    query: Q
    body: B
    headers: Mapping[str, str]
    """Names are in lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of an API."""

    method: str
    path: str
    """The path below the API's prefix; its parts in braces are the fields of `path_type`."""
    name: str
    """The operation's id in the OpenAPI document, for generated clients."""
    summary: str
    act: Callable[[Any], Awaitable[Any]]
    path_type: type[Request] = NoPath
    query_type: type[Request] = NoQuery
    body_type: Any = None
    """The type of the body; None: no body is read; bytes: it is taken as it is."""
    body_bytes_max: int | None = None
    """Bytes of a body at most; None: as many as the API takes."""
    header_type: type[Request] = NoHeaders
    """Headers that the function reads, for the document."""
    answer_type: Any
    """A struct, another type that msgspec knows, or a union of them."""
    code: int = 200
    """HTTP code of a successful answer."""
    is_versioned: bool = False
    """It takes If-Match and If-None-Match; other changes refuse them."""
    role: Role | None = None
    """The role that a caller needs; None: `read` for a GET, `admin` for others."""
    example: str = ""
    """A curl of it, for the document."""

    @property
    def is_change(self) -> bool:
        """True if it may change anything."""
        return self.method != "GET"

    @property
    def needed(self) -> Role:
        """The role that a caller needs."""
        return self.role or (Role.ADMIN if self.is_change else Role.READ)

    @property
    def shown_path(self) -> str:
        """The path without the kinds of its parts, which are Starlette's."""
        return re.sub(r":\w+}", "}", self.path)


def alternatives_of(kind: Any) -> tuple[Any, ...]:  # noqa: ANN401 (any type that msgspec knows)
    """Return the types of a union; another type alone."""
    return get_args(kind) if get_origin(kind) in {Union, UnionType} else (kind,)
