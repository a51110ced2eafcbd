"""Message items: what a SEND_MESSAGE carries, one after another, without a count.

    0       8      9           17       25       .            .       .            .          .
    +-------+------+-----------+--------+--------+------------+- - - -+------------+- - - - - -+
    | crc   | flag | create_ms | due_ms | subject| message id | tags  | body size  | body      |
    | i64   | i8   | i64       | i64    | str    | str        |       | i32        | attributes|
    +-------+------+-----------+--------+--------+------------+- - - -+------------+- - - - - -+

    str         i16 size, UTF-8 bytes
    tags        only if flag has FLAG_TAGS: i8 count, then count x str
    attributes  (str key, str value) repeated until the body size is used up

All integers are big-endian. crc holds CRC-32 (zlib's) of everything after itself. A Java reader
takes sizes as signed, so none above 32,767 is legal but that of an attribute's value, which some
of QMQ's readers take as unsigned.
"""

import functools
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final

from delay_protocol.basics.errors import (
    IndivisibleBodyError,
    ItemCrcError,
    LocalProtocolError,
    MalformedItemError,
    TooManyItemsError,
)
from delay_protocol.basics.strings import STR_SIZE_MAX, decode_str, encode_str

FLAG_LOW_RELIABILITY: Final = 1
FLAG_DELAY: Final = 2
"""The item's due_ms is when to deliver it; without this bit it is due now."""
FLAG_TAGS: Final = 4
FLAGS_KNOWN: Final = FLAG_LOW_RELIABILITY | FLAG_DELAY | FLAG_TAGS
"""No other bit of a flag has a meaning."""

ITEM_SIZE_MIN: Final = 33
"""Bytes of an item with an empty subject, id and body."""
TAGS_MAX: Final = 10
"""More tags than this make a Java consumer fail."""
ATTRIBUTES_MAX: Final = 4096
"""Attributes that a map may have unless the caller says otherwise; clients send a dozen."""
SCAN_ITEMS_MAX: Final = 16_384
"""Items that a scan divides a body into unless the caller says otherwise; takes about 15 ms."""

_CRC = struct.Struct(">Q")
_HEAD = struct.Struct(">QB8xqh")
"""crc, flag, (create_ms), due_ms, subject size."""
_TIMES = struct.Struct(">Bqq")
"""flag, create_ms, due_ms."""
_SIZE = struct.Struct(">h")
_UNSIGNED_SIZE = struct.Struct(">H")
_BODY_SIZE = struct.Struct(">i")
_COUNT = struct.Struct(">b")
_CRC_SIZE: Final = 8
_SUBJECT_AT: Final = 27
"""Where the bytes of an item's subject begin."""

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Item:
    """One message item, decoded. For clients and tools; the server works on bytes."""

    flag: int
    create_ms: int
    due_ms: int
    """Wall ms when to deliver if flag has FLAG_DELAY; otherwise the producer's expire time."""
    subject: str
    message_id: str
    tags: tuple[str, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)


def encode_item(item: Item) -> bytes:
    """Return the bytes of one item, its CRC computed; refuse what a Java reader could not read."""
    if item.tags and not item.flag & FLAG_TAGS:
        raise LocalProtocolError("the item has tags but its flag does not say so")
    if len(item.tags) > TAGS_MAX:
        raise LocalProtocolError(f"{len(item.tags)} tags, at most {TAGS_MAX}")
    if not item.subject or not item.message_id:
        raise LocalProtocolError("an item needs a subject and a message id")
    try:
        times = _TIMES.pack(item.flag, item.create_ms, item.due_ms)
    except struct.error as error:
        raise LocalProtocolError(f"flag or time does not fit: {error}") from error
    parts = [times, encode_str(item.subject), encode_str(item.message_id)]
    if item.flag & FLAG_TAGS:
        parts.append(len(item.tags).to_bytes(1, "big"))
        parts += [encode_str(tag) for tag in item.tags]
    body = encode_attributes(item.attributes)
    parts += [_BODY_SIZE.pack(len(body)), body]
    covered = b"".join(parts)
    return _CRC.pack(zlib.crc32(covered)) + covered


