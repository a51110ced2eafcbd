"""`delaywheel gateway`: HTTP in front of a cluster."""

from typing import Any

import click

from delaywheel.shared.failures import ExitCode, Failure
from delaywheel.shared.options import option


@click.command(short_help="Take messages over HTTP, post them to webhooks.")
@option(
    "--meta HOST:PORT...",
    "HTTP address of a meta server. Repeatable: asked in turn.",
    default=("127.0.0.1:8080",),
)
@option("--listen HOST:PORT", "Where it takes requests.", default="127.0.0.1:8700")
@option(
    "--token-file FILE",
    "Tokens that callers need, made by `delaywheel admin token add`; needed to listen beyond this "
    "machine.",
)
@option(
    "--cluster-token-file FILE",
    "The gateway's own tokens at meta servers and delay servers: one, or a line `HOST:PORT TOKEN` "
    "for each. Webhooks are read with one of the role admin.",
)
def gateway(**options: Any) -> None:  # noqa: ANN401 (click's)
    """Take messages over HTTP, and post what is due to webhooks.

    It keeps nothing itself: run as many as you like. A line beginning with `ready` and the address
    goes to standard output when it takes requests. SIGTERM and Ctrl-C stop it, once the requests
    that are under way are answered.

    \b
    Examples:
      delaywheel gateway --meta 127.0.0.1:8080
      curl -d 'it works' -H 'Delaywheel-Delay: 90s' http://127.0.0.1:8700/v1/messages/hello
    """
    try:
        from gateway.process import run
    except ImportError as error:
        raise Failure(
            f"{error}: install the gateway's libraries, those of delaywheel's extra `gateway`",
            ExitCode.USAGE,
        ) from error
    from delaywheel.shared.log_output import set_up_log

    set_up_log(level="info", form="console")
    run(**options)
