"""Where manifests come from: a directory as it is now, or a file of `delaywheel log manifest`."""

from pathlib import Path

from spark_tools.plan import Source
from storage.disk import DirectoryDisk
from storage.manifest import decode_manifest, read_manifest


def source_of_directory(root: Path, *, now_ms: int, from_minute: int) -> Source:
    """Return what a data directory commits now.

    now_ms: the wall clock. Of deleted segments only those are told of that ended after
    `from_minute`. Raises what `read_manifest` does.
    """
    disk = DirectoryDisk(root)
    return Source(read_manifest(disk, now_ms=now_ms, deleted_from_minute=from_minute), str(root))


def source_of_file(text: str) -> Source:
    """Return the manifest that `FILE=DATA_DIR` names; without `=` it lies among its files.

    Raises OSError, or what `decode_manifest` does.
    """
    file, _, root = text.partition("=")
    path = Path(file)
    return Source(decode_manifest(path.read_bytes(), path=file), root or str(path.parent))
