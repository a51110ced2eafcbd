"""`delaywheel dead`: messages that brokers refused for good, looked at, requeued, dropped.

Everything goes over the node's HTTP port.
"""

import sys
from collections.abc import Callable
from typing import Any, Final

import click

from delaywheel.cluster.node_client import LONG_S, asks
from delaywheel.shared.admin_client import Session
from delaywheel.shared.failures import ExitCode
from delaywheel.shared.http_exchange import Json
from delaywheel.shared.options import option
from delaywheel.shared.tables import figures_table, rows_table, screen
from delaywheel.shared.terminal import print_json

Command = Callable[..., Any]

_of_node: Final = asks("session", timeout_s=LONG_S)


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
      delaywheel dead drop --subject orders.eu --yes
    """


def _chosen(command: Command) -> Command:
    """Add the options by which dead letters are chosen."""
    command = option("--group GROUP", "All that this broker group refused last.")(command)
    return option("--subject SUBJECT", "All of this subject.")(command)


@dead.command("list")
@_chosen
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1))
@_of_node
def list_letters(*, limit: int, subject: str | None, group: str | None, session: Session) -> None:
    """List dead letters, the oldest first.

    \b
    Examples:
      delaywheel dead list
      delaywheel dead list --subject orders.eu --json
    """
    rows = list(session.rows("dead", query={"subject": subject, "group": group}, limit=limit))
    rows, more = rows[:limit], len(rows) > limit
    if session.as_json:
        print_json({"items": rows})
    else:
        _print_table(rows)
    if more:
        click.echo("there are more: give --limit", err=True)


_COLUMNS: Final = ("sequence", "subject", "message_id", "due_ms", "code_name", "group")


def _print_table(rows: list[Json]) -> None:
    if rows:
        screen().print(rows_table("dead letters", _COLUMNS, rows, most=len(rows)))
    else:
        click.echo("no dead letters")


@dead.command("show")
@click.argument("sequence", type=click.IntRange(1))
@option("--payload", "With the item's bytes, in base64.")
@_of_node
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
    console, refusals = screen(), found.pop("refusals", [])
    attributes = found.pop("attributes", {})
    console.print(figures_table("dead letter", found))
    if attributes:
        console.print(figures_table("attributes", attributes))
    if refusals:
        console.print(rows_table("refusals", list(refusals[0]), refusals, most=len(refusals)))


def _changing(command: Command) -> Command:
    """Add what says which dead letters a command changes."""
    command = _chosen(_of_node(command))
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
@option("--yes", "Needed to drop more than one.")
@_changing
def drop(*, sequences: tuple[int, ...], yes: bool, **options: Any) -> None:  # noqa: ANN401 (click's)
    """Drop dead letters: they are never sent.

    Name them by SEQUENCES, or all of a --subject or a --group. This cannot be undone.

    \b
    Examples:
      delaywheel dead drop 184467
      delaywheel dead drop --subject orders.eu --yes
    """
    _change("drop", sequences, is_meant=yes or len(sequences) == 1, **options)


def _change(
    verb: str,
    sequences: tuple[int, ...],
    *,
    subject: str | None,
    group: str | None,
    session: Session,
    is_meant: bool = True,
) -> None:
    if [bool(sequences), subject is not None, group is not None].count(True) != 1:
        raise click.UsageError("name dead letters by sequences, or by one of --subject and --group")
    of_all = {"subject": subject, "group": group}
    if not is_meant:
        count = len(set(sequences)) or _count_of(session, of_all)
        raise click.UsageError(
            f"this would drop {count} dead letters for good: nothing was dropped; add --yes to drop"
        )
    found = session.ask("POST", "dead", verb, body={**of_all, "sequences": sequences or None})
    damaged, missing = found["damaged"], found["missing"]
    if session.as_json:
        print_json(found)
    else:
        click.echo(f"{found['done']} {'requeued' if verb == 'requeue' else 'dropped'}")
    if damaged:
        click.echo(f"damaged, and left: {' '.join(map(str, damaged))}", err=True)
    if missing:
        click.echo(f"no dead letters, or settled before: {' '.join(map(str, missing))}", err=True)
    if missing or damaged:
        sys.exit(ExitCode.REFUSED)


def _count_of(session: Session, of_all: Json) -> int:
    return int(session.ask("GET", "dead", query={**of_all, "limit": 1})["matched"])
