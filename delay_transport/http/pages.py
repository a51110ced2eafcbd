"""Pages of lists that may be long, some rows in each turn of the loop.

A list is in the order of its rows' keys, and a page begins behind the key that the page before
ended with: so rows that come and go meanwhile move no others. To find a page takes a look at every
row.
"""

import base64
import binascii
import itertools
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from typing import Annotated, Final, Generic, TypeVar

import msgspec
import trio
from msgspec import Meta

from delay_transport.http.operations import Answer, Request
from delay_transport.http.problems import BadValueError

Key = tuple[str | int, ...]
"""What a list is ordered by."""

Row = TypeVar("Row")
Shown = TypeVar("Shown")

PAGE_MAX: Final = 1000
"""Rows of one page."""

Cursor = Annotated[str, Meta(max_length=8192)]
Limit = Annotated[int, Meta(ge=1, le=PAGE_MAX)]


class PageQuery(Request, frozen=True, kw_only=True):
    """A page of a list, in the order of the rows' names."""

    after: Annotated[
        Cursor, Meta(description="`next` of the page before; empty for the first page.")
    ] = ""
    limit: Annotated[Limit, Meta(description="Rows that are wanted at most.")] = 100


class Page(Answer, Generic[Shown], frozen=True, kw_only=True):
    """A page of a list."""

    items: Annotated[list[Shown], Meta(description="The rows.")]
    next: Annotated[
        str | None,
        Meta(description="The value of `after` for the next page; null: this is the last page."),
    ]


_SLICE: Final = 500
"""Rows looked at before the clock is."""

_SLICE_S_MAX: Final = 0.001
"""Seconds that a turn of the loop takes."""


class Turns:
    """Lets others have their turn of the loop while something long is done."""

    def __init__(self, slice_s: float = _SLICE_S_MAX) -> None:
        """Count from now: each turn may take `slice_s` seconds."""
        self._slice_s = slice_s
        self._until = trio.current_time() + slice_s

    async def pause(self) -> None:
        """Yield if this turn has been long enough."""
        if trio.current_time() >= self._until:
            await trio.lowlevel.checkpoint()
            self._until = trio.current_time() + self._slice_s


async def slices_of(rows: Collection[Row]) -> AsyncGenerator[list[Row], None]:
    """Yield all rows there are now, a slice in a turn of the loop, in no order.

    Copying many at once, or letting go of the copy, would take long; they are copied at once only
    if rows come or go meanwhile: a hundred thousand take a millisecond.
    """
    turns = Turns()
    copied: list[list[Row]] = []
    live = iter(rows)
    try:
        while some := list(itertools.islice(live, _SLICE)):
            copied.append(some)
            await turns.pause()
    except RuntimeError:
        at_once = iter(list(rows))
        copied = list(iter(lambda: list(itertools.islice(at_once, _SLICE)), []))
    while copied:
        yield copied.pop()
        await turns.pause()


async def page_of(
    rows: Collection[Row],
    key_of: Callable[[Row], Key],
    query: PageQuery,
    *,
    show: Callable[[Row], Shown],
    wanted: Callable[[Row], bool] = lambda _: True,
    key_type: type[Key] = tuple[str],
) -> Page[Shown]:
    """Return a page of those rows that are wanted, as they are shown.

    `key_type` is what `key_of` returns. Raises BadValueError for an `after` that no page ended
    with.
    """
    limit = query.limit
    begin = _decode_cursor(query.after, key_type) if query.after else None
    found: list[tuple[Key, Row]] = []
    last: Key | None = None
    async with aclosing(slices_of(rows)) as slices:
        async for some in slices:
            for row in some:
                key = key_of(row)
                if (begin is None or key > begin) and (last is None or key < last) and wanted(row):
                    found.append((key, row))
            if len(found) > 2 * limit:
                found.sort(key=lambda pair: pair[0])
                del found[limit + 1 :]
                last = found[-1][0]
    found.sort(key=lambda pair: pair[0])
    page = found[:limit]
    more = _encode_cursor(page[-1][0]) if len(found) > limit else None
    return Page(items=[show(row) for _, row in page], next=more)


def _encode_cursor(key: Key) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(key)).decode().rstrip("=")


def _decode_cursor(text: str, key_type: type[Key]) -> Key:
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        data = base64.b64decode(padded, altchars=b"-_", validate=True)
        # Keys of another list could not be compared with those of this one.
        return msgspec.msgpack.decode(data, type=key_type)
    except (ValueError, binascii.Error, msgspec.MsgspecError, RecursionError) as error:
        raise BadValueError(
            field="after", value=text, allowed="`next` of the page before, as it came"
        ) from error
