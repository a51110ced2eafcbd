"""`delaywheel limit`: let a subject or a broker group have so many messages a second."""

from pathlib import Path

import click
import msgspec

from delaywheel.node_client import of_node, on_one, path_of, say_rule, session_of


@click.command(short_help="Limit a subject or a broker group in rate.")
@on_one
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Messages a second."
)
@click.option("--none", "no_limit", is_flag=True, help="Take the limit away.")
@of_node
def limit(
    *,
    subject: str | None,
    group: str | None,
    rate: float | None,
    no_limit: bool,
    server: str,
    token_file: Path | None,
    as_json: bool,
) -> None:
    """Limit a subject, all subjects with a prefix together, or a broker group in rate.

    What is due beyond the rate waits on disk and delays nobody else; it leaves smoothly, oldest
    first.

    \b
    Examples:
      delaywheel limit --subject 'coupon.*' --rate 500
      delaywheel limit --subject 'coupon.*' --none
      delaywheel limit --group g1 --rate 2000
    """
    if (rate is None) != no_limit:
        raise click.UsageError("give --rate N, or --none")
    path = path_of(subject, group)
    session = session_of(server, token_file, as_json=as_json)
    # As it is: what is None would be left out, and mean "as before".
    body = {"rate_per_s": msgspec.Raw(b"null") if rate is None else rate}
    say_rule(session.ask("PATCH", *path, body=body), as_json=as_json)
