"""`delaywheel status`: what a running delay server says of itself, at a glance.

The server answers GET /status on its HTTP port with a JSON object: figures, objects of figures, and
objects of which each is a row.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import click

from delaywheel.cluster.node_client import asks
from delaywheel.shared.admin_client import Json, Session
from delaywheel.shared.options import watching
from delaywheel.shared.tables import (
    Columns,
    figures_table,
    format_value,
    in_seconds,
    rows_table,
    title_of,
)
from delaywheel.shared.terminal import show

TIMEOUT_S: Final = 5.0


@click.command(short_help="Show what a delay server does.")
@asks("session", timeout_s=TIMEOUT_S)
@watching(every_seconds=1)
def status(*, session: Session, watch: bool, every: int) -> None:
    """Show what a delay server does: accepted, pending, due, delivered, brokers, disk.

    The first line says that all is well, or what is not.

    \b
    Examples:
      delaywheel status
      delaywheel status --server 127.0.0.1:20811 --watch
      delaywheel status --json
    """
    ask = partial(session.ask, "GET", "status")
    show(ask, render, as_json=session.as_json, every=every if watch else None)


def summary_of(found: Json) -> tuple[bool, str]:
    """Return whether a server does its work, and a line that says so or what is wrong."""
    name = f"{found.get('group', 'this delay server')}/{found.get('node_id', '-')}"
    wrong = [*found.get("failing", ()), *_undelivered(found), *_meta_away(found)]
    if found.get("kind") == "meta server":
        line = "this is a meta server: `delaywheel topology` shows what it knows"
        return not wrong, "; ".join([line, *wrong])
    if found.get("ready"):
        role = found.get("replication", {}).get("role")
        state = "copies what its master has" if role == "slave" else "takes and delivers messages"
        return not wrong, f"{name} {state}" + (f"; but {'; '.join(wrong)}" if wrong else "")
    return False, f"{name} does not do its work: {'; '.join(wrong) or 'it does not say why'}"


def _undelivered(found: Json) -> list[str]:
    """Return that messages are late, and which groups take nothing."""
    away = sorted(name for name, row in found.get("brokers", {}).items() if not row.get("up"))
    if not away or not found.get("late"):
        return []
    return [f"{found['late']} messages are late, and these groups take nothing: {', '.join(away)}"]


def _meta_away(found: Json) -> list[str]:
    """Return that no meta server answers, since when, and why."""
    meta = found.get("meta") or {}
    if not (away_ms := meta.get("away_ms")):
        return []
    since = format_value("since_ms", found.get("now_ms", 0) - away_ms)
    away = f"no meta server answers since {since}, for {format_value('_ms', away_ms)}"
    return [f"{away}: {meta.get('trouble')}"]


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
    tables = [rows_table("lateness", list(late[0]), late)] if late else []
    for name, columns in _TABLES.items():
        section = found.get(name)
        if isinstance(section, dict) and section:
            rows = [{"of": of, **row} for of, row in section.items() if isinstance(row, dict)]
            tables.append(rows_table(name, columns, rows))
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

_REPLICAS = ("standing", "lag", "lag_seconds", "filing_lag_seconds", "sentence")
_BROKERS = ("address", "up", "circuit_reason", "queued", "in_flight", "delivered", "refused")

_TABLES: Final[Mapping[str, Columns]] = {
    "replicas": {"node": "of"} | {title_of(key): key for key in _REPLICAS},
    "brokers": {"group": "of"} | {title_of(key): key for key in _BROKERS},
}
"""The columns of objects of rows."""
