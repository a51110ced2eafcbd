"""The disk as the logs see it: synchronous, explicit about durability, replaceable.

`Disk` and `File` are the seam of design section 9. Production uses `DirectoryDisk`; the simulation
passes a disk that loses what was not fsynced. Paths are relative to the data directory, with
forward slashes. Nothing is durable before `File.sync` (or `Disk.sync_files`), and no name is
durable before `Disk.sync_directory` of its directory.

Errors: ENOSPC and EDQUOT of a write become StorageFullError (what was written of it is garbage
beyond the caller's own end and is overwritten by its next write there). Every other OSError of a
write, and any of an fsync, truncate, rename or unlink becomes FatalDiskError, with the original as
its cause, but NotPermittedError where this user may not do it. FileNotFoundError of `open`,
`open_read` and `map` is passed on, as is an OSError of a read: the caller knows what the bytes were
for. Their other errors are typed *and* OSErrors: NotPermittedError, NotRegularFileError (such a
thing is never read: opening a FIFO would wait for ever) and OpenError.
"""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import pwd
import shutil
import stat
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from storage.disk.errors import (
    DamagedError,
    DataDirectoryError,
    FatalDiskError,
    NotPermittedError,
    NotRegularFileError,
    OpenError,
    StorageError,
    StorageFullError,
)

Bytes = bytes | bytearray | memoryview

_BUFFERS_PER_CALL = 1000
"""Below IOV_MAX (1024) of Linux: more buffers than that in one pwritev fail with EINVAL."""


