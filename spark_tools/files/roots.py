"""What names a data directory, or a file: a path of this machine, or a URI of a store elsewhere."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from spark_tools.files.errors import RemoteError
from spark_tools.files.remote_disk import remote_disk
from storage.disk.disk import DirectoryDisk, ListedDisk

_URI = re.compile(r"[a-z][a-z0-9+.-]*://|file:/", re.IGNORECASE)


def local_path(root: str) -> Path | None:
    """Return the path that a root names on this machine, None if it lies elsewhere.

    Raises RemoteError for a `file:` URI of another machine.
    """
    if _URI.match(root) is None:
        return Path(root)
    parts = urlsplit(root)
    if parts.scheme != "file":
        return None
    if parts.netloc not in {"", "localhost"}:
        raise RemoteError(f"{root} is of another machine: a file: URI has three slashes")
    return Path(unquote(parts.path))


def absolute_root(root: str) -> str:
    """Return the same root for processes that work in another directory."""
    return root if _URI.match(root) is not None else str(Path(root).absolute())


def disk_of(root: str) -> ListedDisk:
    """Return the disk for reading what is below a root. Raises RemoteError."""
    path = local_path(root)
    return remote_disk(root) if path is None else DirectoryDisk(path)


def directory_of(file: str) -> str:
    """Return the root that a file lies in."""
    if _URI.match(file) is None:
        return str(Path(file).parent)
    return file.rpartition("/")[0]


def read_file(file: str) -> bytes:
    """Return what a file has, which is named as roots are. Raises OSError or RemoteError."""
    path = local_path(file)
    if path is not None:
        return path.read_bytes()
    opened = remote_disk(directory_of(file)).open_read(unquote(file.rpartition("/")[2]))
    try:
        return opened.read_at(0, opened.size())
    finally:
        opened.close()
