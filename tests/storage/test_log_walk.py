"""A walk over a numbered log yields what is in its place and says which records anything else cost."""

from storage.batches import BatchHeader, Damage, decode_batch, log_seed
from storage.file_header import LogKind
from storage.log_walk import LogFile, LogWalk, PlacedBatch, files_from, list_log_files, log_file
from tests.simulation.disk import SimDisk
from tests.storage.small_logs import LOG_UUID, disk_of, flipped, messages, new_disk, recover

SEED = log_seed(LOG_UUID, LogKind.MESSAGE_LOG)


def three_files() -> dict[str, bytes]:
    """Return a log of records 1 to 13: an epoch, then six batches of two, over three files."""
    disk = new_disk()
    log, _ = recover(disk, file_bytes_max=700)
    for number in range(6):
        log.append([messages([bytes([number]) * 100, b"b"])], append_ms=number)
    log.sync_durable_end()
    files = disk.contents()
    assert len([path for path in files if path.endswith(".log")]) == 3
    return files


FILES = three_files()
PATHS = sorted(path for path in FILES if path.endswith(".log"))


def check(header: BatchHeader, data: memoryview, path: str, position: int) -> int:
    decode_batch(header, data, seed=SEED, path=path, position=position)
    return header.base_sequence


def walk(
    files: dict[str, bytes], *, first: int = 1, until: int = 14, skip_below: int = 0
) -> list[int | Damage]:
    """Return base sequences and damages in the order of the walk."""
    disk = disk_of(files)
    found = LogWalk(
        disk,
        list_log_files(disk, "message_log"),
        log_uuid=LOG_UUID,
        kind=LogKind.MESSAGE_LOG,
        first_sequence=first,
        until=until,
        check=check,
        skip_below=skip_below,
    )
    return [entry.content if isinstance(entry, PlacedBatch) else entry for entry in found]


def lost(found: list[int | Damage]) -> list[tuple[int | None, int | None]]:
    return [
        (entry.first_sequence, entry.next_sequence) for entry in found if isinstance(entry, Damage)
    ]


def sound(found: list[int | Damage]) -> list[int]:
    return [entry for entry in found if isinstance(entry, int)]


def position_of(path: str, sequence: int) -> int:
    disk = SimDisk.__new__(SimDisk)
    del disk
    [(_, position)] = [
        (base, place) for base, place, where in PLACES if base == sequence and where == path
    ]
    return position


def places() -> list[tuple[int, int, str]]:
    disk = disk_of(FILES)
    found = LogWalk(
        disk,
        list_log_files(disk, "message_log"),
        log_uuid=LOG_UUID,
        kind=LogKind.MESSAGE_LOG,
        first_sequence=1,
        until=14,
        check=check,
    )
    return [
        (entry.content, entry.position, entry.file.path)
        for entry in found
        if isinstance(entry, PlacedBatch)
    ]


PLACES = places()
BASES = [1, 2, 4, 6, 8, 10, 12]
