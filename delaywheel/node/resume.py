"""`delaywheel resume`: let a subject or a broker group go on that was paused."""

import click

from delaywheel.cluster.node_client import Rules, of_rules, on_one


@click.command(short_help="Let a paused subject or broker group go on.")
@on_one
@of_rules
def resume(*, subject: str | None, group: str | None, door: Rules) -> None:
    """Let a subject, the subjects with a prefix, or a broker group go on.

    What has waited leaves oldest first, as fast as brokers take it and no faster than a limit
    allows. A single subject of a paused prefix may be resumed alone, once the prefix is paused:
    before, there is nothing to resume, and a pause that comes later holds for it too.

    \b
    Examples:
      delaywheel resume --subject 'report.*'
      delaywheel resume --group g1
      delaywheel resume --meta 127.0.0.1:8080 --subject 'report.*'
    """
    door.change(subject, group, {"paused": False})
