"""Files of facts batches, for tests of writing and reading them."""

from storage.batch.batches import Damage
from storage.batch.chained_file import BatchDraft, ChainedFile
from storage.batch.facts import fact_drafts
from storage.batch.file_header import FileHeader, LogKind
from storage.batch.walk import walk_file
from storage.disk.spans import Span
from tests.simulation.disk import SimDisk
from tests.storage.small_logs import LOG_UUID
from tests.storage.small_segments import delivered, segment_disk

PATH = "dispatch_log/20131127T0000Z.minute"
HEADER = FileHeader(
    kind=LogKind.DISPATCH_LOG, log_uuid=LOG_UUID, span=Span.MINUTE, start_minute=23_091_840
)


def draft(number: int, count: int = 3) -> BatchDraft:
    """Return a batch of facts with these numbers."""
    facts = delivered(list(range(number, number + count)))
    [made] = fact_drafts(facts, first_number=number, epoch=1, append_ms=0, floor_minute=0)
    return made


def numbers(disk: SimDisk, length: int, header: FileHeader = HEADER) -> list[int | str]:
    """Return the base sequence of each batch, and the reason of each damage in its place."""
    return [
        found.reason if isinstance(found, Damage) else found.header.base_sequence
        for found in walk_file(disk, PATH, length, header)
    ]


def written(count: int = 4, header: FileHeader = HEADER) -> tuple[SimDisk, ChainedFile, list[int]]:
    """Return a durable file of batches with three facts each, and their positions."""
    disk = segment_disk()
    file = ChainedFile(disk, PATH, header)
    positions = [file.append([draft(number * 3 + 1)])[0][0] for number in range(count)]
    file.file().sync()
    disk.sync_directory("dispatch_log")
    return disk, file, positions
