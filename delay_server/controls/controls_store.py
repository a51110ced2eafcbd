"""Stores the controls that this node goes by durably.

The file `controls` (storage/state/controls_file.py) has the document, JSON of `Controls`. What is
taken holds once the file is replaced, so it survives any crash. Without a file nothing was taken.

The node does not start with a file that it cannot read: the rules are unknown then, and delivery
without them could flood the very broker that an operator protected. An operator moves the file
away: the meta server, or the file of rules, tells them again.
"""

from typing import Final
from uuid import UUID

from delay_protocol.nodes.controls import Controls, ControlsError, decode_controls, encode_controls
from storage.disk.disk import Disk
from storage.disk.errors import DamagedError
from storage.state.controls_file import CONTROLS_PATH, controls_file
from storage.state.document_file import DOCUMENT_AT

REMEDY: Final = (
    f"restore {CONTROLS_PATH} from a backup, or move it away and start the node: the meta server, "
    "or the file of rules (node.rules_file), tells them again"
)


def read_controls(disk: Disk, log_uuid: UUID) -> Controls:
    """Return what the data directory says; raise DamagedError, or UnsupportedFormatError."""
    try:
        document = controls_file(disk, log_uuid).read()
    except DamagedError as error:
        raise _damaged(error.position, error.reason) from error
    if document is None:
        return Controls()
    try:
        return decode_controls(document)
    except ControlsError as error:
        raise _damaged(DOCUMENT_AT, str(error)) from error


def _damaged(position: int, reason: str) -> DamagedError:
    reason = f"{reason}; the rules that it had are unknown: {REMEDY}"
    return DamagedError(path=CONTROLS_PATH, position=position, reason=reason)


def write_controls(disk: Disk, log_uuid: UUID, controls: Controls) -> None:
    """Replace the controls; durable when this returns. StorageFullError, FatalDiskError."""
    controls_file(disk, log_uuid).write(encode_controls(controls))


class ControlsStore:
    """The controls that hold at this node. Its calls block; they are made one at a time."""

    def __init__(self, disk: Disk, *, log_uuid: UUID) -> None:
        """Read the controls; raise DamagedError, or UnsupportedFormatError."""
        self._disk = disk
        self._log_uuid = log_uuid
        # Whoever put the file there may have died before its name was durable.
        disk.sync_directory("")
        self.controls = read_controls(disk, log_uuid)
        """As they are durable."""

    def take(self, told: Controls) -> None:
        """Store other controls; StorageFullError (nothing has changed then) or FatalDiskError."""
        if told != self.controls:
            write_controls(self._disk, self._log_uuid, told)
            self.controls = told
