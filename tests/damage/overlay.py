"""A data directory in memory, laid over another one: opening a damaged copy costs no copying.

`OverlayDisk` reads the files of a base that is never changed, except for those that were struck.
What is written, cut, renamed or unlinked is kept by the overlay and can be looked at afterwards.
"""

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping, Sequence

from storage.disk.disk import Bytes, Disk, File
from storage.disk.errors import FatalDiskError

Image = Mapping[str, bytes]
"""Files by path."""


class OverlayFile:
    """A File of an OverlayDisk."""

    __slots__ = ("_disk", "_path")

    def __init__(self, disk: "OverlayDisk", path: str) -> None:
        self._disk = disk
        self._path = path

    @property
    def path(self) -> str:
        """The path it was opened by."""
        return self._path

    def write_at(self, position: int, buffers: Sequence[Bytes]) -> int:
        """Write to the overlay."""
        data = b"".join(buffers)
        content = self._disk.writable(self._path)
        if len(content) < position:
            content.extend(bytes(position - len(content)))
        content[position : position + len(data)] = data
        return len(data)

    def read_at(self, position: int, size: int) -> bytes:
        """Read what is there by now."""
        return bytes(self._disk.content(self._path)[position : position + size])

    def size(self) -> int:
        """Return the present size."""
        return len(self._disk.content(self._path))

    def truncate(self, size: int) -> None:
        """Cut the file, or fill it with zeros."""
        content = self._disk.writable(self._path)
        if size < len(content):
            self._disk.cut[self._path] = min(size, self._disk.cut.get(self._path, size))
            del content[size:]
        else:
            content.extend(bytes(size - len(content)))

    def sync(self) -> None:
        """Nothing is ever lost."""

    def close(self) -> None:
        """Nothing is held."""


class OverlayDisk:
    """A Disk over the files of `base`, of which those in `struck` are other ones, or gone (None).

    cut: the least size to which a file was truncated; unlinked: files that were removed.
    """

    def __init__(self, base: Image, struck: Mapping[str, bytes | None]) -> None:
        self._base = base
        self._struck = struck
        self._written: dict[str, bytearray] = {}
        self._directories = _directories(base)
        self._gone = {path for path, data in struck.items() if data is None}
        self.cut: dict[str, int] = {}
        self.unlinked: set[str] = set()

    @property
    def changed(self) -> list[str]:
        """Files that were written to, made or removed."""
        return sorted({*self._written, *self.unlinked})

    def content(self, path: str) -> bytes | bytearray:
        """Return what a file holds by now. Raises FileNotFoundError."""
        found = self._written.get(path)
        if found is not None:
            return found
        if path not in self._gone:
            data = self._struck.get(path)
            if data is None:
                data = self._base.get(path)
            if data is not None:
                return data
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def writable(self, path: str) -> bytearray:
        """Return what a file holds, to be changed in place."""
        found = self._written.get(path)
        if found is None:
            found = self._written[path] = bytearray(self.content(path))
        return found

    def open(self, path: str, *, create: bool = False) -> OverlayFile:
        """Open for reading and writing."""
        if create:
            if self._is_file(path):
                raise FatalDiskError(f"create {path}: it is there already")
            self._written[path] = bytearray()
            self._gone.discard(path)
        else:
            self.content(path)
        return OverlayFile(self, path)

    def open_read(self, path: str) -> OverlayFile:
        """Open for reading."""
        self.content(path)
        return OverlayFile(self, path)

    def map(self, path: str) -> memoryview:
        """Return what the file holds now."""
        return memoryview(bytes(self.content(path)))

    def exists(self, path: str) -> bool:
        """Say whether a file or directory of this name is there."""
        return path in self._directories or self._is_file(path)

    def _is_file(self, path: str) -> bool:
        if path in self._written:
            return True
        return path not in self._gone and (path in self._struck or path in self._base)

    def list(self, directory: str) -> Sequence[str]:
        """Return the names in a directory, sorted."""
        names = set(self._directories.get(directory, ()))
        prefix = f"{directory}/"
        for path in (*self._struck, *self._written):
            if path.startswith(prefix) and "/" not in path[len(prefix) :]:
                names.add(path[len(prefix) :])
        gone = {path[len(prefix) :] for path in self._gone if path.startswith(prefix)}
        return sorted(names - gone)

    def require_usable(self, directories: Sequence[str], files: Sequence[str]) -> None:
        """Everything is ours."""

    def make_directory(self, path: str) -> None:
        """Make a directory."""
        if path not in self._directories:
            self._directories = {**self._directories, path: frozenset()}

    def rename(self, source: str, target: str) -> None:
        """Replace `target` by `source`."""
        self._written[target] = bytearray(self.content(source))
        self._gone.discard(target)
        self._remove(source)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        self.content(path)
        self._remove(path)
        self.unlinked.add(path)

    def _remove(self, path: str) -> None:
        self._written.pop(path, None)
        self._gone.add(path)

    def sync_directory(self, path: str) -> None:
        """Nothing is ever lost."""

    def sync_files(self, files: Sequence[File]) -> None:
        """Nothing is ever lost."""

    def prefetch(self, path: str) -> None:
        """Everything is near."""

    def free_bytes(self) -> tuple[int, int]:
        """There is room."""
        return 1 << 40, 1 << 41

    def require_in_place(self, files: Sequence[File]) -> None:
        """Nothing is ever moved."""

    @contextlib.contextmanager
    def lock(self, path: str) -> Iterator[None]:
        """Hold the lock file."""
        if not self._is_file(path):
            self.open(path, create=True)
        yield


_KNOWN: dict[int, tuple[Image, dict[str, frozenset[str]]]] = {}


def _directories(base: Image) -> dict[str, frozenset[str]]:
    """Return the names in each directory; worked out once for each base."""
    known = _KNOWN.get(id(base))
    if known is not None and known[0] is base:
        return known[1]
    names: dict[str, set[str]] = {"": set()}
    for path in base:
        parts = path.split("/")
        for depth in range(1, len(parts)):
            directory = "/".join(parts[:depth])
            names.setdefault(directory, set())
            names["/".join(parts[: depth - 1])].add(parts[depth - 1])
        names["/".join(parts[:-1])].add(parts[-1])
    found = {directory: frozenset(inside) for directory, inside in names.items()}
    _KNOWN[id(base)] = (base, found)
    return found


def _conforms(disk: OverlayDisk) -> Disk:
    """Let the type checker hold OverlayDisk against the seam."""
    return disk
