"""A walk over a numbered log yields what is in its place, and says what records the rest cost."""

import struct
import zlib

import pytest

from storage.batch.batches import BatchHeader, Damage, decode_batch, log_seed
from storage.batch.file_header import LogKind
from storage.logs.numbered_log import (
    LogFile,
    LogWalk,
    PlacedBatch,
    files_from,
    list_log_files,
    log_file,
)
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


def entries(
    files: dict[str, bytes], *, until: int = 14, skip_below: int = 0
) -> list[PlacedBatch[int] | Damage]:
    """Return batches and damages in the order of the walk."""
    disk = disk_of(files)
    return list(
        LogWalk(
            disk,
            list_log_files(disk, "message_log"),
            log_uuid=LOG_UUID,
            kind=LogKind.MESSAGE_LOG,
            first_sequence=1,
            until=until,
            check=check,
            skip_below=skip_below,
        )
    )


def walk(files: dict[str, bytes], *, until: int = 14, skip_below: int = 0) -> list[int | Damage]:
    """Return base sequences and damages in the order of the walk."""
    found = entries(files, until=until, skip_below=skip_below)
    return [entry.content if isinstance(entry, PlacedBatch) else entry for entry in found]


def lost(found: list[int | Damage]) -> list[tuple[int | None, int | None]]:
    return [
        (entry.first_sequence, entry.next_sequence) for entry in found if isinstance(entry, Damage)
    ]


def sound(found: list[int | Damage]) -> list[int]:
    return [entry for entry in found if isinstance(entry, int)]


PLACES = [
    (entry.content, entry.file.path, entry.position)
    for entry in entries(FILES)
    if isinstance(entry, PlacedBatch)
]
"""Base sequence, path and position of every batch."""

BASES = [1, 2, 4, 6, 8, 10, 12]


def spoilt(base: int, byte: int) -> dict[str, bytes]:
    """Return the files with one bit changed in a byte of the batch that begins at `base`."""
    [(path, position)] = [(path, position) for found, path, position in PLACES if found == base]
    return FILES | {path: flipped(FILES[path], (position + byte) * 8)}


def test_a_whole_log_is_walked_without_a_word() -> None:
    assert walk(FILES) == BASES


@pytest.mark.parametrize("byte", [20, 84], ids=["header", "columns"])
def test_a_bad_part_of_a_batch_costs_its_records_and_no_others(byte: int) -> None:
    for place, base in enumerate(BASES):
        found = walk(spoilt(base, byte))
        after = BASES[place + 1] if place + 1 < len(BASES) else 14
        assert lost(found) == [(base, after)]
        assert sound(found) == [other for other in BASES if other != base]
        damage = found[place]
        assert isinstance(damage, Damage)
        assert (damage.header is not None) == (byte == 84)


def test_neighbouring_bad_headers_are_one_loss() -> None:
    files = spoilt(4, 20)
    files |= {PATHS[1]: flipped(FILES[PATHS[1]], (64 + 20) * 8)}
    found = walk(files)
    assert sound(found) == [1, 2, 8, 10, 12]
    assert lost(found) == [(4, 6), (6, 8)]


def test_a_missing_file_is_told_by_the_records_that_were_in_it() -> None:
    for missing, records in zip(PATHS, [(1, 6), (6, 10), (10, 14)], strict=True):
        found = walk({path: data for path, data in FILES.items() if path != missing})
        assert lost(found) == [records]
        assert sound(found) == [base for base in BASES if not records[0] <= base < records[1]]


