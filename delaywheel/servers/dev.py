"""`delaywheel dev`: a meta server, a delay server and a receiver that prints, for developers."""

from collections.abc import Sequence
from pathlib import Path

import click


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep messages in DIR until the next start. Without it they go with the process.",
)
@click.option(
    "--meta",
    default="127.0.0.1:8080",
    show_default=True,
    metavar="HOST:PORT",
    help="HTTP address of the meta server: what a client is given.",
)
@click.option(
    "--listen",
    default="127.0.0.1:20801",
    show_default=True,
    metavar="HOST:PORT",
    help="Where the delay server takes messages.",
)
@click.option(
    "--http",
    default="127.0.0.1:20811",
    show_default=True,
    metavar="HOST:PORT",
    help="HTTP address of the delay server: where `delaywheel status`, `explain` and `dead` ask.",
)
@click.option(
    "--print",
    "subjects",
    multiple=True,
    metavar="SUBJECT",
    help="Receive and print messages of a subject, or of all that begin so: `orders.*`. "
    "Repeatable; `hello*` without it, `--print ''` for none.",
)
def dev(*, data: Path | None, meta: str, listen: str, http: str, subjects: tuple[str, ...]) -> None:
    """Run all that a service needs to send and receive, in this terminal, until Ctrl-C.

    It starts a meta server, a delay server and a receiver that prints what it gets, and shows what
    to paste. Logs go to files beside the data. It is for development: one copy of each message, no
    secret, this machine only.

    \b
    Examples:
      delaywheel dev
      delaywheel dev --data ~/.delaywheel-dev --print 'orders.*'
      delaywheel send --meta 127.0.0.1:8080 --subject hello --delay 3s "it works"
    """
    from delaywheel.servers.dev_processes import run

    run(data=data, meta=meta, listen=listen, http=http, subjects=_wanted(subjects))


def _wanted(subjects: Sequence[str]) -> list[str]:
    """Return what is printed."""
    return [subject for subject in subjects or ("hello*",) if subject]
