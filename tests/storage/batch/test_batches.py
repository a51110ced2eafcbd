"""A batch comes back byte for byte or not at all; a walk finds the good ones around the bad."""

import struct
import zlib
from dataclasses import replace
from typing import Any

import lz4.block
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.batch.batches import (
    BATCH_BYTES_MAX,
    HEADER_SIZE,
    BatchHeader,
    Codec,
    ItemFormat,
    View,
    check_blob,
    check_columns,
    contents_fault,
    decode_batch,
    decode_header,
    encode_batch,
    find_batch,
    log_seed,
    walk_batches,
)
from storage.batch.columns import RecordKind, encode_columns
from storage.batch.file_header import LogKind
from storage.disk.errors import DamagedError, UnsupportedFormatError
from tests.storage.small_logs import LOG_UUID, OTHER_UUID, flipped
from tests.storage.worked_examples import worked_examples

SEED = log_seed(LOG_UUID, LogKind.MESSAGE_LOG)
WHERE: dict[str, Any] = {"seed": SEED, "path": "log", "position": 0}


def make(
    items: list[bytes],
    *,
    base: int = 1,
    previous: int = 0,
    seed: int = SEED,
    **more: Any,  # noqa: ANN401 - any field of a batch
) -> tuple[BatchHeader, bytes]:
    count = len(items)
    columns = encode_columns(
        RecordKind.MESSAGE,
        [b"boarding"],
        {
            "due_ms": np.full(count, 1_385_510_460_000),
            "id_hash": np.arange(count, dtype="u8"),
            "size": np.array([len(item) for item in items], "u4"),
            "subject": np.zeros(count, "u2"),
        },
    )
    settings: dict[str, Any] = {
        "kind": RecordKind.MESSAGE,
        "epoch": 1,
        "base_sequence": base,
        "count": count,
        "floor_minute": 23_091_840,
        "append_ms": 1_385_510_400_000,
        "previous_crc": previous,
        "columns": columns,
        "blob": items,
    }
    header, buffers = encode_batch(seed=seed, **settings | more)
    return header, b"".join(buffers)


def make_control(base: int, previous: int = 0) -> tuple[BatchHeader, bytes]:
    header, buffers = encode_batch(
        seed=SEED,
        kind=RecordKind.FLOOR,
        epoch=1,
        base_sequence=base,
        count=1,
        floor_minute=5,
        append_ms=6,
        previous_crc=previous,
        columns=encode_columns(RecordKind.FLOOR, [], {}),
    )
    return header, b"".join(buffers)


def chain(count: int, *, size: int = 100) -> tuple[list[BatchHeader], list[bytes]]:
    """Return a few batches of two messages each that name each other."""
    headers: list[BatchHeader] = []
    parts = []
    for number in range(count):
        previous = headers[-1].crc if headers else 0
        item = bytes([number]) * size
        header, data = make([item, item[1:]], base=1 + 2 * number, previous=previous)
        headers.append(header)
        parts.append(data)
    return headers, parts


def view_of(data: bytes) -> View:
    return lambda position, size: memoryview(data)[position : position + size]


def scan(data: bytes, *, end: int | None = None) -> list[tuple[int, BatchHeader]]:
    end = len(data) if end is None else end
    return list(walk_batches(view_of(data), start=0, end=end, seed=SEED, path="log"))


def find(data: bytes, start: int = 0, *, sequence_min: int = 0) -> int:
    return find_batch(
        view_of(data),
        start=start,
        end=len(data),
        seed=SEED,
        path="log",
        sequence_min=sequence_min,
    )


def resealed(data: bytes, seed: int = SEED) -> bytes:
    """Return a bare header with its CRC made right again."""
    return data[:-4] + struct.pack("<I", zlib.crc32(data[:-4], seed))


def test_the_fields_lie_where_the_drawing_says() -> None:
    header, data = make([b"abc"], base=9, previous=0x01020304)
    fields = struct.unpack("<4sHHQBBHIQqqIIIIIIII", data[:HEADER_SIZE])
    assert fields == (
        b"DWB1", 2, 80, 0, 1, 0, 1, 1, 1, 9, 1_385_510_400_000, 23_091_840, 0x01020304,
        16 + 22, 3, 3, header.columns_crc, header.blob_crc, header.crc,
    )  # fmt: skip
    assert header.columns_crc == zlib.crc32(data[80 : 80 + 38], SEED)
    assert header.blob_crc == zlib.crc32(b"abc", SEED)
    assert header.crc == zlib.crc32(data[:76], SEED)


def test_columns_are_checked_without_the_blob_and_in_spite_of_a_bad_one() -> None:
    header, data = make([b"some", b"items"])
    assert check_columns(header, data[: header.blob_offset], **WHERE).names == [b"boarding"]
    spoilt = data[:-1] + b"!"
    assert check_columns(header, spoilt, **WHERE).names == [b"boarding"]
    with pytest.raises(DamagedError, match="blob part fails its CRC"):
        check_blob(header, spoilt, **WHERE)
    assert contents_fault(header, spoilt, SEED) == "the batch's blob part fails its CRC"


