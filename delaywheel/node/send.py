"""`delaywheel send`: hand one message, or many alike, to a delay server."""

import logging
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import IO, TYPE_CHECKING

import click
import msgspec

from delaywheel.shared.failures import ExitCode, Failure, failure_of
from delaywheel.shared.parameters import DELAY, MOMENT, PAIR

if TYPE_CHECKING:
    from delay_client import Outcome, OutgoingMessage

_FAILURES_SHOWN = 10


@click.command()
@click.argument("text", required=False)
@click.option(
    "--meta",
    "metas",
    multiple=True,
    metavar="HOST:PORT",
    help="The HTTP port of a meta server, which tells where the subject's messages go. Repeatable: "
    "any that answers will do.",
)
@click.option(
    "--server",
    "servers",
    multiple=True,
    metavar="HOST:PORT",
    help="In place of --meta a delay server. Repeatable: each takes messages, one that fails is "
    "done without.  [default: 127.0.0.1:20801]",
)
@click.option("--subject", required=True, help="What consumers subscribe to.")
@click.option("--delay", type=DELAY, help="Deliver so long after now: 30s, 1h30m, 2d.")
@click.option(
    "--at",
    type=MOMENT,
    help="Deliver at this moment: 2026-12-24T18:00:00+01:00. Without an offset it is this "
    "machine's local time; the answer says which moment that is.",
)
@click.option(
    "--id",
    "message_id",
    help="Message id; one is made if none is given. Of several messages each gets -1, -2 ... at "
    "its end.",
)
@click.option(
    "--attribute", "attributes", type=PAIR, multiple=True, help="key=value, beside the body."
)
@click.option(
    "--body-file",
    type=click.File("rb"),
    metavar="FILE",
    help="Send what is in FILE, instead of TEXT; - is standard input.",
)
@click.option("--tag", "tags", multiple=True, help="For consumers that filter. Repeatable.")
@click.option(
    "--count", type=click.IntRange(min=1), default=1, show_default=True, help="How many to send."
)
@click.option("--timeout", type=DELAY, help="How long to try, if it does not work at once.")
@click.option(
    "--routes-cache",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Keep the routes that --meta tells in FILE, and send by them while no meta server can be "
    "asked.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a message.")
def send(
    *,
    text: str | None,
    metas: tuple[str, ...],
    servers: tuple[str, ...],
    subject: str,
    delay: timedelta | None,
    at: datetime | None,
    message_id: str | None,
    attributes: tuple[tuple[str, str], ...],
    body_file: IO[bytes] | None,
    tags: tuple[str, ...],
    count: int,
    timeout: timedelta | None,
    routes_cache: str | None,
    as_json: bool,
) -> None:
    """Send a message that is delivered later. TEXT is its body; - takes that from standard input.

    Ends with exit code 0 only if the server has every message on its disk; 7 if messages were
    refused, 6 if no server could be reached, none takes messages or the meta server named none.

    \b
    Examples:
      delaywheel send --subject reminder --delay 30s "call back"
      delaywheel send --subject boarding --at 2026-12-24T18:00:00+01:00 --attribute flight=LH400
      delaywheel send --subject report --delay 2h --body-file report.json
      delaywheel send --meta 127.0.0.1:8080 --subject load --delay 1m --count 100000
    """
    if metas and servers:
        raise click.UsageError("give either --meta or --server")
    if routes_cache and not metas:
        raise click.UsageError("--routes-cache is for --meta")
    if (delay is None) == (at is None):
        raise click.UsageError("give either --delay or --at")
    if timeout is not None and not timeout:
        raise click.BadParameter("it must be more than nothing", param_hint="--timeout")
    from delay_client import OutgoingMessage

    body = _body(text, body_file)

    def messages() -> Iterator["OutgoingMessage"]:
        for number in range(1, count + 1):
            name = f"{message_id}-{number}" if message_id and count > 1 else message_id
            yield OutgoingMessage(
                subject, body, delay, at, name, tags, attributes=dict(attributes) or None
            )

    outcomes = _send_all(metas, servers, messages(), timeout, routes_cache)
    if as_json:
        _print_json(outcomes)
    else:
        _print_text(outcomes)
    _fail_if_any_failed(outcomes)


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


def _send_all(
    metas: Sequence[str],
    servers: Sequence[str],
    messages: Iterator["OutgoingMessage"],
    timeout: timedelta | None,
    routes_cache: str | None,
) -> list["Outcome"]:
    import anyio

    from delay_client import Client
    from delay_protocol.basics.printable import printable

    # What it warns of is told to on_trouble, and would be printed twice.
    logging.getLogger("delaywheel.client").addHandler(logging.NullHandler())
    try:
        client = Client(
            servers or None,
            meta=metas or None,
            on_trouble=partial(click.echo, err=True),
            routes_cache=routes_cache,
        )
    except ValueError as error:
        hint = "--meta" if metas else "--server"
        raise click.BadParameter(printable(str(error)), param_hint=hint) from error

    async def send_many() -> list["Outcome"]:
        async with client:
            seconds = None if timeout is None else timeout.total_seconds()
            return await client.send_many(messages, timeout=seconds)

    return anyio.run(send_many)


def _print_json(outcomes: Sequence["Outcome"]) -> None:
    from delay_client import Receipt

    for outcome in outcomes:
        if isinstance(outcome, Receipt):
            line = {"accepted": True, **outcome._asdict()}
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
        elsewhere = sum(receipt.elsewhere for receipt in receipts)
        when += f"; {elsewhere:,} not with the group that their id names" if elsewhere else ""
        click.echo(f"{len(receipts):,} of {len(outcomes):,} messages accepted{when}")
    elif receipts:
        [receipt] = receipts
        kept_by = printable(receipt.server)
        when = f"due {due}" + (", which is past: it is delivered at once" * receipt.past_due)
        where = " (not the group that its id names, which took nothing)" * receipt.elsewhere
        click.echo(f"{printable(receipt.message_id)} kept by {kept_by}{where}, {when}")


def _shown(moment: datetime) -> str:
    """Return a moment by this machine's clock, with its offset from UTC."""
    return moment.astimezone().isoformat(sep=" ", timespec="milliseconds")


def _fail_if_any_failed(outcomes: Sequence["Outcome"]) -> None:
    from delay_client import Receipt
    from delay_protocol.basics.printable import printable

    errors = [outcome for outcome in outcomes if not isinstance(outcome, Receipt)]
    if not errors:
        return
    failure = failure_of(errors[0])
    code = failure.exit_code if failure and len(errors) == len(outcomes) else ExitCode.REFUSED
    reasons = list(dict.fromkeys(printable(str(error)) for error in errors))
    shown = "\n".join(reasons[:_FAILURES_SHOWN])
    if len(reasons) > _FAILURES_SHOWN:
        shown += f"\nand {len(reasons) - _FAILURES_SHOWN} more"
    raise Failure(shown, code)
