"""The process around a meta server: limits of files, signals, HTTP over sockets, the ready line."""

import dataclasses
import sys
from functools import partial

import msgspec
import structlog
import trio

from delay_transport.http.access import check_exposure
from delay_transport.http.openapi import document_json
from delay_transport.http.server import serve_application
from delay_transport.http.tokens import Tokens
from delay_transport.seams.process import allow_open_files, announce, stop_on_signals
from delay_transport.seams.runtime import system_runtime
from meta_server.admin.api import API
from meta_server.admin.http import application
from meta_server.known.record_file import record_document
from meta_server.server import MetaServer, secret_of, serve
from meta_server.settings.config import MetaServerConfig
from meta_server.settings.exposure import warn_of_exposure
from meta_server.sql.store import open_store
from storage.disk.disk import DirectoryDisk

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_OTHER_FILES = 256
"""Files open at a time beside connections."""


def run(config: MetaServerConfig) -> None:
    """Run a meta server as a process: real clock, files and sockets, until SIGTERM.

    The data directory is there already. Raises ConfigError if others could administer it.
    """
    tokens = Tokens(config.admin.token_file)
    tokens.read()
    check_exposure(config.exposures, tokens)
    secret_of(config).check("registration.secret_file")
    warn_of_exposure(config)
    # Made before the loop runs: it takes tens of milliseconds.
    document_json(API)
    # The loop must not wait long for a thread that loads or stores: 5 ms is the default.
    sys.setswitchinterval(0.0005)
    trio.run(_run_process, within_file_limit(config))


def within_file_limit(config: MetaServerConfig) -> MetaServerConfig:
    """Allow as many open files as the system lets us; take fewer connections if that is too few."""
    wanted = config.listener.connections_max + config.http.connections_max + _OTHER_FILES
    limit = allow_open_files(wanted)
    if limit >= wanted:
        return config
    http_connections = min(config.http.connections_max, max(limit // 4, 2))
    connections = max(limit - http_connections - _OTHER_FILES, 1)
    _log.warning(
        "the limit of open files is too low for the settings; raise it (ulimit -n)",
        limit=limit,
        needed=wanted,
        connections_max=connections,
        http_connections_max=http_connections,
    )
    return msgspec.structs.replace(
        config,
        listener=dataclasses.replace(config.listener, connections_max=connections),
        http=dataclasses.replace(config.http, connections_max=http_connections),
    )


async def _run_process(config: MetaServerConfig) -> None:
    runtime = system_runtime()
    settings = config.store.settings(config.node.data_dir)

    open_it = partial(open_store, settings, chance=runtime.chance)
    record_file = record_document(DirectoryDisk(config.node.data_dir))
    server = MetaServer(config, runtime, open_it, record_file)
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            partial(stop_on_signals, stop, nursery.cancel_scope, is_ready=server.ready.is_set)
        )
        http = "none"
        if config.http.address:
            app = application(server.http_access, server.observe)
            http = await nursery.start(
                partial(serve_application, app, **dataclasses.asdict(config.http))
            )
        nursery.start_soon(announce, server.ready, server.listening_at, http)
        await serve(server, stop)
        nursery.cancel_scope.cancel()
