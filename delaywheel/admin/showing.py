"""The output of `delaywheel admin`: a row, or a list."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import click
import msgspec

from delaywheel.shared.admin_client import PAGE, Json, Session
from delaywheel.shared.tables import Columns, figures_table, rows_table, screen, title_of
from delaywheel.shared.terminal import print_json

_COLUMNS_MAX: Final = 5
"""Columns of a table without --all."""


def _notes(node: Json) -> str:
    """Return everything that is not as it should be with a delay server."""
    fitness = f"{node['fitness']}: {node['fitness_note']}" if node.get("fitness_note") else ""
    notes = (fitness, node.get("clock_note"), node.get("controls_note"))
    return "; ".join(filter(None, notes))


def _state(group: Json) -> str:
    """Return the state of a broker group, and what an operator took from it."""
    return ", ".join(
        [group["state"], *(["retired"] * group["retired"]), *(["read-only"] * group["read_only"])]
    )


def _changes(entry: Json) -> str:
    """Return the difference that a change made, in short."""
    before, after = entry["before"], entry["after"]
    if after is None:
        return "removed"
    # Some entries have a wish as the value after, and what it is about as the value before.
    old = _flat({name: value for name, value in (before or {}).items() if name in after})
    new = _flat(after)
    texts = [
        f"{name} {_compact(new.get(name))}"
        if old.get(name) is None
        else f"{name} {_compact(old[name])} -> {_compact(new.get(name))}"
        for name in dict.fromkeys([*old, *new])
        if (old.get(name) or "") != (new.get(name) or "")
        and not name.endswith(("version", "since_ms"))
    ]
    return _cut(", ".join(texts), 500)


def _flat(value: Json) -> Json:
    """Return the values in objects of objects, by names such as `record.epoch`."""
    found: Json = {}
    for name, inner in value.items():
        below = _flat(inner) if isinstance(inner, dict) else {}
        found |= {f"{name}.{more}": one for more, one in below.items()} or {name: inner}
    return found


def _compact(value: object) -> str:
    return "-" if value is None else _cut(msgspec.json.encode(value).decode(), 100)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def _what(entry: Json) -> str:
    return f"{entry['action']} {entry['target']} by {entry['actor']}"


def _columns(*fields: str, **more: str | Callable[[Json], object]) -> Columns:
    return {**{title_of(name): name for name in fields}, **more}


_COLUMNS: Final[Mapping[str, Columns]] = {
    "audit": _columns("at_ms", what=_what, change=_changes),
    "cluster": _columns("name", "version", "rules", nodes=lambda row: len(row["nodes"])),
    "broker-group": _columns(*("name", "kind", "address"), state=_state, heard="heard_seconds_ago"),
    "route": _columns("pattern", "groups", "chosen", "unserved"),
    "delay-group": _columns("name", "phase", "master", "in_sync", "min_isr"),
    "delay-node": _columns("group", "node_id", "in_sync", "heard_seconds_ago", notes=_notes),
    "nodes": _columns("node_id", "in_sync", "last_sequence", "heard_seconds_ago", notes=_notes),
}
"""The columns of tables, by kind of row, or by field of a row; of others the first fields."""


def show(session: Session, answer: Json, *, all_columns: bool = False) -> None:
    """Print one row, and the rows in it as tables."""
    if session.as_json:
        print_json(answer)
    else:
        _print_row(answer, all_columns=all_columns)


def _print_row(row: Json, *, all_columns: bool) -> None:
    rows = {name: value for name, value in row.items() if _is_rows(value)}
    own = {name: row[name] for name in _ordered(row) if name not in rows}
    screen().print(figures_table("", own))
    for name, value in rows.items():
        _print_rows(name, name, value, all_columns=all_columns)


def _is_rows(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _ordered(fields: Iterable[str]) -> list[str]:
    """Return fields in their order, but the version as the last."""
    return sorted(fields, key=lambda name: name == "version")


def show_rows(
    session: Session, kind: str, rows: Iterator[Json], *, most: int | None, all_columns: bool
) -> None:
    """Print a list, a page of rows at a time, up to `most` of them, and if there are more."""
    shown, is_first = itertools.islice(rows, most), True
    while some := list(itertools.islice(shown, PAGE)):
        if session.as_json:
            for row in some:
                click.echo(msgspec.json.encode(row))
        else:
            _print_rows("", kind, some, all_columns=all_columns, has_header=is_first)
        is_first = False
    if is_first and not session.as_json:
        click.echo("none")
    if next(rows, None) and not session.as_json:
        click.echo("  and more: --all, or a larger --limit")


def _print_rows(
    title: str, kind: str, rows: list[Json], *, all_columns: bool, has_header: bool = True
) -> None:
    """Print a table of few columns, or all fields of each row one below the other."""
    fields = list(dict.fromkeys(name for row in rows for name in row))
    if all_columns and len(fields) > _COLUMNS_MAX:
        for number, row in enumerate(rows, 1):
            click.echo(f"{title or kind} {number}")
            _print_row(row, all_columns=True)
        return
    columns: Columns | Sequence[str] = _COLUMNS.get(kind, ())
    if not columns:
        used = (name for name in fields if any(row[name] != "" for row in rows))
        columns = _ordered(used)[:_COLUMNS_MAX]
    screen().print(rows_table(title, columns, rows, most=len(rows), has_header=has_header))
