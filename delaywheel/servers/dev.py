"""`delaywheel dev`: a meta server, a delay server, a gateway and a receiver that prints."""

from pathlib import Path

import click

from delaywheel.shared.options import option


@click.command()
@option(
    "--data DIR", "Keep messages in DIR until the next start. Without it they go with the process."
)
@option(
    "--meta HOST:PORT",
    "HTTP address of the meta server: what a client is given.",
    default="127.0.0.1:8080",
)
@option("--listen HOST:PORT", "Where the delay server takes messages.", default="127.0.0.1:20801")
@option(
    "--http HOST:PORT",
    "HTTP address of the delay server: where `delaywheel status`, `explain` and `dead` ask.",
    default="127.0.0.1:20811",
)
@option(
    "--print SUBJECT...",
    "Receive and print messages of a subject, or of all that begin so: `orders.*`. "
    "Repeatable; `hello*` without it, `--print ''` for none.",
    to="subjects",
)
@option("--gateway HOST:PORT", "Where the gateway takes HTTP.", default="127.0.0.1:8700")
def dev(
    *,
    data: Path | None,
    meta: str,
    listen: str,
    http: str,
    subjects: tuple[str, ...],
    gateway: str,
) -> None:
    """Run all that a service needs to send and receive, in this terminal, until Ctrl-C.

    It starts a meta server, a delay server, a gateway where its libraries are installed, and a
    receiver that prints what it gets, and shows what to paste. Logs go to files beside the data.
    It is for development: one copy of each message, no secret, this machine only.

    \b
    Examples:
      delaywheel dev
      delaywheel dev --data ~/.delaywheel-dev --print 'orders.*'
      delaywheel send --meta 127.0.0.1:8080 --subject hello --delay 3s "it works"
      curl -d "it works" -H "Delaywheel-Delay: 3s" http://127.0.0.1:8700/v1/messages/hello
    """
    from delaywheel.servers.dev_processes import run

    run(
        data=data,
        meta=meta,
        listen=listen,
        http=http,
        gateway=gateway,
        subjects=[subject for subject in subjects or ("hello*",) if subject],
    )
