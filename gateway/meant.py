"""Finds the messages of a request: one by its token or its names, or those of a filter. Pure."""

from delay_client.messages.cancel_tokens import Place, decode_token
from delay_transport.http.operations import Request
from delay_transport.http.problems import BadValueError, RequestError
from gateway.times import parse_moment


class TokenPath(Request, frozen=True, kw_only=True):
    """A subject, or a message by its token."""

    subject_or_token: str
    """The subject of a POST; else `cancel_token` of the answer to a POST."""


class NamesPath(Request, frozen=True, kw_only=True):
    """A message by its names."""

    subject: str
    """The subject that receivers take."""
    id: str
    """The message's id."""


class DueQuery(Request, frozen=True, kw_only=True):
    """The parameters of a message that is named by subject and id."""

    due: str | None = None
    """When it is due, as the answer to its POST says: it is found faster, also if it is done."""


class FilterQuery(Request, frozen=True, kw_only=True):
    """The messages that fit all that is given; something has to be."""

    subject: str | None = None
    """A subject, or a beginning of subjects with a * behind."""
    due_after: str | None = None
    """Due then or later: RFC 3339, or seconds since 1970."""
    due_before: str | None = None
    """Due before then."""

    def times(self) -> dict[str, int | None]:
        """Return `due_from` and `due_to` of a delay server, in ms since 1970.

        Raises RequestError for a filter that takes everything, or nothing.
        """
        if self.subject in {None, "*"} and self.due_after is None and self.due_before is None:
            raise RequestError(
                400, "filter", "give a filter: subject, due_after or due_before; * alone is none"
            )
        after, before = _ms(self.due_after, "due_after"), _ms(self.due_before, "due_before")
        if before is not None and before <= (after or 0):
            raise BadValueError(
                field="due_before", value=self.due_before, allowed="later than due_after"
            )
        return {"due_from": after or 0, "due_to": before}


def meant_message(path: TokenPath | NamesPath, query: DueQuery) -> Place:
    """Return the message of a request; raise RequestError, or DelaywheelError for its token."""
    if isinstance(path, TokenPath):
        return decode_token(path.subject_or_token)
    return Place(0, _ms(query.due, "due"), path.subject, path.id)


def _ms(text: str | None, name: str) -> int | None:
    return None if text is None else round(parse_moment(text, name).timestamp() * 1000)
