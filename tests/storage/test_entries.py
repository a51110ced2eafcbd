"""One message takes 36 bytes in the wheel, and a subject keeps its number for good."""

from storage.entries import ENTRY, SubjectTable, no_entries


def test_an_entry_takes_36_bytes() -> None:
    assert ENTRY.itemsize == 36
    assert no_entries().dtype == ENTRY
    assert len(no_entries()) == 0


def test_a_subject_keeps_its_number() -> None:
    table = SubjectTable()
    assert [table.number(name) for name in (b"a", b"b", b"a", b"")] == [0, 1, 0, 2]
    assert table.names == [b"a", b"b", b""]


def test_the_numbers_of_a_batch_s_table_come_in_its_order() -> None:
    table = SubjectTable()
    table.number(b"known")
    assert table.numbers([b"new", b"known", b"newer"]).tolist() == [1, 0, 2]
    assert table.numbers([]).tolist() == []