def decode_item(data: Buffer) -> Item:
    """Return the one item that `data` holds; raise ItemCrcError or MalformedItemError."""
    data = bytes(data)
    if len(data) < ITEM_SIZE_MIN:
        raise MalformedItemError(f"{len(data)} bytes, an item has at least {ITEM_SIZE_MIN}")
    (stated,) = _CRC.unpack_from(data)
    computed = zlib.crc32(data[_CRC_SIZE:])
    if stated != computed:
        raise ItemCrcError(stated=stated, computed=computed)
    flag, create_ms, due_ms = _TIMES.unpack_from(data, _CRC_SIZE)
    subject, position = decode_str(data, _SUBJECT_AT - 2, error=MalformedItemError)
    message_id, position = decode_str(data, position, error=MalformedItemError)
    tags: list[str] = []
    if flag & FLAG_TAGS:
        (count,) = _COUNT.unpack(data[position : position + 1] or b"\xff")
        if count < 0:
            raise MalformedItemError(f"{count} tags")
        position += 1
        for _ in range(count):
            tag, position = decode_str(data, position, error=MalformedItemError)
            tags.append(tag)
    if position + 4 > len(data):
        raise MalformedItemError("the item ends before its body size")
    (body_size,) = _BODY_SIZE.unpack_from(data, position)
    position += 4
    if body_size != len(data) - position:
        raise MalformedItemError(f"body size {body_size}, but {len(data) - position} bytes follow")
    attributes = decode_attributes(data[position:])
    return Item(flag, create_ms, due_ms, subject, message_id, tuple(tags), attributes)


def names_due_time(data: bytes) -> bool:
    """Return True if a whole item says when it is due; it is due when it comes if it does not."""
    return bool(data[_CRC_SIZE] & FLAG_DELAY)


def item_due_at(data: bytes, due_ms: int) -> bytes:
    """Return a whole item as it would be if it were due then; its attributes stay as they are."""
    flag, create_ms, _ = _TIMES.unpack_from(data, _CRC_SIZE)
    times = _TIMES.pack(flag | FLAG_DELAY, create_ms, due_ms)
    covered = times + data[_CRC_SIZE + _TIMES.size :]
    return _CRC.pack(zlib.crc32(covered)) + covered


def encode_attributes(attributes: Mapping[str, str]) -> bytes:
    """Return an item's body: the attribute map, in the mapping's order."""
    return b"".join(
        part for pair in attributes.items() for part in (encode_str(pair[0]), encode_str(pair[1]))
    )


def decode_attributes(body: Buffer) -> dict[str, str]:
    """Return the attribute map that an item's body holds; of a repeated key the last value.

    The first loop takes 0.6 us an attribute, two thirds of the second, which says what is wrong
    where the first ends.
    """
    body = bytes(body)
    attributes: dict[str, str] = {}
    position = 0
    end = len(body)
    size_of = _UNSIGNED_SIZE.unpack_from
    try:
        while position < end:
            value_at = position + 2 + size_of(body, position)[0]
            after = value_at + 2 + size_of(body, value_at)[0]
            if after > end or value_at > position + 2 + STR_SIZE_MAX:
                break
            key = body[position + 2 : value_at].decode()
            attributes[key] = body[value_at + 2 : after].decode()
            position = after
    except (struct.error, UnicodeDecodeError):
        pass
    while position < end:
        key, position = decode_str(body, position, error=MalformedItemError)
        value, position = decode_str(body, position, error=MalformedItemError, unsigned=True)
        attributes[key] = value
    return attributes


def walk_attributes(
    body: Buffer, *, value_size_max: int = STR_SIZE_MAX, count_max: int = ATTRIBUTES_MAX
) -> tuple[int, str | None]:
    """Say how many attributes were looked at, and what is wrong with them, or None.

    The walk ends at the first that is wrong, so never goes beyond `count_max`; an attribute takes
    0.3 us.
    """
    size_of = _UNSIGNED_SIZE.unpack_from
    position = 0
    end = len(body)
    for count in range(count_max):
        if position + 4 > end:
            return count, None if position == end else "malformed attributes"
        (key_size,) = size_of(body, position)
        position += 2 + key_size
        if key_size > STR_SIZE_MAX or position + 2 > end:
            return count, "malformed attributes"
        (value_size,) = size_of(body, position)
        position += 2 + value_size
        if value_size > value_size_max:
            return count, f"attribute value of {value_size} bytes, limit {value_size_max}"
    if position < end:
        return count_max, f"too many attributes, limit {count_max}"
    return count_max, None if position == end else "malformed attributes"


