"""From a TOML file and `--set section.key=value` to the settings of one process.

The settings of a process are a msgspec.Struct whose fields are sections: dataclasses of settings,
or a `dict[str, str]` in which the names are the operator's choice (a *free* section). The file and
the overrides become one tree of plain values, later ones replacing earlier ones; a key that nothing
declares is refused with the nearest name; then the tree is converted strictly. Every error is a
ConfigError that names where the setting came from, the setting and what to do.
"""

import dataclasses
import difflib
import math
import re
import tomllib
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from delay_transport.seams.constants import settings_of
from delay_transport.seams.errors import ConfigError

Config = TypeVar("Config", bound=msgspec.Struct)

_AT_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")

Tree = dict[str, Any]
"""Nested tables of plain values, as TOML has them."""


def sections(kind: type[msgspec.Struct]) -> dict[str, type]:
    """Return the dataclass of every section that has settings, in order."""
    return {name: section for name, section in _all_sections(kind).items() if settings_of(section)}


def _all_sections(kind: type[msgspec.Struct]) -> dict[str, type]:
    """Return those that have nothing but constants, too."""
    return {
        field.name: field.type
        for field in msgspec.structs.fields(kind)
        if isinstance(field.type, type) and dataclasses.is_dataclass(field.type)
    }


@dataclasses.dataclass(frozen=True, slots=True)
class Override:
    """A setting that is laid over those of the file."""

    text: str
    """section.key=value."""
    option: str
    """What was typed for it, for an error to name."""


class SettingsReader(Generic[Config]):
    """Reads the settings of one kind of process."""

    def __init__(self, kind: type[Config], *, remedies: Mapping[str, str] | None = None) -> None:
        """Add what to do to errors about a whole section: `remedies` by the section's name."""
        self._kind = kind
        self._sections = sections(kind)
        fields = msgspec.structs.fields(kind)
        self._free = [field.name for field in fields if field.name not in _all_sections(kind)]
        self._required = [field.name for field in fields if field.required]
        self._remedies = dict(remedies or {})

    def load(self, path: Path | None, overrides: Sequence[str | Override] = ()) -> Config:
        """Read a TOML file, if there is one, and lay overrides (`section.key=value`) over it.

        An override's value is TOML where it can be read as TOML and where the setting is not a
        text: `--set wheel.slot_ms=32`, `--set node.group=delay1`. Later overrides win. Raises
        ConfigError.
        """
        tree: Tree = {}
        sources: dict[str, str] = {}
        if path is not None:
            tree = _read(path)
            self._refuse_unknown(tree, source=str(path))
        for one in overrides:
            override = Override(one, f"--set {one}") if isinstance(one, str) else one
            sources[self._override(tree, override)] = override.option
        return self._convert(
            tree, file=str(path) if path is not None else "settings", sources=sources
        )

    def _refuse_unknown(self, tree: Tree, *, source: str) -> None:
        known = self._sections
        for section, values in tree.items():
            if section not in self._free and section not in known:
                raise self._unknown(source, section, [*self._free, *known], what="section")
            if not isinstance(values, dict):
                raise ConfigError(
                    source=source,
                    key=section,
                    reason="is a section, not a setting",
                    remedy=f"write its settings below a line [{section}]",
                )
            if section in self._free:
                continue
            names = _field_types(known[section])
            for name in values:
                if name not in names:
                    raise self._unknown(source, f"{section}.{name}", names, what="setting")

    def _unknown(self, source: str, key: str, known: Iterable[str], *, what: str) -> ConfigError:
        """Return the error for a name that nothing declares, with the nearest one that exists."""
        names = list(known)
        section, _, name = key.rpartition(".")
        near = difflib.get_close_matches(name, names, n=1)
        elsewhere = [found for found, kind in self._sections.items() if name in _field_types(kind)]
        if near:
            remedy = f"did you mean {section + '.' if section else ''}{near[0]}?"
        elif elsewhere and section:
            remedy = f"did you mean {elsewhere[0]}.{name}?"
        else:
            remedy = f"there are {', '.join(names)}"
        return ConfigError(source=source, key=key, reason=f"no such {what}", remedy=remedy)

    def _override(self, tree: Tree, override: Override) -> str:
        """Lay one `section.key=value` over the tree and return its key."""
        source = override.option
        if not _is_text(override.text):
            source = source.encode(errors="backslashreplace").decode()
            raise ConfigError(source=source, key="", reason="is not UTF-8")
        key, equals, text = override.text.partition("=")
        section, dot, name = key.strip().partition(".")
        if not equals or not dot or not section or not name:
            raise ConfigError(source=source, key="", reason="is not of the form section.key=value")
        self._refuse_unknown({section: {name: None}}, source=source)
        kind = str if section in self._free else _field_types(self._sections[section])[name]
        tree.setdefault(section, {})[name] = _value(text.strip(), kind)
        return f"{section}.{name}"

    def _convert(self, tree: Tree, *, file: str, sources: dict[str, str]) -> Config:
        # Sections that have no default are there, so that the error names the setting that is
        # missing.
        tree = {**{name: {} for name in self._required}, **tree}
        _refuse_infinite(tree, file=file, sources=sources)
        try:
            return msgspec.convert(tree, self._kind, dec_hook=_decode_path)
        except msgspec.ValidationError as error:
            reason = str(error)
            key = ""
            if found := _AT_PATH.search(reason):
                key = found["path"].replace("[...]", "")
                reason = reason[: found.start()]
            remedy = ""
            if missing := _MISSING.match(reason):
                key = f"{key}.{missing['name']}"
                reason = "is not set"
                remedy = "give --data DIR, or a --config file that has it"
            elif allowed := self._allowed(key):
                remedy = f"it is one of {', '.join(allowed)}"
            elif not key:
                remedy = next(
                    (text for name, text in self._remedies.items() if reason.startswith(name)), ""
                )
            raise ConfigError(
                source=_source(key, reason, file=file, sources=sources),
                key=key,
                # A part that names its section in a message says again what the key says.
                reason=reason.removeprefix(f"{key}."),
                remedy=remedy,
            ) from error

    def _allowed(self, key: str) -> Sequence[str]:
        """Return the values of a setting that has a fixed set of them, else nothing."""
        section, _, name = key.partition(".")
        known = self._sections.get(section)
        kind = None if known is None else _field_types(known).get(name)
        kinds = (kind, *typing.get_args(kind))
        found = next((one for one in kinds if typing.get_origin(one) is typing.Literal), None)
        return [str(value) for value in typing.get_args(found)]


