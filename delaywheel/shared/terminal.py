"""Shows an answer once, or again and again."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import click
import msgspec

from delaywheel.shared.admin_client import Json
from delaywheel.shared.tables import screen


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

    target = screen()
    if every is None:
        target.print(render(ask()))
        return
    with Live(render(ask()), console=target, auto_refresh=False) as live:
        while True:
            time.sleep(every)
            live.update(render(ask()), refresh=True)


def _print_json(ask: Callable[[], Json], every: float | None) -> None:
    while every is not None:
        click.echo(msgspec.json.encode(ask()))
        time.sleep(every)
    print_json(ask())


def print_json(answer: Mapping[str, Any]) -> None:
    """Print an answer for programs."""
    click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2))
