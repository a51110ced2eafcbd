"""A place in a log is found without walking it, and what is found there is what a walk finds."""

import random
from pathlib import Path

import pytest

from storage.batch.batches import BATCH_BYTES_MAX, Damage, LogBatch, log_seed
from storage.batch.file_header import FILE_HEADER_SIZE, LogKind
from storage.disk.disk import DirectoryDisk, DirectoryFile
from storage.disk.errors import LogStateError
from storage.logs import sparse_index
from storage.logs.message_log import MessageLog
from storage.logs.numbered_log import LogFile
from storage.logs.sparse_index import Place, SparseIndex
from tests.seeds import seeds_in_parts
from tests.simulation.disk import SimDisk
from tests.storage.small_logs import (
    LOG_UUID,
    NOW_MS,
    disk_of,
    flipped,
    messages,
    new_disk,
    recover,
)

SEED = log_seed(LOG_UUID, LogKind.MESSAGE_LOG)
ENTRY_BYTES = 400
BELIEVED_BYTES = 1600
"""As many as a batch of these tests has at most."""
END = "message_log/durable_end"


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for places in files of some kilobytes as otherwise in those of megabytes."""
    monkeypatch.setattr(sparse_index, "ENTRY_BYTES", ENTRY_BYTES)
    monkeypatch.setattr(sparse_index, "NOTED_BYTES", ENTRY_BYTES)
    monkeypatch.setattr(sparse_index, "BELIEVED_BYTES", BELIEVED_BYTES)


def long_log(
    chance: random.Random, *, images: bool = False
) -> tuple[SimDisk, MessageLog, list[bytes]]:
    """Return a log of one or two files, and its durable ends; bodies may be older parts of it."""
    disk = new_disk()
    log, _ = recover(disk, file_bytes_max=chance.choice([40_000, 1 << 20]))
    path, ends = log.files()[0].path, []
    for _ in range(chance.randrange(150, 300)):
        body = bytes(chance.randrange(120))
        if images and chance.random() < 0.3:
            before = disk.contents()[path]
            begin = before.rfind(b"DWB1", 0, chance.randrange(100, len(before) + 1))
            body = before[max(begin, 0) :][: chance.randrange(80, 1200)]
        items = [body, *(bytes(chance.randrange(60)) for _ in range(chance.randrange(3)))]
        if chance.random() < 0.02:
            log.start_epoch(log.last_epoch + 1, append_ms=NOW_MS)
        log.append([messages(items)], append_ms=NOW_MS)
        log.sync_durable_end()
        ends.append(disk.contents()[END])
    return disk, log, ends


def places_of(log: MessageLog) -> dict[LogFile, list[Place]]:
    """Return where each batch of a log without damage begins."""
    found: dict[LogFile, list[Place]] = {file: [] for file in log.files()}
    batches = log.read(1)
    for file, following in zip(found, [*log.files()[1:], None], strict=True):
        position = FILE_HEADER_SIZE
        end = log.next_sequence if following is None else following.first_sequence
        first = file.first_sequence
        while first < end:
            batch = next(batches)
            assert isinstance(batch, LogBatch)
            found[file].append(Place(first, position))
            first, position = batch.header.next_sequence, position + batch.header.size
    return found


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("images", [False, True])
@seeds_in_parts(60, quick=3, part=20)
def test_a_place_is_that_of_a_batch_and_near_whatever_messages_hold(
    seeds: range, images: bool
) -> None:
    for seed in seeds:
        chance = random.Random(seed)
        disk, log, _ = long_log(chance, images=images)
        for file, places in places_of(log).items():
            index = SparseIndex(disk, seed=SEED)
            wanted = [*(place.sequence for place in places), log.next_sequence + 9]
            chance.shuffle(wanted)
            for sequence in wanted:
                found = index.place_of(file, sequence)
                assert found in places
                assert found.sequence <= sequence
                if sequence > log.next_sequence:
                    continue
                between = [one for one in places if found < one and one.sequence <= sequence]
                # An image may hide a place, which is then looked for from the beginning on.
                assert (
                    images or not between or between[-1].position - found.position < 2 * ENTRY_BYTES
                )


@pytest.mark.usefixtures("_small")
def test_images_of_what_is_looked_for_are_not_taken_for_it() -> None:
    disk = new_disk()
    log, _ = recover(disk)
    for number in range(9):
        log.append([messages([bytes([number]) * 20])], append_ms=NOW_MS)
    [file] = log.files()
    image = log.read_raw(3, bytes_max=1200).data
    for _ in range(40):
        log.append([messages([image])], append_ms=NOW_MS)
    [places] = places_of(log).values()
    for sequence in range(1, log.next_sequence):
        assert SparseIndex(disk, seed=SEED).place_of(file, sequence) in places


@pytest.mark.usefixtures("_small")
@seeds_in_parts(60, quick=4, part=20)
def test_reading_from_a_record_yields_what_reading_from_the_first_one_does(seeds: range) -> None:
    for seed in seeds:
        chance = random.Random(seed)
        disk, log, _ = long_log(chance, images=seed % 2 == 1)
        files, end = disk.contents(), log.next_sequence
        for _ in range(chance.randrange(5)):
            path = chance.choice(log.files()).path
            bit = chance.randrange(FILE_HEADER_SIZE * 8, len(files[path]) * 8)
            files[path] = flipped(files[path], bit)
        again, _ = recover(disk_of(files), had_checkpoint=True)
        whole = list(again.read(1))
        for _ in range(60):
            sequence = chance.randrange(1, end)
            expected = [one for one in whole if behind(one) > sequence]
            assert list(map(told, again.read(sequence))) == list(map(told, expected))


def behind(found: LogBatch | Damage) -> int:
    """Return the sequence behind what was found."""
    if isinstance(found, LogBatch):
        return found.header.next_sequence
    assert found.first_sequence is not None
    assert found.next_sequence is not None
    return max(found.next_sequence, found.first_sequence + 1)


def told(found: LogBatch | Damage) -> object:
    """Return what two readings have alike."""
    return found if isinstance(found, Damage) else found.header


@pytest.mark.usefixtures("_small")
@seeds_in_parts(200, quick=10, part=50)
def test_a_start_from_a_checkpoint_does_what_one_does_that_walks_the_whole_file(
    seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in seeds:
        chance = random.Random(seed)
        disk, log, ends = long_log(chance, images=seed % 2 == 1)
        files, path = disk.contents(), log.files()[-1].path
        checkpoint = chance.randrange(1, log.next_sequence)
        if chance.random() < 0.5:
            # Not all was known to be durable.
            files[END] = chance.choice(ends[-40:])
        data = files[path]
        begin = chance.randrange(FILE_HEADER_SIZE, len(data))
        spoil = chance.choice(["nothing", "bit", "cut", "zeros", "garbage"])
        if spoil == "bit":
            data = flipped(data, chance.randrange(begin * 8, len(data) * 8))
        elif spoil == "cut":
            data = data[:begin]
        elif spoil != "nothing":
            end = chance.randrange(begin, len(data)) + 1
            left = bytes(end - begin) if spoil == "zeros" else chance.randbytes(end - begin)
            data = data[:begin] + left + data[end:]
        files[path] = data
        near = start_of(files, checkpoint)
        with monkeypatch.context() as patched:
            patched.setattr(SparseIndex, "place_of", the_beginning)
            whole = start_of(files, checkpoint)
        assert near == whole


def the_beginning(_: SparseIndex, file: LogFile, _sequence: int, _end: int | None = None) -> Place:
    return Place(file.first_sequence, FILE_HEADER_SIZE)


def start_of(files: dict[str, bytes], checkpoint: int) -> object:
    """Return what a start leaves, and what it says of records behind the checkpoint."""
    disk = disk_of(files)
    try:
        log, report = recover(disk, checkpoint_sequence=checkpoint, had_checkpoint=True)
    except LogStateError as error:
        return str(error)
    lost = [
        one for one in report.damages if one.first_sequence is None or behind(one) > checkpoint + 1
    ]
    ends = log.next_sequence, log.last_epoch, log.last_floor_minute
    return ends, lost, report.cut, report.kept_batches, disk.contents()


def test_what_is_read_at_a_start_does_not_grow_with_what_lies_before_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = recover(DirectoryDisk(tmp_path), file_bytes_max=1 << 30)
    for number in range(40):
        log.append([messages([bytes([number]) * 100_000])] * 20, append_ms=NOW_MS)
    log.close()
    last, read_at, read = log.next_sequence - 1, DirectoryFile.read_at, 0

    def counted(file: DirectoryFile, position: int, size: int) -> bytes:
        nonlocal read
        data = read_at(file, position, size)
        read += len(data)
        return data

    monkeypatch.setattr(DirectoryFile, "read_at", counted)
    again, report = recover(
        DirectoryDisk(tmp_path), checkpoint_sequence=last - 5, had_checkpoint=True
    )
    assert (again.next_sequence, report.damages, report.cut) == (last + 1, [], [])
    assert len(list(again.read(last - 4))) == 5
    assert again.crc_before(last - 3) is not None
    assert again.read_raw(last - 400, bytes_max=1).first_sequence == last - 400
    assert again.cut_to(1, last - 1, not_below=last - 3) == range(last - 1, last + 1)
    again.close()
    assert read < 8 * BATCH_BYTES_MAX < log.bytes_written // 2
