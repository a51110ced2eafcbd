"""Sections of settings that every server process has, and the rules by which sections check.

A section is a frozen dataclass that refuses values nobody could live with by ValueError, naming the
field. Every field is followed by a line that gives its unit and what follows from it.
"""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Part = TypeVar("Part", bound="DataclassInstance")


def part_of(kind: type[Part], settings: "DataclassInstance") -> Part:
    """Return the fields of `settings` that a part's own dataclass has, as that dataclass.

    Making it checks them by the part's own rules.
    """
    return kind(**{field.name: getattr(settings, field.name) for field in dataclasses.fields(kind)})


def require_at_least(settings: object, least: float, *names: str) -> None:
    """Raise ValueError naming the first of these fields that is below `least`."""
    for name in names:
        value = getattr(settings, name)
        # Written so that a NaN is refused as well.
        if not value >= least:
            raise ValueError(f"{name} must be at least {least}, not {value}")


NAME_BYTES_MAX = 255
"""What the name of a cluster, group, node or broker group may have: it goes into file headers."""


def require_name(what: str, name: str) -> None:
    """Raise ValueError for a name that files could not hold, or that is ambiguous to read."""
    if not name or len(name.encode()) > NAME_BYTES_MAX:
        raise ValueError(f"{what} must have 1 to {NAME_BYTES_MAX} bytes, not {name[:300]!a}")
    if not name.isprintable() or any(letter.isspace() or letter == "/" for letter in name):
        raise ValueError(f"{what} must have no blanks, slashes or control characters: {name!a}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The log of the process, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe events that are written."""

    format: Literal["auto", "json", "console"] = "auto"
    """json: one object a line; console: for people; auto: console on a terminal, else json."""