def _read(path: Path) -> Tree:
    try:
        return tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            source=str(path),
            key="",
            reason=f"cannot be read: {reason}",
            remedy="`delaywheel settings` prints a file to begin with",
        ) from error
    except (ValueError, RecursionError) as error:
        # No UTF-8, no TOML, a number of thousands of digits, or thousands of nested brackets.
        raise ConfigError(source=str(path), key="", reason=f"is not TOML: {error}") from error


def _refuse_infinite(tree: Tree, *, file: str, sources: dict[str, str]) -> None:
    """Refuse `nan` and `inf`, which TOML has: no limit and no time is either."""
    for section, settings in tree.items():
        for name, value in settings.items():
            if isinstance(value, float) and not math.isfinite(value):
                key = f"{section}.{name}"
                raise ConfigError(
                    source=sources.get(key, file), key=key, reason="is not a finite number"
                )


def _is_text(text: str) -> bool:
    """Say whether a text came as UTF-8: Python keeps the bytes of an argument that did not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _value(text: str, kind: object) -> object:
    """Return what an option's text means: plain text for a text setting, else TOML if it is any."""
    kinds = (kind, *typing.get_args(kind))
    if str in kinds or Path in kinds or typing.get_origin(kind) is typing.Literal:
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _source(key: str, reason: str, *, file: str, sources: dict[str, str]) -> str:
    """Return the option that is to blame for an error about a setting or section, else the file."""
    if key in sources:
        return sources[key]
    for setting, source in sources.items():
        section, _, rest = setting.partition(".")
        if section == key.partition(".")[0] and rest.partition(".")[0] in reason:
            return source
    return file


def _decode_path(kind: type, value: object) -> object:
    """Let msgspec make the one type that it does not know."""
    if kind is Path and isinstance(value, str) and value:
        return Path(value)
    raise ValueError("expected the name of a directory")


def _field_types(section: type) -> dict[str, Any]:
    hints = typing.get_type_hints(section)
    return {field.name: hints[field.name] for field in settings_of(section)}
