"""Limits of a part that are no settings: constants with a name and a reason, which tests lower.

Nobody ever needed another value of them, so no configuration file has them. They are fields beside
the settings of the same part, which takes all of them as one value. A constant that no test needs
to lower, and no other part reads, is a `Final` of its module.
"""

import dataclasses
from typing import Any, Final, TypeVar

Value = TypeVar("Value")

_KEY: Final = "is_constant"


def constant(value: Value) -> Value:
    """Declare a field of a dataclass of settings as a constant of this value."""
    field: Any = dataclasses.field(default=value, metadata={_KEY: True})
    return field  # type: ignore[no-any-return]


def settings_of(kind: type) -> tuple["dataclasses.Field[Any]", ...]:
    """Return the fields of a dataclass that are settings, in order."""
    assert dataclasses.is_dataclass(kind)
    return tuple(field for field in dataclasses.fields(kind) if _KEY not in field.metadata)
