"""`delaywheel explain`: where the messages of a subject are, and why they wait."""

import shlex
from collections.abc import Mapping
from typing import Any

import click

from delaywheel.cluster.masters import Masters, of_masters
from delaywheel.cluster.rules import text_of_rule
from delaywheel.shared.options import option
from delaywheel.shared.tables import figures_table, moment_text, screen
from delaywheel.shared.terminal import print_json

_NOT_HELD = "nothing is held back: what waits is not due"
_NEVER_SEEN = "never seen here: nothing of it came or was due since this node started"


@click.command(short_help="Show where the messages of a subject are, and why they wait.")
@option("--subject SUBJECT", "All messages of a subject.", required=True)
@of_masters
def explain(*, subject: str, masters: Masters) -> None:
    """Show where the messages of a subject are, and why they have not been delivered.

    `delaywheel find --id` says it of one message.

    \b
    Examples:
      delaywheel explain --subject order.created
      delaywheel explain --subject order.created --meta 127.0.0.1:8080
    """
    query = {"subject": subject}
    answers = masters.answers(lambda _, session: session.ask("GET", "explain", query=query))
    if masters.as_json:
        print_json({"delay_groups": answers} | masters.said_of_unanswered)
        return
    for delay_group, answer in answers.items():
        _print_subject(delay_group, answer)


def _print_subject(delay_group: str, answer: Mapping[str, Any]) -> None:
    rule = answer["rule"]
    rows = {
        **({"delay group": delay_group} if delay_group else {}),
        "subject": answer["subject"],
        "rule": f"{rule}: {text_of_rule(answer['control'] or {})}" if rule else "none",
        "reason": answer["reason"] or (_NOT_HELD if answer["seen"] else _NEVER_SEEN),
        "damaged": str(answer["damaged"]),
        "dead letters": _count_of_letters(answer),
        "broker groups": ", ".join(answer["groups"]) or "-",
        "receivers": "; ".join(answer["receivers"]) or "-",
        "due later": f"{answer['due_later']:,}",
        "of these loaded": str(answer["in_wheel"]),
        "held for delivery": str(answer["held"]),
        "due, left on disk": str(answer["left_on_disk"]),
        "oldest of these": _oldest(answer["oldest_left_due_ms"]),
    }
    screen().print(figures_table("", rows))


def _count_of_letters(answer: Mapping[str, Any]) -> str:
    """Return how many dead letters a subject has, and where to see them."""
    command = shlex.join(("delaywheel", "dead", "list", "--subject", answer["subject"]))
    hint = f": `{command}`, then requeue or drop them"
    return f"{answer['dead']}{hint if answer['dead'] else ''}"


def _oldest(ms: int | None) -> str:
    return "-" if ms is None else moment_text(ms)
