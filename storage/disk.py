"""The disk as the logs see it: synchronous, explicit about durability, replaceable.

`Disk` and `File` are the seam of design section 9. Production uses `DirectoryDisk`; the simulation
passes a disk that loses what was not fsynced. Paths are relative to the data directory, with
forward slashes. Nothing is durable before `File.sync` (or `Disk.sync_files`), and no name is
durable before `Disk.sync_directory` of its directory.

Errors: ENOSPC and EDQUOT of a write become StorageFullError (what was written of it is garbage
beyond the caller's own end and is overwritten by its next write there). Every other OSError of a
write, and any of an fsync, truncate, rename or unlink becomes FatalDiskError, with the original as
its cause. FileNotFoundError of `open` and `map` is passed on, as is an OSError of a read: the
caller knows what the bytes were for.
"""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from storage.errors import DataDirectoryError, FatalDiskError, StorageFullError

Bytes = bytes | bytearray | memoryview

_BUFFERS_PER_CALL = 1000
"""Below IOV_MAX (1024) of Linux: more buffers than that in one pwritev fail with EINVAL."""


class File(Protocol):
    """An open file. The caller knows its end; every write names its position."""

    @property
    def path(self) -> str:
        """The path it was opened by."""

    def write_at(self, position: int, buffers: Sequence[Bytes]) -> int:
        """Write all buffers one after another from `position` on; return the bytes written."""

    def read_at(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes from `position`; fewer only at the end of the file."""

    def size(self) -> int:
        """Return the present size in bytes."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes; durable after the next sync."""

    def sync(self) -> None:
        """Make data and size durable (fdatasync)."""

    def close(self) -> None:
        """Close the file without making anything durable."""


class Disk(Protocol):
    """A data directory."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; with `create` make the file, which must not exist yet."""

    def open_read(self, path: str) -> File:
        """Open for reading only."""

    def map(self, path: str) -> memoryview:
        """Return a read-only view of the file as long as it is now; empty for an empty file."""

    def exists(self, path: str) -> bool:
        """Say whether a file or directory of this name is there."""

    def list(self, directory: str) -> Sequence[str]:
        """Return the names in a directory, sorted; empty if there is no such directory."""

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents where they are missing (names durable after sync)."""

    def rename(self, source: str, target: str) -> None:
        """Replace `target` by `source` atomically; durable after sync_directory."""

    def unlink(self, path: str) -> None:
        """Remove a file; durable after sync_directory."""

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""

    def sync_files(self, files: Sequence[File]) -> None:
        """Make several open files durable, by one syncfs where they are many."""

    def prefetch(self, path: str) -> None:
        """Hint that the file will be read soon; never an error."""

    def free_bytes(self) -> tuple[int, int]:
        """Return free and total bytes of the file system."""

    def lock(self, path: str) -> contextlib.AbstractContextManager[None]:
        """Hold the exclusive lock file `path`; DataDirectoryError if somebody else does."""


@contextlib.contextmanager
def _fatal(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FatalDiskError(f"{what}: {error}") from error


@contextlib.contextmanager
def _full_or_fatal(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise StorageFullError(f"{what}: {error}") from error
        raise FatalDiskError(f"{what}: {error}") from error


class DirectoryFile:
    """A File on a real file system."""

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @property
    def path(self) -> str:
        """The path it was opened by."""
        return self._path

    @property
    def descriptor(self) -> int:
        """The file descriptor, for syncfs and tests."""
        return self._descriptor

    def write_at(self, position: int, buffers: Sequence[Bytes]) -> int:
        """Write all buffers from `position` on, going on after short writes."""
        with _full_or_fatal(f"write {self._path}"):
            start = position
            for first in range(0, len(buffers), _BUFFERS_PER_CALL):
                position += self._write_some(position, buffers[first : first + _BUFFERS_PER_CALL])
            return position - start

    def _write_some(self, position: int, buffers: Sequence[Bytes]) -> int:
        expected = sum(len(buffer) for buffer in buffers)
        written = os.pwritev(self._descriptor, buffers, position)
        if written < expected:
            rest = memoryview(b"".join(buffers))
            while written < expected:
                step = os.pwrite(self._descriptor, rest[written:], position + written)
                if step == 0:
                    raise OSError(errno.EIO, "write returned 0 bytes")
                written += step
        return written

    def read_at(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes from `position`."""
        data = os.pread(self._descriptor, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        missing = size - len(data)
        while missing and (data := os.pread(self._descriptor, missing, position + size - missing)):
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def size(self) -> int:
        """Return the present size in bytes."""
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        with _fatal(f"truncate {self._path}"):
            os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        """Make data and size durable."""
        with _fatal(f"fdatasync {self._path}"):
            os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Close the descriptor."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_NO_FSYNC = frozenset({errno.EINVAL, errno.EROFS, errno.ENOTSUP})
"""What fsync of a directory says where a file system has nothing to make durable."""


def make_data_directory(root: Path) -> None:
    """Make a data directory and its parents where they are missing; their names are durable then.

    Without it a power cut could take the name of a new data directory, and every acknowledged
    message with it. All parents on its file system are made durable, at every start: the process
    that made them may have died before it had done so. One that may not be read is passed over.
    Raises OSError where it cannot be made, FatalDiskError where an fsync fails.
    """
    root.mkdir(parents=True, exist_ok=True)
    path = root.resolve()
    device = path.stat().st_dev
    for parent in path.parents:
        try:
            descriptor = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except PermissionError:
            continue
        try:
            if os.fstat(descriptor).st_dev != device:
                return
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _NO_FSYNC:
                raise FatalDiskError(f"fsync directory {parent}: {error}") from error
        finally:
            os.close(descriptor)


_POPULATE_READ = 22
"""MADV_POPULATE_READ of Linux 5.14, which the mmap module does not name."""


def can_be_read(view: memoryview, position: int, size: int) -> bool:
    """Say whether bytes of a view of `Disk.map` can be touched, reading them from the disk.

    Where the disk cannot read them, or the file was cut short behind our back, touching them would
    end the process (SIGBUS). Kernels before 5.14 cannot be asked: then the answer is yes.
    """
    mapping = view.obj
    if not isinstance(mapping, mmap.mmap):
        return True
    begin = position - position % mmap.PAGESIZE
    try:
        mapping.madvise(_POPULATE_READ, begin, position + size - begin)
    except OSError as error:
        return error.errno == errno.EINVAL
    return True


_SYNCFS_FROM = 16
"""From this many dirty files on, one syncfs is cheaper than an fdatasync each."""


class DirectoryDisk:
    """A Disk on a directory of a real file system."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._libc = ctypes.CDLL(None, use_errno=True)

    def _real(self, path: str) -> str:
        return f"{self.root}/{path}"

    def open(self, path: str, *, create: bool = False) -> DirectoryFile:
        """Open for reading and writing."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        if not create:
            return DirectoryFile(path, os.open(self._real(path), flags))
        with _full_or_fatal(f"create {path}"):
            return DirectoryFile(path, os.open(self._real(path), flags, 0o640))

    def open_read(self, path: str) -> DirectoryFile:
        """Open for reading only."""
        return DirectoryFile(path, os.open(self._real(path), os.O_RDONLY | os.O_CLOEXEC))

    def map(self, path: str) -> memoryview:
        """Map the file read-only."""
        descriptor = os.open(self._real(path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
        finally:
            os.close(descriptor)

    def exists(self, path: str) -> bool:
        """Say whether the name is there."""
        return os.path.lexists(self._real(path))

    def list(self, directory: str) -> Sequence[str]:
        """Return the names in a directory, sorted."""
        try:
            return sorted(os.listdir(self._real(directory)))
        except FileNotFoundError:
            return []

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents."""
        with _full_or_fatal(f"mkdir {path}"):
            os.makedirs(self._real(path), mode=0o750, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        """Replace `target` by `source`."""
        with _full_or_fatal(f"rename {source} to {target}"):
            os.rename(self._real(source), self._real(target))

    def unlink(self, path: str) -> None:
        """Remove a file."""
        with _fatal(f"unlink {path}"):
            os.unlink(self._real(path))

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        with _fatal(f"fsync directory {path}"):
            descriptor = os.open(self._real(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def sync_files(self, files: Sequence[File]) -> None:
        """Make several open files durable."""
        if len(files) < _SYNCFS_FROM:
            for file in files:
                file.sync()
            return
        file = files[0]
        assert isinstance(file, DirectoryFile)
        with _fatal("syncfs"):
            if self._libc.syncfs(file.descriptor) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))

    def prefetch(self, path: str) -> None:
        """Ask the kernel to read the file ahead."""
        with contextlib.suppress(OSError):
            descriptor = os.open(self._real(path), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(descriptor)

    def free_bytes(self) -> tuple[int, int]:
        """Return free and total bytes of the file system."""
        usage = shutil.disk_usage(self.root)
        return usage.free, usage.total

    @contextlib.contextmanager
    def lock(self, path: str) -> Iterator[None]:
        """Hold the exclusive lock file `path` (flock: gone with the process)."""
        with _full_or_fatal(f"lock {path}"):
            descriptor = os.open(self._real(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise DataDirectoryError(
                    f"{self.root} is in use by another process; one data directory serves one node"
                ) from error
            yield
        finally:
            os.close(descriptor)
