"""`delaywheel dead`: messages that brokers refused for good, looked at, requeued, dropped.

Everything goes over the node's HTTP port.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from delaywheel.cluster.node_client import at_node, session_of
from delaywheel.cluster.status import format_value
from delaywheel.shared.admin_client import Session
from delaywheel.shared.failures import ExitCode
from delaywheel.shared.http_exchange import Json
from delaywheel.shared.terminal import cell, moment_text, wide_console

TIMEOUT_S: Final = 300.0
"""A change of thousands waits for the disk now and then."""

_MISSING_NAMED: Final = 20
"""Dead letters that are named which there are none of."""

Command = Callable[..., Any]


@click.group(short_help="List, requeue and drop messages that were refused for good.")
def dead() -> None:
    """List, requeue and drop dead letters: messages that were refused for good.

    A message becomes a dead letter after sender.dead_letter_tries refusals of brokers, or when a
    receiver refuses it. It stays until it is requeued, which sends it once more under the same id,
    or dropped.

    \b
    Examples:
      delaywheel dead list --subject orders.eu
      delaywheel dead show 184467
      delaywheel dead requeue 184467 184470
      delaywheel dead requeue --group g1
      delaywheel dead drop --subject orders.eu
    """


def _on_a_node(command: Command) -> Command:
    shown = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
    return at_node(shown(command))


def _session(server: str, token_file: Path | None, *, as_json: bool) -> Session:
    return session_of(server, token_file, as_json=as_json, timeout_s=TIMEOUT_S)


def _chosen(command: Command) -> Command:
    """Add the options by which dead letters are chosen."""
    command = click.option("--group", help="All that this broker group refused last.")(command)
    return click.option("--subject", help="All of this subject.")(command)


@dead.command("list")
@_chosen
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1))
@_on_a_node
def list_letters(
    *,
    server: str,
    token_file: Path | None,
    as_json: bool,
    limit: int,
    subject: str | None,
    group: str | None,
) -> None:
    """List dead letters, the oldest first.

    \b
    Examples:
      delaywheel dead list
      delaywheel dead list --subject orders.eu --json
    """
    session = _session(server, token_file, as_json=as_json)
    query = {"subject": subject, "group": group, "limit": limit}
    found = session.ask("GET", "dead", query=query)
    if as_json:
        for row in found["items"]:
            click.echo(json.dumps(row, ensure_ascii=False))
    else:
        _print_table(found["items"])
    if found["matched"] > limit:
        click.echo(f"there are {found['matched']}: give --limit", err=True)


_COLUMNS: Final = (
    ("sequence", "sequence"),
    ("subject", "subject"),
    ("message id", "message_id"),
    ("due", "due_ms"),
    ("given up", "dead_ms"),
    ("code", "code_name"),
    ("group", "group"),
    ("tries", "tries"),
    ("size", "bytes"),
)


def _print_table(rows: list[Json]) -> None:
    from rich.table import Table

    table = Table(box=None)
    for title, key in _COLUMNS:
        table.add_column(
            title, justify="right" if key in {"sequence", "tries", "bytes"} else "left"
        )
    for row in rows:
        table.add_row(*(cell(_shown(key, row.get(key))) for _, key in _COLUMNS))
    if rows:
        wide_console().print(table)
    else:
        click.echo("no dead letters")


def _shown(key: str, value: object) -> str:
    if key == "sequence":
        return str(value)
    if key.endswith("_ms") and isinstance(value, int):
        return moment_text(value)
    return format_value("size_bytes" if key == "bytes" else key, value)


@dead.command("show")
@click.argument("sequence", type=click.IntRange(1))
@click.option("--payload", is_flag=True, help="With the item's bytes, in base64.")
@_on_a_node
def show(
    *, sequence: int, payload: bool, server: str, token_file: Path | None, as_json: bool
) -> None:
    """Show one dead letter: its item, and which group refused it when.

    \b
    Example:
      delaywheel dead show 184467 --payload
    """
    session = _session(server, token_file, as_json=as_json)
    found = session.ask("GET", "dead", str(sequence), query={"payload": 1 if payload else None})
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
        return
    _print_letter(found)


def _print_letter(found: Json) -> None:
    from rich.console import Group
    from rich.table import Table

    plain = Table(box=None, show_header=False)
    for key, value in found.items():
        if key not in {"refusals", "attributes"}:
            text = str(value) if key.endswith("sequence") else _shown(key, value)
            plain.add_row(cell(key.removesuffix("_ms").replace("_", " ")), cell(text))
    parts: list[Any] = [plain]
    attributes = [
        {"name": name, "value": text} for name, text in found.get("attributes", {}).items()
    ]
    for title, rows in (("attributes", attributes), ("refusals", found.get("refusals", []))):
        if rows:
            parts.append(_table_of(title, rows))
    wide_console().print(Group(*parts))


def _table_of(title: str, rows: list[Json]) -> Any:  # noqa: ANN401 (rich is imported when needed)
    from rich.table import Table

    table = Table(box=None, title=title, title_justify="left")
    for key in rows[0]:
        table.add_column(key.removesuffix("_ms").replace("_", " "))
    for row in rows:
        table.add_row(*(cell(_shown(key, value)) for key, value in row.items()))
    return table


def _changing(command: Command) -> Command:
    """Add what says which dead letters a command changes."""
    command = _chosen(_on_a_node(command))
    return click.argument("sequences", nargs=-1, type=click.IntRange(1))(command)


@dead.command("requeue")
@_changing
def requeue(*, sequences: tuple[int, ...], **options: Any) -> None:  # noqa: ANN401 (click's)
    """Send dead letters once more, under the same message ids.

    Name them by SEQUENCES, or all of a --subject or a --group. They are due at once.

    \b
    Examples:
      delaywheel dead requeue 184467 184470
      delaywheel dead requeue --group g1
    """
    _change("requeue", sequences, **options)


@dead.command("drop")
@click.option("--yes", is_flag=True, help="Do not ask before more than one is dropped.")
@_changing
def drop(*, sequences: tuple[int, ...], yes: bool, **options: Any) -> None:  # noqa: ANN401 (click's)
    """Drop dead letters: they are never sent.

    Name them by SEQUENCES, or all of a --subject or a --group. This cannot be undone.

    \b
    Examples:
      delaywheel dead drop 184467
      delaywheel dead drop --subject orders.eu
    """
    _change("drop", sequences, asks=not yes and len(sequences) != 1, **options)


def _change(
    verb: str,
    sequences: tuple[int, ...],
    *,
    server: str,
    token_file: Path | None,
    as_json: bool,
    subject: str | None,
    group: str | None,
    asks: bool = False,
) -> None:
    if [bool(sequences), subject is not None, group is not None].count(True) != 1:
        raise click.UsageError("name dead letters by sequences, or by one of --subject and --group")
    session = _session(server, token_file, as_json=as_json)
    of_all = {"subject": subject, "group": group}
    if asks:
        count = len(set(sequences)) or _count_of(session, of_all)
        if count and not _is_confirmed(f"Drop {count} dead letters for good?"):
            raise click.UsageError("nothing was dropped; --yes says beforehand that it may be")
    found = session.ask("POST", "dead", verb, body={**of_all, "sequences": sequences or None})
    damaged, missing = found["damaged"], found["missing"]
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo(f"{found['done']} {'requeued' if verb == 'requeue' else 'dropped'}")
    if damaged:
        click.echo(f"damaged, and left: {' '.join(map(str, damaged))}", err=True)
    if missing:
        _say_missing(missing)
    if missing or damaged:
        sys.exit(ExitCode.REFUSED)


def _count_of(session: Session, of_all: Json) -> int:
    return int(session.ask("GET", "dead", query={**of_all, "limit": 0})["matched"])


def _is_confirmed(question: str) -> bool:
    """Ask for confirmation; without a terminal the answer is no."""
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)
        return False


def _say_missing(missing: list[int]) -> None:
    named = " ".join(map(str, missing[:_MISSING_NAMED]))
    more = len(missing) - _MISSING_NAMED
    more_of_them = f" and {more} more" if more > 0 else ""
    click.echo(f"no dead letters, or settled before: {named}{more_of_them}", err=True)
