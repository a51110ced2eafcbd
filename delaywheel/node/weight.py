"""`delaywheel weight`: give a broker group its share of messages."""

import click
import msgspec

from delaywheel.cluster.node_client import Rules, of_rules
from delaywheel.shared.parameters import FiniteRange


@click.command(short_help="Set a broker group's share of messages.")
@click.option("--group", required=True, metavar="NAME", help="The broker group.")
@click.option(
    "--weight",
    type=FiniteRange(min=0, min_open=True),
    metavar="N",
    help="In proportion to those of others, which have 1 unless something else was said.",
)
@click.option("--none", "no_weight", is_flag=True, help="Use the weight of the settings again.")
@of_rules
def weight(*, group: str, weight: float | None, no_weight: bool, rules: Rules) -> None:
    """Set a broker group's share of messages among the groups of the same subjects.

    The weight applies at once and after restarts. A group that fails or is slow gets less.

    \b
    Examples:
      delaywheel weight --meta 127.0.0.1:8080 --group g1 --weight 3
      delaywheel weight --meta 127.0.0.1:8080 --group g1 --none
    """
    if (weight is None) != no_weight:
        raise click.UsageError("give --weight N, or --none")
    # As it is: what is None would be left out, and mean "as before".
    value: object = msgspec.Raw(b"null") if weight is None else weight
    rules.change(None, group, {"weight": value})
