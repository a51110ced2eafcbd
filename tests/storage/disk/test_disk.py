"""The real disk writes everything or says why not, and tells a full disk from a broken one."""

import ctypes
import errno
import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from storage.disk.disk import (
    Bytes,
    DirectoryDisk,
    DirectoryFile,
    make_data_directory,
    next_data,
    read_small,
)
from storage.disk.errors import (
    DamagedError,
    DataDirectoryError,
    FatalDiskError,
    NotPermittedError,
    NotRegularFileError,
    OpenError,
    StorageFullError,
)


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


def test_a_data_directory_that_is_moved_away_is_a_disk_error_and_not_made_again(
    tmp_path: Path,
) -> None:
    root = tmp_path / "data"
    root.mkdir()
    disk = DirectoryDisk(root)
    made(disk, "log", b"x").close()
    root.rename(tmp_path / "x")
    with pytest.raises(FatalDiskError, match="moved or unmounted"):
        disk.free_bytes()
    with pytest.raises(FatalDiskError, match="moved or unmounted"):
        disk.make_directory("audit")
    assert not root.exists()
    root.write_bytes(b"")
    with pytest.raises(FatalDiskError, match="moved or unmounted"):
        disk.make_directory("audit")


def test_whatever_a_broken_disk_says_of_a_name_or_a_lock_is_typed(
    disk: DirectoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "lstat", failing(errno.EIO))
    monkeypatch.setattr(os.path, "lexists", lambda _: False)
    with pytest.raises(OpenError, match="cannot be looked for: Input/output error"):
        disk.exists("log")
    monkeypatch.setattr("fcntl.flock", failing(errno.ENOLCK))
    with pytest.raises(FatalDiskError, match="cannot be locked: No locks"), disk.lock("lock"):
        pass


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


def test_a_lock_that_was_deleted_lets_nobody_else_in(disk: DirectoryDisk, tmp_path: Path) -> None:
    other = DirectoryDisk(tmp_path)
    with disk.lock("lock"):
        (tmp_path / "lock").unlink()
        with pytest.raises(DataDirectoryError, match="in use"), other.lock("lock"):
            pass
    with other.lock("lock"):
        pass


