"""All rows of a store as JSON lines, and back into an empty store.

    {"schema": 12, "store": …, "timestamp_ms": …}   first: of which version it is, and which store
    {"kind": "broker-group", "row": {…}}            each row, as the store has it
    {"kind": "audit", "row": {…}}                   the audit, oldest first
    {"lines": N}                                    last: how many there were in between

The rows are of one moment. They come into another store in one commit, or not at all: so records
of delay groups, which nobody but elections may change, need no way into a store that is in use.

The store that takes them becomes the store that was exported: delay servers compare versions of
rules of one store, and apply those of another one only when an operator says so. So only one of the
two may be served from then on.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final
from uuid import UUID

import msgspec

from meta_server.known import model
from meta_server.known.errors import StateError, StoreUnusableError
from meta_server.sql.store import DECODERS, ENTRY, SqlStore
from meta_server.sql.tables import SCHEMA

_AUDIT: Final = "audit"
_PAGE: Final = 1000
"""Entries of the audit that are read at once."""


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A line: the first, the last, or one of those in between."""

    schema: int | None = None
    store: UUID | None = None
    timestamp_ms: int = 0
    kind: str = ""
    row: msgspec.Raw = msgspec.Raw()
    lines: int | None = None


def exported(store: model.MetaStore) -> Iterator[bytes]:
    """Yield the lines of all that a store has."""
    contents = store.load()
    entries = list(_entries(store))
    yield _line(_Line(schema=SCHEMA, store=store.uuid, timestamp_ms=contents.timestamp_ms))
    for kind, row in (
        *((row.KIND, row) for row in contents.rows),
        *((_AUDIT, entry) for entry in reversed(entries)),
    ):
        yield _line(_Line(kind=kind, row=msgspec.Raw(msgspec.json.encode(row))))
    yield _line(_Line(lines=len(contents.rows) + len(entries)))


def read_export(lines: Iterable[bytes]) -> tuple[UUID, list[model.Change]]:
    """Return which store the lines are of, and what adds all that it has to an empty one.

    Raises StoreUnusableError, which names the line that is wrong.
    """
    whole = list(lines) or [b""]
    store, changes = UUID(int=0), list[model.Change]()
    places: dict[object, int] = {}
    for number, data in enumerate(whole, 1):
        try:
            line = msgspec.json.decode(data, type=_Line)
            _check_place(line, number, len(whole))
            if number == 1:
                store = line.store or store
                changes.append(model.RaiseTimestamp(line.timestamp_ms))
            elif number < len(whole):
                changes.append(_change_of(line, number, places))
        except (ValueError, msgspec.DecodeError) as error:
            raise StoreUnusableError(
                f"line {number} of the export: {error}: {data[:150].decode(errors='replace')}. "
                "Nothing was imported: take the file as `delaywheel admin export` wrote it"
            ) from error
    return store, changes


def import_into(store: SqlStore, exported_uuid: UUID, changes: Sequence[model.Change]) -> int:
    """Make a store without rows the one exported; return how many rows and entries it has.

    Raises StateError if it has a row or an entry, and what a commit raises.
    """
    if store.load().rows or store.read_audit(limit=1):
        raise StateError("the store has rows already: rows are taken into an empty store alone")
    store.commit(changes, becomes=exported_uuid)
    return len(changes) - 1


def _check_place(line: _Line, number: int, last: int) -> None:
    """Raise ValueError for a first or last line that is none."""
    if number == 1 and (line.schema != SCHEMA or line.store is None):
        found = f"no export of version {SCHEMA}, but of version {line.schema}"
        raise ValueError(f"{found}: import it by the delaywheel that wrote it")
    if number == last and line.lines != last - 2:
        raise ValueError("it does not end the file with the count of rows and entries before it")


def _change_of(line: _Line, number: int, places: dict[object, int]) -> model.Change:
    """Return what a line in between adds; places: the line of each key and claim so far."""
    if line.kind == _AUDIT:
        return model.Audit(ENTRY.decode(line.row))
    if line.kind not in DECODERS:
        raise ValueError(f"there is no kind of rows {line.kind!a}")
    row = DECODERS[line.kind].decode(line.row)
    found, known = map(msgspec.json.decode, (line.row, msgspec.json.encode(row)))
    if wrong := [name for name in known | found if found.get(name) != known.get(name)]:
        raise ValueError(f"unknown or missing in a {row.KIND}: {', '.join(wrong)}")
    if not isinstance(row, model.DelayGroup) and row.version < 1:
        raise ValueError(f"version {row.version}: the first is 1")
    for place in ((row.KIND, row.key), (row.KIND, "", row.claim)):
        if place[-1] is not None and places.setdefault(place, number) != number:
            raise ValueError(f"line {places[place]} has {place[-1]!a} already")
    # It is added, whatever its version is.
    return model.Save(row, over=None)


def _entries(store: model.MetaStore) -> Iterator[model.AuditEntry]:
    before = None
    while page := store.read_audit(before=before, limit=_PAGE):
        yield from (row.entry for row in page)
        before = page[-1].number


def _line(value: _Line) -> bytes:
    return msgspec.json.encode(value) + b"\n"
