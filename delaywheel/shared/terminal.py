"""Tables for people: as wide as a terminal is, and wide enough for a file."""

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from delaywheel.shared.http_exchange import Json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_WIDTH_ELSEWHERE = 240
"""Columns if standard output is not a terminal: a file can be scrolled."""


def wide_console() -> "Console":
    """Return a console on standard output that cuts nothing off when it is piped."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _WIDTH_ELSEWHERE)


def show(
    ask: Callable[[], Json], render: Callable[[Json], Any], *, as_json: bool, every: float | None
) -> None:
    """Show an answer: as `render` makes it, or as JSON; anew where `every` says how often.

    every: in seconds; None: once. As JSON, what is shown again and again has one line each time.
    """
    if as_json:
        _print_json(ask, every)
        return
    from rich.live import Live

    console = wide_console()
    if every is None:
        console.print(render(ask()))
        return
    with Live(render(ask()), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(every)
            live.update(render(ask()), refresh=True)


def _print_json(ask: Callable[[], Json], every: float | None) -> None:
    while every is not None:
        click.echo(msgspec.json.encode(ask()))
        time.sleep(every)
    click.echo(msgspec.json.format(msgspec.json.encode(ask()), indent=2))


def cell(text: str) -> "Text":
    """Return a table's cell that shows a text as it is: no markup, no control characters."""
    from rich.text import Text

    from delay_protocol.basics.printable import printable

    return Text(printable(text))


def moment_text(ms: int) -> str:
    """Return wall ms to the millisecond, in UTC; what takes ISO 8601 reads it back."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + "Z"
