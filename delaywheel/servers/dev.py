"""`delaywheel dev`: a meta server, a delay server, a gateway and a receiver that prints."""

import contextlib
import importlib.util
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from delaywheel.shared.options import option

if TYPE_CHECKING:
    from delay_client import ReceivedMessage

_OWN_NAMES: Final = ("meta", "delay")
"""The directories of the servers. Their logs stand beside them."""
_STOPPED_S: Final = 10.0
_SHOWN: Final = 200
"""Characters of a body that are printed."""

_PASTE: Final = """\
meta server    {meta}
delay server   {listen}
its HTTP       {http}
gateway        {gateway}
logs and data  {data}

send:
    async with Client(meta="{meta}") as client:
        await client.send("hello", "it works", delay=3)

receive:
    async with Receiver("my-service", subjects=["orders.*"], meta="{meta}") as receiver:
        await receiver.run(handler)

Ctrl-C stops all of it."""


_LIBRARIES: Final = ("aiohttp", "httptools", "uvicorn", "uvloop")
"""The extra `gateway`."""
_NO_GATEWAY: Final = "none: install delaywheel with its extra `gateway` to have one"


@click.command()
@option(
    "--data DIR", "Keep messages in DIR until the next start. Without it they go with the process."
)
@option(
    "--meta HOST:PORT",
    "HTTP address of the meta server: what a client is given.",
    default="127.0.0.1:8080",
)
@option("--listen HOST:PORT", "Where the delay server takes messages.", default="127.0.0.1:20801")
@option(
    "--http HOST:PORT",
    "HTTP address of the delay server: where `delaywheel status`, `explain` and `dead` ask.",
    default="127.0.0.1:20811",
)
@option(
    "--print SUBJECT...",
    "Receive and print messages of a subject, or of all that begin so: `orders.*`. "
    "Repeatable; `hello*` without it, `--print ''` for none.",
    to="subjects",
)
@option("--gateway HOST:PORT", "Where the gateway takes HTTP.", default="127.0.0.1:8700")
def dev(
    *,
    data: Path | None,
    meta: str,
    listen: str,
    http: str,
    subjects: tuple[str, ...],
    gateway: str,
) -> None:
    """Run all that a service needs to send and receive, in this terminal, until Ctrl-C.

    It starts a meta server, a delay server, a gateway where its libraries are installed, and a
    receiver that prints what it gets, and shows what to paste. Logs go to files beside the data.
    It is for development: one copy of each message, no secret, this machine only.

    \b
    Examples:
      delaywheel dev
      delaywheel dev --data ~/.delaywheel-dev --print 'orders.*'
      delaywheel send --meta 127.0.0.1:8080 --subject hello --delay 3s "it works"
      curl -d "it works" -H "Delaywheel-Delay: 3s" http://127.0.0.1:8700/v1/messages/hello
    """
    import anyio

    from storage.disk.disk import make_private_directory

    for ends in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ends, signal.default_int_handler)
    with contextlib.ExitStack() as stack:
        if data is None:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="delaywheel-dev-")))
        make_private_directory(data, group_may_read=False, own=_OWN_NAMES)
        meta_place, delay_place = (data / name for name in _OWN_NAMES)
        stack.enter_context(
            _process(
                *("meta-server", "--data", str(meta_place)),
                *("--http", meta, "--listen", "127.0.0.1:0"),
                log_path=data / "meta.log",
            )
        )
        stack.enter_context(
            _process(
                *("delay-server", "--data", str(delay_place)),
                *("--meta", meta, "--listen", listen, "--http", http),
                *("--group", "dev", "--node-id", "dev"),
                log_path=data / "delay.log",
            )
        )
        if all(map(importlib.util.find_spec, _LIBRARIES)):
            words = ("gateway", "--meta", meta, "--listen", gateway)
            stack.enter_context(_process(*words, log_path=data / "gateway.log"))
        else:
            gateway = _NO_GATEWAY
        click.echo(_PASTE.format(meta=meta, listen=listen, http=http, gateway=gateway, data=data))
        with contextlib.suppress(KeyboardInterrupt):
            wanted = [subject for subject in subjects or ("hello*",) if subject]
            anyio.run(_print, meta, wanted)


@contextlib.contextmanager
def _process(command: str, *arguments: str, log_path: Path) -> Iterator[None]:
    """Start one server and wait until it is ready; stop it at the end."""
    with log_path.open("a") as log:
        # A group of its own: Ctrl-C goes to this process alone, which stops them in order.
        child = subprocess.Popen(  # noqa: S603 (our own command)
            [sys.executable, "-m", "delaywheel", command, *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            assert child.stdout is not None
            if not child.stdout.readline().startswith("ready"):
                said = log_path.read_text()[-1000:]
                raise click.ClickException(f"the {command} did not start:\n{said}")
            yield
        finally:
            child.terminate()
            try:
                child.wait(_STOPPED_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


async def _print(meta: str, subjects: Sequence[str]) -> None:
    """Print what comes of these subjects; without any only wait."""
    import anyio

    from delay_client import Receiver

    if not subjects:
        await anyio.sleep_forever()
    async with Receiver("dev-printer", subjects=subjects, meta=meta) as receiver:
        await receiver.run(_show, handle_signals=True)


async def _show(message: "ReceivedMessage") -> None:
    late_ms = message.lateness * 1000
    now = datetime.now(UTC).astimezone()
    body = message.body if isinstance(message.body, str) else repr(message.body)
    shown = body if len(body) <= _SHOWN else body[:_SHOWN] + "…"
    click.echo(f"{now:%H:%M:%S} {message.subject} {shown!r} ({late_ms:.0f} ms after its time)")
