"""All settings on one page: of the servers and the client, and the options of every command.

Written from the declarations themselves, as the configuration file is.
"""

import inspect
from collections.abc import Iterator

import click
import msgspec

from delay_client import ClientConfig, ReceiverConfig, RetryPolicy
from delay_server.settings.config import DelayServerConfig
from delay_transport.seams.constants import settings_of
from delay_transport.settings.settings_file import sections
from delay_transport.settings.settings_reference import default_text, field_notes
from meta_server.settings.config import MetaServerConfig

_PREFACE = """\
# Settings

Printed by `delaywheel settings --format markdown`. A setting without a default has to be given, or
stays unset as its line says.
"""


def settings_page(commands: click.Group) -> str:
    """Return the page as Markdown."""
    parts = [_PREFACE, "## The delay server\n", _about(field_notes(DelayServerConfig)["brokers"])]
    parts += _sections(DelayServerConfig)
    parts += ["## The meta server\n", *_sections(MetaServerConfig, of="meta server: ")]
    parts += [
        "## The client\n",
        "Arguments of `ClientConfig`, which `delay_client`'s clients take.\n",
        _table(ClientConfig),
        "## The receiver\n",
        "Arguments of `ReceiverConfig`, which receivers take, and then of `RetryPolicy`.\n",
        _table(ReceiverConfig),
        _table(RetryPolicy),
        "## Commands\n",
        *_commands(commands, "delaywheel"),
    ]
    return "\n".join(parts)


def _sections(kind: type[msgspec.Struct], *, of: str = "") -> Iterator[str]:
    for name, section in sections(kind).items():
        yield f"### {of}{name}\n"
        yield _about(inspect.getdoc(section) or "")
        yield _table(section)


def _about(text: str) -> str:
    return text.strip() + "\n"


def _table(section: type) -> str:
    notes = field_notes(section)
    lines = ["| setting | default | what it means |", "| --- | --- | --- |"]
    for field in settings_of(section):
        default = default_text(field)
        # Settings within settings have a table of their own.
        shown = "" if default == '""' or default.startswith("{") else f"`{default}`"
        lines.append(f"| `{field.name}` | {shown} | {_cell(notes[field.name])} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _commands(group: click.Group, path: str) -> Iterator[str]:
    for name, command in sorted(group.commands.items()):
        full = f"{path} {name}"
        if isinstance(command, click.Group):
            if any(isinstance(option, click.Option) for option in command.params):
                yield from _command(command, f"{full} …")
            yield from _commands(command, full)
            continue
        yield from _command(command, full)


def _command(command: click.Command, full: str) -> Iterator[str]:
    yield f"### {full}\n"
    yield _about(command.get_short_help_str(200))
    options = [option for option in command.params if isinstance(option, click.Option)]
    if options:
        yield _options(options)


def _options(options: list[click.Option]) -> str:
    lines = ["| option | default | what it means |", "| --- | --- | --- |"]
    for option in options:
        # Not option.default: click has a value of its own there for "none".
        default = option.to_info_dict()["default"]
        if isinstance(default, (list, tuple)):
            default = ", ".join(map(str, default))
        shown = "" if default in (None, False, "") else f"`{default}`"
        names = ", ".join(f"`{name}`" for name in option.opts)
        lines.append(f"| {names} | {shown} | {_cell(option.help or '')} |")
    return "\n".join(lines) + "\n"
