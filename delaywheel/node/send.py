"""`delaywheel send`: hand one message, or many alike, to a delay server."""

import logging
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import IO, TYPE_CHECKING

import click
import msgspec

from delaywheel.shared.options import option
from delaywheel.shared.parameters import DELAY, MOMENT, PAIR
from delaywheel.shared.sending import client_of, fail_if_any, to_servers

if TYPE_CHECKING:
    from delay_client import Outcome, OutgoingMessage


@click.command()
@click.argument("text", required=False)
@to_servers
@option("--subject SUBJECT", "What consumers subscribe to.", required=True)
@option("--delay", "Deliver so long after now: 30s, 1h30m, 2d.", type=DELAY)
@option(
    "--at",
    "Deliver at this moment: 2026-12-24T18:00:00+01:00. Without an offset it is this "
    "machine's local time; the answer says which moment that is.",
    type=MOMENT,
)
@option(
    "--level N>=0",
    "Deliver after the delay of level N, by the meta server's table (delay.levels); 0 is at once, "
    "and what is above the last level is the last one.",
)
@option(
    "--id TEXT",
    "Message id; one is made if none is given. Of several messages each gets -1, -2 ... "
    "at its end.",
    to="message_id",
)
@option("--attribute KEY=VALUE...", "Beside the body.", to="attributes", type=PAIR)
@option(
    "--body-file FILE",
    "Send what is in FILE, instead of TEXT; - is standard input.",
    type=click.File("rb"),
)
@option("--tag TAG...", "For consumers that filter.", to="tags")
@option("--count N>=1", "How many to send.", default=1)
@option("--timeout", "How long to try, if it does not work at once.", type=DELAY)
@option("--json", "One JSON object a message.", to="as_json")
def send(
    *,
    text: str | None,
    metas: tuple[str, ...],
    servers: tuple[str, ...],
    subject: str,
    delay: timedelta | None,
    at: datetime | None,
    level: int | None,
    message_id: str | None,
    attributes: tuple[tuple[str, str], ...],
    body_file: IO[bytes] | None,
    tags: tuple[str, ...],
    count: int,
    timeout: timedelta | None,
    as_json: bool,
) -> None:
    """Send a message that is delivered later. TEXT is its body; - takes that from standard input.

    Ends with exit code 0 only if the server has every message on its disk; 7 if messages were
    refused, 6 if no server could be reached, none takes messages or the meta server named none.
    Without --meta and --server it goes to a delay server at 127.0.0.1:20801.

    \b
    Examples:
      delaywheel send --subject reminder --delay 30s "call back"
      delaywheel send --subject boarding --at 2026-12-24T18:00:00+01:00 --attribute flight=LH400
      delaywheel send --subject report --delay 2h --body-file report.json
      delaywheel send --meta 127.0.0.1:8080 --subject load --delay 1m --count 100000
    """
    if metas and servers:
        raise click.UsageError("give either --meta or --server")
    if [delay, at, level].count(None) != 2:
        raise click.UsageError("give one of --delay, --at and --level")
    if timeout is not None and not timeout:
        raise click.BadParameter("it must be more than nothing", param_hint="--timeout")
    from delay_client import OutgoingMessage, Receipt

    body = _body(text, body_file)

    def messages() -> Iterator["OutgoingMessage"]:
        for number in range(1, count + 1):
            name = f"{message_id}-{number}" if message_id and count > 1 else message_id
            yield OutgoingMessage(
                *(subject, body, delay, at, name, tags),
                attributes=dict(attributes) or None,
                level=level,
            )

    # What it warns of is in the answers, and told to on_trouble: it would be printed twice.
    logging.getLogger("delaywheel.client").addHandler(logging.NullHandler())
    tell = partial(click.echo, err=True)
    with client_of(servers, metas, on_trouble=tell) as client:
        timeout_s = None if timeout is None else timeout.total_seconds()
        outcomes = client.send_many(messages(), timeout=timeout_s)
    if as_json:
        _print_json(outcomes)
    else:
        _print_text(outcomes)
    errors = [outcome for outcome in outcomes if not isinstance(outcome, Receipt)]
    fail_if_any(errors, len(outcomes))


def _body(text: str | None, file: IO[bytes] | None) -> str | bytes:
    """Return the body that the options give."""
    if text is not None and file is not None:
        raise click.UsageError("give either TEXT or --body-file")
    if text == "-":
        file = sys.stdin.buffer
    if file is None:
        return text or ""
    from delay_client import ClientConfig

    # Not much more than may be sent: it may have no end.
    return file.read(ClientConfig().item_bytes_max + 1)


def _print_json(outcomes: Sequence["Outcome"]) -> None:
    from delay_client import Receipt

    for outcome in outcomes:
        if isinstance(outcome, Receipt):
            line = {"accepted": True, **outcome._asdict()}
            line["cancel_token"] = outcome.cancel_token
        else:
            line = {
                "accepted": False,
                "message_id": outcome.message_id,
                "server": outcome.server,
                "attempts": outcome.attempts,
                "error": type(outcome).__name__,
                "reason": str(outcome),
            }
        click.echo(msgspec.json.encode(line))


def _print_text(outcomes: Sequence["Outcome"]) -> None:
    from delay_client import Receipt
    from delay_protocol.basics.printable import printable

    receipts = [outcome for outcome in outcomes if isinstance(outcome, Receipt)]
    moments = sorted(receipt.due_at for receipt in receipts)
    due = " to ".join(dict.fromkeys(map(_shown, (*moments[:1], *moments[-1:]))))
    if len(outcomes) > 1:
        when = f", due {due}" if due else ""
        past = sum(receipt.past_due for receipt in receipts)
        when += f"; {past:,} past due: at once" if past else ""
        known = sum(receipt.duplicate for receipt in receipts)
        when += f"; {known:,} kept before" if known else ""
        elsewhere = sum(receipt.elsewhere for receipt in receipts)
        when += f"; {elsewhere:,} not with the group that their id names" if elsewhere else ""
        click.echo(f"{len(receipts):,} of {len(outcomes):,} messages accepted{when}")
    elif receipts:
        [receipt] = receipts
        kept_by = printable(receipt.server)
        when = f"due {due}" + (", which is past: it is delivered at once" * receipt.past_due)
        where = " (not the group that its id names, which took nothing)" * receipt.elsewhere
        kept = "kept before by" if receipt.duplicate else "kept by"
        click.echo(f"{printable(receipt.message_id)} {kept} {kept_by}{where}, {when}")


def _shown(moment: datetime) -> str:
    """Return a moment by this machine's clock, with its offset from UTC."""
    return moment.astimezone().isoformat(sep=" ", timespec="milliseconds")
