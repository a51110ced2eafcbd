"""`delaywheel dead`: messages that brokers refused for good, looked at, requeued, dropped.

Everything goes over the node's HTTP port.
"""

import sys
from collections.abc import Callable
from typing import Any, Final

import click

from delaywheel.cluster.node_client import of_node, print_json
from delaywheel.cluster.status import figures_table, rows_table
from delaywheel.shared.admin_client import Session
from delaywheel.shared.failures import ExitCode
from delaywheel.shared.http_exchange import Json
from delaywheel.shared.terminal import wide_console

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


def _chosen(command: Command) -> Command:
    """Add the options by which dead letters are chosen."""
    command = click.option("--group", help="All that this broker group refused last.")(command)
    return click.option("--subject", help="All of this subject.")(command)


@dead.command("list")
@_chosen
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1))
@of_node
def list_letters(*, limit: int, subject: str | None, group: str | None, session: Session) -> None:
    """List dead letters, the oldest first.

    \b
    Examples:
      delaywheel dead list
      delaywheel dead list --subject orders.eu --json
    """
    query = {"subject": subject, "group": group, "limit": limit}
    found = session.ask("GET", "dead", query=query)
    if session.as_json:
        print_json(found)
    else:
        _print_table(found["items"])
    if found["matched"] > limit:
        click.echo(f"there are {found['matched']}: give --limit", err=True)


_COLUMNS: Final = (
    *("sequence", "subject", "message_id", "due_ms", "dead_ms"),
    *("code_name", "group", "tries", "size_bytes"),
)


def _print_table(rows: list[Json]) -> None:
    if rows:
        shown = [_readable({name: row.get(name) for name in _COLUMNS}) for row in rows]
        wide_console().print(rows_table("dead letters", shown, most=len(rows)))
    else:
        click.echo("no dead letters")


def _readable(row: Json) -> Json:
    """Return a row with its sequences as they are typed."""
    return {name: str(row[name]) if name.endswith("sequence") else row[name] for name in row}


@dead.command("show")
@click.argument("sequence", type=click.IntRange(1))
@click.option("--payload", is_flag=True, help="With the item's bytes, in base64.")
@of_node
def show(*, sequence: int, payload: bool, session: Session) -> None:
    """Show one dead letter: its item, and which group refused it when.

    \b
    Example:
      delaywheel dead show 184467 --payload
    """
    found = session.ask("GET", "dead", str(sequence), query={"payload": 1 if payload else None})
    if session.as_json:
        print_json(found)
        return
    console, refusals = wide_console(), found.pop("refusals", [])
    attributes = found.pop("attributes", {})
    console.print(figures_table("dead letter", _readable(found)))
    if attributes:
        console.print(figures_table("attributes", attributes))
    if refusals:
        console.print(rows_table("refusals", refusals, most=len(refusals)))


def _changing(command: Command) -> Command:
    """Add what says which dead letters a command changes."""
    command = _chosen(of_node(command))
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
    subject: str | None,
    group: str | None,
    session: Session,
    asks: bool = False,
) -> None:
    if [bool(sequences), subject is not None, group is not None].count(True) != 1:
        raise click.UsageError("name dead letters by sequences, or by one of --subject and --group")
    of_all = {"subject": subject, "group": group}
    if asks:
        count = len(set(sequences)) or _count_of(session, of_all)
        if count and not _is_confirmed(f"Drop {count} dead letters for good?"):
            raise click.UsageError("nothing was dropped; --yes says beforehand that it may be")
    found = session.ask("POST", "dead", verb, body={**of_all, "sequences": sequences or None})
    damaged, missing = found["damaged"], found["missing"]
    if session.as_json:
        print_json(found)
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
