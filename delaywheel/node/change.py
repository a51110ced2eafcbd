"""`delaywheel cancel` and `delaywheel move`: one message by its names, or all of a filter."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from delaywheel.cluster.masters import Masters
from delaywheel.cluster.rules import Rules
from delaywheel.shared.admin_client import Session
from delaywheel.shared.failures import ExitCode
from delaywheel.shared.http_exchange import Json
from delaywheel.shared.options import option, with_options, with_token_file
from delaywheel.shared.parameters import DELAY, MOMENT, SHIFT
from delaywheel.shared.sending import ask_client
from delaywheel.shared.tables import moment_text
from delaywheel.shared.terminal import print_json

if TYPE_CHECKING:
    from delay_client import Changed, Client, MessageName

_MS: Final = timedelta(milliseconds=1)
_SLICE_S: Final = 60.0
"""Seconds for one slice of a filter: a server looks at some millions of rows for it."""

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS: Final = (
    option("--subject SUBJECT", "The message's subject; of many one, or a prefix with * behind."),
    option("--id TEXT", "The message's id. Without it, all of a filter.", to="message_id"),
    option(
        "--at",
        "When it is due, as its receipt says; else it is looked for at all times.",
        type=MOMENT,
    ),
    option("--token TEXT", "In place of these, a receipt's cancel token."),
    option("--due-from", "Of many: due then or later.", type=MOMENT),
    option("--due-to", "Of many: due before then.", type=MOMENT),
    option("--dry-run", "Of many: count them, and leave them."),
    option(
        "--meta HOST:PORT...",
        "The HTTP port of a meta server, which tells where the masters are. Repeatable: any that "
        "answers will do.",
        to="metas",
    ),
    option(
        "--server HOST:PORT...",
        "Of one message, in place of --meta, the delay servers, each of which is asked.  "
        "[default: 127.0.0.1:20801]",
        to="servers",
    ),
    option("--cluster NAME", "Of many: which one, if the meta server has several."),
    with_token_file,
    option("--timeout", "How long to try, if a server does not answer at once.", type=DELAY),
    option("--json", "Print the answer for programs.", to="as_json"),
)


def _of_messages(command: Command) -> Command:
    """Add what names one message, or many, and whom to ask."""
    return with_options(command, _OPTIONS)


@click.command(short_help="Take messages back that were not delivered.")
@_of_messages
def cancel(**options: Any) -> None:  # noqa: ANN401 (click's)
    """Take a message back, or all of a filter. What is cancelled never comes.

    Ends with exit code 0 only if it is cancelled; 7 if it was delivered, is being sent, is a dead
    letter, was cancelled or moved before or is not known, 6 if a delay group gave no answer and
    may have it. Many are cancelled at the masters that --meta names, some thousands at a time.

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
    subject: str | None,
    message_id: str | None,
    token: str | None,
    at: datetime | None,
    metas: Sequence[str],
    servers: Sequence[str],
    timeout: timedelta | None,
    as_json: bool,
    **of_many: Any,  # noqa: ANN401 (click's)
) -> None:
    if message_id is None and token is None:
        if to is not None or at is not None or len(metas) != 1:
            raise click.UsageError(
                "name one message by --subject and --id, or by --token; or many by --subject, "
                "--due-from or --due-to, which needs one --meta, and no --at and no --to"
            )
        _change_many(done, subject, by, meta=metas[0], as_json=as_json, **of_many)
        return
    if any(value for name, value in of_many.items() if name != "token_file"):
        raise click.UsageError(
            "--due-from, --due-to, --dry-run and --cluster are for many messages"
        )
    if by is not None:
        raise click.UsageError("--by is for many messages: give --to, when it is to be due")
    named = _named(subject, message_id, token, at)

    async def ask(client: "Client", seconds: float | None) -> "Changed":
        if to is None:
            return await client.cancel(named, timeout=seconds)
        return await client.move(named, to=to, timeout=seconds)

    changed = ask_client(servers, metas, ask, timeout)
    if as_json:
        click.echo(msgspec.json.encode(changed))
    else:
        for name, one in changed.by_name.items() or {"": changed}.items():
            click.echo(_sentence(one, name))
    if changed.state != done:
        sys.exit(ExitCode.NETWORK if changed.state == "in doubt" else ExitCode.REFUSED)


def _named(
    subject: str | None, message_id: str | None, token: str | None, at: datetime | None
) -> "MessageName | str":
    """Return the message that options name."""
    from delay_client import MessageName

    if token is not None and (subject, message_id, at) == (None, None, None):
        return token
    if token is not None or subject is None or message_id is None:
        raise click.UsageError("name a message by --subject and --id, or by --token alone")
    return MessageName(subject, message_id, at)


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


def _change_many(
    done: str,
    subject: str | None,
    by: timedelta | None,
    *,
    meta: str,
    as_json: bool,
    due_from: datetime | None,
    due_to: datetime | None,
    dry_run: bool,
    cluster: str | None,
    token_file: Path | None,
) -> None:
    """Change all messages of a filter, at each master, in slices."""
    if subject is None and due_from is None and due_to is None:
        raise click.UsageError("give a filter: --subject, --due-from or --due-to")
    times = {"due_from": due_from, "due_to": due_to}
    asked = {name: at and round(at.timestamp() * 1000) for name, at in times.items()}
    body = {**asked, "subject": subject, "by_ms": by and by // _MS, "dry_run": dry_run}
    session = Session(meta, token_file=token_file, as_json=as_json, timeout_s=_SLICE_S)
    masters, states = Masters(None, Rules(session, cluster)), Counter[str]()

    def change(_: str, master: Session) -> None:
        for found in slices(master, body):
            states.update(found)

    masters.answers(change)
    if as_json:
        print_json({"states": states} | masters.said_of_unanswered)
    else:
        told = ", ".join(f"{count:,} {state}" for state, count in sorted(states.items()))
        click.echo((told or "no such message") + " (nothing was changed)" * dry_run)
    masters.end()
    if states.keys() - {done} and not dry_run:
        sys.exit(ExitCode.REFUSED)


def slices(master: Session, body: Json) -> Iterator[Mapping[str, int]]:
    """Change all messages of a filter at one master; yield how many came to which state."""
    after = None
    while True:
        found = master.ask("POST", "messages", "change-all", body={**body, "after": after})
        yield found["states"]
        after = found["next"]
        if after is None:
            return