class ReadableFile(Protocol):
    """An open file, as those see it who only read."""

    @property
    def path(self) -> str:
        """The path it was opened by."""

    def read_at(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes from `position`; fewer only at the end of the file."""

    def size(self) -> int:
        """Return the present size in bytes."""

    def close(self) -> None:
        """Close the file."""


class ReadableDisk(Protocol):
    """A data directory, or a copy of one anywhere, as those see it who only read its logs."""

    def open_read(self, path: str) -> ReadableFile:
        """Open for reading only. FileNotFoundError, or another OSError."""


class ListedDisk(ReadableDisk, Protocol):
    """The same for those who ask what there is."""

    def exists(self, path: str) -> bool:
        """Say whether a file or directory of this name is there."""

    def list(self, directory: str) -> Sequence[str]:
        """Return the names in a directory, sorted; empty if there is no such directory."""


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

    def require_usable(self, directories: Sequence[str], files: Sequence[str]) -> None:
        """Raise NotPermittedError or NotRegularFileError unless all can be read and written."""

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
        """Hold the exclusive lock file `path`, and the directory itself, which nobody can delete.

        Raises DataDirectoryError if somebody else holds either.
        """

    def require_in_place(self, files: Sequence[File]) -> None:
        """Raise FatalDiskError unless what is locked, and these open files, lie at their paths.

        Whoever moves a directory away, or puts a copy in its place, has later starts find other
        files than those that are written.
        """


@contextlib.contextmanager
def _fatal(what: str) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise FatalDiskError(f"{what}: {error}") from error


@contextlib.contextmanager
def full_or_fatal(what: str) -> Iterator[None]:
    """Turn an OSError into StorageFullError or FatalDiskError; typed errors pass."""
    with _fatal(what):
        try:
            yield
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise StorageFullError(f"{what}: {error}") from error
            raise


_NOT_PERMITTED = frozenset({errno.EACCES, errno.EPERM})
_NO_FILE = frozenset({errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV})
"""What opening says of things that are no files: a directory, links in a circle, a socket."""


@contextlib.contextmanager
def permitted(name: str, doing: str, *, culprit: str | None = None) -> Iterator[None]:
    """Turn what this user may not do into a NotPermittedError.

    name, doing: of the sentence "... cannot be ..."; culprit: the path whose owner and mode decide,
    if that is another one.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _NOT_PERMITTED:
            raise
        raise _not_permitted(name, doing, culprit or name) from error


def _not_permitted(name: str, doing: str, culprit: str) -> NotPermittedError:
    """Return the error that says whose a file is, who this is, and what to do."""
    found: os.stat_result | None = None
    while found is None:
        try:
            found = os.stat(culprit)
        except OSError:
            above = os.path.dirname(os.path.abspath(culprit))
            if above == culprit:
                break
            # Whoever may not even look at a file may not search the directory it lies in.
            culprit = above
    me = _user(os.geteuid())
    if found is None:
        return NotPermittedError(f"{name} cannot be {doing} by {me}, as which this process runs")
    owner, mode = _user(found.st_uid), f"{stat.S_IMODE(found.st_mode):04o}"
    what = "it" if culprit == name else culprit
    remedy = f"give {me} access to {what} (chown, chmod)"
    if found.st_uid != os.geteuid():
        remedy = f"run as {owner}, or {remedy}"
    return NotPermittedError(
        f"{name} cannot be {doing}: {what} belongs to {owner} with mode {mode}, and this process "
        f"runs as {me}; {remedy}"
    )


def _user(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


_SALVAGE = (
    "; look at the disk (dmesg, SMART), and get out what is whole with `delaywheel log salvage` if "
    "another try says the same"
)


def _not_regular(name: str) -> NotRegularFileError:
    """Return the error for something that has the name of a file and is none.

    Raises OpenError if nobody can say what it is.
    """
    try:
        mode = os.stat(name).st_mode
        kind = next((kind for is_kind, kind in _KINDS if is_kind(mode)), "something else")
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.ELOOP}:
            raise OpenError(f"{name} cannot be looked at: {error.strerror}{_SALVAGE}") from error
        kind = "a link that leads nowhere"
    return NotRegularFileError(
        f"{name} is {kind}, not a regular file: it is none of delaywheel's files, move it away"
    )


def _open_regular(name: str, flags: int, doing: str) -> int:
    """Return a descriptor of a regular file; what is none is not waited for, nor read.

    Raises FileNotFoundError, NotPermittedError, NotRegularFileError or OpenError.
    """
    try:
        with permitted(name, doing):
            # O_NONBLOCK means nothing to a file, and that a FIFO does not make us wait.
            descriptor = os.open(name, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o640)
    except FileNotFoundError as error:
        if os.path.islink(name):
            raise _not_regular(name) from error
        raise
    except NotPermittedError:
        raise
    except OSError as error:
        if error.errno in _NO_FILE:
            raise _not_regular(name) from error
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise StorageFullError(f"{name} cannot be {doing}: {error.strerror}") from error
        remedy = _SALVAGE if error.errno == errno.EIO else ""
        opening = OpenError(f"{name} cannot be {doing}: {error.strerror}{remedy}")
        opening.errno = error.errno
        raise opening from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_regular(name)
    return descriptor


def read_small(disk: ReadableDisk, path: str, bytes_max: int) -> bytes:
    """Return all of a file that nobody makes larger than `bytes_max`.

    Raises DamagedError if it is larger, unread, or if the disk cannot read it; FileNotFoundError,
    NotPermittedError or NotRegularFileError.
    """
    try:
        with contextlib.closing(disk.open_read(path)) as file:
            size = file.size()
            if size <= bytes_max:
                return file.read_at(0, size)
    except (FileNotFoundError, NotPermittedError, NotRegularFileError):
        raise
    except OSError as error:
        raise DamagedError(path=path, position=0, reason=f"cannot be read: {error}") from error
    reason = f"the file has {size} bytes, one that was written by delaywheel at most {bytes_max}"
    raise DamagedError(path=path, position=bytes_max, reason=reason)


def replace_file(disk: Disk, path: str, buffers: Sequence[Bytes]) -> None:
    """Replace a small file as a whole; durable when this returns.

    A temporary file is written and fsynced before it takes the name. Raises StorageFullError, or
    FatalDiskError.
    """
    temporary = f"{path}.tmp"
    if disk.exists(temporary):
        disk.unlink(temporary)
    with contextlib.closing(disk.open(temporary, create=True)) as file:
        file.write_at(0, buffers)
        file.sync()
    disk.rename(temporary, path)
    disk.sync_directory(path.rpartition("/")[0])


def next_data(file: ReadableFile, position: int) -> int | None:
    """Return where bytes may lie that are not zeros, from `position` on; None if nowhere.

    A hole of a sparse file is passed over without being read, where the file system tells of it.
    """
    if not isinstance(file, DirectoryFile):
        return position
    try:
        return os.lseek(file.descriptor, position, os.SEEK_DATA)
    except OSError as error:
        return None if error.errno == errno.ENXIO else position


def size_of(disk: ReadableDisk, path: str) -> int:
    """Return the size of a file in bytes. Raises OSError."""
    with contextlib.closing(disk.open_read(path)) as file:
        return file.size()


def size_if_opened(disk: ReadableDisk, path: str) -> int:
    """Return the size of a file in bytes; 0 if it is not there or cannot be opened."""
    try:
        return size_of(disk, path)
    except OSError:
        return 0


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
        with full_or_fatal(f"write {self._path}"):
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
    Raises NotPermittedError, NotRegularFileError where something else lies there, StorageFullError,
    or FatalDiskError where the disk does not let it be made, or an fsync fails.
    """
    _make_directory(root)
    path = root.resolve()
    device = path.stat().st_dev
    for parent in path.parents:
        try:
            descriptor = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except PermissionError:
            continue
        except OSError as error:
            raise FatalDiskError(f"fsync directory {parent}: {error}") from error
        try:
            if os.fstat(descriptor).st_dev != device:
                return
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _NO_FSYNC:
                raise FatalDiskError(f"fsync directory {parent}: {error}") from error
        finally:
            os.close(descriptor)


_IN_EMPTY: Final = frozenset({"lost+found", "lock", "identity.tmp"})
"""Names that an empty directory may have: a mount point's own, and those that a first start leaves
that ended too soon."""


def make_private_directory(root: Path, *, group_may_read: bool, own: Collection[str]) -> str:
    """Make a data directory as `make_data_directory` does, for this user alone.

    With `group_may_read` its group may read there. So it is for all that this process makes from
    then on: its umask is set, whatever it was. A directory that is there already gets the mode if
    it is empty. One with something in it is left as it is, and what to do about that is returned;
    else an empty string. Raises DataDirectoryError if there is something and nothing of `own`: it
    is the directory of somebody else.
    """
    mask = 0o027 if group_may_read else 0o077
    os.umask(mask)
    make_data_directory(root)
    found: set[str] = set()
    with contextlib.suppress(OSError):
        found.update(set(os.listdir(root)) - _IN_EMPTY)
    if found and found.isdisjoint(own):
        raise DataDirectoryError(
            f"{root} has files of somebody else ({min(found)!r} is one of {len(found)}): give the "
            "data directory of this server, or an empty one"
        )
    mode = stat.S_IMODE(root.stat().st_mode)
    if not mode & mask:
        return ""
    with contextlib.suppress(OSError):
        if not os.listdir(root):
            os.chmod(root, mode & ~mask)
            return ""
    return (
        f"others may use the data directory {root} (mode {mode:04o}); nothing was changed, "
        f"`chmod {mode & ~mask:04o} {root}` keeps them out"
    )


def _make_directory(root: Path) -> None:
    what = f"the data directory {root} cannot be made"
    try:
        with permitted(str(root), "made"):
            root.mkdir(parents=True, exist_ok=True)
    except NotPermittedError:
        raise
    except (FileExistsError, NotADirectoryError) as error:
        raise NotRegularFileError(f"{what}: {_in_the_way(root)}; give another directory") from error
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            reason = f"{what}: {error.strerror}; free some space, or give another directory"
            raise StorageFullError(reason) from error
        remedy = (
            "mount it writable, or give" if error.errno == errno.EROFS else "look there, or give"
        )
        raise FatalDiskError(f"{what}: {error.strerror}; {remedy} another directory") from error


def _in_the_way(root: Path) -> str:
    """Say what is where a directory has to be made."""
    for path in (root, *root.parents):
        if os.path.lexists(path) and not path.is_dir():
            return f"{path} is {'a file' if path.is_file() else 'something else'}, no directory"
    return "there is something else in its place"


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


_LOST = (
    "cannot be looked at: somebody has moved or unmounted the data directory, or its disk is "
    "gone; bring it back and start again"
)
_NOT_IN_PLACE = (
    "is not what this process has opened: somebody has moved, replaced or deleted the data "
    "directory or something in it. What was acknowledged is in what was there before: put that "
    "back, then start again"
)
_SYNCFS_FROM = 16
"""From this many dirty files on, one syncfs is cheaper than an fdatasync each."""


class DirectoryDisk:
    """A Disk on a directory of a real file system."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._locked: dict[str, int] = {}
        """Descriptors of what is locked, by the real path."""

    def _real(self, path: str) -> str:
        return f"{self.root}/{path}"

    def open(self, path: str, *, create: bool = False) -> DirectoryFile:
        """Open for reading and writing."""
        real = self._real(path)
        if not create:
            return DirectoryFile(path, _open_regular(real, os.O_RDWR, "written"))
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL
        with full_or_fatal(f"create {path}"), self._permitted_in(path, "made"):
            return DirectoryFile(path, os.open(real, flags, 0o640))

    def open_read(self, path: str) -> DirectoryFile:
        """Open for reading only."""
        return DirectoryFile(path, _open_regular(self._real(path), os.O_RDONLY, "read"))

    def map(self, path: str) -> memoryview:
        """Map the file read-only."""
        descriptor = _open_regular(self._real(path), os.O_RDONLY, "read")
        try:
            if os.fstat(descriptor).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
        finally:
            os.close(descriptor)

    def exists(self, path: str) -> bool:
        """Say whether the name is there."""
        real = self._real(path)
        with permitted(real, "looked for"):
            return os.path.lexists(real) or self._is_hidden(real)

    @staticmethod
    def _is_hidden(real: str) -> bool:
        """Say whether a name is there after all; PermissionError, OpenError if nobody can say."""
        try:
            os.lstat(real)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except PermissionError:
            raise
        except OSError as error:
            raise OpenError(f"{real} cannot be looked for: {error.strerror}{_SALVAGE}") from error
        return True

    def list(self, directory: str) -> Sequence[str]:
        """Return the names in a directory, sorted."""
        real = self._real(directory)
        try:
            with permitted(real, "listed"):
                return sorted(os.listdir(real))
        except FileNotFoundError:
            return []
        except NotADirectoryError as error:
            raise _not_a_directory(real) from error
        except NotPermittedError:
            raise
        except OSError as error:
            raise OpenError(f"{real} cannot be listed: {error.strerror}") from error

    def require_usable(self, directories: Sequence[str], files: Sequence[str]) -> None:
        """Raise NotPermittedError or NotRegularFileError unless all can be read and written."""
        for path in directories:
            real = self._real(path)
            if not os.access(real, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
                raise _not_permitted(real, "used", real)
        for path in files:
            real = self._real(path)
            if not os.path.isfile(real):
                raise _not_regular(real)
            if not os.access(real, os.R_OK | os.W_OK, effective_ids=True):
                raise _not_permitted(real, "read and written", real)

    def _permitted_in(self, path: str, doing: str) -> contextlib.AbstractContextManager[None]:
        """Say so where the directory that a path lies in does not let this user change it."""
        real = self._real(path)
        return permitted(real, doing, culprit=os.path.dirname(real))

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents, but not the data directory itself."""
        real = self._real(path)
        if not os.path.isdir(self.root):
            # Somebody has moved it away. A new one in its place would look as if nothing had been.
            raise FatalDiskError(f"{self.root} {_LOST}")
        try:
            with full_or_fatal(f"mkdir {path}"), self._permitted_in(path, "made"):
                os.makedirs(real, mode=0o750, exist_ok=True)
        except FatalDiskError as error:
            if isinstance(error.__cause__, FileExistsError | NotADirectoryError):
                raise _not_a_directory(real) from error
            raise

    def rename(self, source: str, target: str) -> None:
        """Replace `target` by `source`."""
        what = f"rename {source} to {target}"
        with full_or_fatal(what), self._permitted_in(target, "made"):
            os.rename(self._real(source), self._real(target))

    def unlink(self, path: str) -> None:
        """Remove a file."""
        with _fatal(f"unlink {path}"), self._permitted_in(path, "deleted"):
            os.unlink(self._real(path))

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        real = self._real(path)
        with _fatal(f"fsync directory {path}"), permitted(real, "read"):
            descriptor = os.open(real, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
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
            descriptor = _open_regular(self._real(path), os.O_RDONLY, "read")
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(descriptor)

    def free_bytes(self) -> tuple[int, int]:
        """Return free and total bytes of the file system."""
        try:
            usage = shutil.disk_usage(self.root)
        except OSError as error:
            raise FatalDiskError(f"{self.root} {_LOST}: {error.strerror}") from error
        return usage.free, usage.total

    @contextlib.contextmanager
    def lock(self, path: str) -> Iterator[None]:
        """Hold the exclusive lock file `path` and the directory (flock: gone with the process)."""
        with contextlib.ExitStack() as opened:
            file = self._open_lock(path)
            opened.callback(os.close, file)
            with _fatal(f"open {self.root}"), permitted(str(self.root), "read"):
                directory = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, directory)
            held = {str(self.root): directory, self._real(path): file}
            for descriptor in held.values():
                self._flock(descriptor)
            self._locked = held
            try:
                yield
            finally:
                self._locked = {}

    def _flock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataDirectoryError(
                f"{self.root} is in use by another process; one data directory serves one node"
            ) from error
        except OSError as error:
            raise FatalDiskError(
                f"{self.root} cannot be locked: {error.strerror}; its file system must know flock"
            ) from error

    def require_in_place(self, files: Sequence[File]) -> None:
        """Raise FatalDiskError unless what is locked, and these open files, lie at their paths."""
        held = dict(self._locked)
        for file in files:
            assert isinstance(file, DirectoryFile)
            held[self._real(file.path)] = file.descriptor
        for real, descriptor in held.items():
            try:
                is_there = os.path.samestat(os.stat(real), os.fstat(descriptor))
            except OSError as error:
                raise FatalDiskError(f"{real} {_NOT_IN_PLACE} ({error.strerror})") from error
            if not is_there:
                raise FatalDiskError(f"{real} {_NOT_IN_PLACE}")

    def _open_lock(self, path: str) -> int:
        """Return a descriptor of the lock file: the first thing that needs a directory to be ours.

        Raises NotPermittedError, NotRegularFileError, StorageFullError or FatalDiskError.
        """
        real = self._real(path)
        try:
            return _open_regular(real, os.O_RDWR | os.O_CREAT, "opened to lock the data directory")
        except NotPermittedError as error:
            if os.path.exists(real):
                raise
            raise _not_permitted(str(self.root), "written", str(self.root)) from error
        except OpenError as error:
            if error.errno != errno.EROFS:
                raise
            raise FatalDiskError(
                f"the data directory {self.root} must be writable by {_user(os.geteuid())}, as "
                "which this process runs, but its file system is mounted read-only: mount it "
                "writable, or give another directory"
            ) from error


def _not_a_directory(name: str) -> NotRegularFileError:
    return NotRegularFileError(
        f"{name} is not a directory, but a directory of the logs belongs there: move it away"
    )
