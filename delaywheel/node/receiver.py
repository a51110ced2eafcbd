"""`delaywheel receiver`: a name of receivers, and what it has at each delay group."""

from collections.abc import Mapping, Sequence
from typing import Final

import click

from delaywheel.cluster.masters import Masters
from delaywheel.cluster.node_client import LONG_S, asks
from delaywheel.cluster.rules import Rules
from delaywheel.node.change import slices
from delaywheel.shared.admin_client import Json, Session
from delaywheel.shared.failures import ExitCode, Failure
from delaywheel.shared.options import option
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


@click.group(short_help="Show or remove a name of receivers.")
def receiver() -> None:
    """Show or remove a name of receivers. `delaywheel admin` sets its subjects and its policy."""


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
    masters = Masters(None, rules)
    found = list(masters.answers(lambda group, one: _at(group, one, name)).values())
    if masters.as_json:
        print_json(row | {"delay_groups": found} | masters.said_of_unanswered)
    else:
        fields = {key: value for key, value in row.items() if key not in {"version", "name"}}
        subjects = ", ".join(row["patterns"]) or "-"
        screen().print(figures_table("", {"name": name} | fields | {"patterns": subjects}))
        screen().print(rows_table("delay groups", _COLUMNS, found, most=len(found) or 1))
    masters.end()


def _at(delay_group: str, session: Session, name: str) -> Json:
    """Return what a name has at one delay server."""
    group = session.ask("GET", "status").get("brokers", {}).get(name, {})
    dead = session.ask("GET", "dead", query={"group": name, "limit": 1})["matched"]
    counts = {shown: int(group.get(field, 0)) for shown, field in _COUNTS.items()}
    attached = str(group.get("address", "0 attached")).partition(" ")[0]
    trouble = group.get("why_none", "nothing leads to it here")
    found = {"delay_group": delay_group, "attached": int(attached), **counts}
    return found | {"dead": dead, "trouble": trouble}


@receiver.command("remove")
@click.argument("name", metavar="NAME")
@option("--drop", "Settle what waits for it first: it counts as dropped, and nobody gets it.")
@asks("rules", timeout_s=LONG_S)
def remove(*, name: str, drop: bool, rules: Rules) -> None:
    """Remove a name of receivers, unless messages wait for it.

    Those are its copies and retries, and the messages of subjects that it alone receives, at all
    delay groups. Each of these has to answer. `delaywheel admin remove receiver` does not look.

    \b
    Examples:
      delaywheel receiver remove billing --meta 127.0.0.1:8080
      delaywheel receiver remove cache-7 --drop --meta 127.0.0.1:8080
    """
    row = rules.session.ask("GET", "receiver", name)
    if row["connected"]:
        raise Failure(f"a receiver of {name} is connected: stop it first", ExitCode.REFUSED)
    waiting = _waiting_everywhere(row, rules)
    if drop and waiting:
        dropped = sum(
            _drop(session, name, subject) for session, found in waiting for subject in found
        )
        click.echo(f"{dropped:,} messages were dropped")
        waiting = _waiting_everywhere(row, rules)
    if waiting:
        count = sum(sum(found.values()) for _, found in waiting)
        why = "they are being sent: do it again" if drop else "start a receiver of the name"
        raise Failure(
            f"{name} stays: {count:,} messages wait for it; {why}. See "
            f"`delaywheel list --name {name}`",
            ExitCode.REFUSED,
        )
    rules.session.ask("DELETE", "receiver", name)
    click.echo(f"{name} is removed")


def _waiting_everywhere(row: Json, rules: Rules) -> list[tuple[Session, dict[str, int]]]:
    """Return what waits for a name of receivers, by delay server, where anything does.

    Raises Failure if one of them does not answer.
    """
    rows = rules.session.rows("receiver", query={}, limit=None)
    others = [one["patterns"] for one in rows if one["name"] != row["name"] and one["patterns"]]
    masters = Masters(None, rules)
    waiting = masters.answers(lambda _, session: (session, _waiting_for(session, row, others)))
    if masters.unanswered:
        raise Failure(
            f"{row['name']} stays: {len(masters.unanswered)} delay groups did not say if messages "
            "wait for it",
            ExitCode.REFUSED,
        )
    return [one for one in waiting.values() if one[1]]


def _waiting_for(session: Session, row: Json, others: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return how many messages wait for a name of receivers at one delay server.

    By subject; "" are those that are the name's own, its copies and retries.
    others: the patterns of each other name
    """
    from delay_protocol.basics.subjects import Patterns

    asked: list[Json] = [{"name": row["name"]}]
    asked += [{"name": "", "subject": pattern, "by": "subject"} for pattern in row["patterns"]]
    copies, *own = [session.ask("GET", "count", query=one)["rows"] for one in asked]
    shared = [Patterns(one) for one in others]
    alone: dict[str, int] = {
        subject: count
        for rows in own
        for subject, counted in rows.items()
        if (count := sum(counted["counts"])) and subject
        if not any(one.take(subject) for one in shared)
    }
    copied = sum(sum(counted["counts"]) for counted in copies.values())
    return {"": copied} | alone if copied else alone


def _drop(session: Session, name: str, subject: str) -> int:
    """Settle what waits at one delay server as dropped; return how many messages."""
    wanted = {"name": "", "subject": subject} if subject else {"name": name}
    found = slices(session, wanted | {"drop": True})
    return sum(one["states"].get("cancelled", 0) for one in found)