def test_what_is_not_at_its_path_any_more_is_named(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    disk = DirectoryDisk(root)
    file = made(disk, "log", b"x")
    disk.require_in_place([file])
    with disk.lock("lock"):
        disk.require_in_place([file])
        made(disk, "log.tmp", b"x").close()
        disk.rename("log.tmp", "log")
        with pytest.raises(FatalDiskError, match="log is not what this process has opened"):
            disk.require_in_place([file])
        disk.require_in_place([])
        root.rename(tmp_path / "x")
        with pytest.raises(FatalDiskError, match=r"data is not .* \(No such file"):
            disk.require_in_place([])
        root.mkdir()
        with pytest.raises(FatalDiskError, match=r"data is not .* then start again$"):
            disk.require_in_place([])
        root.rmdir()
        (tmp_path / "x").rename(root)
        (root / "lock").unlink()
        with pytest.raises(FatalDiskError, match="lock is not what"):
            disk.require_in_place([])
    file.close()


def test_a_small_file_that_is_too_large_is_not_read(disk: DirectoryDisk) -> None:
    made(disk, "identity", b"x" * 10).close()
    assert read_small(disk, "identity", 10) == b"x" * 10
    with pytest.raises(DamagedError, match=r"the file has 10 bytes, .* at most 9"):
        read_small(disk, "identity", 9)


def test_holes_are_passed_over(disk: DirectoryDisk) -> None:
    file = made(disk, "log", b"x")
    assert next_data(file, 0) == 0
    file.truncate(1 << 30)
    far = next_data(file, 1 << 20)
    assert far is None
    file.write_at((1 << 30) - 1, [b"y"])
    near = next_data(file, 1 << 20)
    assert near is not None
    assert (1 << 29) < near < 1 << 30
    assert next_data(file, 1 << 30) is None
    file.close()


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


@pytest.mark.parametrize("is_there", [False, True])
def test_the_names_of_a_data_directory_and_its_parents_are_durable(
    tmp_path: Path, synced: list[Path], *, is_there: bool
) -> None:
    data = tmp_path / "a" / "b" / "data"
    if is_there:
        # Whoever made it may have died, or lost power, before its fsync.
        data.mkdir(parents=True)
    make_data_directory(data)
    assert data.is_dir()
    assert synced[:3] == [tmp_path / "a" / "b", tmp_path / "a", tmp_path]


def test_a_data_directory_that_cannot_be_made_says_why_and_how_bad_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name, told in (
        ("file", "file is a file,"),
        ("file/a/b", "file is a file,"),
        ("link", "link is"),
    ):
        with pytest.raises(NotRegularFileError, match=told):
            make_data_directory(tmp_path / name)

    for number, kind in (
        (errno.EROFS, FatalDiskError),
        (errno.EIO, FatalDiskError),
        (errno.ENOSPC, StorageFullError),
        (errno.EDQUOT, StorageFullError),
    ):
        monkeypatch.setattr(Path, "mkdir", failing(number))
        with pytest.raises(kind, match=r"data cannot be made: .*another directory"):
            make_data_directory(tmp_path / "data")


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
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(FatalDiskError, match="fsync directory"):
        make_data_directory(tmp_path / "data")


_NOBODY = 65_534


@pytest.fixture
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DirectoryDisk]:
    """Return a disk on a directory that this process may search, as a user without privileges."""
    del tmp_path_factory  # Its directories are closed to other users.
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o777)
        disk = DirectoryDisk(Path(root))
        me = os.geteuid()
        if me == 0:
            os.seteuid(_NOBODY)
        made(disk, "log", b"data").close()
        disk.make_directory("folder/inner")
        try:
            yield disk
        finally:
            os.seteuid(me)
            (Path(root) / "folder").chmod(0o755)


def test_what_this_user_may_not_do_is_said_with_owner_mode_and_remedy(
    strict: DirectoryDisk,
) -> None:
    log, folder = strict.root / "log", strict.root / "folder"
    log.chmod(0)
    folder.chmod(0o400)
    me = rf"(\w+ \()?uid {os.geteuid()}\)?"
    in_folder = rf"{folder} belongs to {me} with mode 0400.*give {me} access to {folder}"
    calls: list[tuple[str, Callable[[], object]]] = [
        (
            rf"^{log} cannot be read: it belongs to {me} with mode 0000, and",
            lambda: strict.map("log"),
        ),
        (r"runs as .*; give .* access to it \(chown, chmod\)$", lambda: strict.open_read("log")),
        (rf"^{log} cannot be written: it belongs", lambda: strict.open("log")),
        (rf"new cannot be made: {in_folder}", lambda: strict.open("folder/new", create=True)),
        (rf"new cannot be made: {in_folder}", lambda: strict.make_directory("folder/new")),
        (rf"log cannot be made: {in_folder}", lambda: strict.rename("log", "folder/log")),
        (rf"inner cannot be deleted: {in_folder}", lambda: strict.unlink("folder/inner")),
        (rf"x cannot be looked for: {in_folder}", lambda: strict.exists("folder/x")),
        (rf"x cannot be read: {in_folder}", lambda: strict.open_read("folder/x")),
        ("folder/inner cannot be listed", lambda: strict.list("folder/inner")),
        ("folder/inner cannot be read", lambda: strict.sync_directory("folder/inner")),
        ("log cannot be read and written", lambda: strict.require_usable([], ["log"])),
        ("folder cannot be used", lambda: strict.require_usable(["folder"], [])),
        ("folder/data cannot be made", lambda: make_data_directory(folder / "data")),
    ]
    for sentence, call in calls:
        with pytest.raises(NotPermittedError, match=sentence) as caught:
            call()
        assert isinstance(caught.value, OSError), "readers of one file of many take it for damage"
    strict.require_usable([""], [])


