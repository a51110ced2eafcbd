"""What can go wrong on disk, and what to do about it.

* StorageError
    * DamagedError: bytes on disk fail their check. Never retried.
    * UnsupportedFormatError: written by another delaywheel (version, record kind or feature bit).
    * StorageFullError: no space left. Appends are refused, dispatch goes on.
    * FatalDiskError: a write or an fsync failed. The process stops and recovers on restart,
      since a second fsync may claim success for bytes that never reached the disk.
        * OpenError: a file could not be opened.
    * DataDirectoryError: the data directory belongs to somebody else, or is in use.
        * NotPermittedError: this user may not read or write it.
        * NotRegularFileError: something else lies where a file of ours belongs.
    * LogStateError: what is on disk contradicts itself so that a promise could not be kept.
    * CopyRefusedError: batches of another node do not go on from the end of this log.
    * LogTrimmedError: records that are asked for are not kept any more.
"""

from typing import Final


class StorageError(Exception):
    """Anything the storage package raises on purpose."""


class DamagedError(StorageError):
    """Bytes on disk do not pass their CRC, or are not what their place says they are."""

    def __init__(self, *, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} at position {position}: {reason}; run `delaywheel log verify`")
        self.path = path
        self.position = position
        self.reason = reason


class UnsupportedFormatError(StorageError):
    """A file or batch needs a newer delaywheel than this one; is_older: an older one."""

    def __init__(self, *, path: str, position: int, reason: str, is_older: bool = False) -> None:
        remedy = _OF_AN_OLDER_ONE if is_older else _OF_A_NEWER_ONE
        super().__init__(f"{path} at position {position}: {reason}; {remedy}")
        self.path = path
        self.position = position
        self.reason = reason


_OF_A_NEWER_ONE = (
    "it was written by a newer delaywheel, upgrade this node before starting it on this data "
    "directory"
)
_OF_AN_OLDER_ONE = (
    "it was written by an older delaywheel, and nothing was changed: let that one deliver what is "
    "still to be sent, then start this node on an empty data directory"
)


def require_version(what: str, found: int, known: int, *, path: str, position: int) -> None:
    """Raise UnsupportedFormatError unless an intact `what` has the one version that is read."""
    if found != known:
        reason = f"{what} of format version {found} (this one reads version {known})"
        raise UnsupportedFormatError(
            path=path, position=position, reason=reason, is_older=found < known
        )


class StorageFullError(StorageError):
    """The disk has no space for an append; nothing of it was kept."""


class FatalDiskError(StorageError):
    """A write or an fsync failed in a way after which nothing on this disk can be trusted."""


class DataDirectoryError(StorageError):
    """The data directory is locked, or was made for another cluster, group or node."""


class OpenError(FatalDiskError, OSError):
    """A file could not be opened. Whoever only reads may take it for damage, as other OSErrors."""


class NotPermittedError(DataDirectoryError, OSError):
    """The user this process runs as may not do that. The message says whose it is and what to do.

    Also an OSError: whoever reads one file of many in a running server takes it for damage.
    """


class NotRegularFileError(DataDirectoryError, OSError):
    """A directory, FIFO, socket, device or dangling link has the name of a file of ours.

    Also an OSError, as NotPermittedError is.
    """


class LogStateError(StorageError):
    """The logs contradict each other; serving could break a promise, so the node refuses."""


class CopyRefusedError(StorageError):
    """Batches of another node do not go on from the end of this log; nothing was written."""


class LogTrimmedError(StorageError):
    """Records that are asked for were deleted by retention: whoever needs them copies more."""


_SAYS_WHAT_IS_THERE: Final = (
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    NotRegularFileError,
)


def may_pass(error: OSError) -> bool:
    """Say whether another try at reading may succeed, nothing but time having passed.

    A file that is missing, or none, is so for good; of all other errors nobody can tell.
    """
    return not isinstance(error, _SAYS_WHAT_IS_THERE)
