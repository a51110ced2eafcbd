"""The commands that set a rule of a cluster: `delaywheel pause`, `resume`, `limit` and `weight`."""

import click

from delaywheel.cluster.node_client import asks, on_one
from delaywheel.cluster.rules import Rules
from delaywheel.shared.options import option
from delaywheel.shared.parameters import POSITIVE


@click.command(short_help="Pause a subject or a broker group.")
@on_one
@asks("rules")
def pause(*, subject: str | None, group: str | None, rules: Rules) -> None:
    """Pause a subject, all subjects with a prefix, or a broker group.

    Once the command has returned, nothing is sent; requests in flight are completed. Messages are
    still accepted and wait on disk; other subjects and groups are not affected. The pause holds
    until `delaywheel resume`, over restarts too. To except a subject from the pause of a prefix,
    resume the subject afterwards: resuming a subject that is not paused changes nothing.

    \b
    Examples:
      delaywheel pause --meta 127.0.0.1:8080 --subject order.created
      delaywheel pause --meta 127.0.0.1:8080 --subject 'report.*'
      delaywheel pause --meta 127.0.0.1:8080 --group g1
    """
    rules.change(subject, group, paused=True)


@click.command(short_help="Resume a paused subject or broker group.")
@on_one
@asks("rules")
def resume(*, subject: str | None, group: str | None, rules: Rules) -> None:
    """Resume a paused subject, the subjects with a prefix, or a broker group.

    The backlog leaves oldest first, as fast as brokers take it. A single subject of a paused prefix
    can be resumed alone, after the prefix was paused: a later pause of the prefix holds for the
    subject too.

    \b
    Examples:
      delaywheel resume --meta 127.0.0.1:8080 --subject 'report.*'
      delaywheel resume --meta 127.0.0.1:8080 --group g1
    """
    rules.change(subject, group, paused=False)


@click.command(short_help="Set a rate limit for a broker group or a receiver.")
@option("--group NAME", "A broker group, or a receiver name.", required=True)
@option("--rate N", "Messages a second.", type=POSITIVE)
@option("--none", "Remove the limit.", to="no_limit")
@asks("rules")
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
    rules.change(None, group, rate_per_s=rate)


@click.command(short_help="Set a broker group's share of messages.")
@option("--group NAME", "The broker group.", required=True)
@option(
    "--weight N",
    "In proportion to those of others, which have 1 unless something else was said.",
    type=POSITIVE,
)
@option("--none", "Use the weight of the settings again.", to="no_weight")
@asks("rules")
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
    rules.change(None, group, weight=weight)
