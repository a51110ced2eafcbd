"""Options that several commands have."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from delaywheel.shared.parameters import FiniteRange

if TYPE_CHECKING:
    from delay_transport.settings.settings_file import Override

Command = TypeVar("Command", bound=Callable[..., Any])


def with_options(command: Command, options: Sequence[Callable[[Command], Command]]) -> Command:
    """Give a command options; its help names them in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def of_meta_server(command: Command) -> Command:
    """Add `meta` and `token_file`: which meta server, and what proves that one may ask it."""
    address = click.option(
        "--meta",
        default="127.0.0.1:8080",
        show_default=True,
        metavar="HOST:PORT",
        help="The meta server's HTTP address (http.address).",
    )
    return with_options(command, (address, with_token_file))


def with_token_file(command: Command) -> Command:
    """Add `token_file`: what proves that one may ask."""
    return click.option(
        "--token-file",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="File with the token; else it is taken from DELAYWHEEL_TOKEN.",
    )(command)


def with_node_token_file(command: Command) -> Command:
    """Add `node_token_file`: what proves it to delay servers that a meta server names.

    Whoever registers there is asked: none is to be shown the token of an administrator.
    """
    return click.option(
        "--node-token-file",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="File with the token that delay servers are shown, where they want one; one of the "
        "role read is enough.",
    )(command)


def spelled_out(
    settings: Mapping[str, str], given: Mapping[str, str | None]
) -> Iterator["Override"]:
    """Yield the settings that short options stand for, by the options' parameters."""
    from delay_transport.settings.settings_file import Override

    for parameter, key in settings.items():
        value = given[parameter]
        if value is not None:
            yield Override(f"{key}={value}", f"--{parameter.replace('_', '-')} {value}")


def watching(*, every_seconds: float) -> Callable[[Command], Command]:
    """Add `watch` and `every`: to show the same again and again."""

    def add(command: Command) -> Command:
        every = click.option(
            "--every",
            type=FiniteRange(min=0.1),
            default=every_seconds,
            show_default=True,
            metavar="SECONDS",
            help="Interval of --watch.",
        )
        watch = click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
        return watch(every(command))

    return add
