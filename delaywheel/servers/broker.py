"""`delaywheel broker`: a loopback real-time broker for demos and tests."""

from typing import Any

import click

from delaywheel.shared.options import option


@click.command()
@option(
    "--listen HOST:PORT",
    "Where delay servers deliver to; port 0 for any free one.",
    default="127.0.0.1:20881",
)
@option(
    "--meta HOST:PORT...",
    "HTTP address of a meta server to register at. Repeatable: asked in turn.",
)
@option("--group NAME", "Name of the broker group, of which it is the master.", default="loopback")
@option("--record FILE", "Append what is received to a file, one JSON object a line.")
@option("--quiet", "Do not print messages.")
def broker(**options: Any) -> None:  # noqa: ANN401 (click's)
    """Receive messages as a QMQ broker would, and show them.

    A line beginning with `ready` and the address goes to standard output when it accepts
    connections, then a line for each message. With --meta it registers as a QMQ broker does, so
    that messages are routed to it. SIGTERM and Ctrl-C stop it.

    \b
    Examples:
      delaywheel broker --listen 127.0.0.1:20881
      delaywheel broker --listen 127.0.0.1:0 --record received.jsonl --quiet
      delaywheel broker --listen 127.0.0.1:0 --meta 127.0.0.1:8080 --group broker1
    """
    from bridges.loopback_broker import run
    from delaywheel.shared.log_output import set_up_log

    # Standard output is for messages; what goes wrong goes to standard error.
    set_up_log(level="warning", form="console")
    run(**options)
