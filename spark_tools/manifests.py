"""Where manifests come from: a directory as it is now, or a file of `delaywheel log manifest`."""

from spark_tools.plan import Source
from spark_tools.roots import directory_of, disk_of, read_file
from storage.errors import DataDirectoryError
from storage.manifest import decode_manifest, read_manifest


def source_of_directory(root: str, *, now_ms: int, from_minute: int) -> Source:
    """Return what a data directory, or a copy of one, commits now.

    now_ms: the wall clock. Of deleted segments only those are told of that ended after
    `from_minute`. Raises what `read_manifest` and `disk_of` do.
    """
    try:
        found = read_manifest(disk_of(root), now_ms=now_ms, deleted_from_minute=from_minute)
    except DataDirectoryError as error:
        if isinstance(error, OSError):
            raise  # It names the file.
        raise DataDirectoryError(f"{root}: {error}") from error
    return Source(found, root)


def source_of_file(text: str) -> Source:
    """Return the manifest that `FILE=DATA_DIR` names; without `=` it lies among its files.

    Raises OSError, RemoteError, or what `decode_manifest` does.
    """
    file, _, root = text.partition("=")
    return Source(decode_manifest(read_file(file), path=file), root or directory_of(file))
