"""`delaywheel status`: what a running delay server says of itself, at a glance.

The server answers GET /status on its HTTP port with a JSON object: figures, objects of figures, and
objects of which each is a row. A name's ending tells the unit (`_ms`, `_seconds`, `_bytes`).
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import click

from delaywheel.shared.admin_client import Session
from delaywheel.shared.http_exchange import Json
from delaywheel.shared.options import watching, with_token_file
from delaywheel.shared.terminal import cell, show

TIMEOUT_S: Final = 5.0
_INSTANT_FROM_MS = 100_000_000_000
"""From here on (1973) a number of ms is a time, below it a duration."""

ROWS_MAX: Final = 20
"""Rows of one table: the rest is counted; --json has all."""

Section = Mapping[str, object]


@click.command(short_help="Show what a delay server does.")
@click.option(
    "--server",
    default="127.0.0.1:20811",
    show_default=True,
    metavar="HOST:PORT",
    help="The delay server's HTTP address (http.address).",
)
@with_token_file
@click.option("--json", "as_json", is_flag=True, help="Print the server's answer as it came.")
@watching(every_seconds=1.0)
def status(
    *, server: str, token_file: Path | None, as_json: bool, watch: bool, every: float
) -> None:
    """Show what a delay server does: accepted, pending, due, delivered, brokers, disk.

    The first line says that all is well, or what is not.

    \b
    Examples:
      delaywheel status
      delaywheel status --server 127.0.0.1:20811 --watch
      delaywheel status --json
    """
    session = Session(
        address=server.removeprefix("http://").rstrip("/"),
        token_file=token_file,
        as_json=as_json,
        prefix="",
        what="delay server",
        timeout_s=TIMEOUT_S,
    )
    ask = partial(session.ask, "GET", "status")
    show(ask, render, as_json=as_json, every=every if watch else None)


def summary_of(found: Json) -> tuple[bool, str]:
    """Return whether a server does its work, and a line that says so or what is wrong."""
    name = f"{found.get('group', 'this delay server')}/{found.get('node_id', '-')}"
    wrong = [*_texts(found.get("failing")), *_texts(found.get("warnings")), *_undelivered(found)]
    if found.get("kind") == "meta server":
        line = "this is a meta server: `delaywheel topology` shows what it knows"
        return not wrong, "; ".join([line, *wrong])
    if found.get("ready"):
        state = _WORK.get(_role_of(found), "takes and delivers messages")
        return not wrong, f"{name} {state}" + (f"; but {'; '.join(wrong)}" if wrong else "")
    return False, f"{name} does not do its work: {'; '.join(wrong) or 'it does not say why'}"


_WORK: Final = {"slave": "copies what its master has"}
"""What a node does that does its work, where it does not take and deliver."""


def _role_of(found: Json) -> str:
    replication = found.get("replication")
    return str(replication.get("role")) if isinstance(replication, dict) else ""


def _undelivered(found: Json) -> list[str]:
    """Return that messages are late, and which groups take nothing."""
    brokers = found.get("brokers")
    if not isinstance(brokers, dict) or not found.get("late"):
        return []
    away = sorted(name for name, row in brokers.items() if not row.get("up"))
    if not away:
        return []
    return [f"{found['late']} messages are late, and these groups take nothing: {', '.join(away)}"]


def _texts(lines: object) -> list[str]:
    return [str(line) for line in lines] if isinstance(lines, list) else []


def render(found: Json) -> Any:  # noqa: ANN401 (what rich can show has no common type)
    """Return what matters of the status, on a screen of 100 columns, for rich to print."""
    from rich.columns import Columns
    from rich.console import Group
    from rich.text import Text

    from delay_protocol.basics.printable import printable

    is_well, line = summary_of(found)
    figures = []
    for name, keys in _AT_A_GLANCE.items():
        section = found if name in _PLAIN else found.get(name)
        if isinstance(section, dict):
            shown = {key: section[key] for key in keys or section if section.get(key) is not None}
            if shown:
                figures.append(figures_table(name, shown))
    late = [
        {"of": when} | {f"{share}_s": in_seconds(value) for share, value in found[name].items()}
        for name, when in _LATENESS.items()
        if isinstance(found.get(name), dict)
    ]
    tables = [rows_table("lateness", late)] if late else []
    for name, (first, keys) in _TABLES.items():
        section = found.get(name)
        if isinstance(section, dict) and section:
            rows = [
                {first: of} | {key: row.get(key) for key in keys}
                for of, row in section.items()
                if isinstance(row, dict)
            ]
            tables.append(rows_table(name, rows))
    style = "bold green" if is_well else "bold red"
    head = Text(printable(line), style=style, overflow="fold")
    return Group(head, Columns(figures, padding=(1, 4)), *tables)


_AT_A_GLANCE: Final[Mapping[str, tuple[str, ...]]] = {
    "server": ("version", "uptime_ms", "listen", "connections", "epoch", "clock_held"),
    "messages": ("accepted", "pending", "late", "requests_held", "replay_lag", "next_due_ms"),
    "undelivered": (),
    "disk": ("disk_free_bytes", "disk_owed_bytes", "disk_floor_bytes", "damaged"),
    "dead letters": ("dead_pending", "dead_oldest_seconds"),
    "replication": (
        "role",
        "epoch",
        "durable",
        "committed",
        "applied",
        "follows",
        "matched_ms",
        "trouble",
    ),
}
"""What `render` shows: the server's plain figures under names of ours, and objects of figures."""

_PLAIN: Final = {"server", "messages", "disk", "dead letters"}

_LATENESS: Final = {"lateness_ms": "since the start", "lateness_5_minutes_ms": "5 minutes"}
"""Of which times the lateness is shown."""

_TABLES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "replicas": ("node", ("standing", "lag", "lag_seconds", "filing_lag_seconds", "sentence")),
    "brokers": (
        "group",
        ("address", "up", "circuit_reason", "queued", "in_flight", "delivered", "refused"),
    ),
}
"""Of which objects of rows `render` shows a table: the name of a row, and the columns."""


def figures_table(name: str, section: Section) -> Any:  # noqa: ANN401 (imported lazily)
    """Return a table of figures below their name."""
    from rich.table import Table

    table = Table(title=cell(_title(name)), title_justify="left", show_header=False, box=None)
    table.add_column(style="dim")
    table.add_column(justify="right")
    for key, value in section.items():
        table.add_row(cell(_title(key)), cell(format_value(key, value)))
    return table


def rows_table(name: str, rows: Sequence[Section], *, most: int = ROWS_MAX) -> Any:  # noqa: ANN401 (as above)
    """Return a table of rows, `most` of them at the most; a long text goes on below."""
    from rich.console import Group
    from rich.table import Table

    table = Table(title=cell(_title(name)), title_justify="left", box=None)
    keys = list(dict.fromkeys(key for row in rows for key in row))
    for key in keys:
        numbers = all(isinstance(row.get(key), int | float) for row in rows)
        # Nothing is cut: an address that is has to be asked for again.
        justify: Literal["left", "right"] = "right" if numbers else "left"
        table.add_column(cell(_title(key)), justify=justify, overflow="fold")
    for row in rows[:most]:
        table.add_row(*(cell(format_value(key, row.get(key))) for key in keys))
    hidden = len(rows) - most
    return Group(table, f"  and {hidden:,} more") if hidden > 0 else table


def _title(key: str) -> str:
    for ending in ("_ms", "_seconds", "_s", "_bytes"):
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
    if key.endswith("_ms"):
        return _format_seconds(value / 1000)
    if key.endswith(("_s", "_seconds")):
        return _format_seconds(value)
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
