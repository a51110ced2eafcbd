"""A file says whose it is; a damaged, foreign or newer one is refused in a clear sentence."""

import struct
import zlib

import pytest

from storage.batch.file_header import (
    FileHeader,
    LogKind,
    decode_file_header,
    encode_file_header,
)
from storage.disk.errors import DamagedError, DataDirectoryError, UnsupportedFormatError
from storage.disk.spans import Span
from tests.storage.small_logs import LOG_UUID, OTHER_UUID
from tests.storage.worked_examples import worked_examples

HEADER = FileHeader(
    kind=LogKind.SCHEDULE_LOG,
    log_uuid=LOG_UUID,
    first_sequence=77,
    span=Span.HOUR,
    start_minute=23_091_840,
)


def resealed(data: bytes) -> bytes:
    """Return a header with its CRC made right again."""
    return data[:-4] + struct.pack("<I", zlib.crc32(data[:-4]))


def test_a_header_cut_off_anywhere_is_damage() -> None:
    data = encode_file_header(HEADER)
    for size in range(len(data)):
        with pytest.raises(DamagedError, match="cut off"):
            decode_file_header(data[:size], path="log")


def test_a_file_of_another_log_is_refused_and_not_called_damaged() -> None:
    with pytest.raises(DataDirectoryError, match=r"belongs to log 6a0f3c52.*must not be mixed"):
        decode_file_header(encode_file_header(HEADER), path="log", log_uuid=OTHER_UUID)


def test_a_file_of_another_kind_is_refused() -> None:
    with pytest.raises(DamagedError, match="SCHEDULE_LOG file where a SEALS file belongs"):
        decode_file_header(encode_file_header(HEADER), path="log", kind=LogKind.SEALS)


@pytest.mark.parametrize("size", [64, 96, 4096])
def test_a_newer_version_of_any_header_size_is_refused_in_a_clear_sentence(size: int) -> None:
    data = struct.pack("<4sHH", b"DWLG", 3, size) + bytes(size - 8)
    with pytest.raises(UnsupportedFormatError, match=r"version 3.*newer delaywheel, upgrade"):
        decode_file_header(resealed(data) + bytes(100), path="log")


def test_a_version_is_not_believed_unless_the_crc_is_right() -> None:
    data = bytearray(encode_file_header(HEADER))
    data[4] = 3
    with pytest.raises(DamagedError, match="CRC"):
        decode_file_header(bytes(data), path="log")


@pytest.mark.parametrize(("position", "what"), [(8, "feature"), (44, "kind"), (45, "span")])
def test_what_this_version_does_not_know_is_refused(position: int, what: str) -> None:
    data = bytearray(encode_file_header(HEADER))
    data[position] = 99
    with pytest.raises(UnsupportedFormatError, match=what):
        decode_file_header(resealed(bytes(data)), path="log")


@pytest.mark.parametrize(
    ("span", "start_minute"),
    [(Span.HOUR, 61), (Span.DAY, 60), (Span.MINUTE, 2**32 - 1), (Span.NONE, 1)],
)
def test_a_time_that_no_file_covers_is_damage(span: Span, start_minute: int) -> None:
    header = FileHeader(
        kind=LogKind.SCHEDULE_LOG, log_uuid=LOG_UUID, span=span, start_minute=start_minute
    )
    with pytest.raises(DamagedError, match=f"minute {start_minute}"):
        decode_file_header(encode_file_header(header), path="log")


def test_an_older_version_is_refused_in_a_sentence_that_says_what_to_do() -> None:
    data = bytearray(encode_file_header(HEADER))
    data[4] = 1
    with pytest.raises(UnsupportedFormatError, match=r"version 1 .*start .* on an empty data dir"):
        decode_file_header(resealed(bytes(data)), path="log")


def test_the_worked_example_is_what_the_code_writes() -> None:
    assert worked_examples("batches.md")[0] == encode_file_header(
        FileHeader(kind=LogKind.MESSAGE_LOG, log_uuid=LOG_UUID, first_sequence=1)
    )