def test_a_blob_that_does_not_shrink_is_stored_raw() -> None:
    noise = bytes(zlib.crc32(bytes([n])) % 256 for n in range(200))
    assert make([noise], codec=Codec.LZ4)[0].codec is Codec.RAW
    header, _ = make([b"a" * 1000], codec=Codec.LZ4)
    assert header.codec is Codec.LZ4
    assert header.blob_size < 1000 == header.blob_raw_size


def test_small_buffers_are_joined_and_large_ones_are_not_copied() -> None:
    def buffers(items: list[bytes]) -> int:
        columns = encode_columns(
            RecordKind.MESSAGE,
            [b"s"],
            {"due_ms": [1], "id_hash": [1], "size": [sum(map(len, items))], "subject": [0]},
        )
        _, parts = encode_batch(
            seed=SEED, kind=RecordKind.MESSAGE, epoch=1, base_sequence=1, count=1, floor_minute=0,
            append_ms=0, previous_crc=0, columns=columns, blob=items,
        )  # fmt: skip
        return len(parts)

    assert buffers([b"a" * 10] * 2000) == 3
    assert buffers([b"a" * 10_000] * 20) == 22


def test_the_limit_of_a_batch_counts_uncompressed_bytes() -> None:
    room = BATCH_BYTES_MAX - HEADER_SIZE - 16 - 22
    assert make([bytes(room)], codec=Codec.LZ4)[0].blob_raw_size == room
    with pytest.raises(ValueError, match="a batch of 1 records"):
        make([bytes(room + 1)], codec=Codec.LZ4)
    with pytest.raises(ValueError, match="a batch of 0 records"):
        make([])


def test_the_item_format_follows_the_kind() -> None:
    assert make([b"a"])[0].item_format is ItemFormat.QMQ
    assert make_control(1)[0].item_format is ItemFormat.NONE


def test_a_batch_of_another_log_or_another_kind_of_log_is_no_batch() -> None:
    _, data = make([b"a"])
    for seed in (
        log_seed(OTHER_UUID, LogKind.MESSAGE_LOG),
        log_seed(LOG_UUID, LogKind.SCHEDULE_LOG),
    ):
        with pytest.raises(DamagedError, match="CRC"):
            decode_header(data, seed=seed, path="log", position=0)


@pytest.mark.parametrize("size", [24, 80, 128, 4096])
def test_a_newer_version_of_any_header_size_is_refused_in_a_clear_sentence(size: int) -> None:
    data = struct.pack("<4sHH", b"DWB1", 7, size) + bytes(size - 8)
    with pytest.raises(UnsupportedFormatError, match=r"version 7.*newer delaywheel, upgrade"):
        decode_header(resealed(data) + bytes(80), **WHERE)


def test_a_version_is_not_believed_unless_the_crc_is_right() -> None:
    _, data = make([b"a"])
    with pytest.raises(DamagedError, match="CRC"):
        decode_header(data[:4] + b"\1" + data[5:], **WHERE)


@pytest.mark.parametrize(
    ("position", "what"), [(8, "feature bits"), (16, "record kind"), (17, "codec"), (18, "item")]
)
def test_what_this_version_does_not_know_is_refused(position: int, what: str) -> None:
    data = bytearray(make([b"a"])[1][:HEADER_SIZE])
    data[position] = 77
    with pytest.raises(UnsupportedFormatError, match=what):
        decode_header(resealed(bytes(data)), **WHERE)


@pytest.mark.parametrize(
    "change",
    [
        {"count": 0},
        {"columns_size": 2**32 - 1},
        {"blob_raw_size": 2**31, "codec": Codec.LZ4},
        {"blob_size": 2**31, "blob_raw_size": 2**31},
        {"blob_size": 4, "codec": Codec.LZ4},
        {"blob_raw_size": 3 * 255 + 1, "codec": Codec.LZ4},
        {"blob_raw_size": 4},
        {"kind": RecordKind.FLOOR},
    ],
    ids=str,
)
def test_sizes_that_cannot_be_are_refused_before_anything_is_allocated(
    change: dict[str, Any],
) -> None:
    with pytest.raises(DamagedError, match="contradict"):
        decode_header(packed(replace(make([b"abc"])[0], **change)), **WHERE)


def packed(header: BatchHeader) -> bytes:
    """Return the bytes of a header whatever it says, its CRC right."""
    data = struct.pack(
        "<4sHHQBBHIQqqIIIIIIII", b"DWB1", 2, 80, 0, header.kind, header.codec, header.item_format,
        header.count, header.epoch, header.base_sequence, header.append_ms, header.floor_minute,
        header.previous_crc, header.columns_size, header.blob_size, header.blob_raw_size,
        header.columns_crc, header.blob_crc, 0,
    )  # fmt: skip
    return resealed(data)


def test_sequences_that_nobody_can_have_given_are_damage() -> None:
    header = make([b"abc"])[0]
    last = replace(header, base_sequence=2**63 - 2)
    assert decode_header(packed(last), **WHERE).next_sequence == 2**63 - 1
    for first in (2**63 - 1, -1, -(2**63)):
        with pytest.raises(DamagedError, match=f"1 records from {first} on"):
            decode_header(packed(replace(header, base_sequence=first)), **WHERE)


