"""Slow readers of QMQ's wire format, written from its description and not from our decoders.

They read field by field, one string after another, and share no code with delay_protocol: where
the two differ, one of them is wrong.
"""

import zlib
from dataclasses import dataclass
from typing import Final, NamedTuple

from delay_protocol.basics.errors import (
    BadHeaderSizeError,
    BadMagicError,
    FrameSizeError,
    RemoteProtocolError,
)
from delay_protocol.messages.items import ItemScan
from delay_protocol.wire.frames import Frame

BREAKING_WHITESPACE: Final = "\t\n\x0b\x0c\r \u0085\u1680\u2028\u2029\u205f\u3000" + "".join(
    chr(code) for code in range(0x2000, 0x200B) if code != 0x2007
)
"""Guava's CharMatcher.BREAKING_WHITESPACE, character by character."""


class CutOffError(Exception):
    """The bytes end before the field does, or a size is negative."""


class TooManyError(Exception):
    """There are more items, or more tags, than the reader looks at."""


class Reader:
    """Takes big-endian fields from the front of some bytes."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position

    @property
    def at_end(self) -> bool:
        return self.position == len(self.data)

    def take(self, size: int) -> bytes:
        if size < 0 or self.position + size > len(self.data):
            raise CutOffError
        self.position += size
        return self.data[self.position - size : self.position]

    def number(self, size: int, *, signed: bool = True) -> int:
        return int.from_bytes(self.take(size), "big", signed=signed)

    def string(self) -> bytes:
        """Take a string whose size is signed, as QMQ's ordinary reader does."""
        return self.take(self.number(2))


class Row(NamedTuple):
    """What a scan tells of one item."""

    start: int
    size: int
    flag: int
    due_ms: int
    subject: bytes
    message_id: bytes
    tag_count: int
    body_size: int
    crc_ok: bool


def rows_of(scan: ItemScan) -> list[Row]:
    """Return the items of a scan."""
    columns = (
        scan.starts,
        scan.sizes,
        scan.flags,
        scan.due_ms,
        scan.subjects,
        scan.ids,
        scan.tag_counts,
        scan.body_sizes,
        scan.crc_ok,
    )
    return [Row(*values) for values in zip(*columns, strict=True)]


@dataclass(frozen=True)
class ReferenceItem:
    """One message item as section 4.1 of QMQ's protocol draws it."""

    start: int
    size: int
    crc: int
    computed_crc: int
    flag: int
    create_ms: int
    due_ms: int
    subject: bytes
    message_id: bytes
    tags: tuple[bytes, ...]
    tags_at: int
    """Where the count of tags stands, from the item's beginning."""
    body: bytes

    @property
    def row(self) -> Row:
        """The item as a scan tells of it."""
        return Row(
            start=self.start,
            size=self.size,
            flag=self.flag,
            due_ms=self.due_ms,
            subject=self.subject,
            message_id=self.message_id,
            tag_count=len(self.tags),
            body_size=len(self.body),
            crc_ok=self.crc == self.computed_crc,
        )


def read_item(reader: Reader, tags_left: int) -> ReferenceItem:
    """Take one item."""
    start = reader.position
    crc = reader.number(8, signed=False)
    flag = reader.number(1, signed=False)
    create_ms = reader.number(8)
    due_ms = reader.number(8)
    subject = reader.string()
    message_id = reader.string()
    tags_at = reader.position - start
    tags: list[bytes] = []
    if flag & 4:
        count = reader.number(1)
        if count < 0:
            raise CutOffError
        if count > tags_left:
            raise TooManyError
        tags = [reader.string() for _ in range(count)]
    body = reader.take(reader.number(4))
    size = reader.position - start
    return ReferenceItem(
        start=start,
        size=size,
        crc=crc,
        computed_crc=zlib.crc32(reader.data[start + 8 : reader.position]),
        flag=flag,
        create_ms=create_ms,
        due_ms=due_ms,
        subject=subject,
        message_id=message_id,
        tags=tuple(tags),
        tags_at=tags_at,
        body=body,
    )


@dataclass(frozen=True)
class ReferenceScan:
    """The items of a body; fault_at: where the one begins that could not be taken, None if all."""

    items: list[ReferenceItem]
    fault_at: int | None = None
    too_many_items: bool = False


def read_items(body: bytes, items_max: int) -> ReferenceScan:
    """Take all items of a SEND_MESSAGE body."""
    reader = Reader(body)
    items: list[ReferenceItem] = []
    tags_left = 10 * items_max
    while not reader.at_end:
        start = reader.position
        if len(items) == items_max:
            return ReferenceScan(items, start, too_many_items=True)
        try:
            item = read_item(reader, tags_left)
        except (CutOffError, TooManyError):
            return ReferenceScan(items, start)
        tags_left -= len(item.tags)
        items.append(item)
    return ReferenceScan(items)


def read_attributes(body: bytes) -> list[tuple[bytes, bytes]]:
    """Take an attribute map: keys have signed sizes, values unsigned ones. CutOffError."""
    reader = Reader(body)
    pairs = []
    while not reader.at_end:
        key = reader.string()
        pairs.append((key, reader.take(reader.number(2, signed=False))))
    return pairs


def read_reply(body: bytes) -> list[tuple[bytes, int, bytes]]:
    """Take the rows of the answer to a SEND_MESSAGE: message id, code, remark.

    CutOffError has the place at which the row begins that could not be taken.
    """
    reader = Reader(body)
    rows = []
    while not reader.at_end:
        start = reader.position
        try:
            rows.append((reader.string(), reader.number(4), reader.string()))
        except CutOffError:
            raise CutOffError(start) from None
    return rows


@dataclass(frozen=True)
class ReferenceStream:
    """A stream cut into frames; rest: bytes of the frame that is not complete."""

    frames: list[Frame]
    rest: int
    fault: type[RemoteProtocolError] | None = None


def read_frames(stream: bytes, frame_bytes_max: int) -> ReferenceStream:
    """Cut a stream into frames until it ends or is none any more."""
    frames: list[Frame] = []
    position = 0
    while True:
        rest = stream[position:]
        total = int.from_bytes(rest[:4], "big", signed=True)
        if len(rest) >= 4 and (total < 20 or total + 4 > frame_bytes_max):
            return ReferenceStream(frames, 0, FrameSizeError)
        if rest[4:6] != b"\x00\x12"[: len(rest[4:6])]:
            return ReferenceStream(frames, 0, BadHeaderSizeError)
        if rest[6:10] != b"\xde\xc1\x0a\xde"[: len(rest[6:10])]:
            return ReferenceStream(frames, 0, BadMagicError)
        if len(rest) < 24 or len(rest) < 4 + total:
            return ReferenceStream(frames, len(rest))
        reader = Reader(rest, 10)
        code, version = reader.number(2), reader.number(2)
        opaque, flag, request_code = reader.number(4), reader.number(4), reader.number(2)
        body = reader.take(total - 20)
        frames.append(Frame(code, version, opaque, flag, request_code, body))
        position += 4 + total
