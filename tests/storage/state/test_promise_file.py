"""What a disk has promised as a voter is there after any stop, or the node does not start."""

from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from storage.disk.errors import DamagedError
from storage.state.document_file import DOCUMENT_AT
from storage.state.promise_file import PROMISE_PATH, Promised, PromiseFile, promise_document
from storage.tools.inspect import dump_files, verify_files
from tests.fuzz.memory_disk import MemoryDisk
from tests.golden.directory import written
from tests.storage.store_rig import StoreRig
from tests.storage.tools.test_inspect import damage_in
from tests.storage.worked_examples import worked_examples

STORAGE = UUID("0b5e3f6a-52c7-4c0e-9a41-77d2c1a0e9f3")
PROMISED = Promised(epoch=7, told=msgspec.Raw(b'{"epoch":6,"version":3}'))


def test_a_promise_is_kept_with_what_was_told() -> None:
    disk = MemoryDisk()
    assert PromiseFile(disk, STORAGE).read() == Promised(epoch=0, told=msgspec.Raw(b"null"))
    for promised in (PROMISED, Promised(epoch=9)):
        PromiseFile(disk, STORAGE).write(promised)
        assert PromiseFile(disk, STORAGE).read() == promised


def test_the_page_shows_a_promise_as_it_is_written() -> None:
    disk = MemoryDisk()
    PromiseFile(disk, STORAGE).write(PROMISED)
    assert worked_examples("promise.md") == [bytes(disk.files[PROMISE_PATH])]


@pytest.mark.parametrize(
    "document", [b"", b"[]", b'{"epoch":-1}', b'{"epoch":"7"}', b'{"epoch":7,"more":1}', b"\xff"]
)
def test_what_is_no_promise_is_refused_with_what_to_do(document: bytes) -> None:
    disk = MemoryDisk()
    promise_document(disk, STORAGE).write(document)
    with pytest.raises(DamagedError, match="could vote twice") as caught:
        PromiseFile(disk, STORAGE).read()
    assert caught.value.position == DOCUMENT_AT
    with pytest.raises(DamagedError, match=r"another data directory.*on an empty directory"):
        PromiseFile(disk, UUID(int=1)).read()


def test_tools_show_the_promise_and_check_every_byte_of_it(tmp_path: Path) -> None:
    rig = StoreRig(1)
    rig.open()
    PromiseFile(rig.disk, rig.store.identity.storage_uuid).write(PROMISED)
    files = rig.disk.contents()
    root = written(files, tmp_path / "whole")
    assert damage_in(root) == {}
    assert PROMISE_PATH in {report["file"] for report in verify_files(root)}
    shown = [record for record in dump_files(root) if record["file"] == PROMISE_PATH]
    assert [one["content"] for one in shown] == ['{"epoch":7,"told":{"epoch":6,"version":3}}']
    for at in range(0, len(files[PROMISE_PATH]), 7):
        struck = bytearray(files[PROMISE_PATH])
        struck[at] ^= 1
        found = damage_in(written({**files, PROMISE_PATH: bytes(struck)}, tmp_path / str(at)))
        assert list(found) == [PROMISE_PATH]
