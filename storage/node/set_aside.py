"""A data directory whose records go aside, so that it can become a copy of another one.

    divergent/aside                    what is being moved: a start goes on with that
    divergent/snapshot-<incarnation>   all of it, as it was: message_log/, schedule_log/, …

The directories are renamed, so it needs no room. The identity, the promise, the audit and what is
in quarantine stay.
"""

from typing import Final

from storage.disk.disk import Disk
from storage.logs.raw_batches import DIVERGENT_DIRECTORY
from storage.state.identity import read_identity

_MOVING: Final = f"{DIVERGENT_DIRECTORY}/aside"
_MOVED: Final = ("message_log", "schedule_log", "dispatch_log", "seals", "checkpoint")


def set_aside(disk: Disk, incarnation: int) -> str:
    """Move all that is of logs; return where it is. Nothing of it may be open.

    Raises StorageFullError or FatalDiskError; then `go_on_setting_aside` does the rest.
    """
    disk.make_directory(_MOVING)
    for directory in (DIVERGENT_DIRECTORY, ""):
        disk.sync_directory(directory)
    for name in _MOVED:
        if disk.exists(name):
            disk.rename(name, f"{_MOVING}/{name}")
    for directory in (_MOVING, ""):
        disk.sync_directory(directory)
    kept = f"{DIVERGENT_DIRECTORY}/snapshot-{incarnation}"
    disk.rename(_MOVING, kept)
    disk.sync_directory(DIVERGENT_DIRECTORY)
    return kept


def go_on_setting_aside(disk: Disk) -> None:
    """Finish what a crash has broken off, before anything of the directory is used.

    Raises what `set_aside` and `read_identity` do.
    """
    if not disk.exists(_MOVING):
        return
    identity = read_identity(disk)
    set_aside(disk, 0 if identity is None else identity.incarnation)
