"""Computes how much free disk new messages may use, and refuses messages when there is too little.

    free disk  =  floor  +  owed  +  available

The *floor* is a setting. *Owed* is what is still to be written for messages that were accepted
(storage/schedule/owed.py). New messages may use what is *available* only: each commit checks
the budget before it writes, so the server's own writes never use the floor, however fast messages
come and however large the replay lag is. To avoid flapping, the server then refuses messages until
an eighth of the floor is available, and room for the commit that was refused.
"""

from collections.abc import Callable
from typing import Final

from storage.disk.disk import Disk
from storage.disk.errors import StorageFullError
from storage.schedule.owed import owed_for

_CLEAR_SHARE = 1 / 8
"""Of the floor: so much has to be available before messages are taken again."""

COPIES_BELOW_FLOOR: Final = 16 * 1024 * 1024
"""Bytes of the floor that copies of messages for several names may use: enough that deliveries go
on where a few subjects have several names, and facts have room all the same."""


class DiskBudget:
    """Looks at the disk, and says whether there is room for more.

    `look` and `require` block, and may run in different threads: each reads first what is owed and
    then what is free, so that what is written in between counts twice and not never.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        floor_bytes: Callable[[int], int],
        owed_bytes: Callable[[], int],
    ) -> None:
        """Take over a disk; floor_bytes: of a file system of so many bytes."""
        self._disk = disk
        self._floor_bytes = floor_bytes
        self._owed_bytes = owed_bytes
        self.refused_bytes = 0
        """While messages are refused: what the largest commit would have taken."""
        self.free = 0
        """Bytes; this and the following as last looked at."""
        self.total = 0
        self.owed = 0
        self.floor = 0
        self.full = False
        """Whether messages are refused."""

    @property
    def available(self) -> int:
        """Bytes that may be given away; negative when the floor is reached into."""
        return self.free - self.owed - self.floor

    def look(self) -> None:
        """See how the disk is now."""
        self._measure()
        wanted = max(int(self.floor * _CLEAR_SHARE), self.refused_bytes) if self.full else 0
        self.full = self.available < wanted
        if not self.full:
            self.refused_bytes = 0

    def has_room_below(self, rows: int, blob_bytes: int) -> bool:
        """Return True if a commit of so many copies may be written, below the floor if need be.

        Without them messages that were accepted would not be delivered. It goes by the latest look.
        """
        return self.available + COPIES_BELOW_FLOOR >= blob_bytes + owed_for(rows, blob_bytes)

    def spend(self, blob_bytes: int) -> None:
        """Count bytes as written until the disk is looked at."""
        self.free -= blob_bytes

    def require(self, rows: int, blob_bytes: int) -> None:
        """Raise StorageFullError where there is no room for a commit of so many messages."""
        self._measure()
        needed = blob_bytes + owed_for(rows, blob_bytes)
        if self.full or self.available < needed:
            self.refused_bytes = max(needed, self.refused_bytes)
            self.full = True
            raise StorageFullError(
                f"{self.free} bytes are free: accepted messages still need {self.owed} of them, "
                f"and the floor is {self.floor}"
            )

    def _measure(self) -> None:
        owed = self._owed_bytes()
        self.free, self.total = self._disk.free_bytes()
        self.floor = self._floor_bytes(self.total)
        self.owed = owed
