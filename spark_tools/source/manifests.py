"""Where manifests come from: a directory as it is now, or a file of `delaywheel log manifest`."""

from spark_tools.files.errors import ReconcileError
from spark_tools.files.roots import absolute_root, directory_of, disk_of, local_path, read_file
from spark_tools.run.plan import Source, dead_extents_of, extents_of
from storage.disk.errors import DamagedError, DataDirectoryError, UnsupportedFormatError
from storage.readers.manifest import Manifest, decode_manifest, read_manifest


def source_of_directory(
    root: str, *, now_ms: int, from_minute: int, is_final: bool = False
) -> Source:
    """Return the manifest of a data directory, or of a copy, as it is now.

    now_ms: the wall clock. Of deleted segments only those are told of that ended after
    `from_minute`. is_final: no node of the group runs any more. Raises what `read_manifest` and
    `disk_of` do.
    """
    try:
        found = read_manifest(
            disk_of(root), now_ms=now_ms, deleted_from_minute=from_minute, is_final=is_final
        )
    except DataDirectoryError as error:
        if isinstance(error, OSError):
            raise  # It names the file.
        raise DataDirectoryError(f"{root}: {error}") from error
    return Source(found, absolute_root(root))


def source_of_file(text: str, *, is_final: bool = False) -> Source:
    """Return the manifest that `FILE=DATA_DIR` names; without `=` it lies among its files.

    Raises OSError, RemoteError, or ReconcileError for what is no manifest, one that was changed,
    or, if no node of the group runs any more, one that leaves out records which count since.
    """
    file, _, root = text.partition("=")
    found = _decoded(file)
    root = root or directory_of(file)
    if is_final and found.durable_next_sequence > found.log_next_sequence:
        raise ReconcileError(
            f"{file} leaves out what is durable and was not known to be committed: "
            f"with --final give the directory, --root {root}"
        )
    path = local_path(root)
    if path is not None and not path.is_dir():
        raise ReconcileError(
            f"{root} is no directory: give --manifest FILE=DATA_DIR with the directory of the "
            f"files in {file}"
        )
    return Source(found, absolute_root(root))


def _decoded(file: str) -> Manifest:
    """Return a manifest as it was made, of segments that are some."""
    again = "make it again with `delaywheel log manifest`"
    try:
        found = decode_manifest(read_file(file), path=file)
    except DamagedError as error:
        raise ReconcileError(f"{file}: {error.reason}; {again}") from error
    except UnsupportedFormatError as error:
        raise ReconcileError(
            f"{file}: {error.reason}; {again} of this version, or read it with the version that "
            "made it"
        ) from error
    try:
        extents_of(found)
        dead_extents_of(found)
    except ReconcileError as error:
        raise ReconcileError(f"{file}: {error}; {again}") from error
    return found
