"""All rows of a store come into another one as they were, or none of them."""

from contextlib import closing
from pathlib import Path

import pytest

from meta_server.known import model
from meta_server.known.errors import StateError, StoreUnusableError
from meta_server.sql.tables import SCHEMA
from meta_server.sql.transfer import exported, import_into, read_export
from tests.meta_server.sql.test_store import (
    ALL_OF_IT,
    ENTRY,
    EVERYTHING,
    Place,
    _file_place,
    entries_of,
    file_place,
    on_both,
    place,
    server_place,
    sorted_rows,
)

__all__ = ["file_place", "place", "server_place"]


@pytest.fixture
def lines(tmp_path: Path) -> list[bytes]:
    (tmp_path / "from").mkdir()
    with closing(_file_place(tmp_path / "from").open()) as store:
        store.commit(EVERYTHING)
        store.commit([model.Save(model.Subject(name="a\0b", version=1))])
        store.commit([model.Save(model.Subject(name="a\0b", version=2)), model.Audit(ENTRY)])
        return list(exported(store))


@on_both
def test_an_empty_store_becomes_the_exported_one_with_all_rows_and_the_audit(
    place: Place, lines: list[bytes]
) -> None:
    with closing(place.open(seed=2)) as store, closing(place.open(seed=3)) as other:
        before, export = store.uuid, read_export(lines)
        assert import_into(store, *export) == len(ALL_OF_IT.rows) + 1 + 2
        rows = (*ALL_OF_IT.rows, model.Subject(name="a\0b", version=2))
        expected = model.Contents(rows=rows, timestamp_ms=ALL_OF_IT.timestamp_ms)
        assert sorted_rows(store.load()) == sorted_rows(expected)
        assert entries_of(store) == [ENTRY, ENTRY]
        assert sorted(exported(store)) == sorted(lines)
        # Delay servers go on with its rules; who has opened the empty one goes no further.
        assert store.uuid == export[0] != before
        with pytest.raises(StoreUnusableError, match="the one opened was"):
            other.load()
        # From there on it is a store like others.
        store.commit([model.Save(model.Subject(name="a\0b", version=3))])
        with pytest.raises(StateError, match="empty store"):
            import_into(store, *export)


def test_what_is_no_whole_export_of_this_version_is_refused_by_line_and_key(
    lines: list[bytes],
) -> None:
    first, *rows, last = lines
    broker, subject = (
        next(line for line in rows if b'"%s"' % kind in line) for kind in (b"broker", b"subject")
    )

    def second(line: bytes, *changes: tuple[bytes, bytes]) -> list[bytes]:
        """Return an export that begins with this line, changed."""
        others = [one for one in rows if one != line]
        for old, new in changes:
            assert old in line
            line = line.replace(old, new)
        return [first, line, *others, last]

    read_export(second(broker))
    for wrong, said in (
        ([], "line 1 of the export: Input data was truncated"),
        (lines[:1], "not end the file"),
        (lines[:-1], "not end the file"),
        ([first, *rows[1:], last], "not end the file"),
        (lines[1:], "line 1 of .* of version None"),
        ([first.replace(b"store", b"shop"), *lines[1:]], "line 1 of .*shop"),
        ([*lines, rows[0]], "no kind of rows ''"),
        ([first, b"{\n", *lines[2:]], "line 2 of"),
        ([first.replace(b":%d" % SCHEMA, b":9"), *lines[1:]], "but of version 9"),
        (second(subject, (b"subject", b"client")), "line 2 of .* no kind of rows 'client'"),
        (second(subject, (b":1,", b":-1,")), "version -1: the first is 1: .*boarding"),
        (second(subject, (b'"name"', b'"of":1,"name"')), "missing in a subject: of: .*boarding"),
        (second(subject, (b"created_ms", b"made_ms")), "missing in a subject: created_ms, made_ms"),
        ([first, subject, *rows, last], "line 2 has 'boarding' already"),
        ([first, broker.replace(b'"g1"', b'"i"'), *rows, last], "line 2 has .'h', 20881. already"),
    ):
        with pytest.raises(StoreUnusableError, match=said):
            read_export(wrong)
