"""Logs read the plain way, record by record with struct, to hold the fast ways against.

It knows the pages in docs/formats/ and nothing of the storage package, and believes every byte: for
files that are whole.
"""

import io
import json
import struct
import zlib
from collections.abc import Iterator

import lz4.block

Row = dict[str, object]

_BATCH = struct.Struct("<4sHHQBBHIQqqIIIIIIII")
_ITEM_ARRAYS = (("due_ms", "q"), ("id_hash", "q"), ("size", "I"))
_ARRAYS: dict[int, tuple[tuple[str, str], ...]] = {
    1: (*_ITEM_ARRAYS, ("subject", "H")),
    2: (),
    3: (),
    4: (("old_sequence", "q"), ("old_minute", "I")),
    5: (("old_sequence", "q"), *_ITEM_ARRAYS, ("old_minute", "I"), ("subject", "H")),
    6: (
        ("old_sequence", "q"),
        *_ITEM_ARRAYS,
        ("old_minute", "I"),
        ("subject", "H"),
        ("reason", "H"),
    ),
    33: (("sequence", "q"), ("at_ms", "q"), ("minute", "I"), ("target", "H"), ("outcome", "B")),
    35: (("sequence", "q"), *_ITEM_ARRAYS, ("subject", "H"), ("origin", "B")),
}
_KINDS = {1: "message", 2: "epoch_start", 3: "floor", 4: "cancel", 5: "move", 6: "dead"}
_OUTCOMES = ("", "delivered", "known", "dead", "cancelled", "moved", "expired", "dropped")
_ORIGINS = ("accepted", "copy", "retry")
_SPANS = ("", "minute", "hour", "day", "dead")
_DEAD_MINUTES_FROM = 2**32 - 2**22


def text(name: bytes) -> str:
    """Return a name with what is no UTF-8 in it made visible."""
    return name.decode(errors="backslashreplace")


def plain_id(item: bytes) -> str | None:
    """Return the message id of an item, None if its sizes do not fit into it."""
    begin = place = 25
    for _ in range(2):
        if place + 2 > len(item):
            return None
        (size,) = struct.unpack_from(">H", item, place)
        begin, place = place + 2, place + 2 + size
        if place > len(item):
            return None
    return text(item[begin:place])


def plain_create_ms(item: bytes) -> int | None:
    """Return the create time of an item, None if it is too short to have one."""
    return struct.unpack_from(">q", item, 9)[0] if len(item) >= 25 else None


def plain_attributes(item: bytes) -> list[tuple[str, str]] | None:
    """Return the attributes of an item, each name once; None if it has no message id."""
    if plain_id(item) is None:
        return None
    stream = io.BytesIO(item)

    def string() -> bytes:
        return stream.read(int.from_bytes(stream.read(2), "big"))

    stream.seek(25)
    string()
    string()
    for _ in range(stream.read(1)[0] if item[8] & 4 else 0):
        string()
    stream.seek(4, io.SEEK_CUR)
    found: dict[bytes, bytes] = {}
    while stream.tell() < len(item):
        key = string()
        found[key] = string()
    return [(text(key), text(value)) for key, value in found.items()]


def batches(data: bytes, length: int) -> Iterator[tuple[int, int]]:
    """Yield position and size of each batch in the first bytes of a file."""
    position = 64
    while position < length:
        fields = _BATCH.unpack_from(data, position)
        size = 80 + fields[13] + fields[14]
        yield position, size
        position += size


def plain_rows(path: str, data: bytes, length: int) -> Iterator[Row]:
    """Yield every record of a file, with all that a table of Arrow may say of it.

    Those of the message_log that state facts, and nothing else, are left out.
    """
    for position, _ in batches(data, length):
        yield from (row for row in _of_batch(path, data, position) if "record" not in row)


def plain_facts(path: str, data: bytes, length: int) -> Iterator[Row]:
    """Yield every fact that records of a file of the message_log state."""
    for position, _ in batches(data, length):
        for row in _of_batch(path, data, position):
            if "record" in row:
                yield row
            elif "old_sequence" in row:
                outcome = {"cancel": "cancelled", "move": "moved", "dead": "dead"}[str(row["kind"])]
                minute = row["old_minute"]
                if outcome == "cancelled" and minute >= _DEAD_MINUTES_FROM:  # type: ignore[operator]
                    outcome = "dropped"
                yield {
                    "sequence": row["old_sequence"],
                    "filed_minute": minute,
                    "at_ms": row["append_ms"],
                    "target": "",
                    "outcome": outcome,
                    "is_filed": False,
                    "record": row["sequence"],
                    "file": path,
                    "position": position,
                }


def _of_batch(path: str, data: bytes, position: int) -> Iterator[Row]:
    start_minute, log_kind, span = struct.unpack_from("<IBB", data, 40)
    fields = _BATCH.unpack_from(data, position)
    features, kind, codec, count, epoch, base, append_ms, floor = (*fields[3:6], *fields[7:12])
    columns_size, blob_size, raw_size = fields[13:16]
    place = position + 80
    names, place = _names(data, place)
    arrays = {}
    for name, letter in _ARRAYS[kind]:
        form = struct.Struct(f"<{count}{letter}")
        arrays[name] = form.unpack_from(data, place)
        place += form.size
    assert place == position + 80 + columns_size
    blob = data[place : place + blob_size]
    if codec:
        blob = lz4.block.decompress(blob, uncompressed_size=raw_size)
    begin = 0
    for number in range(count):
        row: Row = {name: values[number] for name, values in arrays.items()}
        for name in ("subject", "reason", "target"):
            if name in arrays:
                row[name] = text(names[arrays[name][number]])
        row |= {"file": path, "position": position}
        if "size" in arrays:
            item = blob[begin : begin + arrays["size"][number]]
            begin += len(item)
            if _SPANS[span] == "dead":
                size, crc = struct.unpack("<II", item[-8:])
                note = item[-8 - size : -8]
                assert zlib.crc32(note) == crc
                item = item[: -8 - size]
                row |= json.loads(note) | {"size": len(item)}
            row |= {
                "payload": item,
                "message_id": plain_id(item),
                "create_ms": plain_create_ms(item),
                "attributes": plain_attributes(item),
            }
        if kind in _KINDS:
            row |= {"sequence": base + number, "kind": _KINDS[kind], "epoch": epoch}
            row |= {"append_ms": append_ms, "floor_minute": floor}
            if kind in {1, 5}:
                row["filed_minute"] = max(arrays["due_ms"][number] // 60_000, floor)
                row["origin"] = "copy" if features & 2 else "accepted" if kind == 1 else "retry"
            elif kind == 6:
                day = max(append_ms // 60_000, floor) // 1440
                row["filed_minute"] = _DEAD_MINUTES_FROM + day
        elif kind == 35:
            row["origin"] = _ORIGINS[arrays["origin"][number]]
            row |= {"segment": path.rpartition("/")[2], "start_minute": start_minute}
            row["span"] = _SPANS[span]
        elif kind == 33:
            row["outcome"] = _OUTCOMES[arrays["outcome"][number]]
            row["filed_minute"] = row.pop("minute")
            row["is_filed"] = log_kind == 4
            if log_kind == 1:
                row["record"] = base + number
        yield row


def _names(data: bytes, place: int) -> tuple[list[bytes], int]:
    start = place
    (count,) = struct.unpack_from("<H", data, place)
    place += 2
    names = []
    for _ in range(count):
        (size,) = struct.unpack_from("<H", data, place)
        names.append(data[place + 2 : place + 2 + size])
        place += 2 + size
    return names, place + -(place - start) % 8
