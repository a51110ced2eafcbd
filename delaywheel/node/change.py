"""`delaywheel cancel` and `delaywheel move`: one message by its names, or all of a filter."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from delaywheel.cluster.masters import Masters, of_masters
from delaywheel.node.pending import of_filter
from delaywheel.shared.admin_client import Json, Session
from delaywheel.shared.failures import ExitCode, Failure
from delaywheel.shared.options import option, with_options
from delaywheel.shared.parameters import MOMENT, SHIFT
from delaywheel.shared.tables import moment_text
from delaywheel.shared.terminal import print_json

if TYPE_CHECKING:
    from delay_client import Changed
    from delay_client.messages.changed import Wanted

_MS: Final = timedelta(milliseconds=1)

_OUT_OF_REACH: Final = ", or it would come before now or beyond the horizon"

Command = Callable[..., Any]

_OF_ONE: Final = (
    option("--id TEXT", "Of one message: its id, beside --subject.", to="message_id"),
    option(
        "--at TIME",
        "Of one message: when it is due, as its receipt says; else it is looked for at all times.",
        type=MOMENT,
    ),
    option("--token TEXT", "Of one message, in place of these: its receipt's cancel token."),
    option("--dry-run", "Of many: count them, and leave them."),
    option("--after PLACE", "Of many, with --server: go on where a run broke off, as it said."),
)


def _of_messages(command: Command) -> Command:
    """Add what names one message, or many, and whom to ask."""
    return of_filter(with_options(of_masters(command), _OF_ONE))


@click.command(short_help="Take messages back that were not delivered.")
@_of_messages
def cancel(**options: Any) -> None:  # noqa: ANN401 (click's)
    """Take a message back, or all of a filter. What is cancelled never comes.

    Ends with exit code 0 only if it is cancelled; 7 if it was delivered, is being sent, is a dead
    letter, was cancelled or moved before or is not known, 6 if a delay group gave no answer and
    may have it. Many are cancelled some thousands at a time.

    \b
    Examples:
      delaywheel cancel --subject order.paid --id 4711 --at 2026-12-24T18:00:00+01:00
      delaywheel cancel --token AZXt3rAAAAGLz-VoAAAHZm... --meta 127.0.0.1:8080
      delaywheel cancel --subject 'order.*' --due-to 2026-12-24T18:00:00Z --meta 127.0.0.1:8080
    """
    _change("cancelled", None, None, **options)


@click.command(short_help="Deliver messages at another time.")
@option("--to TIME", "When it is to be due.", type=MOMENT)
@option("--by", "Of many: move each by so much: 1h, -30m.", type=SHIFT)
@_of_messages
def move(*, to: datetime | None, by: timedelta | None, **options: Any) -> None:  # noqa: ANN401 (click's)
    """Deliver a message at another time, or all of a filter. It keeps its id and its bytes.

    All else is as with `delaywheel cancel`.

    \b
    Examples:
      delaywheel move --subject order.paid --id 4711 --to 2026-12-24T20:00:00+01:00
      delaywheel move --subject 'order.*' --due-from 2026-12-24T18:00:00Z --by 1h \\
        --meta 127.0.0.1:8080
    """
    if (to is None) == (by is None):
        raise click.UsageError("give one of --to and --by")
    _change("moved", to, by, **options)


def _change(
    done: str,
    to: datetime | None,
    by: timedelta | None,
    *,
    wanted: Json,
    message_id: str | None,
    token: str | None,
    at: datetime | None,
    dry_run: bool,
    after: str | None,
    masters: Masters,
) -> None:
    subject, *others = wanted.values()
    of_many = [*others, by, dry_run or None, after]
    is_one = message_id is not None or token is not None
    if any(one is not None for one in (of_many if is_one else (at, to))):
        raise click.UsageError(
            "--id, --at, --token and --to are for one message; --name, --due-from, --due-to, --by, "
            "--dry-run and --after are for many"
        )
    if after is not None and masters.is_cluster:
        raise click.UsageError("--after goes on at one delay group: give --server, its master")
    if not is_one:
        body = {**wanted, "by_ms": by and by // _MS, "dry_run": dry_run, "after": after}
        states = _change_many(body, masters)
        if states.keys() - {done} and not dry_run:
            sys.exit(ExitCode.REFUSED)
        return
    from delay_client import MessageName
    from delay_client.messages.changed import wanted as change_of

    if (token is None) is (subject is None) or (token and (message_id or at)):
        raise click.UsageError("name a message by --subject and --id, or by --token alone")
    named = MessageName(subject, message_id or "", at) if token is None else token
    state = _change_one(change_of(named, to, time.time_ns() // 1_000_000), masters)
    if state != done:
        sys.exit(ExitCode.NETWORK if state == "in doubt" else ExitCode.REFUSED)


def _change_one(one: "Wanted", masters: Masters) -> str:
    """Change a message at the master that has it, and print what became of it; return its state."""
    from delay_client.messages.cancel_tokens import cluster_hash
    from delay_client.messages.changed import changed, known
    from delay_protocol.messages.changes import ChangeResult

    if one.cluster and masters.cluster and one.cluster != cluster_hash(masters.cluster):
        raise Failure("the message is of another cluster: ask that one", ExitCode.REFUSED)
    change = one.change
    item: Json = {"subject": change.subject, "id": change.message_id}
    item |= {"due_ms": change.due_ms, "to_ms": change.to_ms}

    def ask(_: str, master: Session) -> Json:
        return master.ask("POST", "messages", "change", body={"items": [item]})

    answers = masters.answers(ask).values()
    results = [
        msgspec.convert([row[field] for field in ChangeResult.__struct_fields__], ChangeResult)
        for answer in answers
        for row in answer["results"]
    ]
    outcome = changed(
        change,
        known(results),
        doubts="; ".join(f"{group}: {why}" for group, why in masters.unanswered.items()),
        facts_since_ms=max((answer["facts_since_ms"] for answer in answers), default=0),
    )
    if masters.as_json:
        click.echo(msgspec.json.encode(outcome))
    else:
        for name, shown in outcome.by_name.items() or {"": outcome}.items():
            click.echo(_sentence(shown, name))
    return outcome.state


def _sentence(changed: "Changed", name: str) -> str:
    """Return what became of a message in a line."""
    from delay_protocol.basics.printable import printable

    parts = [f"{changed.message_id} for {name}: " if name else f"{changed.message_id}: "]
    parts.append(changed.state.value)
    if changed.to:
        parts.append(f" to {changed.to}" if changed.state != "being sent" else f", by {changed.to}")
    if changed.at_ms is not None:
        since = " since" if changed.state == "being sent" else " at"
        parts.append(f"{since} {moment_text(changed.at_ms)}")
    if changed.due_ms is not None:
        parts.append(f", due {moment_text(changed.due_ms)}")
    if changed.retry_after_s is not None:
        parts.append(f"; ask again in {changed.retry_after_s:g} s")
    if changed.state == "unknown":
        parts.append(
            f"; what became of messages is known since {moment_text(changed.facts_since_ms)}"
        )
    if changed.reason:
        parts.append(f" ({changed.reason})")
    return printable("".join(parts))


def _change_many(body: Json, masters: Masters) -> Counter[str]:
    """Change all messages of a filter at each master, in slices; return how many by state."""
    states = Counter[str]()

    def change(_: str, master: Session) -> None:
        place = body["after"]
        try:
            for found in slices(master, body):
                states.update(found["states"])
                place = found["next"]
        except Failure as failure:
            if place is None:
                raise
            hint = f"go on at its master by --server and --after {place}"
            raise Failure(f"{failure}; {hint}", failure.exit_code) from failure

    masters.answers(change)
    if masters.as_json:
        print_json({"states": states} | masters.said_of_unanswered)
    else:
        told = ", ".join(f"{count:,} {state}" for state, count in sorted(states.items()))
        none = "no such message" + _OUT_OF_REACH * (body["by_ms"] is not None)
        click.echo((told or none) + " (nothing was changed)" * body["dry_run"])
    return states


def slices(master: Session, body: Json) -> Iterator[Json]:
    """Change all messages of a filter at one master; yield the answer about each slice."""
    after = body.get("after")
    while True:
        found = master.ask("POST", "messages", "change-all", body={**body, "after": after})
        yield found
        after = found["next"]
        if after is None:
            return