def tags_are_text(tags: Buffer) -> bool:
    """Say whether the tags of an item that was divided, from their count on, are UTF-8."""
    tags = bytes(tags)
    if tags.isascii():
        return True
    position = 1
    for _ in range(tags[0]):
        (size,) = _SIZE.unpack_from(tags, position)
        position += 2 + size
        try:
            tags[position - size : position].decode()
        except UnicodeDecodeError:
            return False
    return True


class ItemScan:
    """What a scan found, as columns: entry i of every list describes the i-th item.

    Invariant: all lists are of one length.
    """

    __slots__ = (
        "body_sizes",
        "crc_ok",
        "due_ms",
        "flags",
        "ids",
        "sizes",
        "starts",
        "subjects",
        "tag_counts",
    )

    def __init__(self) -> None:
        self.starts: list[int] = []
        """Where each item begins in its request's body: at its CRC."""
        self.sizes: list[int] = []
        """Bytes of each whole item, CRC included."""
        self.flags: list[int] = []
        self.due_ms: list[int] = []
        """The item's time field as sent, whatever its flag says."""
        self.subjects: list[bytes] = []
        self.ids: list[bytes] = []
        self.tag_counts: list[int] = []
        self.body_sizes: list[int] = []
        """Bytes of each item's attribute map."""
        self.crc_ok: list[bool] = []
        """Whether the CRC matches."""

    def __len__(self) -> int:
        return len(self.starts)

    def clear(self) -> None:
        """Forget all items."""
        self.truncate(0)

    def truncate(self, count: int) -> None:
        """Forget the items from `count` on."""
        for name in self.__slots__:
            del getattr(self, name)[count:]


def scan_items(body: bytes, sink: ItemScan, *, items_max: int = SCAN_ITEMS_MAX) -> None:
    """Divide the body of a SEND_MESSAGE into items and append what they are to the sink.

    Raise IndivisibleBodyError, and leave the sink as it was, when the body cannot be divided, and
    TooManyItemsError, which is one, as soon as there are more than `items_max` items or more tags
    than these could legally have: so many are the work that a body of any size can cause.
    Whether a delimited item is fit to be kept (CRC, flags, subject, id, tags, times) is for the
    caller to say.
    """
    count_before = len(sink.starts)
    try:
        _scan_items(body, sink, items_max)
    except IndivisibleBodyError:
        sink.truncate(count_before)
        raise


def _scan_items(body: bytes, sink: ItemScan, items_max: int) -> None:
    """Do the work of scan_items(), but leave what was found before an error in the sink.

    Every message passes here, so neighbours are expected to be alike: after two items whose
    subjects and whose ids have the same sizes, a struct made for these sizes reads the head of the
    next one at once. It reads the sizes too; where they are others, the head is read anew, field by
    field. That is 0.70 us an item instead of 0.86 (1.06 where sizes change with every few items;
    the CRC alone is 0.28, and slower over a memoryview).
    """
    end = len(body)
    start = 0
    tags_left = items_max * TAGS_MAX
    crc32 = zlib.crc32
    read_head: Callable[[bytes, int], tuple[Any, ...]] = _read_head
    # Of the item before.
    subject_before = id_before = -1
    head_size = 0
    # Counts the items without making numbers.
    for _ in repeat(None, items_max):
        if start >= end:
            return
        if end - start < head_size:
            read_head = _read_head
        crc, flag, due_ms, subject_size, subject, id_size, message_id, body_size = read_head(
            body, start
        )
        if subject_size != subject_before or id_size != id_before:
            if read_head is not _read_head:
                read_head = _read_head
                crc, flag, due_ms, subject_size, subject, id_size, message_id, body_size = (
                    _read_head(body, start)
                )
            subject_before, id_before = subject_size, id_size
            head_size = ITEM_SIZE_MIN + subject_size + id_size
        elif read_head is _read_head:
            read_head = _head_struct(subject_size, id_size).unpack_from
        tag_count = 0
        after = start + head_size + body_size
        if flag & FLAG_TAGS:
            tag_count, body_size, after = _skip_tags(
                body, start, start + head_size - 4, tags_left=tags_left
            )
            tags_left -= tag_count
        if body_size < 0 or after > end:
            raise IndivisibleBodyError(offset=start, reason=f"body size {body_size}")
        sink.starts.append(start)
        sink.sizes.append(after - start)
        sink.flags.append(flag)
        sink.due_ms.append(due_ms)
        sink.subjects.append(subject)
        sink.ids.append(message_id)
        sink.tag_counts.append(tag_count)
        sink.body_sizes.append(body_size)
        sink.crc_ok.append(crc32(body[start + _CRC_SIZE : after]) == crc)
        start = after
    if start < end:
        raise TooManyItemsError(offset=start, reason=f"more than {items_max} items in one body")


