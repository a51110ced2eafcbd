"""`delaywheel resume`: let a subject or a broker group go on that was paused."""

import click

from delaywheel.cluster.node_client import Rules, of_rules, on_one


@click.command(short_help="Resume a paused subject or broker group.")
@on_one
@of_rules
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
    rules.change(subject, group, {"paused": False})
