"""Tables and figures for people, at most 100 columns wide. A name's ending tells the unit.

_ms               a duration, or from 1973 on a time
_s, _seconds      a duration; _per_s: a rate, which is a plain number
_seconds_ago      how long ago it was
_bytes            a size
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from delaywheel.shared.admin_client import Json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

WIDTH: Final = 100
"""Columns of a screen, and of a file."""

ROWS_MAX: Final = 20
"""Rows of one table: the rest is counted; --json has all."""

_INSTANT_FROM_MS: Final = 100_000_000_000
"""The least number of ms (1973) that is a time; below it is a duration."""

_DURATIONS: Final = (
    ("_seconds_ago", 1, " ago"),
    ("_seconds", 1, ""),
    ("_ms", 0.001, ""),
    ("_s", 1, ""),
)

_RATE: Final = "_per_s"

_NAMES: Final = ("version", "port", "epoch", "number", "sequence", "incarnation")
"""Endings of numbers that are names, which are typed again: thousands are not set apart."""

Columns = Mapping[str, str | Callable[[Json], object]]
"""By title: the field of a row, or what makes the cell from a row."""


def screen() -> "Console":
    """Return a console on standard output: as wide as the terminal, WIDTH at the most."""
    from rich.console import Console

    width = Console().width if sys.stdout.isatty() else WIDTH
    return Console(width=min(width, WIDTH))


def cell(text: str) -> "Text":
    """Return a table's cell that shows a text as it is: no markup, no control characters."""
    from rich.text import Text

    from delay_protocol.basics.printable import printable

    return Text(printable(text))


def moment_text(ms: int) -> str:
    """Return wall ms to the millisecond, in UTC; what takes ISO 8601 reads it back."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + "Z"


def figures_table(name: str, section: Mapping[str, object]) -> Any:  # noqa: ANN401 (imported lazily)
    """Return a table of figures below their name."""
    from rich.table import Table

    title = cell(title_of(name)) if name else None
    table = Table(title=title, title_justify="left", show_header=False, box=None)
    table.add_column(style="dim")
    table.add_column(justify="right" if name else "left", overflow="fold")
    for key, value in section.items():
        table.add_row(cell(title_of(key)), cell(format_value(key, value)))
    return table


def rows_table(
    name: str,
    columns: Columns | Sequence[str],
    rows: Sequence[Json],
    *,
    most: int = ROWS_MAX,
    has_header: bool = True,
) -> Any:  # noqa: ANN401 (as above)
    """Return a table of rows, `most` of them at the most; a long text goes on below.

    columns: as in Columns, or fields that are their own titles
    """
    from rich.console import Group
    from rich.table import Table

    title = cell(title_of(name)) if name else None
    table = Table(title=title, title_justify="left", box=None, show_header=has_header)
    if not isinstance(columns, Mapping):
        columns = {title_of(key): key for key in columns}
    cells = [[_taken(of, row) for of in columns.values()] for row in rows]
    for place, column in enumerate(columns):
        numbers = all(isinstance(values[place], int | float) for values in cells)
        # Nothing is cut: an address that is has to be asked for again.
        justify: Literal["left", "right"] = "right" if numbers else "left"
        table.add_column(cell(column), justify=justify, overflow="fold")
    keys = [of if isinstance(of, str) else title for title, of in columns.items()]
    for values in cells[:most]:
        texts = (format_value(key, value) for key, value in zip(keys, values, strict=True))
        table.add_row(*map(cell, texts))
    hidden = len(rows) - most
    return Group(table, f"  and {hidden:,} more") if hidden > 0 else table


def _taken(of: str | Callable[[Json], object], row: Json) -> object:
    return row.get(of) if isinstance(of, str) else of(row)


def title_of(key: str) -> str:
    """Return the title of a field: its name without the unit."""
    if not key.endswith(_RATE):
        for ending in ("_seconds_ago", "_ms", "_seconds", "_s", "_bytes"):
            key = key.removesuffix(ending)
    return key.replace("_", " ")


def in_seconds(ms: object) -> object:
    """Return a duration in seconds: one of many years would be shown as a time if it were in ms."""
    return ms / 1000 if isinstance(ms, int | float) else ms


def format_value(key: str, value: object) -> str:
    """Return a figure for people: thousands set apart, times and sizes with their unit."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return _format_number(key, value)
        case dict():
            return ", ".join(f"{name} {format_value(name, inner)}" for name, inner in value.items())
        case list():
            return ", ".join(format_value(key, inner) for inner in value)
        case _:
            return str(value)


def _format_number(key: str, value: float) -> str:
    if key.endswith("_bytes"):
        return _format_bytes(value)
    if key.endswith("_ms") and value >= _INSTANT_FROM_MS:
        return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    for ending, unit_s, more in _DURATIONS:
        if key.endswith(ending) and not key.endswith(_RATE):
            return _format_seconds(value * unit_s) + more
    if key.endswith(_NAMES):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _format_seconds(seconds: float) -> str:
    if abs(seconds) < 1:
        return f"{seconds * 1000:.4g} ms"
    if abs(seconds) < 120:
        return f"{seconds:.3g} s"
    minutes, _ = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count)


def _format_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"
