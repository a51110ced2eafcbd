"""`delaywheel find`: one message by its id, at one delay server or at all masters."""

from datetime import datetime
from typing import Any, Final

import click

from delaywheel.cluster.masters import Masters, of_masters
from delaywheel.shared.options import option
from delaywheel.shared.parameters import MOMENT
from delaywheel.shared.tables import Columns, moment_text
from delaywheel.shared.terminal import print_json

_COLUMNS: Final[Columns] = {
    "sequence": "sequence",
    "subject": "subject",
    "name": lambda row: row["name"] or "-",
    "due": lambda row: moment_text(row["due_ms"]),
    "state": lambda row: (
        "loaded" if row["reason"] == "waiting" and row["loaded"] else row["reason"]
    ),
    "group": lambda row: row["group"] or "-",
    "segment": lambda row: row["segment"] or "in memory",
}


@click.command(short_help="Find a message by its id.")
@option("--id ID", "The message id.", to="message_id", required=True)
@option("--subject SUBJECT", "Only messages of this subject.")
@option("--at TIME", "When it was due, if days ago.", type=MOMENT)
@option("--body", "With the item's bytes, in base64; needs the role admin.")
@of_masters
def find(
    *, message_id: str, subject: str | None, at: datetime | None, body: bool, masters: Masters
) -> None:
    """Find a message by its id: where it is, or what became of it.

    It is looked for among all messages that wait or were delivered lately; with `--at` also among
    those due in that minute, as long as their files are kept (`storage.segments_keep_ms`). One that
    was put off, moved or copied for a name has several rows, by sequence: a row with the fact
    `moved` is followed by the one that replaced it.

    \b
    Examples:
      delaywheel find --id 211121.123456.10.0.0.1.42.7
      delaywheel find --id order-17 --subject order.created --meta 127.0.0.1:8080
      delaywheel find --id order-17 --at 2026-11-21T14:03:00Z
    """
    query: dict[str, Any] = {"id": message_id, "subject": subject, "body": body or None}
    if at is not None:
        query["minute"] = int(at.timestamp()) // 60
    answers = masters.answers(lambda _, session: session.ask("GET", "find", query=query))
    rows = [
        {"delay_group": delay_group, **row} if delay_group else row
        for delay_group, answer in answers.items()
        for row in answer["messages"]
    ]
    if masters.as_json:
        print_json({"messages": rows, "delay_groups": answers} | masters.said_of_unanswered)
        return
    for delay_group, answer in answers.items():
        if not (rows and answer["complete"]):
            click.echo(": ".join(filter(None, (delay_group, answer["hint"]))))
    if rows:
        masters.print_rows(_COLUMNS, rows)
    for row in rows:
        _print_more(row)


def _print_more(row: dict[str, Any]) -> None:
    """Print what a table has no room for."""
    name = "/".join(filter(None, (row.get("delay_group"), str(row["sequence"]))))
    if row["dead_letter"]:
        shown = f"`delaywheel dead show {name}`"
        click.echo(f"it is dead letter {name}: see {shown}, then requeue or drop it")
    if row["holder"]:
        click.echo(f"message {name} is with {row['holder']}")
    if fact := row["fact"]:
        when, group = moment_text(fact["at_ms"]), fact["group"] or "no group"
        click.echo(f"message {name}: {fact['outcome']}, {when}, {group}")
    if "body" in row:
        click.echo(f"message {name}: {row['body']}")
