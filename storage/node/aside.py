"""The directory `damaged`: what a data directory had before its node copies all anew.

    identity         of the directory as it was: its storage uuid is given up with it
    replaced         the identity of a later copy that was given up as well, and is not kept
    until_whole      an empty file: all of this goes once the copy is whole
    message_log/ …   its files, by the names that they had

Once its identity is there a directory is given up. A start that finds none in its place moves or
deletes what is left, and writes an identity with another storage uuid. So a kill at any moment
leaves one directory or the other. Only files are moved: empty directories stay. Where the copy is
damaged, too, all of this stays: `until_whole` goes then.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from storage.disk.disk import Disk
from storage.state.identity import IDENTITY_PATH, Identity, read_identity, write_identity
from storage.state.promise_file import PROMISE_PATH

ASIDE_DIRECTORY: Final = "damaged"
_IDENTITY: Final = f"{ASIDE_DIRECTORY}/{IDENTITY_PATH}"
_REPLACED: Final = f"{ASIDE_DIRECTORY}/replaced"
_UNTIL_WHOLE: Final = f"{ASIDE_DIRECTORY}/until_whole"


def give_up(disk: Disk, directories: Sequence[str]) -> None:
    """Give up what a data directory has in these directories: its next start moves that aside.

    Raises StorageFullError with nothing changed, or FatalDiskError.
    """
    for name in directories:
        disk.make_directory(f"{ASIDE_DIRECTORY}/{name}")
    disk.sync_directory("")
    if disk.exists(_IDENTITY):
        # Here is the copy of what lies there, and it is to be made again.
        disk.rename(IDENTITY_PATH, _REPLACED)
    else:
        if not disk.exists(_UNTIL_WHOLE):
            disk.open(_UNTIL_WHOLE, create=True).close()
        # Before the identity: without it nothing would ever be deleted.
        disk.sync_directory(ASIDE_DIRECTORY)
        disk.rename(IDENTITY_PATH, _IDENTITY)
    for directory in (ASIDE_DIRECTORY, ""):
        disk.sync_directory(directory)


def finish(disk: Disk, directories: Sequence[str], *, chance: random.Random) -> None:
    """Move aside what is left of a directory that was given up, and make it an empty one.

    Its incarnations go on, since a record names a master by node and incarnation. Raises
    DamagedError, StorageFullError or FatalDiskError; the next call goes on from there.
    """
    if disk.exists(IDENTITY_PATH) or not disk.exists(_IDENTITY):
        return
    is_kept = not disk.exists(_REPLACED)
    for path in _files(disk, directories):
        if is_kept:
            disk.rename(path, f"{ASIDE_DIRECTORY}/{path}")
        else:
            disk.unlink(path)
    for name in directories:
        for directory in (f"{ASIDE_DIRECTORY}/{name}", name):
            if disk.exists(directory):
                disk.sync_directory(directory)
    given_up = _given_up(disk)
    assert given_up is not None
    storage_uuid = UUID(int=chance.getrandbits(128), version=4)
    write_identity(disk, replace(given_up, storage_uuid=storage_uuid))


def given_up_uuid(disk: Disk) -> UUID | None:
    """Return the storage uuid that was given up last; None if nothing lies aside. DamagedError."""
    identity = _given_up(disk)
    return None if identity is None else identity.storage_uuid


def _given_up(disk: Disk) -> Identity | None:
    return read_identity(disk, _REPLACED) or read_identity(disk, _IDENTITY)


def keep(disk: Disk) -> None:
    """Keep what lies aside where it is, whatever becomes of the copy. Raises FatalDiskError."""
    if disk.exists(_UNTIL_WHOLE):
        disk.unlink(_UNTIL_WHOLE)
        disk.sync_directory(ASIDE_DIRECTORY)


def remove(disk: Disk, directories: Sequence[str]) -> bool:
    """Delete what lies aside, if it is not to stay; return True if it was deleted.

    Raises FatalDiskError.
    """
    if not disk.exists(_UNTIL_WHOLE):
        return False
    aside = [f"{ASIDE_DIRECTORY}/{name}" for name in directories]
    for path in _files(disk, aside, ASIDE_DIRECTORY):
        disk.unlink(path)
    for directory in aside:
        disk.sync_directory(directory)
    for path in (_REPLACED, _IDENTITY, _UNTIL_WHOLE):
        if disk.exists(path):
            disk.unlink(path)
        disk.sync_directory(ASIDE_DIRECTORY)
    return True


def _files(disk: Disk, directories: Sequence[str], root: str = "") -> Iterator[str]:
    """Yield the paths of the promise in `root`, and of all files in these directories."""
    promise = f"{root}/{PROMISE_PATH}" if root else PROMISE_PATH
    if disk.exists(promise):
        yield promise
    for directory in directories:
        for name in disk.list(directory):
            yield f"{directory}/{name}"
