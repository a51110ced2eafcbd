"""Reads the item of a dead letter that the index names.

Files of dead segments only grow, so this may run beside everything else.
"""

from contextlib import closing
from dataclasses import dataclass

from storage.batch.dead_rows import note_of_row
from storage.batch.item_formats import qmq_item_fault
from storage.disk.disk import Disk
from storage.disk.spans import dead_key
from storage.schedule.dead_index import DeadRow


@dataclass(frozen=True, slots=True)
class DeadItem:
    """A dead letter as its file has it.

    item: as its producer sent it, None where it is damaged; reason: the text of its DEAD record,
    None likewise; fault: why one of them is None.
    """

    item: bytes | None
    reason: str | None
    fault: str = ""


def read_dead_item(disk: Disk, row: DeadRow) -> DeadItem:
    """Return what there is of a row. Item and note prove themselves by their CRCs.

    Raises OSError.
    """
    with closing(disk.open_read(dead_key(row.minute).path)) as file:
        data = file.read_at(row.position, row.row_size)
    found = note_of_row(data)
    if found is None or found[1].old_sequence != row.old_sequence:
        return DeadItem(None, None, "the note is damaged")
    item = data[: -found[0]]
    fault = qmq_item_fault(item, row.due_ms) or ""
    return DeadItem(None if fault else item, found[1].reason, fault)
