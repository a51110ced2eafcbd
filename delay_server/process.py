"""A delay server as a process of its own: real clock, files and sockets, until SIGTERM."""

import dataclasses
import sys
from functools import partial

import structlog
import trio

from delay_server.admin.api import API
from delay_server.admin.http import application
from delay_server.node import SECRET_KEY
from delay_server.server import DelayServer, serve
from delay_server.settings.config import DelayServerConfig, secret_of
from delay_transport.http.access import check_exposure
from delay_transport.http.openapi import document_json
from delay_transport.http.server import serve_application
from delay_transport.seams.process import announce, stop_on_signals
from delay_transport.seams.runtime import parse_address, system_runtime
from delay_transport.settings.file_limit import within_file_limit
from storage.disk.disk import DirectoryDisk, make_private_directory
from storage.state.identity import OWN_NAMES

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


def run(config: DelayServerConfig) -> None:
    """Run a delay server as a process: real clock, files and sockets, until SIGTERM.

    Raises ConfigError if the file of the secret cannot be used.
    """
    secret_of(config).check(SECRET_KEY)
    # Made before the loop runs: it takes tens of milliseconds.
    document_json(API)
    # The loop must not wait long for a thread that computes: 5 ms, the default, would be lateness.
    sys.setswitchinterval(0.0005)
    config = within_file_limit(
        config, "listener.connections_max", "http.connections_max", "storage.open_files_max"
    )
    trio.run(_run_process, config)


async def _run_process(config: DelayServerConfig) -> None:
    data = config.node.data_dir
    if warning := make_private_directory(
        data, group_may_read=config.node.group_may_read, own=OWN_NAMES
    ):
        _log.warning(warning)
    server = DelayServer(config, system_runtime(), DirectoryDisk(data))
    server.http_access.tokens.read()
    if config.http.address:
        check_exposure({"http.address": config.http.address}, server.http_access.tokens)
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            partial(stop_on_signals, stop, nursery.cancel_scope, is_ready=lambda: server.is_master)
        )
        http = "none"
        if config.http.address:
            app = application(server.administered())
            http = await nursery.start(
                partial(serve_application, app, **dataclasses.asdict(config.http))
            )
            server.http_address = config.meta.told_http(parse_address(http))
            nursery.start_soon(server.http_access.tokens.keep, server.runtime.executor)
        nursery.start_soon(announce, server.ready, server.listening_at, http)
        await serve(server, stop)
        nursery.cancel_scope.cancel()