def test_somebody_elses_file_names_the_user_to_run_as(
    disk: DirectoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(disk, "log", b"data").close()
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000_000)
    monkeypatch.setattr(os, "open", failing(errno.EACCES))
    with pytest.raises(NotPermittedError) as caught:
        disk.open_read("log")
    assert f"uid {owner}) with mode 0640" in str(caught.value)
    assert "this process runs as uid 4000000000; run as" in str(caught.value)


def test_a_data_directory_that_cannot_be_locked_says_that_it_must_be_writable(
    strict: DirectoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing(errno.EROFS))
        with (
            pytest.raises(
                FatalDiskError, match=r"must be writable by .*mounted read-only"
            ) as caught,
            strict.lock("lock"),
        ):
            pass
        assert "lock lock" not in str(caught.value)
    closed = DirectoryDisk(strict.root / "folder")
    closed.root.chmod(0o500)
    with (
        pytest.raises(NotPermittedError, match="folder cannot be written: it belongs to"),
        closed.lock("lock"),
    ):
        pass


def test_an_open_that_fails_is_typed_and_an_os_error_too(
    disk: DirectoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(disk, "log", b"data").close()
    monkeypatch.setattr(os, "open", failing(errno.EIO))
    for call in (disk.open, disk.open_read, disk.map):
        with pytest.raises(OpenError, match=r"log cannot be .*: Input/output error") as caught:
            call("log")
        assert isinstance(caught.value, FatalDiskError)
        assert isinstance(caught.value, OSError)
    monkeypatch.setattr(os, "listdir", failing(errno.EIO))
    with pytest.raises(OpenError, match="cannot be listed"):
        disk.list("")


@pytest.mark.parametrize("kind", ["directory", "FIFO", "socket", "link"])
def test_what_is_no_regular_file_is_neither_waited_for_nor_read(
    disk: DirectoryDisk, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = disk.root / "log"
    monkeypatch.chdir(disk.root)  # A socket's name is short.
    with socket.socket(socket.AF_UNIX) as peer:
        match kind:
            case "directory":
                path.mkdir()
            case "FIFO":
                os.mkfifo(path)
            case "socket":
                peer.bind("log")
            case _:
                path.symlink_to("log")
        calls: list[Callable[[], object]] = [
            lambda: disk.open("log"),
            lambda: disk.open_read("log"),
            lambda: disk.map("log"),
            lambda: disk.lock("log").__enter__(),
            lambda: disk.require_usable([], ["log"]),
        ]
        for call in calls:
            with pytest.raises(NotRegularFileError, match=f"log is a {kind}.*move it away"):
                call()
        disk.prefetch("log")
        # Where its directory should be, a file is no less in the way.
        (disk.root / "seals").touch()
        for use in (disk.make_directory, disk.list):
            with pytest.raises(
                NotRegularFileError, match=r"seals is not a directory.*move it away"
            ):
                use("seals")


def test_a_link_that_leads_to_nothing_is_not_taken_for_a_missing_file(disk: DirectoryDisk) -> None:
    (disk.root / "log").symlink_to("nowhere")
    with pytest.raises(NotRegularFileError, match="a link that leads nowhere"):
        disk.open_read("log")
    made(disk, "nowhere", b"data").close()
    assert bytes(disk.map("log")) == b"data"
    disk.require_usable([], ["log"])


def test_what_cannot_even_be_looked_at_is_not_taken_for_a_link(
    disk: DirectoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(disk, "log", b"data").close()
    monkeypatch.setattr(os, "stat", failing(errno.EIO))
    with pytest.raises(OpenError, match=r"log cannot be looked at: Input/output error; look at"):
        disk.require_usable([], ["log"])