def _read_head(body: bytes, start: int) -> tuple[int, int, int, int, bytes, int, bytes, int]:
    """Return the fields of the item at `start` up to its body size, as _head_struct() does.

    If the item has tags they stand where the body size is looked for, so that one is meaningless.
    """
    try:
        crc, flag, due_ms, subject_size = _HEAD.unpack_from(body, start)
        id_at = start + _SUBJECT_AT + subject_size + 2
        (id_size,) = _SIZE.unpack_from(body, id_at - 2)
        (body_size,) = _BODY_SIZE.unpack_from(body, id_at + id_size)
    except struct.error:
        raise IndivisibleBodyError(offset=start, reason="the body ends within it") from None
    if subject_size < 0 or id_size < 0:
        raise IndivisibleBodyError(offset=start, reason=f"sizes {subject_size} and {id_size}")
    subject = body[start + _SUBJECT_AT : id_at - 2]
    message_id = body[id_at : id_at + id_size]
    return crc, flag, due_ms, subject_size, subject, id_size, message_id, body_size


@functools.lru_cache(maxsize=1024)
def _head_struct(subject_size: int, id_size: int) -> struct.Struct:
    """Return what reads an untagged item up to its body at once.

    crc, flag, (create_ms), due_ms, subject size, subject, id size, id, body size.
    """
    return struct.Struct(f">QB8xqh{subject_size}sh{id_size}si")


def _skip_tags(body: bytes, start: int, position: int, *, tags_left: int) -> tuple[int, int, int]:
    """Return the number of tags at a position, the body size after them and the item's end."""
    try:
        (count,) = _COUNT.unpack_from(body, position)
        if count > tags_left:
            raise TooManyItemsError(offset=start, reason=f"{count} tags, too many in one body")
        position += 1
        smallest = min(count, 0)
        for _ in range(count):
            (size,) = _SIZE.unpack_from(body, position)
            position += 2 + size
            smallest = min(smallest, size)
        (body_size,) = _BODY_SIZE.unpack_from(body, position)
    except struct.error:
        raise IndivisibleBodyError(offset=start, reason="the body ends within its tags") from None
    if smallest < 0:
        raise IndivisibleBodyError(offset=start, reason=f"{count} tags, one size {smallest}")
    return count, body_size, position + 4 + body_size


def item_subject(data: Buffer) -> bytes:
    """Return the subject of an item whose CRC was checked."""
    try:
        (size,) = _SIZE.unpack_from(data, _SUBJECT_AT - 2)
    except struct.error:
        size = -1
    return _slice(data, _SUBJECT_AT, size)


def item_message_ids(joined: Buffer, sizes: Iterable[int]) -> list[bytes]:
    """Return the message id of each of some items that stand one after another, CRCs checked."""
    data = bytes(joined)
    unpack_size = _SIZE.unpack_from
    ids: list[bytes] = []
    end = 0
    for size in sizes:
        begin, end = end, end + size
        subject_at = begin + _SUBJECT_AT
        try:
            id_at = subject_at + unpack_size(data, subject_at - 2)[0] + 2
            id_end = id_at + unpack_size(data, id_at - 2)[0]
        except struct.error:
            id_at = id_end = -1
        if not subject_at + 2 <= id_at <= id_end <= end:
            raise MalformedItemError(f"no message id in the item of {size} bytes at {begin}")
        ids.append(data[id_at:id_end])
    return ids


def _slice(data: Buffer, position: int, size: int) -> bytes:
    if size < 0 or position + size > len(data):
        raise MalformedItemError(f"string of {size} bytes at {position} of {len(data)}")
    return bytes(data[position : position + size])
