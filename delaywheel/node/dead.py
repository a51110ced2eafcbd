"""`delaywheel dead`: messages that brokers refused for good, looked at, requeued, dropped.

Everything goes over the node's HTTP port.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click

from delaywheel.cluster.node_client import at_node, session_of
from delaywheel.cluster.status import format_value
from delaywheel.shared.admin_client import Session
from delaywheel.shared.failures import ExitCode
from delaywheel.shared.http_exchange import Json
from delaywheel.shared.parameters import MomentType
from delaywheel.shared.terminal import cell, moment_text, wide_console

TIMEOUT_S: Final = 60.0
"""A change of thousands waits for the disk now and then."""

PAGE: Final = 1000
"""Dead letters asked for at a time."""

CHANGED_AT_ONCE: Final = 5000
"""Dead letters changed by one request: so each is answered in time."""

_LISTED: Final = 100

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
      delaywheel dead list --subject-prefix orders.
      delaywheel dead show 184467
      delaywheel dead requeue 184467 184470
      delaywheel dead requeue --code subject_not_assigned --subject orders.eu --max 1000
      delaywheel dead drop --message-id 261121.140300.10.0.0.7.4711.9 --max 1
    """


def _on_a_node(command: Command) -> Command:
    shown = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
    return at_node(shown(command))


def _session(server: str, token_file: Path | None, *, as_json: bool) -> Session:
    return session_of(server, token_file, as_json=as_json, timeout_s=TIMEOUT_S)


_FILTERS: Final = (
    ("--subject", str, "Of this subject."),
    ("--subject-prefix", str, "Of subjects that begin so."),
    ("--code", str, "Last refused with this item code, a number or a name."),
    ("--group", str, "Last refused by this broker group."),
    ("--message-id", str, "With this message id."),
    ("--due-from", MomentType(), "Due at this time or later."),
    ("--due-until", MomentType(), "Due at this time or earlier."),
    ("--dead-from", MomentType(), "Given up at this time or later."),
    ("--dead-until", MomentType(), "Given up at this time or earlier."),
)


def _filtered(command: Command) -> Command:
    """Add the options by which dead letters are chosen."""
    for option, kind, text in reversed(_FILTERS):
        metavar = "TIME" if isinstance(kind, MomentType) else None
        command = click.option(option, type=kind, metavar=metavar, help=text)(command)
    return command


def _filter(given: Mapping[str, Any]) -> Json:
    found: Json = {}
    for name, value in given.items():
        if value == "":
            # As a prefix it would be that of all: a script's variable that was not set.
            option = name.replace("_", "-")
            raise click.UsageError(f"--{option} is empty: leave it out, or say what it should be")
        if isinstance(value, datetime):
            found[f"{name}_ms"] = round(value.timestamp() * 1000)
        elif value is not None:
            found[name] = value
    return found


@dead.command("list")
@_filtered
@click.option(
    "--limit", default=_LISTED, show_default=True, type=click.IntRange(0), help="0 shows all."
)
@_on_a_node
def list_letters(
    *, server: str, token_file: Path | None, as_json: bool, limit: int, **given: object
) -> None:
    """List dead letters, the oldest first.

    \b
    Examples:
      delaywheel dead list
      delaywheel dead list --subject-prefix orders. --due-until 2026-11-21T14:00 --json
    """
    session = _session(server, token_file, as_json=as_json)
    rows = _rows(session, _filter(given), limit or None)
    if as_json:
        for row in rows:
            click.echo(json.dumps(row, ensure_ascii=False))
        return
    _print_table(list(rows))


def _rows(session: Session, wanted: Json, limit: int | None) -> Iterator[Json]:
    after, left = 0, limit
    while left is None or left > 0:
        size = PAGE if left is None else min(PAGE, left)
        page = session.ask("GET", "dead", query=wanted | {"limit": size, "after": after})
        yield from page["items"]
        left = None if left is None else left - len(page["items"])
        if page["next"] is None:
            return
        after = page["next"]
    click.echo("there are more: give --limit", err=True)


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
        # As the filters by time take it: a whole second would not find it.
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
    command = _on_a_node(command)
    command = click.option(
        "--yes", is_flag=True, help="Do not ask before more than one is dropped."
    )(command)
    command = click.option("--dry-run", is_flag=True, help="Only say how many there are.")(command)
    command = click.option(
        "--all", "all_of_them", is_flag=True, help="With --max instead of a filter: any of them."
    )(command)
    command = click.option(
        "--max", "most", type=click.IntRange(1), help="How many at most; needed with a filter."
    )(command)
    command = _filtered(command)
    return click.argument("sequences", nargs=-1, type=click.IntRange(1))(command)


