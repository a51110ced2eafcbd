"""All rows of a store as JSON lines, and back into an empty store.

    {"schema": 11, "timestamp_ms": …}               first: of which version the store is
    {"kind": "broker-group", "row": {…}}            each row, as the store has it
    {"kind": "audit", "row": {…}}                   the audit, oldest first
    {"lines": N}                                    last: how many there were in between

The rows are of one moment. They come into another store in one commit, or not at all: so records
of delay groups, which nobody but elections may change, need no way into a store that is in use. The
store that takes them keeps its own identity.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from meta_server.known import model
from meta_server.known.errors import OtherSchemaError, StateError, StoreUnusableError
from meta_server.sql.store import DECODERS, ENTRY
from meta_server.sql.tables import SCHEMA

_AUDIT: Final = "audit"
_PAGE: Final = 1000
"""Entries of the audit that are read at once."""


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A line: the first, the last, or one of those in between."""

    schema: int | None = None
    timestamp_ms: int = 0
    kind: str = ""
    row: msgspec.Raw = msgspec.Raw()
    lines: int | None = None


def exported(store: model.MetaStore) -> Iterator[bytes]:
    """Yield the lines of all that a store has."""
    contents = store.load()
    entries = list(_entries(store))
    yield _line(_Line(schema=SCHEMA, timestamp_ms=contents.timestamp_ms))
    for kind, row in (
        *((row.KIND, row) for row in contents.rows),
        *((_AUDIT, entry) for entry in reversed(entries)),
    ):
        yield _line(_Line(kind=kind, row=msgspec.Raw(msgspec.json.encode(row))))
    yield _line(_Line(lines=len(contents.rows) + len(entries)))


def import_into(store: model.MetaStore, lines: Iterable[bytes]) -> int:
    """Store all that the lines say, or nothing; return how many rows and entries there were.

    Raises StateError if the store has a row or an entry, StoreUnusableError for lines that are no
    whole export, OtherSchemaError for one of another version, and what a commit raises.
    """
    if store.load().rows or store.read_audit(limit=1):
        raise StateError("the store has rows already: rows are taken into an empty store alone")
    changes = list(_changes_of(lines))
    store.commit(changes)
    return len(changes) - 1


def _changes_of(lines: Iterable[bytes]) -> Iterator[model.Change]:
    is_whole = False
    number = 0
    try:
        for number, data in enumerate(lines):
            line = msgspec.json.decode(data, type=_Line)
            if is_whole or (number == 0) != (line.schema is not None):
                raise StoreUnusableError(f"line {number + 1} has no place there in an export")
            if line.schema not in {None, SCHEMA}:
                raise OtherSchemaError(found=line.schema or 0, known=SCHEMA)
            is_whole = line.lines == number - 1
            if line.schema is not None:
                yield model.RaiseTimestamp(line.timestamp_ms)
            elif line.kind == _AUDIT:
                yield model.Audit(ENTRY.decode(line.row))
            elif line.kind in DECODERS:
                # It is added, whatever its version is.
                yield model.Save(DECODERS[line.kind].decode(line.row), over=None)
            elif not is_whole:
                raise StoreUnusableError(f"line {number + 1}: there is no kind {line.kind!a}")
    except msgspec.DecodeError as error:
        raise StoreUnusableError(f"line {number + 1} is none of an export: {error}") from error
    if not is_whole:
        raise StoreUnusableError(f"the export is cut off after {number + 1} lines")


def _entries(store: model.MetaStore) -> Iterator[model.AuditEntry]:
    before = None
    while page := store.read_audit(before=before, limit=_PAGE):
        yield from (row.entry for row in page)
        before = page[-1].number


def _line(value: _Line) -> bytes:
    return msgspec.json.encode(value) + b"\n"
