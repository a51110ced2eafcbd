"""The process around a meta server: limits of files, signals, HTTP over sockets, the ready line."""

import dataclasses
import sys
from functools import partial

import trio

from delay_transport.http.access import check_exposure
from delay_transport.http.openapi import document_json
from delay_transport.http.server import serve_application
from delay_transport.http.tokens import Tokens
from delay_transport.seams.process import announce, stop_on_signals
from delay_transport.seams.runtime import system_runtime
from delay_transport.settings.file_limit import within_file_limit
from meta_server.admin.api import API
from meta_server.admin.http import application
from meta_server.known.record_file import record_document
from meta_server.server import MetaServer, secret_of, serve
from meta_server.settings.config import MetaServerConfig
from meta_server.settings.exposure import warn_of_exposure
from meta_server.sql.store import open_store
from storage.disk.disk import DirectoryDisk


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
    config = within_file_limit(config, "listener.connections_max", "http.connections_max")
    trio.run(_run_process, config)


async def _run_process(config: MetaServerConfig) -> None:
    runtime = system_runtime()
    url = config.store.url_in(config.node.data_dir)

    open_it = partial(open_store, url, chance=runtime.chance)
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
