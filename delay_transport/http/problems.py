"""Refusals of HTTP requests: the error that is raised, and the struct that is answered for it."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

PROBLEM_TYPE: Final = "application/problem+json"
"""The media type of a Problem."""

_SHOWN_MAX = 100
"""Characters of a value that a message repeats."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a refused request: the details of a problem, as RFC 9457 has them."""

    status: Annotated[int, Meta(description="The HTTP status.")]
    code: Annotated[
        str,
        Meta(
            description="A word for programs: bad-value, not-found, conflict, token, role, host, "
            "origin, store, …"
        ),
    ]
    detail: Annotated[str, Meta(description="A sentence for people.")]
    field: Annotated[
        str,
        Meta(
            description="The field, parameter or part of the path that is not allowed; empty if "
            "none is to blame."
        ),
    ] = ""
    value: Annotated[str, Meta(description="The given value, cut after 100 characters.")] = ""
    allowed: Annotated[str, Meta(description="The allowed values.")] = ""


class RequestError(Exception):
    """A request is refused: `code` is the HTTP status, `kind` a word for programs."""

    def __init__(
        self,
        code: int,
        kind: str,
        message: str,
        *,
        retry_after_s: int = 0,
        problem_type: type[Problem] = Problem,
        **details: Any,  # noqa: ANN401 (fields of a struct)
    ) -> None:
        """Refuse a request; `details` are the other fields of `problem_type`, which is answered."""
        super().__init__(message)
        self.code = code
        self.kind = kind
        self.retry_after_s = retry_after_s
        """Seconds after which to try again; 0: trying again does not help."""
        self.problem = problem_type(status=code, code=kind, detail=message, **details)
        """The answer."""


class BadValueError(RequestError):
    """A value of a request is not allowed."""

    def __init__(self, *, field: str, value: object, allowed: str) -> None:
        shown = f"{value!a}"
        if len(shown) > _SHOWN_MAX:
            shown = shown[:_SHOWN_MAX] + "…"
        super().__init__(
            400,
            "bad-value",
            f"{field}: {shown} is not allowed: {allowed}",
            field=field,
            value=shown,
            allowed=allowed,
        )
