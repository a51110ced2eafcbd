"""Options and values of the command line, made from the structs of the administration API."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click
import msgspec

from delay_transport.http.schemas import schemas_of
from delaywheel.shared.admin_client import Json
from delaywheel.shared.options import option

Option = Callable[[Any], Any]
"""Adds an option to a command."""

_TYPES: Final[Mapping[str, Any]] = {
    "integer": click.INT,
    "number": click.FLOAT,
    "boolean": click.BOOL,
}


class Fields:
    """The fields of a struct."""

    def __init__(self, struct: type[msgspec.Struct]) -> None:
        self.struct = struct
        components = schemas_of([struct])[1]
        schema = components[struct.__name__]
        self.schemas: dict[str, Json] = {
            name: components.get(one.get("$ref", "").rpartition("/")[2], {}) | one
            for name, one in schema["properties"].items()
        }
        """The JSON schema of each."""
        self.required: list[str] = schema.get("required", [])

    def body_of(self, typed: Sequence[str]) -> Json:
        """Return the values of FIELD=VALUE; raise UsageError with what is allowed."""
        body = {}
        for word in typed:
            name, equals, text = word.partition("=")
            name = name.replace("-", "_")
            if not equals:
                raise click.UsageError(f"{word} is not FIELD=VALUE")
            if name not in self.schemas:
                names = ", ".join(self.schemas)
                raise click.UsageError(f"there is no field {name}; there are: {names}")
            try:
                body[name] = self._value(name, text)
            except msgspec.ValidationError as error:
                raise click.UsageError(
                    f"{name}={text}: {error}\n\n{name}: {self._about(name)}"
                ) from error
        return body

    def _value(self, name: str, text: str) -> object:
        """Return one value: a list has commas, null is no value."""
        schema = self.schemas[name]
        kinds = {one.get("type", "string") for one in schema.get("anyOf", [schema])}
        if text == "null" and "null" in kinds:
            return None
        value: object = text
        if "array" in kinds:
            value = [part for part in text.split(",") if part]
        kind = msgspec.structs.fields(self.struct)
        [wanted] = [field.type for field in kind if field.name == name]
        return msgspec.to_builtins(msgspec.convert(value, wanted, strict=False))

    def help(self) -> str:
        """Return the fields with their descriptions, one a paragraph."""
        return "\n\n".join(f"{name}: {self._about(name)}" for name in self.schemas)

    def _about(self, name: str) -> str:
        """Return the description of a field, its values and its default."""
        schema = self.schemas[name]
        text = str(schema.get("description", ""))
        if values := _values(schema):
            text += f" One of {', '.join(values)}."
        if name in self.required:
            text += " It has no default."
        return text

    def options(self, *, without: Sequence[str] = ()) -> dict[str, Option]:
        """Return an option for each field with a default."""
        names = (name for name in self.schemas if name not in {*self.required, *without})
        return {name: self._option(name) for name in names}

    def _option(self, name: str) -> Option:
        schema, about = self.schemas[name], str(self.schemas[name].get("description", ""))
        spelled = f"--{name.replace('_', '-')}"
        if schema.get("type") == "boolean":
            flag = f"{spelled}/--no{spelled[1:]}" if schema["default"] else spelled
            return click.option(flag, is_flag=True, default=None, help=about)
        values = _values(schema)
        kinds = {one.get("type", "") for one in schema.get("anyOf", [schema])}
        kind = next((_TYPES[one] for one in kinds if one in _TYPES), click.STRING)
        return option(spelled, about, type=click.Choice(values) if values else kind)


def _values(schema: Json) -> list[str]:
    """Return the texts that a field may have, where they are counted."""
    return [
        value for one in schema.get("anyOf", [schema]) for value in one.get("enum", ()) if value
    ]


def given(options: Mapping[str, Any]) -> Json:
    """Return the options that were given."""
    return {name: value for name, value in options.items() if value is not None}
