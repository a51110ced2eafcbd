"""The group that every subcommand hangs on, and the one place where errors become exit codes."""

import importlib
from collections.abc import Mapping
from typing import Any, Final

import click

from delaywheel.shared.failures import failure_of

_MODULES: Final[Mapping[str, str]] = {
    "dev": "servers.dev",
    "delay-server": "servers.delay_server",
    "meta-server": "servers.meta_server",
    "admin": "admin.commands",
    "topology": "cluster.topology",
    "gateway": "servers.gateway",
    "broker": "servers.broker",
    "send": "node.send",
    "cancel": "node.change",
    "move": "node.change",
    "status": "cluster.status",
    "pause": "node.rule_commands",
    "resume": "node.rule_commands",
    "limit": "node.rule_commands",
    "weight": "node.rule_commands",
    "controls": "node.controls",
    "explain": "node.explain",
    "find": "node.find",
    "list": "node.pending:list_pending",
    "count": "node.pending",
    "receiver": "node.receiver",
    "dead": "node.dead",
    "drain": "node.drain",
    "log": "log.commands",
    "spark": "spark.commands",
    "settings": "servers.settings",
}
"""The modules of the commands, what to begin with first; one is loaded when it is wanted.
Behind a colon stands the name that the command has there, if that is another."""


class Commands(click.Group):
    """A group whose commands may let typed errors fly: they end in a sentence and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's own signature)
        """Return the names of the commands: what to begin with comes first."""
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command; None: there is none of this name."""
        if cmd_name not in _MODULES:
            return None
        where, _, name = _MODULES[cmd_name].partition(":")
        module = importlib.import_module(f"delaywheel.{where}")
        command: click.Command = getattr(module, name or cmd_name.replace("-", "_"))
        return command

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 (click's own signature)
        """Run a subcommand; raise Failure for every error that has a place in its table."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            failure = failure_of(error)
            if failure is None:
                raise
            raise failure from error


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="delaywheel")
def main() -> None:
    """Store messages and deliver them when they are due.

    \b
    All that a service needs on a developer's machine:
      delaywheel dev

    \b
    A broker that prints what it receives, a server, a message, the status:
      delaywheel broker --listen 127.0.0.1:20881
      delaywheel delay-server --data data --listen 127.0.0.1:20801 --broker g1=127.0.0.1:20881
      delaywheel send --server 127.0.0.1:20801 --subject hello --delay 10s
      delaywheel status

    \b
    Exit codes: 0 done, 1 unexpected error, 2 wrong option or setting, 3 data directory in use,
    another node's or not permitted, 4 damaged logs, 5 disk failed or full, 6 network, 7 messages
    or changes refused.
    """
