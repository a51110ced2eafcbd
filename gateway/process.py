"""A gateway as a process: its client, its tokens, its HTTP port, and its end."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog
import uvloop

from delay_client import Client
from delay_transport.http.access import AccessPolicy
from delay_transport.http.addresses import is_loopback
from delay_transport.http.server_tokens import read_server_tokens, token_for_named
from delay_transport.http.tokens import Tokens
from delay_transport.seams.errors import ConfigError
from delay_transport.seams.process import allow_open_files
from delay_transport.seams.runtime import parse_address
from delay_transport.settings.watched_file import LOOK_S
from gateway.app import Gateway
from gateway.cluster import Cluster
from gateway.server import CONNECTIONS_MAX, HttpServer
from gateway.webhooks.following import Webhooks

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
    check_exposure(listen, tokens)
    allow_open_files(CONNECTIONS_MAX + OTHER_FILES)
    shown = {} if cluster_token_file is None else read_server_tokens(cluster_token_file)
    webhooks = Webhooks(meta, token_for_named(shown, meta[0]))
    uvloop.run(_serve(Cluster(meta, shown), webhooks, meta, listen, tokens))


def check_exposure(listen: str, tokens: Tokens) -> None:
    """Raise ConfigError if other machines could use a gateway without a token."""
    if tokens.fault:
        raise ConfigError(source="options", key="--token-file", reason=tokens.fault)
    if not tokens.is_set and not is_loopback(parse_address(listen)[0]):
        raise ConfigError(
            source="options",
            key="--listen",
            reason=f"other machines can reach {listen}, and sending needs no token",
            remedy=(
                "run `delaywheel admin token add NAME --role send --file FILE` and give "
                "--token-file FILE, or stay on 127.0.0.1"
            ),
        )


async def _serve(
    cluster: Cluster, webhooks: Webhooks, meta: Sequence[str], listen: str, tokens: Tokens
) -> None:
    async with cluster, Client(meta=list(meta), app_code="gateway") as client:
        loop = asyncio.get_running_loop()
        policy = AccessPolicy(tokens, own_address=listen, now=loop.time)
        gateway = Gateway(client, cluster, policy, webhooks)
        server = HttpServer(gateway.application(), _ready)

        def stop() -> None:
            gateway.operating.live.end()
            server.stop()

        for ends in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(ends, stop)
        beside = [asyncio.create_task(_keep_tokens(tokens)), asyncio.create_task(webhooks.run())]
        try:
            await server.run_at(listen)
        finally:
            for task in beside:
                task.cancel()
            for task in beside:
                with contextlib.suppress(asyncio.CancelledError):
                    await task


async def _keep_tokens(tokens: Tokens) -> None:
    """Read the file of tokens again whenever it changes."""
    while tokens.is_set:
        await asyncio.sleep(LOOK_S)
        await asyncio.to_thread(tokens.read)


def _ready(address: str) -> None:
    # Flushed: whoever started us waits for this line, perhaps at the end of a pipe.
    sys.stdout.write(f"ready {address}\n")
    sys.stdout.flush()