@dead.command("requeue")
@_changing
def requeue(*, sequences: tuple[int, ...], **options: Any) -> None:  # noqa: ANN401 (click's)
    """Send dead letters once more, under the same message ids.

    Name them by SEQUENCES, or by a filter (--all: any) and --max. They are due at once.

    \b
    Examples:
      delaywheel dead requeue 184467 184470
      delaywheel dead requeue --group g1 --max 1000 --dry-run
    """
    _change("requeue", sequences, **options)


@dead.command("drop")
@_changing
def drop(*, sequences: tuple[int, ...], **options: Any) -> None:  # noqa: ANN401 (click's)
    """Drop dead letters: they are never sent.

    Name them by SEQUENCES, or by a filter (--all: any) and --max. This cannot be undone.

    \b
    Examples:
      delaywheel dead drop 184467
      delaywheel dead drop --dead-until 2026-11-01 --max 100000
    """
    _change("drop", sequences, **options)


def _change(
    verb: str,
    sequences: tuple[int, ...],
    *,
    server: str,
    token_file: Path | None,
    as_json: bool,
    most: int | None,
    all_of_them: bool,
    dry_run: bool,
    yes: bool,
    **given: object,
) -> None:
    wanted = _filter(given)
    _check_meant(sequences, wanted, most, all_of_them=all_of_them)
    session = _session(server, token_file, as_json=as_json)
    if verb == "drop" and not dry_run and not yes and len(sequences) != 1:
        count = _run(session, verb, sequences, wanted, most, dry_run=True)["matched"]
        if count and not _is_confirmed(f"Drop {count} dead letters for good?"):
            raise click.UsageError("nothing was dropped; --yes says beforehand that it may be")
    total = _run(session, verb, sequences, wanted, most, dry_run=dry_run)
    missing = sorted(set(sequences).difference(total.pop("sequences")))
    if as_json:
        click.echo(json.dumps(total))
    elif dry_run:
        click.echo(f"{total['matched']} match")
    else:
        click.echo(f"{total['done']} {'requeued' if verb == 'requeue' else 'dropped'}")
    if total["damaged"]:
        click.echo(f"damaged, and left: {' '.join(map(str, total['damaged']))}", err=True)
    if missing:
        _say_missing(missing)
    if missing or total["damaged"]:
        sys.exit(ExitCode.REFUSED)


def _is_confirmed(question: str) -> bool:
    """Ask for confirmation; without a terminal the answer is no."""
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)
        return False


def _check_meant(
    sequences: tuple[int, ...], wanted: Json, most: int | None, *, all_of_them: bool
) -> None:
    """Raise UsageError if it is not said which dead letters are meant."""
    if sequences:
        if wanted or all_of_them or most is not None:
            raise click.UsageError("give either sequences or a filter with --max")
    elif most is None:
        raise click.UsageError("name dead letters by their sequences, or give --max with a filter")
    elif all_of_them is bool(wanted):
        raise click.UsageError("with --max give either a filter, or --all for any dead letters")


def _say_missing(missing: list[int]) -> None:
    named = " ".join(map(str, missing[:_MISSING_NAMED]))
    more = len(missing) - _MISSING_NAMED
    more_of_them = f" and {more} more" if more > 0 else ""
    click.echo(f"no dead letters, or settled before: {named}{more_of_them}", err=True)


def _run(
    session: Session,
    verb: str,
    sequences: tuple[int, ...],
    wanted: Json,
    most: int | None,
    *,
    dry_run: bool,
) -> Json:
    """Ask as often as it takes; return what all of it came to."""
    total: Json = {"matched": 0, "done": 0, "damaged": [], "sequences": []}

    def ask(body: Json) -> int | None:
        answer = session.ask("POST", "dead", verb, body=body | {"dry_run": dry_run})
        for name in total:
            total[name] += answer.get(name, [])
        after: int | None = answer["next"]
        return after

    for at in range(0, len(sequences), CHANGED_AT_ONCE):
        ask({"sequences": list(sequences[at : at + CHANGED_AT_ONCE])})
    after = None if sequences else 0
    while after is not None and most is not None and total["matched"] < most:
        left = most - total["matched"]
        at_once = left if dry_run else min(left, CHANGED_AT_ONCE)
        after = ask({"filter": wanted, "max": at_once, "after": after})
    return total
