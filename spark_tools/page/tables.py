"""The tables of a page, and the words in them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from spark_tools.files.markup import Html, Part, element, shown
from spark_tools.judge.account import STATES
from spark_tools.page.figures import SETTLED, Name, origins_text
from spark_tools.page.plots import NOTHING, count_text, ms_text
from spark_tools.run.document import Example, Group


def table(headers: Sequence[tuple[str, str]], rows: Iterable[Sequence[Part]]) -> Html:
    """Return a table that scrolls where it has no room; headers: text and class of each column."""
    kinds = [kind for _, kind in headers]
    return element(
        "div",
        element(
            "table",
            element(
                "thead",
                element(
                    "tr",
                    *(element("th", text, class_=_only_number(kind)) for text, kind in headers),
                ),
            ),
            element(
                "tbody",
                *(
                    element(
                        "tr",
                        *(
                            cell if isinstance(cell, _Cell) else element("td", cell, class_=kind)
                            for cell, kind in zip(row, kinds, strict=True)
                        ),
                    )
                    for row in rows
                ),
            ),
        ),
        class_="scroll",
    )


class _Cell(Html):
    """A cell with a class of its own."""

    __slots__ = ()


def _only_number(kind: str) -> str | None:
    return kind if kind == "number" else None


def names_table(
    title: str,
    every: Sequence[Name],
    told: Sequence[Name],
    columns: Sequence[tuple[str, str]],
) -> Html:
    """Return a table of names; columns that are 0 for all of them are left out."""
    kept = [
        (name, mark)
        for place, (name, mark) in enumerate(columns)
        if place < 2 or any(one.counts[name] for one in every)
    ]
    with_others = any(one.counts[name] for one in every for name in SETTLED)
    headers = [(title, "name"), *((words(name), "number") for name, _ in kept)]
    if with_others:
        headers.append(("ended otherwise", "number"))
    headers += [("p99 of the worst hour", "number"), ("latest", "number")]
    rows = []
    for one in told:
        row: list[Part] = [shown(one.name) or element("span", "(none)", class_="faint")]
        row += [_counted_cell(one.counts[name], mark) for name, mark in kept]
        if with_others:
            row.append(count_text(sum(one.counts[name] for name in SETTLED)))
        rows.append([*row, ms_text(one.p99_ms), ms_text(one.max_ms)])
    return table(headers, rows)


def _counted_cell(count: int, mark: str) -> Part:
    if mark and count:
        return _Cell(element("td", count_text(count), class_=f"number {mark}"))
    return count_text(count)


def example_cells(one: Example) -> list[str]:
    """Return the cells of an example; an empty one where there is nothing to say."""
    place = " at ".join(str(part) for part in (one.file, one.position) if part is not None)
    what = " to ".join(part for part in (one.outcome, one.target) if part)
    return [
        shown(dotted(one.cluster, one.group)),
        "" if one.sequence is None else f"{one.sequence:,}",
        shown(one.message_id or ""),
        shown(one.subject or ""),
        _moment(one.due_ms),
        _moment(one.at_ms),
        shown(what),
        shown(place, 200),
        shown(one.note or "", 200),
    ]


_OF_LOG = (
    ("records", "records that must have a row"),
    ("missing", "of them missing"),
    ("repaired", "missing and repaired"),
    ("unlogged", "rows without a record"),
    ("altered", "rows that differ from it"),
    ("unchecked", "records that nothing can be held against"),
)


_FEW_BOOKS = ("rows with a fact, and first facts", "lateness and early")
_BY_HOUR = " by hour"


def identities(group: Group) -> list[list[Part]]:
    """Return what adds up in a group, with its figures."""
    of_states = [f"{group.states.get(one, 0):,} {one}" for one in STATES if group.states.get(one)]
    of_facts = [f"{count:,} {one}" for one, count in group.fact_classes.items() if count]
    rows: list[list[Part]] = [
        [
            shown(group.name),
            "rows by state",
            f"{' + '.join(of_states) or '0'} = {origins_text(Counter(group.rows))}",
        ],
        ["", "facts by class", f"{' + '.join(of_facts) or '0'} = {group.facts:,} facts"],
    ]
    rows += [
        ["", one.what, f"{one.found:,} = {one.must_be:,}"]
        for one in group.books
        if one.what in _FEW_BOOKS
    ]
    by_hour = [one for one in group.books if one.what.endswith(_BY_HOUR)]
    if by_hour:
        even = sum(1 for one in by_hour if one.found == one.must_be)
        text = f"{even} of {len(by_hour)} columns add up to their totals"
        rows.append(["", "tables by hour", text])
    log = group.log
    rows.append(
        [
            "",
            "message_log and rows",
            ", ".join(f"{log.get(name, 0):,} {said}" for name, said in _OF_LOG),
        ]
    )
    if group.deleted:
        gone, rows_gone = (group.deleted.get(name, 0) for name in ("segments", "rows"))
        text = f"{gone:,} segments of {rows_gone:,} rows, which are in no other figure"
        rows.append(["", "deleted, told by seals", text])
    if any(group.repairs.values()):
        told = ", ".join(f"{count:,} {words(name)}" for name, count in group.repairs.items())
        rows.append(["", "repairs", told])
    return rows


def more(count: int, most: int, what: str) -> Html | None:
    """Return the line that says how many there are beyond `most`, if any."""
    if count <= most:
        return None
    return element("p", f"… and {counted(count - most, f'more {what}')}.", class_="faint small")


def counted(count: int, what: str) -> str:
    """Return a count with what is counted."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def words(name: str) -> str:
    """Return a name of ours as words."""
    return name.replace("_", " ")


def dotted(cluster: str, group: str) -> str:
    """Return cluster and group as one name."""
    return ".".join(part for part in (cluster, group) if part)


def _moment(ms: int | None) -> str:
    """Return a time, which may be any number."""
    if ms is None:
        return ""
    try:
        when = datetime.fromtimestamp(ms // 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return f"{ms:,} ms"
    return f"{when:%Y-%m-%d %H:%M:%S}.{ms % 1000:03d}"


def value_text(value: object) -> str:
    """Return the value of a parameter."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or NOTHING
    return str(value)
