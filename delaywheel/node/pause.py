"""`delaywheel pause`: let nothing of a subject, or to a broker group, leave until it is resumed."""

import click

from delaywheel.cluster.node_client import Rules, of_rules, on_one


@click.command(short_help="Pause a subject or a broker group.")
@on_one
@of_rules
def pause(*, subject: str | None, group: str | None, door: Rules) -> None:
    """Pause a subject, all subjects with a prefix, or a broker group.

    When the command returns nothing more is sent but what was in flight. Messages are accepted all
    the same and wait on disk; other subjects and groups do not notice. It holds until `delaywheel
    resume`, over restarts too. To except a subject from the pause of a prefix resume it afterwards:
    to resume what is not paused changes nothing. Where nodes have a meta server it is said there
    (--meta), for all of them.

    \b
    Examples:
      delaywheel pause --subject order.created
      delaywheel pause --subject 'report.*'
      delaywheel pause --group g1
      delaywheel pause --meta 127.0.0.1:8080 --subject 'report.*'
    """
    door.change(subject, group, {"paused": True})
