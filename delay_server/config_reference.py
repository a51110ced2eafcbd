"""All settings as a commented TOML file, written from the declarations themselves.

A setting's explanation is the string that follows its field, so the reference cannot forget one
(the tests see to it that every field has one). Reading them needs the source files.
"""

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import msgspec

from delay_server.config import DelayServerConfig, sections

_WIDTH = 98

_PREFACE = """\
# Settings of `delaywheel delay-server --config FILE`. Each stands here with its default; take away
# the leading `#` of a setting to change it. `--set section.key=value` sets one on the command line.
"""


def reference_toml() -> str:
    """Return a TOML file with every section, every setting, its default and its explanation."""
    brokers = textwrap.wrap(field_notes(DelayServerConfig)["brokers"], _WIDTH)
    lines = [_PREFACE, *(f"# {line}" for line in brokers), "[brokers]", ""]
    lines += ['#g1 = "127.0.0.1:20881"', ""]
    for name, section in sections().items():
        lines += [f"# {line}".rstrip() for line in (inspect.getdoc(section) or "").splitlines()]
        lines.append(f"[{name}]")
        notes = field_notes(section)
        for field in dataclasses.fields(section):
            lines += [
                "",
                *textwrap.wrap(
                    notes[field.name], _WIDTH, initial_indent="# ", subsequent_indent="# "
                ),
                f"#{field.name} = {default_text(field)}",
            ]
        lines.append("")
    return "\n".join(lines)


def field_notes(section: type) -> dict[str, str]:
    """Return the explanation of every field of a section, those of its parents included."""
    notes: dict[str, str] = {}
    for kind in reversed(section.__mro__):
        if dataclasses.is_dataclass(kind) or kind is DelayServerConfig:
            notes |= dict(_notes_in(kind))
    return notes


def _notes_in(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the name of each field that a string follows, and that string on one line."""
    definition = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(definition, ast.ClassDef)
    for field, note in zip(definition.body, definition.body[1:], strict=False):
        match field, note:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, " ".join(text.split())


def default_text(field: dataclasses.Field[Any]) -> str:
    """Return the default of a field as TOML; one that has none is shown as an empty text."""
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    else:
        default = field.default
    if default is None or default is dataclasses.MISSING:
        return '""'
    if isinstance(default, float) and not default.is_integer():
        return repr(default)
    # Texts and numbers are written in TOML as in JSON.
    return msgspec.json.encode(default).decode()
