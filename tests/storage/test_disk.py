"""The real disk writes everything or says why not, and tells a full disk from a broken one."""

import ctypes
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from storage.disk import Bytes, DirectoryDisk, DirectoryFile, make_data_directory
from storage.errors import DataDirectoryError, FatalDiskError, StorageFullError


@pytest.fixture
def disk(tmp_path: Path) -> DirectoryDisk:
    return DirectoryDisk(tmp_path)


def made(disk: DirectoryDisk, path: str, data: bytes) -> DirectoryFile:
    file = disk.open(path, create=True)
    file.write_at(0, [data])
    return file


def test_buffers_of_every_type_are_written_one_after_another(disk: DirectoryDisk) -> None:
    file = disk.open("log", create=True)
    assert file.write_at(3, [b"one", bytearray(b"two"), memoryview(b"-three-")[1:-1]]) == 11
    assert file.read_at(0, 100) == b"\0\0\0onetwothree"
    assert (file.size(), file.path) == (14, "log")
    assert file.write_at(0, []) == 0


def test_more_buffers_than_one_call_takes_are_written_all(disk: DirectoryDisk) -> None:
    file = disk.open("log", create=True)
    pieces = [b"%06d" % number for number in range(5000)]
    assert file.write_at(0, pieces) == 30_000
    assert file.read_at(0, 30_000) == b"".join(pieces)


def test_short_writes_and_short_reads_go_on(
    disk: DirectoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    writev, write, read = os.pwritev, os.pwrite, os.pread

    def short_writev(descriptor: int, buffers: Sequence[Bytes], position: int) -> int:
        return writev(descriptor, [b"".join(buffers)[:7]], position)

    def short_write(descriptor: int, data: Bytes, position: int) -> int:
        return write(descriptor, data[:5], position)

    def short_read(descriptor: int, size: int, position: int) -> bytes:
        return read(descriptor, min(size, 3), position)

    monkeypatch.setattr(os, "pwritev", short_writev)
    monkeypatch.setattr(os, "pwrite", short_write)
    monkeypatch.setattr(os, "pread", short_read)
    file = disk.open("log", create=True)
    data = bytes(range(100))
    assert file.write_at(10, [data[:40], data[40:]]) == 100
    assert file.read_at(10, 100) == data
    assert file.read_at(105, 50) == data[95:]
    assert file.read_at(200, 5) == b""


def failing(code: int) -> object:
    def fail(*_arguments: object, **_more: object) -> int:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (errno.ENOSPC, StorageFullError),
        (errno.EDQUOT, StorageFullError),
        (errno.EIO, FatalDiskError),
        (errno.EROFS, FatalDiskError),
    ],
)
def test_a_full_disk_is_told_from_a_broken_one(
    disk: DirectoryDisk, monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]
) -> None:
    file = made(disk, "log", b"before")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", failing(code))
        with pytest.raises(error) as caught:
            file.write_at(0, [b"x"])
        assert isinstance(caught.value.__cause__, OSError)
    calls: dict[str, Callable[[], object]] = {
        "open": lambda: disk.open("new", create=True),
        "makedirs": lambda: disk.make_directory("folder"),
        "rename": lambda: disk.rename("log", "other"),
    }
    for name, call in calls.items():
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing(code))
            with pytest.raises(error):
                call()


def test_a_write_that_fills_the_disk_half_way_is_refused(
    disk: DirectoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open("log", create=True)
    writev = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda d, _buffers, p: writev(d, [b"ab"], p))
    monkeypatch.setattr(os, "pwrite", failing(errno.ENOSPC))
    with pytest.raises(StorageFullError):
        file.write_at(0, [b"abcdef"])


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_whatever_an_fsync_says_but_yes_is_fatal(
    disk: DirectoryDisk, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    file = made(disk, "log", b"data")
    calls: list[tuple[str, Callable[[], object]]] = [
        ("fdatasync", file.sync),
        ("fdatasync", lambda: disk.sync_files([file])),
        ("fsync", lambda: disk.sync_directory("")),
        ("ftruncate", lambda: file.truncate(1)),
        ("unlink", lambda: disk.unlink("log")),
    ]
    for name, call in calls:
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing(code))
            with pytest.raises(FatalDiskError):
                call()


