"""The figures of a page, from a document: by time, group, subject and broker group."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from spark_tools.files.columns import ORIGINS, OUTCOMES
from spark_tools.judge.account import STATES
from spark_tools.run.document import Document, Row

NOT_DONE: Final = ("waiting", "unknown", "overdue", "lost")
"""States of messages that have neither a fact nor were sent again."""
MISSING: Final = "missing"
"""Messages without a row, which no count of rows has."""
SETTLED: Final = tuple(name for name in OUTCOMES if name != "delivered")
"""Outcomes that end a message without a delivery of ours."""
_WRONG: Final = ("lost", MISSING, "overdue", "duplicate", "settled_twice", "phantom", "early")
_WIDTHS: Final = (1, 2, 3, 4, 6, 8, 12, 24)
"""Hours that one column of a plot may stand for; beyond them whole days."""
_HOUR: Final = 60


@dataclass(slots=True)
class Column:
    """Some hours of a plot over time; minute: since 1970, of the first."""

    minute: int
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Times:
    """All columns of a plot over time, without gaps. hours: the width of each."""

    hours: int
    columns: list[Column]
    by_group: dict[str, list[Counter[str]]]
    """The counts of each group, by column."""


@dataclass(slots=True)
class Name:
    """The figures of a subject, or of a broker group, over all hours and groups.

    p99_ms: the worst of an hour; max_ms: of all.
    """

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    p99_ms: int | None = None
    max_ms: int | None = None

    @property
    def wrong(self) -> int:
        """The number of messages, or facts, with a finding."""
        return sum(self.counts[one] for one in _WRONG)

    def add(self, row: Row) -> None:
        """Add a row of a table by hour."""
        _count(self.counts, row)
        late = row.get("lateness_ms", {})
        self.p99_ms = _larger(self.p99_ms, late.get("p99"))
        self.max_ms = _larger(self.max_ms, late.get("max"))


def _larger(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


def _count(counts: Counter[str], row: Row) -> None:
    for key, value in row.items():
        if isinstance(value, int):
            counts[key] += value


def minute_of(hour: str) -> int:
    """Return a time of a document as minutes since 1970."""
    return int(datetime.fromisoformat(hour).timestamp()) // 60


def times(document: Document, *, columns_max: int) -> Times:
    """Return the figures over time, in `columns_max` columns at the most."""
    rows = [
        (group.name, minute_of(row["hour"]), row)
        for group in document.groups
        for row in group.by_subject
    ]
    rows += [
        (group.name, minute_of(row["hour"]), _of_facts(row))
        for group in document.groups
        for row in group.by_target
    ]
    first, after = _range(document, [minute for _, minute, _ in rows], columns_max)
    hours = _width((after - first) // _HOUR, columns_max)
    step = hours * _HOUR
    first = first // step * step
    columns = [Column(minute) for minute in range(first, after, step)]
    by_group = {group.name: [Counter[str]() for _ in columns] for group in document.groups}
    for name, minute, row in rows:
        place = (minute - first) // step
        _count(columns[place].counts, row)
        _count(by_group[name][place], row)
    return Times(hours, columns, by_group)


def _of_facts(row: Row) -> Row:
    """Return the figures of an hour that come from facts only."""
    return {name: row[name] for name in ("duplicate", "phantom") if name in row}


def _range(document: Document, minutes: Sequence[int], columns_max: int) -> tuple[int, int]:
    """Return the first minute and that behind the last: of what is there, or was asked for."""
    first = min(minutes, default=0)
    after = max(minutes, default=-_HOUR) + _HOUR
    begin, end = (document.parameters.get(key) for key in ("from", "to"))
    if begin is not None and end is not None:
        asked = minute_of(begin) // _HOUR * _HOUR, -(-minute_of(end) // _HOUR) * _HOUR
        if not minutes or (asked[1] - asked[0]) // _HOUR <= columns_max:
            return min(first, asked[0]) if minutes else asked[0], max(after, asked[1])
    return first, after


def _width(hours: int, columns_max: int) -> int:
    needed = -(-hours // (columns_max - 1)) if hours > columns_max else 1
    days = -(-needed // 24) * 24
    return next((width for width in _WIDTHS if width >= needed), days)


def names(rows: Iterable[Row], key: str) -> list[Name]:
    """Return what was found by subject, or by broker group."""
    found: dict[str, Name] = {}
    for row in rows:
        name = row[key] if row[key] is not None else ""
        found.setdefault(name, Name(name)).add(row)
    return list(found.values())


def worst_and_largest(found: Sequence[Name], size: str, most: int) -> list[Name]:
    """Return so many of some names: the worst in up to half of the places, then the largest."""
    worst = [one for one in found if one.wrong]
    worst = sorted(worst, key=lambda one: (-one.counts["lost"], -one.wrong, one.name))
    worst = worst[: -(-most // 2)]
    taken = {id(one) for one in worst}
    others = [one for one in found if id(one) not in taken]
    others.sort(key=lambda one: (-one.counts[size], one.name))
    return [*worst, *others[: most - len(worst)]]


def subjects(document: Document) -> list[Name]:
    """Return what was found by subject."""
    return names((row for group in document.groups for row in group.by_subject), "subject")


def targets(document: Document) -> list[Name]:
    """Return what was found by broker group."""
    return names((row for group in document.groups for row in group.by_target), "target")


def states(document: Document) -> Counter[str]:
    """Return how many messages are in each state."""
    found: Counter[str] = Counter()
    for group in document.groups:
        found.update(group.states)
    return found


def rows(counts: Counter[str]) -> int:
    """Return how many rows there are: accepted messages, copies and retries."""
    return sum(counts[one] for one in ORIGINS)


def origins_text(counts: Counter[str]) -> str:
    """Return how many rows come from where; those that producers sent are always named."""
    shown = [name for name in ORIGINS if counts[name] or name == ORIGINS[0]]
    return ", ".join(f"{name} {counts[name]:,}" for name in shown)


def due(counts: Counter[str]) -> int:
    """Return how many messages of some hours should be done by the watermark.

    One that is missing counts as due: without a row nobody will ever deliver it.
    """
    return rows(counts) + counts[MISSING] - counts["waiting"]


def done(counts: Counter[str]) -> int:
    """Return how many of some messages have a fact, or were sent again."""
    return rows(counts) - sum(counts[one] for one in NOT_DONE)


def classes(document: Document) -> Iterator[tuple[str, int]]:
    """Yield the classes of findings that there are, and how many."""
    yield from ((name, count) for name, count in document.findings.items() if count)


assert set(NOT_DONE) < set(STATES)
