"""`delaywheel explain`: where a message or a subject's messages are, and why."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import click

from delaywheel.cluster.node_client import LONG_S, asks
from delaywheel.cluster.rules import text_of_rule
from delaywheel.shared.admin_client import Session
from delaywheel.shared.options import option
from delaywheel.shared.parameters import MOMENT
from delaywheel.shared.tables import Columns, figures_table, moment_text, rows_table, screen
from delaywheel.shared.terminal import print_json

_COLUMNS: Final[Columns] = {
    "sequence": "sequence",
    "subject": "subject",
    "due": lambda row: moment_text(row["due_ms"]),
    "reason": "reason",
    "group": lambda row: row["group"] or "-",
    "segment": "segment",
}
_NOT_HELD = "nothing is held back: what waits is not due"
_NEVER_SEEN = "never seen here: nothing of it came or was due since this node started"


@click.command(short_help="Show where messages are and why they have not been delivered.")
@option("--subject SUBJECT", "All messages of a subject.")
@option("--id ID", "One, by its message id.", to="message_id")
@option("--at TIME", "When that one was due, if days ago.", type=MOMENT)
@asks("session", timeout_s=LONG_S)
def explain(
    *,
    subject: str | None,
    message_id: str | None,
    at: datetime | None,
    session: Session,
) -> None:
    """Show where a message is and why it has not been delivered.

    `--id` finds messages with the hash of the id, which others may share, among all that wait or
    were delivered lately; with `--at` among those due in that minute, as long as their files are
    kept (`storage.segments_keep_ms`).

    \b
    Examples:
      delaywheel explain --subject order.created
      delaywheel explain --id 211121.123456.10.0.0.1.42.7
      delaywheel explain --id 211121.123456.10.0.0.1.42.7 --at 2026-11-21T14:03:00Z
    """
    asked = {"subject": subject, "id": message_id}
    given: dict[str, str | int] = {name: text for name, text in asked.items() if text is not None}
    if len(given) != 1:
        raise click.UsageError("give either --subject or --id")
    if at is not None:
        given["minute"] = int(at.timestamp()) // 60
    answer = session.ask("GET", "explain", query=given)
    if session.as_json:
        print_json(answer)
    elif subject is not None:
        _print_subject(answer)
    else:
        _print_messages(answer)


def _print_subject(answer: Mapping[str, Any]) -> None:
    rule = answer["rule"]
    rows = {
        "subject": answer["subject"],
        "rule": f"{rule}: {text_of_rule(answer['control'] or {})}" if rule else "none",
        "reason": answer["reason"] or (_NOT_HELD if answer["seen"] else _NEVER_SEEN),
        "damaged": str(answer["damaged"]),
        "dead letters": _count_of_letters(answer),
        "broker groups": ", ".join(answer["groups"]) or "-",
        "receivers": "; ".join(answer["receivers"]) or "-",
        "due soon": str(answer["in_wheel"]),
        "held for delivery": str(answer["held"]),
        "due, left on disk": str(answer["left_on_disk"]),
        "oldest of these": _oldest(answer["oldest_left_due_ms"]),
    }
    screen().print(figures_table("", rows))


def _count_of_letters(answer: Mapping[str, Any]) -> str:
    """Return how many dead letters a subject has, and where to see them."""
    hint = ": `delaywheel dead list --subject ...`, then requeue or drop them"
    return f"{answer['dead']}{hint if answer['dead'] else ''}"


def _print_messages(answer: Mapping[str, Any]) -> None:
    if not answer["messages"]:
        click.echo(answer["hint"])
        return
    rows = answer["messages"]
    screen().print(rows_table("", _COLUMNS, rows, most=len(rows)))
    for row in rows:
        if row["dead_letter"]:
            shown = f"`delaywheel dead show {row['sequence']}`"
            click.echo(f"it is dead letter {row['sequence']}: see {shown}, then requeue or drop it")
        if row["holder"]:
            click.echo(f"message {row['sequence']} is with {row['holder']}")
        if fact := row["fact"]:
            when, group = moment_text(fact["at_ms"]), fact["group"] or "no group"
            click.echo(f"message {row['sequence']}: {fact['outcome']}, {when}, {group}")


def _oldest(ms: int | None) -> str:
    return "-" if ms is None else moment_text(ms)