def test_many_files_are_synced_at_once(
    disk: DirectoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [made(disk, f"{number}.log", b"data") for number in range(20)]
    synced: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", synced.append)
        disk.sync_files(files)
        assert synced == []
        disk.sync_files(files[:3])
        assert synced == [file.descriptor for file in files[:3]]

    class Broken:
        def syncfs(self, _descriptor: int) -> int:
            ctypes.set_errno(errno.EIO)
            return -1

    monkeypatch.setattr(disk, "_libc", Broken())
    with pytest.raises(FatalDiskError, match="syncfs"):
        disk.sync_files(files)


def test_a_file_is_made_once_and_must_be_there_to_be_opened(disk: DirectoryDisk) -> None:
    made(disk, "log", b"data").close()
    with pytest.raises(FatalDiskError):
        disk.open("log", create=True)
    for call in (disk.open, disk.open_read, disk.map):
        with pytest.raises(FileNotFoundError):
            call("none")


def test_a_file_opened_for_reading_cannot_be_written(disk: DirectoryDisk) -> None:
    made(disk, "log", b"data").close()
    file = disk.open_read("log")
    assert file.read_at(1, 2) == b"at"
    with pytest.raises(FatalDiskError):
        file.write_at(0, [b"x"])
    file.close()
    file.close()


def test_a_map_shows_the_file_as_long_as_it_was(disk: DirectoryDisk) -> None:
    file = made(disk, "log", b"first")
    view = disk.map("log")
    file.write_at(5, [b" second"])
    assert (bytes(view), view.readonly) == (b"first", True)
    assert bytes(disk.map("log")) == b"first second"
    file.truncate(0)
    assert bytes(disk.map("log")) == b""


def test_names_are_listed_sorted_and_replaced_atomically(disk: DirectoryDisk) -> None:
    disk.make_directory("folder/inner")
    disk.make_directory("folder/inner")
    for name in ("b", "a"):
        made(disk, f"folder/{name}", name.encode()).close()
    assert disk.list("folder") == ["a", "b", "inner"]
    disk.rename("folder/a", "folder/b")
    disk.sync_directory("folder")
    disk.sync_directory("")
    assert disk.list("folder") == ["b", "inner"]
    assert bytes(disk.map("folder/b")) == b"a"
    disk.unlink("folder/b")
    assert not disk.exists("folder/b")
    assert disk.exists("folder/inner")
    assert disk.list("nowhere") == []


def test_prefetching_what_is_not_there_is_no_error(disk: DirectoryDisk) -> None:
    made(disk, "log", b"data").close()
    disk.prefetch("log")
    disk.prefetch("none")


def test_free_bytes_are_those_of_the_file_system(disk: DirectoryDisk) -> None:
    free, total = disk.free_bytes()
    assert 0 < free <= total


def test_the_lock_is_held_by_one_and_given_back(disk: DirectoryDisk, tmp_path: Path) -> None:
    other = DirectoryDisk(tmp_path)
    with disk.lock("lock"):
        with (
            pytest.raises(
                DataDirectoryError, match="in use by another process; one data directory"
            ),
            other.lock("lock"),
        ):
            pass
        # The one who was refused did not take it away.
        with pytest.raises(DataDirectoryError), other.lock("lock"):
            pass
    with other.lock("lock"):
        pass


def test_a_lock_that_cannot_be_made_is_a_disk_error(
    disk: DirectoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "open", failing(errno.ENOSPC))
    with pytest.raises(StorageFullError, match="lock"), disk.lock("lock"):
        pass


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list that gets every directory that is fsynced."""
    directories: list[Path] = []
    plain = os.fsync

    def fsync(descriptor: int) -> None:
        directories.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        plain(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return directories


def test_the_names_of_a_new_data_directory_and_its_parents_are_durable(
    tmp_path: Path, synced: list[Path]
) -> None:
    make_data_directory(tmp_path / "a" / "b" / "data")
    assert (tmp_path / "a" / "b" / "data").is_dir()
    assert synced[:3] == [tmp_path / "a" / "b", tmp_path / "a", tmp_path]


def test_the_names_of_a_directory_that_is_there_are_made_durable_too(
    tmp_path: Path, synced: list[Path]
) -> None:
    # Whoever made it may have died, or lost power, before its fsync.
    (tmp_path / "a" / "data").mkdir(parents=True)
    make_data_directory(tmp_path / "a" / "data")
    assert synced[:2] == [tmp_path / "a", tmp_path]


def test_a_parent_that_cannot_be_made_durable_is_fatal_but_one_that_may_not_be_read_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.open

    def refused(path: Path, flags: int) -> int:
        if Path(path) == tmp_path:
            raise PermissionError(errno.EACCES, "not for you")
        return plain(path, flags)

    monkeypatch.setattr(os, "open", refused)
    make_data_directory(tmp_path / "data")

    def broken(_descriptor: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(FatalDiskError, match="fsync directory"):
        make_data_directory(tmp_path / "data")
