"""`delaywheel meta-server`: read the configuration, set up the log, run the server."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from delaywheel.shared.options import setting, with_settings

if TYPE_CHECKING:
    from delay_transport.settings.settings_file import Override


@click.command(
    "meta-server", short_help="Serve routes and roles to clients, brokers and delay servers."
)
@with_settings("--of meta-server")
@setting("--data DIR", "node.data_dir", "Data directory")
@setting("--listen HOST:PORT", "listener.address", "Address for clients, brokers and delay servers")
@setting("--http HOST:PORT", "http.address", "Discovery, administration, status")
@setting("--tokens FILE", "admin.token_file", "Who may administer")
def meta_server(
    *, config_file: Path | None, overrides: tuple[str, ...], **short: "Override | None"
) -> None:
    """Serve routes and roles: who is alive, who is master, which broker groups a subject has.

    A line beginning with `ready` and the addresses goes to standard output when the server answers;
    its log goes to standard error. SIGTERM and Ctrl-C stop it within seconds. Every answered
    change is in the store: a restarted meta server gives the same answers.

    \b
    Examples:
      delaywheel meta-server --data meta --listen 127.0.0.1:20880 --http 127.0.0.1:8080
      delaywheel meta-server --config meta-server.toml
      curl http://127.0.0.1:8080/meta/address
    """
    import structlog

    from delay_transport.settings.settings_file import SettingsReader
    from delaywheel.shared.log_output import set_up_log
    from meta_server.known.record_file import RECORDS_PATH
    from meta_server.process import run
    from meta_server.settings.config import MetaServerConfig
    from meta_server.sql.databases import file_of
    from storage.disk.disk import DirectoryDisk, make_private_directory

    reader = SettingsReader(MetaServerConfig)
    config = reader.load(config_file, [*filter(None, short.values()), *overrides])
    set_up_log(level=config.log.level, form=config.log.format)
    data, group_may_read = config.node.data_dir, config.node.group_may_read
    file = file_of(config.store.url_in(data))
    own = {"meta.db", RECORDS_PATH} | ({file.name} if file else set())
    with contextlib.ExitStack() as locked:
        for directory in dict.fromkeys((data, file.parent if file else data)):
            if warning := make_private_directory(directory, group_may_read=group_may_read, own=own):
                structlog.get_logger(__name__).warning(warning)
        if file is not None:
            locked.enter_context(DirectoryDisk(file.parent).lock("lock"))
        run(config)
