"""`delaywheel delay-server`: read the configuration, set up the log, run the server."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from delaywheel.shared.failures import ExitCode, Failure, failure_of
from delaywheel.shared.options import option, setting, with_settings

if TYPE_CHECKING:
    from delay_transport.settings.settings_file import Override


@click.command("delay-server", short_help="Accept messages and deliver them when they are due.")
@with_settings("")
@setting("--data DIR", "node.data_dir", "Data directory")
@setting("--listen HOST:PORT", "listener.address", "Where producers connect")
@option(
    "--meta HOST:PORT...",
    "A meta server's HTTP address, for role and routes (meta.addresses).",
    to="metas",
)
@option(
    "--broker NAME=HOST:PORT[,weight=N]...",
    "A real-time broker group to deliver to (brokers).",
    to="brokers",
)
@setting("--http HOST:PORT", "http.address", "Metrics, health and status")
@setting("--cluster NAME", "node.cluster", "Fixed at the first start")
@setting("--group NAME", "node.group", "Fixed at the first start")
@setting("--node-id NAME", "node.node_id", "Fixed at the first start")
def delay_server(
    *,
    config_file: Path | None,
    overrides: tuple[str, ...],
    metas: tuple[str, ...],
    brokers: tuple[str, ...],
    **short: "Override | None",
) -> None:
    """Accept messages, store them, and deliver each one when it is due.

    A line beginning with `ready` and the addresses goes to standard output when the server accepts
    and delivers; its log goes to standard error. SIGTERM and Ctrl-C stop it within seconds: nothing
    is lost, and nothing that was confirmed is sent again after the next start.

    With --meta the server accepts and delivers when it is the master of its group. A further node
    copies the master's log, and prints its line once it knows the master; `delaywheel status` says
    whether its copy is in sync.

    \b
    Examples:
      delaywheel delay-server --data data --meta 127.0.0.1:8080 --group delay1 --node-id n1
      delaywheel delay-server --data data --listen 127.0.0.1:20801 --broker g1=127.0.0.1:20881
      delaywheel delay-server --config delay-server.toml
      delaywheel delay-server --config delay-server.toml --set storage.fact_sync_ms_max=0
    """
    from delay_transport.seams.process import keep_freed_memory

    # NumPy begins threads when it is imported, and so does the log.
    keep_freed_memory()
    from delay_server.process import run
    from delay_server.settings.config_file import load_config
    from delaywheel.shared.log_output import set_up_log

    given = filter(None, short.values())
    config = load_config(config_file, [*given, *_spelled_out(metas, brokers), *overrides])
    set_up_log(level=config.log.level, form=config.log.format)
    try:
        run(config)
    except Exception as error:
        failure = failure_of(error)
        if failure is None or failure.exit_code != ExitCode.LOGS:
            raise
        raise Failure(f"{failure.message}\n{_look(config.node.data_dir)}", ExitCode.LOGS) from error


def _look(data: Path) -> str:
    """Say what there is to do about logs that cannot be served."""
    name = shlex.quote(str(data))
    return (
        f"`delaywheel log verify {name}` checks every file; "
        f"`delaywheel log salvage {name} --out salvaged` gets out every message that is whole"
    )


def _spelled_out(metas: tuple[str, ...], brokers: tuple[str, ...]) -> Iterator["Override"]:
    """Yield the settings of meta servers and brokers."""
    from delay_transport.settings.settings_file import Override

    if metas:
        yield Override(f"meta.addresses={','.join(metas)}", f"--meta {' --meta '.join(metas)}")
    named: set[str] = set()
    for broker in brokers:
        name, equals, address = broker.partition("=")
        if not (name and equals and address):
            raise click.BadParameter(
                f"{broker!r} is not of the form NAME=HOST:PORT[,weight=N]", param_hint="--broker"
            )
        if name in named:
            raise click.BadParameter(
                f"{name!r} is given twice: a broker group has one address, that of its master",
                param_hint="--broker",
            )
        named.add(name)
        yield Override(f"brokers.{name}={address}", f"--broker {broker}")
