"""All messages of a filter, changed or counted a slice at a time; who asks goes on by a cursor.

A slice looks through segments by time, and ends where enough was found. The cursor of the next one
has where that was, and the last record when the first slice began: what came later is left alone,
also what the slices before have moved.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from delay_protocol.basics.subjects import Patterns, retry_group
from delay_server.changing.changer import Changer, Wish
from storage.batch.facts import Outcome
from storage.schedule.look_up import Columns

SLICE_ROWS: Final = 2048
"""Messages of a slice: their items are in memory, and others wait until they are committed."""
BEYOND_HORIZON: Final = "beyond the horizon"
INTO_THE_PAST: Final = "into the past"
"""Counted where a message would be moved too far ahead, or back: it is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which messages are meant. Times are ms since 1970."""

    subject: str | None = None
    """A subject, or a beginning with a `*` behind; copies and retries of it are meant as well."""
    name: str | None = None
    """Copies and retries for this name of receivers, or consumer group, alone; "": what is none."""
    due_from_ms: int = 0
    due_to_ms: int = 2**62
    """Those that are due before it."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The end of a slice; its text is four numbers with dots between."""

    start: int
    end: int
    last: int
    as_of: int

    def __str__(self) -> str:
        """Return the text."""
        return f"{self.start}.{self.end}.{self.last}.{self.as_of}"

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """Return what a text says; raise ValueError."""
        numbers = list(map(int, text.split(".")))
        if len(numbers) != 4 or not all(0 <= number < 2**63 for number in numbers):
            raise ValueError(f"{text!a} is no cursor: give the `next` of an answer")
        return cls(*numbers)


@dataclass(frozen=True, slots=True)
class Slice:
    """The result of a slice; next: where to go on; None where all was looked at."""

    states: Counter[str]
    examined: int
    next: Cursor | None


@dataclass(frozen=True, slots=True)
class _Selected:
    """Rows of a filter that were not looked at by slices before."""

    wanted: Filter
    after: Cursor

    def select(self, columns: Columns) -> npt.NDArray[np.intp]:
        """Return the places of these rows."""
        wanted, after = self.wanted, self.after
        mask = np.fromiter(map(self._takes, columns.names), np.bool_, len(columns.names))
        if not mask.any():
            return np.empty(0, np.intp)
        mask = mask[columns.subject]
        mask &= (columns.due_ms >= wanted.due_from_ms) & (columns.due_ms < wanted.due_to_ms)
        seen = (columns.minute < after.end) & (columns.sequence <= after.last)
        mask &= (columns.sequence <= after.as_of) & ~seen
        return np.flatnonzero(mask)

    def _takes(self, name: bytes) -> bool:
        subject, wanted = name.decode(errors="surrogateescape"), self.wanted
        if wanted.name is not None and retry_group(subject) != wanted.name:
            return False
        return wanted.subject is None or Patterns([wanted.subject]).take(subject)


async def change_slice(
    changer: Changer,
    wanted: Filter,
    *,
    after: Cursor | None,
    by_ms: int | None = None,
    outcome: Outcome | None = Outcome.CANCELLED,
    earliest_ms: int = 0,
    latest_ms: int = 2**62,
) -> Slice:
    """Change the next messages of a filter, and return how many came to which state.

    by_ms: they are moved by so much, none to before `earliest_ms` or after `latest_ms`; outcome:
    CANCELLED or DROPPED, of those that are not moved; None: they are counted as "pending" and left,
    but for a few that wait to be written. Raises NotChangedError.
    """
    async with changer.lock:
        await changer.until_filed()
        # So that hardly any is found where it waits, in no order.
        await changer.write_waiting()
        if after is None:
            after = Cursor(0, 0, 0, changer.last_filed())
        look = await changer.look_up(
            _Selected(wanted, after).select,
            since=after.start,
            rows_max=SLICE_ROWS,
            is_pending=True,
            reads_items=by_ms is not None,
            reads_waiting=outcome is not None,
        )
        rows, states = list(look.found.values()), Counter[str]()
        if outcome is None:
            states.update({"pending": len(rows)} if rows else {})
        else:
            wishes = [Wish(row, None if by_ms is None else row.due_ms + by_ms) for row in rows]
            kept = []
            for one in wishes:
                if one.to_ms is None or earliest_ms <= one.to_ms <= latest_ms:
                    kept.append(one)
                else:
                    states[BEYOND_HORIZON if one.to_ms > latest_ms else INTO_THE_PAST] += 1
            results = await changer.change(kept, outcome=outcome)
            states.update(result.state.value for result in results.values())
    there = after if look.stopped is None else Cursor(*look.stopped, after.as_of)
    return Slice(states, look.examined, None if look.is_complete else there)
