"""Finds the messages of a request: one by its token or its names, or those of a filter. Pure."""

from typing import Any, TypeVar

from starlette.requests import Request as HttpRequest

from delay_client import DelaywheelError
from delay_client.messages.cancel_tokens import Place, decode_token
from delay_transport.http.convert import convert_request, single_values
from delay_transport.http.operations import Request
from delay_transport.http.pages import Cursor, Limit
from delay_transport.http.problems import BadValueError, RequestError
from gateway.sending import SendError
from gateway.times import parse_moment

Query = TypeVar("Query", bound=Request)


def query_of(request: HttpRequest, kind: type[Query]) -> Query:
    """Return the parameters; raise RequestError for one that is unknown, or is given twice."""
    return convert_request(single_values(request), kind, strict=False)


class NameQuery(Request, frozen=True, kw_only=True):
    """The parameters of a message that is named by subject and id."""

    due: str | None = None
    """When it is due, as the answer to its POST says: it is found faster, also if it is done."""


class Move(Request, frozen=True, kw_only=True):
    """The new time of a message."""

    due: str | int
    """RFC 3339, or seconds since 1970."""


class FilterQuery(Request, frozen=True, kw_only=True):
    """The messages that fit all that is given; something has to be."""

    subject: str | None = None
    """A subject, or a beginning of subjects with a * behind."""
    due_after: str | None = None
    """Due then or later: RFC 3339, or seconds since 1970."""
    due_before: str | None = None
    """Due before then."""

    def times(self) -> tuple[int | None, int | None]:
        """Return the first time that is meant, and the one that ends it, in ms since 1970.

        Raises RequestError for a filter that takes everything, or nothing.
        """
        if self.subject in {None, "*"} and self.due_after is None and self.due_before is None:
            raise RequestError(
                400, "filter", "give a filter: subject, due_after or due_before; * alone is none"
            )
        after, before = (
            None if text is None else _ms(text, name)
            for name, text in (("due_after", self.due_after), ("due_before", self.due_before))
        )
        if before is not None and before <= (after or 0):
            raise BadValueError(
                field="due_before", value=self.due_before, allowed="later than due_after"
            )
        return after, before


class ListQuery(FilterQuery, frozen=True, kw_only=True):
    """A page of the messages that fit."""

    limit: Limit = 100
    """Messages of a page at most."""
    cursor: Cursor = ""
    """`next` of the page before."""


class CancelQuery(FilterQuery, frozen=True, kw_only=True):
    """The messages that are taken back."""

    dry_run: bool = False
    """Count them, and leave them."""


def meant_message(path: dict[str, Any], query: NameQuery) -> Place:
    """Return the message of a path: by its token, or by subject and id. Raises RequestError."""
    if "token" not in path:
        due_ms = None if query.due is None else _ms(query.due, "due")
        return Place(0, due_ms, path["subject"], path["id"])
    try:
        return decode_token(path["token"])
    except DelaywheelError as error:
        raise SendError(error) from error


def _ms(text: str, name: str) -> int:
    return round(parse_moment(text, name).timestamp() * 1000)
