"""`delaywheel pause`: let nothing of a subject, or to a broker group, leave until it is resumed."""

from pathlib import Path

import click

from delaywheel.node_client import of_node, on_one, path_of, say_rule, session_of


@click.command(short_help="Pause a subject or a broker group.")
@on_one
@of_node
def pause(
    *, subject: str | None, group: str | None, server: str, token_file: Path | None, as_json: bool
) -> None:
    """Pause a subject, all subjects with a prefix, or a broker group.

    When the command returns nothing more is sent but what was in flight. Messages are accepted all
    the same and wait on disk; other subjects and groups do not notice. It holds until `delaywheel
    resume`, over restarts too.

    \b
    Examples:
      delaywheel pause --subject order.created
      delaywheel pause --subject 'report.*'
      delaywheel pause --group g1
    """
    path = path_of(subject, group)
    session = session_of(server, token_file, as_json=as_json)
    say_rule(session.ask("PATCH", *path, body={"paused": True}), as_json=as_json)
