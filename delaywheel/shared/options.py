"""Options that several commands have."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from delay_transport.settings.settings_file import Override

Command = TypeVar("Command", bound=Callable[..., Any])


_PATHS: Mapping[str, Any] = {
    "FILE": click.Path(path_type=Path, dir_okay=False),
    "DIR": click.Path(path_type=Path, file_okay=False),
}
"""The types of values by what stands for them in a help."""


def option(
    spelled: str,
    about: str,
    *,
    to: str | None = None,
    default: object = None,
    **more: Any,  # noqa: ANN401 (click's)
) -> Callable[[Command], Command]:
    """Return an option as a decorator; its help names its default.

    spelled: its name, and what stands for its value, such as `--data DIR`; a flag has none, and
        one that may be given several times ends in three dots; `N>=1` is a whole number
    to: the parameter that gets it, if that has another name
    """
    names, _, metavar = spelled.partition(" ")
    metavar, _, least = metavar.partition(">=")
    if least:
        more["type"] = click.IntRange(min=int(least))
    is_flag = not metavar and "type" not in more
    if default is not None:
        more["default"] = default
        more["show_default"] = not is_flag
    if metavar:
        one = metavar.removesuffix("...")
        more = {"metavar": metavar, "type": _PATHS.get(one), "multiple": one != metavar} | more
    return click.option(
        names, *([] if to is None else [to]), is_flag=is_flag or None, help=about, **more
    )


def with_options(command: Command, options: Sequence[Callable[[Command], Command]]) -> Command:
    """Give a command options; its help names them in this order."""
    for add in reversed(options):
        command = add(command)
    return command


def of_meta_server(command: Command) -> Command:
    """Add `meta` and `token_file`: which meta server, and what proves that one may ask it."""
    address = option(
        "--meta HOST:PORT",
        "The meta server's HTTP address (http.address).",
        default="127.0.0.1:8080",
    )
    return with_options(command, (address, with_token_file))


def with_token_file(command: Command) -> Command:
    """Add `token_file`: what proves that one may ask."""
    return option(
        "--token-file FILE",
        "File with the token, or with a line `HOST:PORT TOKEN` for each server, `* TOKEN` "
        "for all others; else it is taken from DELAYWHEEL_TOKEN.",
    )(command)


def with_settings(of: str) -> Callable[[Command], Command]:
    """Return a decorator that adds `config_file` and `overrides`: the settings of a server.

    of: what prints a file of them to begin with, after `delaywheel settings`
    """
    command = f"delaywheel settings {of}".strip()

    def add(function: Command) -> Command:
        file = option(
            "--config FILE",
            f"TOML file with the settings; `{command}` prints one to begin with.",
            to="config_file",
        )
        override = option(
            "--set SECTION.KEY=VALUE...",
            "Set one setting, over the file and the options below.",
            to="overrides",
        )
        return with_options(function, (file, override))

    return add


def setting(spelled: str, key: str, about: str) -> Callable[[Command], Command]:
    """Return an option that stands for a setting; its parameter gets an Override, or None."""

    def override(_: click.Context, __: click.Parameter, value: str | None) -> "Override | None":
        from delay_transport.settings.settings_file import Override

        flag = spelled.partition(" ")[0]
        return None if value is None else Override(f"{key}={value}", f"{flag} {value}")

    return option(spelled, f"{about} ({key}).", type=str, callback=override)


def watching(*, every_seconds: int) -> Callable[[Command], Command]:
    """Add `watch` and `every`: to show the same again and again."""

    def add(command: Command) -> Command:
        every = option(
            "--every N>=1",
            "Interval of --watch, in seconds.",
            default=every_seconds,
        )
        watch = option("--watch", "Repeat until Ctrl-C.")
        return watch(every(command))

    return add
