"""`delaywheel limit`: let a subject or a broker group have so many messages a second."""

import click
import msgspec

from delaywheel.cluster.node_client import Rules, of_rules, on_one
from delaywheel.shared.parameters import FiniteRange


@click.command(short_help="Set a rate limit for a subject or a broker group.")
@on_one
@click.option(
    "--rate", type=FiniteRange(min=0, min_open=True), metavar="N", help="Messages a second."
)
@click.option("--none", "no_limit", is_flag=True, help="Remove the limit.")
@of_rules
def limit(
    *,
    subject: str | None,
    group: str | None,
    rate: float | None,
    no_limit: bool,
    door: Rules,
) -> None:
    """Set a rate limit for a subject, for all subjects with a prefix together, or a broker group.

    Due messages beyond the rate wait on disk and do not delay others. They leave evenly, oldest
    first. With --meta the rate is that of each node, not of all together.

    \b
    Examples:
      delaywheel limit --subject 'coupon.*' --rate 500
      delaywheel limit --subject 'coupon.*' --none
      delaywheel limit --group g1 --rate 2000
      delaywheel limit --meta 127.0.0.1:8080 --group g1 --rate 2000
    """
    if (rate is None) != no_limit:
        raise click.UsageError("give --rate N, or --none")
    # As it is: what is None would be left out, and mean "as before".
    body = {"rate_per_s": msgspec.Raw(b"null") if rate is None else rate}
    door.change(subject, group, body)