def test_a_file_that_was_cut_short_is_told_by_the_records_that_were_in_it() -> None:
    for path, first, after in zip(PATHS, [1, 6, 10], [6, 10, 14], strict=True):
        starts = [(base, position) for base, where, position in PLACES if where == path]
        for size in range(0, len(FILES[path]), 7):
            found = walk(FILES | {path: FILES[path][:size]})
            kept = [base for base in sound(found) if first <= base < after]
            assert kept == [base for base, _ in starts][: len(kept)]
            assert size >= 64 or kept == []
            losses = [records for records in lost(found) if records[0] != records[1]]
            assert losses[0][0] == starts[len(kept)][0]
            assert losses[-1][1] == after
            assert [base for base in sound(found) if not first <= base < after] == [
                base for base in BASES if not first <= base < after
            ]


def test_a_bad_file_header_costs_no_records() -> None:
    for path, first in zip(PATHS, [1, 6, 10], strict=True):
        found = walk(FILES | {path: flipped(FILES[path], 99)})
        assert sound(found) == BASES
        assert lost(found) == [(first, first)]


def test_a_file_under_another_name_is_not_believed() -> None:
    files = {path: data for path, data in FILES.items() if path != PATHS[1]}
    found = walk(files | {log_file("message_log", 7).path: FILES[PATHS[1]]})
    assert sound(found) == [1, 2, 4, 8, 10, 12]
    reasons = " ".join(entry.reason for entry in found if isinstance(entry, Damage))
    assert "says that it begins at 6" in reasons
    assert "begins again at 6" in reasons


def test_a_file_that_repeats_others_costs_no_records() -> None:
    found = walk(FILES | {log_file("message_log", 8).path: FILES[PATHS[1]]})
    assert sound(found) == BASES
    assert {after - first for first, after in lost(found) if first and after} == {0}


def test_a_batch_from_elsewhere_is_left_out_though_it_is_intact() -> None:
    # The second batch of the second file, written over the first of the third: same size.
    [second] = [position for base, _, position in PLACES if base == 8]
    [third] = [position for base, _, position in PLACES if base == 10]
    stray = FILES[PATHS[1]][second:]
    data = FILES[PATHS[2]]
    found = walk(FILES | {PATHS[2]: data[:third] + stray + data[third + len(stray) :]})
    assert sound(found) == [1, 2, 4, 6, 8, 12]
    assert (10, 12) in lost(found)


def test_a_later_batch_in_an_older_place_costs_what_lay_there_and_no_more() -> None:
    # All batches of two records have one size, so one can lie where another was written.
    last = FILES[PATHS[2]][PLACES[-1][2] :]
    for base, path, position in PLACES[1:-1]:
        data = FILES[path]
        assert len(data[position:]) >= len(last)
        found = walk(FILES | {path: data[:position] + last + data[position + len(last) :]})
        assert sound(found) == [other for other in BASES if other != base]
        assert [part for part in lost(found) if part[0] != part[1]] == [(base, base + 2)]


def test_a_batch_from_beyond_the_end_costs_what_lay_in_its_place_and_no_more() -> None:
    disk = new_disk()
    log, _ = recover(disk, file_bytes_max=700)
    for number in range(8):
        log.append([messages([bytes([number]) * 100, b"b"])], append_ms=number)
    # The last of them, of records 16 and 17.
    beyond = disk.contents()[log.files()[-1].path][PLACES[-1][2] :]
    data = FILES[PATHS[2]]
    found = walk(FILES | {PATHS[2]: data[:64] + beyond + data[64 + len(beyond) :]})
    assert sound(found) == [1, 2, 4, 6, 8, 12]
    assert [part for part in lost(found) if part[0] != part[1]] == [(10, 12)]


def test_a_later_batch_behind_bytes_that_cannot_be_read_costs_its_file_at_most() -> None:
    [first] = [position for base, _, position in PLACES if base == 6]
    data = FILES[PATHS[1]]
    stray = bytes(80) + FILES[PATHS[2]][PLACES[-2][2] :]
    found = walk(FILES | {PATHS[1]: data[:first] + stray[: len(data) - first]})
    assert sound(found) == [1, 2, 4, 10, 12]
    assert lost(found) == [(6, 10)]


