"""A disk in memory, for speed: files are bytearrays, everything is durable at once, none fails."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from storage.disk.disk import Bytes, File


class MemoryFile:
    """A File of a MemoryDisk."""

    def __init__(self, path: str, data: bytearray) -> None:
        self._path = path
        self._data = data

    @property
    def path(self) -> str:
        return self._path

    def write_at(self, position: int, buffers: Sequence[Bytes]) -> int:
        data = b"".join(buffers)
        missing = position - len(self._data)
        if missing > 0:
            self._data += bytes(missing)
        self._data[position : position + len(data)] = data
        return len(data)

    def read_at(self, position: int, size: int) -> bytes:
        return bytes(memoryview(self._data)[position : position + size])

    def size(self) -> int:
        return len(self._data)

    def truncate(self, size: int) -> None:
        del self._data[size:]

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


class MemoryDisk:
    """A Disk that holds the files it was made with, and those that are written."""

    def __init__(self, files: Mapping[str, bytes] = {}) -> None:
        self.files = {path: bytearray(data) for path, data in files.items()}
        self._directories: set[str] = set()

    def open(self, path: str, *, create: bool = False) -> File:
        if create:
            if path in self.files:
                raise FileExistsError(path)
            self.files[path] = bytearray()
        return MemoryFile(path, self._data(path))

    def open_read(self, path: str) -> File:
        return MemoryFile(path, self._data(path))

    def map(self, path: str) -> memoryview:
        # A copy: a bytearray that is looked at could not grow.
        return memoryview(bytes(self._data(path)))

    def exists(self, path: str) -> bool:
        return path in self.files or path in self._directories or bool(self.list(path))

    def list(self, directory: str) -> Sequence[str]:
        prefix = f"{directory}/" if directory else ""
        names = {
            path.removeprefix(prefix).partition("/")[0]
            for path in (*self.files, *self._directories)
            if path.startswith(prefix) and path != directory
        }
        return sorted(names)

    def require_usable(self, directories: Sequence[str], files: Sequence[str]) -> None:
        pass

    def make_directory(self, path: str) -> None:
        self._directories.add(path)

    def rename(self, source: str, target: str) -> None:
        self.files[target] = self.files.pop(source)

    def unlink(self, path: str) -> None:
        self._data(path)
        del self.files[path]

    def sync_directory(self, path: str) -> None:
        pass

    def sync_files(self, files: Sequence[File]) -> None:
        pass

    def prefetch(self, path: str) -> None:
        pass

    def free_bytes(self) -> tuple[int, int]:
        return 1 << 40, 1 << 40

    def require_in_place(self, files: Sequence[File]) -> None:
        pass

    @contextlib.contextmanager
    def lock(self, path: str) -> Iterator[None]:
        self.files.setdefault(path, bytearray())
        yield

    def _data(self, path: str) -> bytearray:
        try:
            return self.files[path]
        except KeyError:
            raise FileNotFoundError(path) from None
