"""`delaywheel resume`: let a subject or a broker group go on that was paused."""

from pathlib import Path

import click

from delaywheel.node_client import of_node, on_one, path_of, say_rule, session_of


@click.command(short_help="Let a paused subject or broker group go on.")
@on_one
@of_node
def resume(
    *, subject: str | None, group: str | None, server: str, token_file: Path | None, as_json: bool
) -> None:
    """Let a subject, the subjects with a prefix, or a broker group go on.

    What has waited leaves oldest first, as fast as brokers take it and no faster than a limit
    allows. A single subject of a paused prefix may be resumed alone.

    \b
    Examples:
      delaywheel resume --subject 'report.*'
      delaywheel resume --group g1
    """
    path = path_of(subject, group)
    session = session_of(server, token_file, as_json=as_json)
    say_rule(session.ask("PATCH", *path, body={"paused": False}), as_json=as_json)
