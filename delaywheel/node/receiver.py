"""`delaywheel receiver`: a name of receivers, and what it has at each delay group."""

from collections.abc import Mapping
from typing import Any, Final

import click

from delaywheel.cluster.masters import Masters
from delaywheel.cluster.node_client import LONG_S, asks
from delaywheel.cluster.rules import Rules
from delaywheel.shared.admin_client import Session
from delaywheel.shared.tables import Columns, figures_table, rows_table, screen
from delaywheel.shared.terminal import print_json

_COUNTS: Final[Mapping[str, str]] = {
    "waiting": "waiting",
    "with_receivers": "in_flight",
    "done": "delivered",
    "later": "later",
    "refused": "refused",
}
"""Numbers of a group of receivers by their names in the status of a delay server."""
_COLUMNS: Final[Columns] = {
    name.replace("_", " "): name
    for name in ("delay_group", "attached", *_COUNTS, "dead", "trouble")
}


@click.group(short_help="Show a name of receivers.")
def receiver() -> None:
    """Show a name of receivers. Its subjects and its policy are set by `delaywheel admin`."""


@receiver.command("show")
@click.argument("name", metavar="NAME")
@asks("rules", timeout_s=LONG_S)
def show(*, name: str, rules: Rules) -> None:
    """Show a name of receivers: its subjects and policy, and what it has at each delay group.

    waiting: due messages that wait for it, but for subjects that none of those attached takes,
    which are `unrouted` in `delaywheel status`. done, later, refused: verdicts since the master of
    the group began; later: put off, or to be tried again. dead: its dead letters.

    \b
    Example:
      delaywheel receiver show billing --meta 127.0.0.1:8080
    """
    row = rules.session.ask("GET", "receiver", name)
    masters, found = Masters(None, rules), []
    for delay_group, session in masters.sessions().items():
        with masters.answering(delay_group):
            found.append({"delay_group": delay_group} | _at(session, name))
    if masters.as_json:
        print_json(row | {"delay_groups": found} | masters.said_of_unanswered)
    else:
        fields = {key: value for key, value in row.items() if key not in {"version", "name"}}
        subjects = ", ".join(row["patterns"]) or "-"
        screen().print(figures_table("", {"name": name} | fields | {"patterns": subjects}))
        screen().print(rows_table("delay groups", _COLUMNS, found, most=len(found) or 1))
    for failure in masters.unanswered.values():
        raise SystemExit(failure.exit_code)


def _at(session: Session, name: str) -> dict[str, Any]:
    """Return what a name has at one delay server."""
    group = session.ask("GET", "status").get("brokers", {}).get(name, {})
    dead = session.ask("GET", "dead", query={"group": name, "limit": 1})["matched"]
    counts = {shown: int(group.get(field, 0)) for shown, field in _COUNTS.items()}
    attached = str(group.get("address", "0 attached")).partition(" ")[0]
    trouble = group.get("why_none", "nothing leads to it here")
    return {"attached": int(attached), **counts, "dead": dead, "trouble": trouble}
