"""A gateway as a process: its client, its tokens, its HTTP port, and its end."""

import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog
import uvloop

from delay_client import Client
from delay_transport.http.access import HttpAccess, check_exposure
from delay_transport.http.server_tokens import read_server_tokens
from delay_transport.http.tokens import Role, Tokens
from delay_transport.seams.process import allow_open_files
from delay_transport.settings.watched_file import LOOK_S
from gateway.api import Parts
from gateway.app import LIMITS, application
from gateway.cluster import Cluster
from gateway.overview import Live
from gateway.server import CONNECTIONS_MAX, HttpServer
from gateway.webhooks.following import Webhooks

_TOKEN_FILE: Final = "--token-file"  # noqa: S105 (the name of an option)
OTHER_FILES: Final = 200
"""Open files beside connections of callers: those to servers, the log."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


def run(
    *,
    meta: Sequence[str],
    listen: str,
    token_file: Path | None,
    cluster_token_file: Path | None,
) -> None:
    """Run a gateway until SIGTERM or SIGINT.

    token_file: who may do what here; cluster_token_file: what the gateway shows to servers

    Prints a line that begins with `ready` and has the address once it takes requests. Raises
    ConfigError for what must not be, and ListenError.
    """
    tokens = Tokens(token_file)
    tokens.read()
    check_exposure({"--listen": listen}, tokens, _TOKEN_FILE, role=Role.SEND)
    allow_open_files(CONNECTIONS_MAX + OTHER_FILES)
    shown = {} if cluster_token_file is None else read_server_tokens(cluster_token_file)
    uvloop.run(_serve(Cluster(meta, shown), listen, tokens))


async def _serve(cluster: Cluster, listen: str, tokens: Tokens) -> None:
    async with cluster, Client(meta=cluster.metas[:], app_code="gateway") as client:
        webhooks = Webhooks(cluster)
        parts = Parts(client, cluster, webhooks, Live(cluster))
        access = HttpAccess(tokens, own_address=listen, limits=LIMITS)
        server = HttpServer(application(parts, access), _ready)

        def stop() -> None:
            parts.live.end()
            server.stop()

        for ends in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(ends, stop)
        beside = [asyncio.create_task(_keep_tokens(tokens)), asyncio.create_task(webhooks.run())]
        try:
            await server.run_at(listen)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)


async def _keep_tokens(tokens: Tokens) -> None:
    """Read the file of tokens again whenever it changes."""
    while tokens.is_set:
        await asyncio.sleep(LOOK_S)
        await asyncio.to_thread(tokens.read)


def _ready(address: str) -> None:
    # Flushed: whoever started us waits for this line, perhaps at the end of a pipe.
    sys.stdout.write(f"ready {address}\n")
    sys.stdout.flush()
