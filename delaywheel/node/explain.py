"""`delaywheel explain`: where a message or a subject's messages are, and why."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import click

from delaywheel.cluster.node_client import of_node, print_json, text_of_rule
from delaywheel.shared.admin_client import Session
from delaywheel.shared.parameters import MOMENT
from delaywheel.shared.terminal import cell, moment_text, wide_console

_NOT_HELD = "nothing is held back: what waits is not due"
_NEVER_SEEN = "never seen here: nothing of it came or was due since this node started"


@click.command(short_help="Show where messages are and why they have not been delivered.")
@click.option("--subject", metavar="SUBJECT", help="All messages of a subject.")
@click.option("--id", "message_id", metavar="ID", help="One, by its message id.")
@click.option("--at", type=MOMENT, metavar="TIME", help="When that one was due, if days ago.")
@of_node
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
    from rich.table import Table

    table = Table(show_header=False)
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
    for name, value in rows.items():
        table.add_row(name, cell(value))
    wide_console().print(table)


def _count_of_letters(answer: Mapping[str, Any]) -> str:
    """Return how many dead letters a subject has, and where to see them."""
    hint = ": `delaywheel dead list --subject ...`, then requeue or drop them"
    return f"{answer['dead']}{hint if answer['dead'] else ''}"


def _print_messages(answer: Mapping[str, Any]) -> None:
    from rich.table import Table

    if not answer["messages"]:
        click.echo(answer["hint"])
        return
    table = Table()
    for name in ("sequence", "subject", "due", "reason", "group", "segment"):
        table.add_column(name)
    for row in answer["messages"]:
        table.add_row(
            str(row["sequence"]),
            cell(row["subject"]),
            moment_text(row["due_ms"]),
            cell(row["reason"]),
            cell(row["group"] or "-"),
            cell(row["segment"]),
        )
    wide_console().print(table)
    for row in answer["messages"]:
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
