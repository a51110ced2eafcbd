"""`delaywheel admin`: show and change what a meta server keeps, by its administration API."""

import functools
from pathlib import Path
from typing import Any

import click

from delaywheel.admin.tokens import token
from delaywheel.admin.transfer import export_rows, import_rows
from delaywheel.shared.admin_client import Session
from delaywheel.shared.options import of_meta_server


class _Made(click.Group):
    """Commands that are made from the API's structs when they are wanted: loading takes long."""

    def __init__(self, *args: Any, verb: str = "", **about: Any) -> None:  # noqa: ANN401 (click's)
        """Make a group; verb: get, set or remove, or nothing: actions."""
        super().__init__(*args, **about)
        self._verb = verb

    @functools.cached_property
    def _made(self) -> dict[str, click.Command]:
        from delaywheel.admin.rows import commands_of

        return commands_of(self._verb)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's)
        """Return the names of all commands."""
        return [*self.commands, *self._made]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name."""
        return super().get_command(ctx, cmd_name) or self._made.get(cmd_name)


@click.group(cls=_Made, short_help="Show and change groups, routes and subjects of a meta server.")
@of_meta_server
@click.option("--json", "as_json", is_flag=True, help="Print the server's answer as JSON.")
@click.pass_context
def admin(ctx: click.Context, *, meta: str, token_file: Path | None, as_json: bool) -> None:
    """Show and change groups, routes and subjects of a meta server.

    When the command ends the change is stored, with an audit entry, and is being pushed to
    connected clients.

    \b
    Examples:
      delaywheel admin set broker-group broker1 address=127.0.0.1:20881
      delaywheel admin --meta 127.0.0.1:8080 set route orders groups=broker1
      delaywheel admin get audit --action route
    """
    ctx.obj = Session(address=meta, token_file=token_file, as_json=as_json)


admin.add_command(_Made("get", verb="get", help="Show rows of a kind: a list, or one."))
admin.add_command(_Made("set", verb="set", help="Set fields of a row, or add it."))
admin.add_command(_Made("remove", verb="remove", help="Remove a row."))
admin.add_command(token)
admin.add_command(export_rows)
admin.add_command(import_rows)
