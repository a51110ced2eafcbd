"""All rows of a store come into another one as they were, or none of them."""

from contextlib import closing
from pathlib import Path

import pytest

from meta_server.known import model
from meta_server.known.errors import OtherSchemaError, StateError, StoreError, StoreUnusableError
from meta_server.sql.tables import SCHEMA
from meta_server.sql.transfer import exported, import_into
from tests.meta_server.sql.test_store import (
    ALL_OF_IT,
    ENTRY,
    EVERYTHING,
    SUBJECT,
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
def test_all_rows_and_the_audit_come_into_an_empty_store(place: Place, lines: list[bytes]) -> None:
    with closing(place.open(seed=2)) as store:
        assert import_into(store, lines) == len(ALL_OF_IT.rows) + 1 + 2
        rows = (*ALL_OF_IT.rows, model.Subject(name="a\0b", version=2))
        expected = model.Contents(rows=rows, timestamp_ms=ALL_OF_IT.timestamp_ms)
        assert sorted_rows(store.load()) == sorted_rows(expected)
        assert entries_of(store) == [ENTRY, ENTRY]
        assert sorted(exported(store)) == sorted(lines)
        # From there on it is a store like others.
        store.commit([model.Save(model.Subject(name="a\0b", version=3))])
        with pytest.raises(StateError, match="empty store"):
            import_into(store, lines)


def test_what_is_no_whole_export_of_this_version_is_refused_and_nothing_is_kept(
    file_place: Place, lines: list[bytes]
) -> None:
    claimed_twice = next(line for line in lines if b'"broker"' in line).replace(b'"g1"', b'"i"')
    with closing(file_place.open()) as store:
        for wrong, error, said in (
            ([], StoreUnusableError, "cut off after 1 lines"),
            (lines[:-1], StoreUnusableError, "cut off"),
            ([*lines[:3], *lines[4:]], StoreUnusableError, "no kind"),
            (lines[1:], StoreUnusableError, "no place"),
            ([*lines, lines[1]], StoreUnusableError, "no place"),
            ([*lines[:2], b"{\n", *lines[2:]], StoreUnusableError, "line 3"),
            ([lines[0].replace(b":%d" % SCHEMA, b":9"), *lines[1:]], OtherSchemaError, "version 9"),
            ([*lines[:2], b'{"kind":"client"}\n', *lines[3:]], StoreUnusableError, "client"),
            ([*lines[:8], claimed_twice, *lines[9:]], StoreError, "claim|no other|another"),
        ):
            with pytest.raises(error, match=said):
                import_into(store, wrong)
            assert store.load() == model.Contents()
            assert entries_of(store) == []
        store.commit([model.Save(SUBJECT)])
