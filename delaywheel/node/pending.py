"""`delaywheel list` and `count`: messages that have no outcome yet."""

import functools
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final

import click

from delay_transport.http.counts import added_rows
from delaywheel.cluster.masters import Masters, of_masters
from delaywheel.shared.admin_client import Json
from delaywheel.shared.options import option, with_options
from delaywheel.shared.parameters import MOMENT
from delaywheel.shared.tables import Columns, moment_text, rows_table, screen
from delaywheel.shared.terminal import print_json

Command = Callable[..., Any]

_BAR: Final = 40
"""Characters of the longest bar."""
_ROWS: Final = {"": "all", "%": "others"}
"""The rows of a count that have a name of their own, by what they are called in the answer."""


def of_filter(command: Command) -> Command:
    """Add `wanted`: the subject, name and due times of the messages that are meant."""

    @functools.wraps(command)
    def run(*, due_from: datetime | None, due_to: datetime | None, **more: Any) -> None:  # noqa: ANN401 (click's)
        wanted: Json = {name: more.pop(name) for name in ("subject", "name")}
        for name, at in (("due_from", due_from), ("due_to", due_to)):
            wanted[name] = None if at is None else int(at.timestamp() * 1000)
        command(wanted=wanted, **more)

    options = (
        option("--subject SUBJECT", "A subject, or a prefix with a * at its end (quote it)."),
        option("--name NAME", "Retries and copies that go to this name alone."),
        option("--due-from TIME", "Due then or later.", type=MOMENT),
        option("--due-to TIME", "Due before then.", type=MOMENT),
    )
    return with_options(run, options)


_COLUMNS: Final[Columns] = {
    "due": lambda row: moment_text(row["due_ms"]),
    "subject": "subject",
    "name": lambda row: row["name"] or "-",
    "message id": "message_id",
    "bytes": "size_bytes",
    "segment": lambda row: row["segment"] or "in memory",
}


@click.command("list", short_help="List pending messages by due time.")
@of_filter
@option("--limit N>=1", "Messages that are shown at most.", default=100)
@of_masters
def list_pending(*, wanted: Json, limit: int, masters: Masters) -> None:
    """List pending messages, the first due first: those of a subject, or due within a time.

    What arrives or leaves meanwhile moves nothing: a message that is pending all along is shown
    once. The last line says how far the list reaches.

    \b
    Examples:
      delaywheel list --subject orders.created
      delaywheel list --subject 'orders.*' --due-from 2026-12-24T00:00:00Z --meta 127.0.0.1:8080
    """
    query = wanted | {"ids": True}
    rows = masters.rows("list", query, by="due_ms", most=limit + 1)
    rows, covered_ms = rows[:limit], rows[limit]["due_ms"] if rows[limit:] else None
    if masters.as_json:
        print_json({"items": rows, "covered_to_ms": covered_ms} | masters.said_of_unanswered)
    elif rows:
        masters.print_rows(_COLUMNS, rows)
    elif not masters.unanswered:
        click.echo("nothing is pending")
    if covered_ms is not None:
        click.echo(f"there are more: --due-from {moment_text(covered_ms)!r}", err=True)


@click.command(short_help="Count pending messages, and show what is due when.")
@of_filter
@option("--by WHAT", "A row for each.", type=click.Choice(["subject", "group"]))
@option(
    "--step STEP", "A bar for each, in UTC, from now.", type=click.Choice(["minute", "hour", "day"])
)
@of_masters
def count(*, wanted: Json, by: str | None, step: str | None, masters: Masters) -> None:
    """Count pending messages: in all, by subject or by who takes them, by minute, hour or day.

    With --step it is a timeline. By group, a name of receivers or the broker groups of a subject
    together, it says how fast they take messages: the rate that a rule limits them to, or that of
    their best minute of the last 24 hours; a bar with an exclamation mark has more than that.

    \b
    Examples:
      delaywheel count
      delaywheel count --subject 'orders.*' --by subject
      delaywheel count --by group --step hour --meta 127.0.0.1:8080
    """
    query = {**wanted, "by": by, "step": step}
    if step is not None and wanted["due_from"] is None:
        # So that all have the same columns.
        query["due_from"] = int(time.time() * 1000)
    answers = masters.answers(lambda _, session: session.ask("GET", "count", query=query))
    rows = added_rows(answers.values())
    if masters.as_json:
        print_json({"rows": rows, "delay_groups": answers} | masters.said_of_unanswered)
        return
    for answer in list(answers.values())[:1]:
        lines = [line for row in rows.items() for line in _lines(*row, answer, has_bars=bool(step))]
        names = ["row", "messages", *(["due", "bar"] if step else ())]
        screen().print(rows_table("", names, lines, most=len(lines)))
    for delay_group, answer in answers.items():
        text = f"as of record {answer['as_of']}, {answer['rows_looked_at']:,} rows looked at"
        lack = "" if answer["complete"] else "; some places could not be read"
        click.echo(": ".join(filter(None, (delay_group, text + lack))), err=True)


def _lines(name: str, row: Json, answer: Json, *, has_bars: bool) -> Iterator[Json]:
    """Yield the lines of a row: its sum and rate, then a bar for each column."""
    begin_ms, length_ms, rate = answer["begin_ms"], answer["column_ms"], row.get("rate_per_s")
    numbers = [row["before"], *row["counts"], row["later"]]
    why = "at most, by a rule" if row.get("rate_is_limit") else "in the best minute"
    taken = "" if rate is None else f"{rate:,.1f}/s {why}"
    total = sum(numbers if has_bars else row["counts"])
    yield {"row": _ROWS.get(name, name), "messages": total, "due": "", "bar": taken}
    times = [moment_text(begin_ms + n * length_ms)[:16] for n in range(len(numbers) - 2)]
    dues = ["before", *times, "later"] if has_bars else ()
    for due, messages in zip(dues, numbers, strict=False):
        if messages or due in times:
            is_more = rate is not None and messages > rate * length_ms / 1000
            bar = "█" * -(-messages * _BAR // max(*numbers, 1)) + " !" * is_more
            yield {"row": "", "messages": messages, "due": due, "bar": bar}
