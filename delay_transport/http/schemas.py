"""JSON schemas of the structs of an API. The string that follows a field describes it."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.inspect import StructType, multi_type_info

from delay_transport.settings.settings_reference import field_notes

Schema = dict[str, Any]


def schemas_of(kinds: Sequence[Any]) -> tuple[tuple[Schema, ...], dict[str, Schema]]:
    """Return the schema of each type, and those of the structs in them by name."""
    schemas, components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    for kind in dict.fromkeys(_structs_in(multi_type_info(kinds))):
        described, notes = components[kind.__name__]["properties"], field_notes(kind)
        for field in msgspec.structs.fields(kind):
            if note := notes.get(field.name):
                described[field.encode_name].setdefault("description", note)
    return schemas, components


def _structs_in(found: object) -> Iterator[type[msgspec.Struct]]:
    """Yield the structs that types are made of; those of generic ones describe themselves."""
    if isinstance(found, StructType) and isinstance(found.cls, type):
        yield found.cls
    if isinstance(found, msgspec.Struct):
        found = msgspec.structs.astuple(found)
    if isinstance(found, Sequence) and not isinstance(found, str):
        for part in found:
            yield from _structs_in(part)
