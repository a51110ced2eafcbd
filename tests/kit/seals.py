"""The seals log, seal by seal."""

from collections.abc import Iterator
from uuid import UUID

from storage.batch.batches import Damage
from storage.batch.columns import ColumnsError
from storage.batch.walk import walk_file
from storage.disk.disk import Disk, size_if_opened
from storage.logs.numbered_log import list_log_files
from storage.schedule.seals import SEALS_DIRECTORY, Seal, SealsEnd, seals_header, seals_of_columns


def read_seals(disk: Disk, log_uuid: UUID, end: SealsEnd) -> Iterator[Seal | Damage]:
    """Yield all seals that count, oldest first; a later one of a segment replaces an earlier."""
    files = list_log_files(disk, SEALS_DIRECTORY)
    files = [file for file in files if file.first_sequence <= end.file]
    stops = [*(file.first_sequence for file in files[1:]), end.count + 1]
    for file, stop in zip(files, stops, strict=False):
        length = end.length if file.first_sequence == end.file else size_if_opened(disk, file.path)
        header = seals_header(log_uuid, file.first_sequence)
        for found in walk_file(disk, file.path, length, header):
            if isinstance(found, Damage):
                yield found
            elif found.header.next_sequence <= stop:
                try:
                    yield from seals_of_columns(found.columns)
                except ColumnsError as error:
                    batch = found.header
                    yield Damage(file.path, found.position, batch.size, str(error), batch)
