"""The group that every subcommand hangs on, and the one place where errors become exit codes."""

from typing import Any

import click

from delaywheel.admin.commands import admin
from delaywheel.cluster.status import status
from delaywheel.cluster.topology import topology
from delaywheel.log.commands import log
from delaywheel.node.controls import controls
from delaywheel.node.dead import dead
from delaywheel.node.drain import drain
from delaywheel.node.explain import explain
from delaywheel.node.limit import limit
from delaywheel.node.pause import pause
from delaywheel.node.resume import resume
from delaywheel.node.send import send
from delaywheel.node.weight import weight
from delaywheel.servers.broker import broker
from delaywheel.servers.delay_server import delay_server
from delaywheel.servers.dev import dev
from delaywheel.servers.meta_server import meta_server
from delaywheel.servers.settings import settings
from delaywheel.shared.failures import failure_of
from delaywheel.spark.commands import spark


class Commands(click.Group):
    """A group whose commands may let typed errors fly: they end in a sentence and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's own signature)
        """Return the commands in the order of `_COMMANDS`: what to begin with comes first."""
        return list(self.commands)

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


_COMMANDS = (
    dev,
    delay_server,
    meta_server,
    admin,
    topology,
    broker,
    send,
    status,
    pause,
    resume,
    limit,
    weight,
    controls,
    explain,
    dead,
    drain,
    log,
    spark,
    settings,
)

for command in _COMMANDS:
    main.add_command(command)
