"""Reads the items of dead letters that the index names, each by itself.

Files of dead segments only grow, so this may run beside everything else.
"""

from dataclasses import dataclass

from storage.batch.dead_rows import note_of_row
from storage.batch.item_formats import qmq_item_fault
from storage.disk.disk import Disk, ReadableFile
from storage.disk.errors import may_pass
from storage.disk.spans import dead_key
from storage.schedule.dead_index import DeadRow


@dataclass(frozen=True, slots=True)
class DeadItem:
    """A dead letter as its file has it.

    item: as its producer sent it, None where it is damaged or could not be read; reason: the text
    of its DEAD record, None likewise; fault: why one of them is None; is_unread: the operating
    system failed, and another try may not.
    """

    item: bytes | None
    reason: str | None
    fault: str = ""
    is_unread: bool = False


class DeadReader:
    """Reads rows one after another, and keeps the file of the last one open."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._file: ReadableFile | None = None

    def read(self, row: DeadRow) -> DeadItem:
        """Return what there is of a row. Item and note prove themselves by their CRCs."""
        try:
            data = self._bytes_of(row)
        except OSError as error:
            fault = f"{dead_key(row.minute).path} cannot be read: {error}"
            return DeadItem(None, None, fault, is_unread=may_pass(error))
        found = note_of_row(data)
        if found is None or found[1].old_sequence != row.old_sequence:
            return DeadItem(None, None, "the note is damaged")
        item = data[: -found[0]]
        fault = qmq_item_fault(item, row.due_ms) or ""
        return DeadItem(None if fault else item, found[1].reason, fault)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _bytes_of(self, row: DeadRow) -> bytes:
        path = dead_key(row.minute).path
        if self._file is None or self._file.path != path:
            self.close()
            self._file = self._disk.open_read(path)
        return self._file.read_at(row.position, row.row_size)
