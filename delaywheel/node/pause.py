"""`delaywheel pause`: let nothing of a subject, or to a broker group, leave until it is resumed."""

import click

from delaywheel.cluster.node_client import Rules, of_rules, on_one


@click.command(short_help="Pause a subject or a broker group.")
@on_one
@of_rules
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
    rules.change(subject, group, {"paused": True})
