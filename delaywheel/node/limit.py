"""`delaywheel limit`: let a group have so many messages a second."""

import click
import msgspec

from delaywheel.cluster.node_client import Rules, of_rules
from delaywheel.shared.parameters import FiniteRange


@click.command(short_help="Set a rate limit for a broker group or a receiver.")
@click.option("--group", required=True, metavar="NAME", help="A broker group, or a receiver name.")
@click.option(
    "--rate", type=FiniteRange(min=0, min_open=True), metavar="N", help="Messages a second."
)
@click.option("--none", "no_limit", is_flag=True, help="Remove the limit.")
@of_rules
def limit(*, group: str, rate: float | None, no_limit: bool, rules: Rules) -> None:
    """Set a rate limit for a broker group, or for the receivers of one name together.

    Due messages beyond the rate wait, and other groups of the same subjects take over. The rate is
    that of each node, not of all together. For a rate of certain subjects let receivers
    take them under a name of their own.

    \b
    Examples:
      delaywheel limit --meta 127.0.0.1:8080 --group g1 --rate 2000
      delaywheel limit --meta 127.0.0.1:8080 --group g1 --none
    """
    if (rate is None) != no_limit:
        raise click.UsageError("give --rate N, or --none")
    # As it is: what is None would be left out, and mean "as before".
    rules.change(None, group, {"rate_per_s": msgspec.Raw(b"null") if rate is None else rate})