def test_the_beginning_of_a_later_batch_at_the_end_of_an_older_file_costs_nothing() -> None:
    beginning = FILES[PATHS[2]][64:200]
    found = walk(FILES | {PATHS[1]: FILES[PATHS[1]] + beginning})
    assert sound(found) == BASES
    assert lost(found) == [(10, 10)]


def test_a_batch_that_does_not_follow_by_its_crc_is_left_out() -> None:
    disk = new_disk()
    log, _ = recover(disk, file_bytes_max=700)
    for number in range(6):
        log.append([messages([bytes([number + 9]) * 100, b"b"])], append_ms=number)
    twin = disk.contents()
    found = walk(FILES | {PATHS[1]: twin[PATHS[1]]})
    assert sound(found) == [1, 2, 4, 8, 12]
    assert lost(found) == [(6, 8), (10, 12)]


def test_the_image_of_an_older_batch_in_the_first_message_of_a_file_is_not_taken_for_one() -> None:
    disk = new_disk()
    log, _ = recover(disk, file_bytes_max=400)
    log.append([messages([b"o" * 80])], append_ms=1)
    image = disk.contents()[PATHS[0]][152:]
    # Its header, cut off from the rest, would make a walk hop over what comes next.
    log.append([messages([image[:80]])], append_ms=2)
    log.append([messages([b"neighbour"])], append_ms=3)
    files = disk.contents()
    assert len(log.files()) == 2
    path = log.files()[1].path
    found = walk(files | {path: flipped(files[path], (64 + 20) * 8)}, until=5)
    assert sound(found) == [1, 2, 4]
    assert lost(found) == [(3, 4)]


def test_the_image_of_a_newer_batch_in_a_damaged_one_is_not_taken_for_one() -> None:
    newer = struct.pack("<4sHHQ", b"DWB1", 1, 80, 1) + bytes(60)
    newer += struct.pack("<I", zlib.crc32(newer, SEED))
    disk = new_disk()
    log, _ = recover(disk)
    for body in (newer, b"next", b"last"):
        log.append([messages([body])], append_ms=1)
    [path] = [path for path in disk.contents() if path.endswith(".log")]
    found = walk(disk.contents() | {path: flipped(disk.contents()[path], (152 + 85) * 8)}, until=5)
    assert sound(found) == [1, 3, 4]
    assert lost(found) == [(2, 3)]


def test_what_lies_before_is_hopped_over_unchecked() -> None:
    assert walk(spoilt(4, 90), skip_below=6) == [6, 8, 10, 12]
    assert walk(spoilt(4, 20), skip_below=6) == [6, 8, 10, 12]
    assert sound(walk(FILES, skip_below=7)) == [6, 8, 10, 12]
    assert lost(walk(spoilt(6, 90), skip_below=7)) == [(6, 8)]


def test_an_end_that_is_not_reached_is_told() -> None:
    assert lost(walk(FILES, until=20)) == [(14, 20)]
    assert lost(walk(FILES, until=3)) == []


def test_files_are_found_by_the_records_they_should_hold() -> None:
    files = [LogFile(path, first) for path, first in zip(PATHS, [1, 6, 10], strict=True)]
    assert files_from(files, 0) == files
    assert files_from(files, 5) == files
    assert files_from(files, 6) == files[1:]
    assert files_from(files, 99) == files[2:]
    assert files_from([], 3) == []


def test_no_file_begins_with_a_sequence_that_cannot_be() -> None:
    last, beyond = log_file("message_log", 2**63 - 1), log_file("message_log", 2**63)
    disk = disk_of({last.path: b"", beyond.path: b""})
    assert list_log_files(disk, "message_log") == [last]


def test_only_files_named_by_20_digits_belong_to_a_log() -> None:
    disk = disk_of(FILES | {"message_log/7.log": b"", "message_log/0000000000000000000a.log": b""})
    assert [file.path for file in list_log_files(disk, "message_log")] == PATHS
