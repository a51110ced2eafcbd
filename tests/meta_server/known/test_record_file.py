"""Tests of record_file: the store and the file beside it are brought up to each other."""

from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from meta_server.known.errors import StoreUnavailableError
from meta_server.known.model import Contents, DelayGroup, Remove, Save
from meta_server.known.record_file import (
    RECORDS_PATH,
    VERSIONS_SKIPPED,
    RecordedStore,
    record_document,
)
from storage.disk.disk import DirectoryDisk
from tests.meta_server.memory_store import Fault, Medium, MemoryRecordFile, MemoryStore
from tests.meta_server.meta_rig import record

DISK = UUID(int=9)


def group(version: int, *, name: str = "d1") -> DelayGroup:
    return DelayGroup(
        name=name, cluster="c1", log_uuid=UUID(int=len(name)), record=record(1, version, n1=DISK)
    )


def save(version: int) -> Save:
    return Save(group(version), over=f"1.{version - 1}" if version > 1 else None)


class Machine:
    """A store and the file beside it, whoever opens them."""

    def __init__(self) -> None:
        self.medium = Medium()
        self.file = MemoryRecordFile()
        self.file.document = None

    def open(self) -> RecordedStore:
        return RecordedStore(MemoryStore(self.medium), self.file)

    def set_back(self, *groups: DelayGroup) -> None:
        tables = self.medium.tables.delay_groups
        tables.clear()
        tables.update({one.name: one for one in groups})

    @property
    def kept(self) -> dict[str, DelayGroup]:
        return msgspec.json.decode(self.file.document or b"{}", type=dict[str, DelayGroup])


def test_each_record_is_in_the_file_as_soon_as_it_is_stored() -> None:
    machine = Machine()
    store = machine.open()
    assert store.load() == Contents()
    for version in (1, 2, 3):
        store.commit([save(version)])
        assert machine.kept == {"d1": group(version)}
    store.commit([Remove(group(3))])
    assert machine.kept == {}


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_store_that_was_set_back_takes_the_record_of_the_file(is_lost: bool) -> None:
    machine = Machine()
    store = machine.open()
    for version in (1, 2, 3):
        store.commit([save(version)])
    machine.set_back(*([] if is_lost else [group(1)]))
    opened = machine.open()
    [found] = opened.load().of(DelayGroup)
    newest = group(3).record
    raised = msgspec.structs.replace(newest, version=newest.version + VERSIONS_SKIPPED)
    assert found == replace(group(3), record=raised)
    assert machine.kept == {"d1": found}
    assert opened.unproven == frozenset()


def test_a_process_that_died_between_store_and_file_brings_the_file_up() -> None:
    machine = Machine()
    machine.open().commit([save(1)])
    machine.file.is_full = True
    with pytest.raises(StoreUnavailableError, match="the file of records beside the store"):
        machine.open().commit([save(2)])
    machine.file.is_full = False
    store = machine.open()
    assert store.load().of(DelayGroup) == (group(2),)
    assert machine.kept == {"d1": group(2)}


def test_what_may_be_stored_or_not_is_not_in_the_file_before_it_is_known() -> None:
    machine = Machine()
    store = machine.open()
    store.commit([save(1)])
    machine.medium.next_faults = [Fault.LOST]
    with pytest.raises(StoreUnavailableError):
        store.commit([save(2)])
    assert machine.kept == {"d1": group(1)}
    assert store.load().of(DelayGroup) == (group(1),)


@pytest.mark.parametrize("document", [None, b"", b"{", b'{"d1":{}}', b"\xff"])
def test_without_a_file_nothing_shows_that_a_record_is_the_newest(document: bytes | None) -> None:
    machine = Machine()
    machine.set_back(group(1), group(1, name="d22"))
    machine.file.document = document
    store = machine.open()
    store.load()
    assert store.unproven == {"d1", "d22"}
    # It does once it is stored anew; the other one is unproven after the next start, too.
    store.commit([save(2)])
    assert store.load() is not None
    assert machine.open().load() is not None
    again = machine.open()
    again.load()
    assert (set(again.unproven), set(machine.kept)) == ({"d22"}, {"d1"})


def test_a_group_of_another_meta_server_is_known_with_the_next_load() -> None:
    machine = Machine()
    store = machine.open()
    store.load()
    machine.set_back(group(1))
    store.load()
    assert (machine.kept, store.unproven) == ({"d1": group(1)}, frozenset())


def test_a_damaged_file_counts_as_none(tmp_path: Path) -> None:
    file = record_document(DirectoryDisk(tmp_path))
    medium = Medium()
    RecordedStore(MemoryStore(medium), file).commit([save(1)])
    opened = RecordedStore(MemoryStore(medium), file)
    assert opened.load().of(DelayGroup) == (group(1),)
    assert opened.unproven == frozenset()
    path = tmp_path / RECORDS_PATH
    damaged = bytearray(path.read_bytes())
    damaged[-3] ^= 1
    path.write_bytes(damaged)
    again = RecordedStore(MemoryStore(medium), file)
    again.load()
    assert again.unproven == {"d1"}