@pytest.mark.parametrize("size", [1, 15, 255, 1000, 100_000, BATCH_BYTES_MAX - 500])
def test_the_most_that_lz4_can_pack_is_read(size: int) -> None:
    header, data = make([bytes(size)], codec=Codec.LZ4)
    assert decode_header(data, **WHERE) == header
    assert bytes(decode_batch(header, data, **WHERE).blob) == bytes(size)


def test_item_sizes_have_to_add_up_to_the_blob() -> None:
    columns = encode_columns(
        RecordKind.MESSAGE,
        [b"s"],
        {"due_ms": [1, 1], "id_hash": [1, 1], "size": [2**32 - 1, 4], "subject": [0, 0]},
    )
    header, data = make([b"abc"], columns=columns, count=2)
    with pytest.raises(DamagedError, match="items of 4294967299 bytes in a blob of 3"):
        check_columns(header, data, **WHERE)


@pytest.mark.parametrize(
    "packed", [b"\xff\xff\xff", lz4.block.compress(b"a" * 50, store_size=False)]
)
def test_a_block_that_is_not_what_its_header_says_is_damage(packed: bytes) -> None:
    header, _ = make([b"a" * 100])
    header = replace(
        header, codec=Codec.LZ4, blob_size=len(packed), blob_crc=zlib.crc32(packed, SEED)
    )
    with pytest.raises(DamagedError):
        check_blob(header, bytes(header.blob_offset) + packed, **WHERE)


def test_a_walk_yields_every_batch_in_its_place() -> None:
    headers, parts = chain(4)
    positions = np.cumsum([0, *map(len, parts)])[:-1].tolist()
    assert scan(b"".join(parts)) == list(zip(positions, headers, strict=True))


def test_a_walk_ends_with_what_is_no_batch_or_does_not_follow() -> None:
    _, parts = chain(3)
    data = b"".join(parts)
    with pytest.raises(DamagedError, match="fails its CRC") as caught:
        scan(flipped(data, len(parts[0]) * 8 + 200))
    assert caught.value.position == len(parts[0])
    with pytest.raises(DamagedError, match="does not follow"):
        scan(parts[0] + parts[2])
    for end in range(len(parts[0]) + HEADER_SIZE, len(parts[0] + parts[1])):
        with pytest.raises(DamagedError, match="cut off after"):
            scan(data, end=end)


@given(st.binary(min_size=1, max_size=300))
def test_a_search_finds_the_next_batch_behind_garbage(garbage: bytes) -> None:
    _, parts = chain(3)
    assert find(garbage + b"".join(parts)) == len(garbage)


def test_the_image_of_an_older_batch_in_a_message_is_not_taken_for_one() -> None:
    old_header, old = make([b"old"])
    image = old + old[:HEADER_SIZE]
    header, carrier = make([b"new " + image], base=2, previous=old_header.crc)
    _, last = make([b"last"], base=3, previous=header.crc)
    assert find(carrier + last, 1, sequence_min=2) == len(carrier)


def test_the_image_of_a_batch_of_another_log_is_hopped_over_wherever_it_is() -> None:
    _, image = make([b"foreign"], base=50, seed=log_seed(OTHER_UUID, LogKind.MESSAGE_LOG))
    _, carrier = make([b"new " + image])
    _, last = make([b"last"], base=60)
    assert find(carrier + last, 1) == len(carrier)


def test_a_search_finds_a_batch_across_the_edge_of_its_pieces() -> None:
    _, data = make([b"found"])
    for distance in (65_535, 65_536, 65_537, 65_539, 131_070):
        assert find(bytes(distance) + data) == distance


def test_a_newer_batch_stops_a_walk() -> None:
    newer = resealed(struct.pack("<4sHH", b"DWB1", 3, 88) + bytes(80))
    _, data = make([b"a"])
    with pytest.raises(UnsupportedFormatError, match="newer delaywheel"):
        scan(data + newer)


def test_the_worked_example_is_what_the_code_writes() -> None:
    _, data = make([b"first item", b"second"], base=2, previous=0x8D2E40B1)
    assert worked_examples("batches.md")[1] == data


@pytest.mark.parametrize("kind", [RecordKind.EPOCH_START, RecordKind.FLOOR])
def test_a_batch_without_columns_has_one_record(kind: RecordKind) -> None:
    """Nothing else would bound how many it says there are."""
    columns = encode_columns(kind, [], {})
    where: dict[str, Any] = {"seed": SEED, "path": "log", "position": 0}
    for count in (1, 2, 2**32 - 1):
        _, parts = encode_batch(
            seed=SEED,
            kind=kind,
            epoch=1,
            base_sequence=1,
            count=count,
            floor_minute=0,
            append_ms=0,
            previous_crc=0,
            columns=columns,
        )
        if count == 1:
            assert decode_header(b"".join(parts), **where).count == 1
        else:
            with pytest.raises(DamagedError, match="contradict each other"):
                decode_header(b"".join(parts), **where)
