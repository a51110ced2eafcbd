"""All settings of a process as a commented TOML file, written from the declarations themselves.

A setting's explanation is the string that follows its field, so the reference cannot forget one
(the tests see to it that every field has one). Reading them needs the source files.
"""

import ast
import dataclasses
import inspect
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

from delay_transport.seams.constants import settings_of
from delay_transport.settings.settings_file import sections

_WIDTH = 98


def settings_toml(
    kind: type[msgspec.Struct], *, command: str, examples: dict[str, str] | None = None
) -> str:
    """Return a TOML file with every section, every setting, its default and its explanation.

    `command` is the one that takes the file; `examples` has a line for each free section.
    """
    lines = textwrap.wrap(
        f"Settings of `{command} --config FILE`. Each stands here with its default; take away the "
        "leading `#` of a setting to change it. `--set section.key=value` sets one on the command "
        "line.",
        _WIDTH + len("# "),
        initial_indent="# ",
        subsequent_indent="# ",
    )
    lines.append("")
    for name, example in (examples or {}).items():
        lines += [f"# {line}" for line in textwrap.wrap(field_notes(kind)[name], _WIDTH)]
        lines += [f"[{name}]", "", f"#{example}", ""]
    for name, section in sections(kind).items():
        lines += _section(name, section)
    return "\n".join(lines)


def _section(name: str, section: type) -> Iterator[str]:
    yield from (f"# {line}".rstrip() for line in (inspect.getdoc(section) or "").splitlines())
    yield f"[{name}]"
    notes = field_notes(section)
    for field in settings_of(section):
        yield ""
        yield from textwrap.wrap(
            notes[field.name], _WIDTH, initial_indent="# ", subsequent_indent="# "
        )
        yield f"#{field.name} = {default_text(field)}"
    yield ""


def field_notes(section: type) -> dict[str, str]:
    """Return the explanation of every field of a section or struct, those of its parents too."""
    notes: dict[str, str] = {}
    for kind in reversed(section.__mro__):
        if dataclasses.is_dataclass(kind) or _is_own_struct(kind):
            notes |= dict(_notes_in(kind))
    return notes


def _is_own_struct(kind: type) -> bool:
    return issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct


def _notes_in(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the name of each field that a string follows, and that string on one line."""
    definition = _classes_in(kind.__module__)[kind.__qualname__]
    for field, note in zip(definition.body, definition.body[1:], strict=False):
        match field, note:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, " ".join(text.split())


@cache
def _classes_in(module: str) -> dict[str, ast.ClassDef]:
    """Return the classes of a module by name, but for those within others."""
    statements = ast.parse(inspect.getsource(sys.modules[module])).body
    return {one.name: one for one in statements if isinstance(one, ast.ClassDef)}


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
