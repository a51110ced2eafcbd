"""Items are divided exactly as QMQ divides them, and none is taken for whole that is not."""

import zlib
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from delay_protocol.basics.errors import (
    BodyError,
    IndivisibleBodyError,
    ItemCrcError,
    LocalProtocolError,
    MalformedItemError,
    TooManyItemsError,
)
from delay_protocol.basics.strings import STR_SIZE_MAX
from delay_protocol.messages import items as items_module
from delay_protocol.messages.items import (
    ATTRIBUTES_MAX,
    FLAG_DELAY,
    FLAG_LOW_RELIABILITY,
    FLAG_TAGS,
    ITEM_SIZE_MIN,
    SCAN_ITEMS_MAX,
    TAGS_MAX,
    Item,
    ItemScan,
    decode_attributes,
    decode_item,
    encode_attributes,
    encode_item,
    item_due_at,
    item_message_ids,
    item_subject,
    scan_items,
    walk_attributes,
)
from tests.delay_protocol.wire.test_frames import ITEM as DELAY_ITEM_BYTES
from tests.fuzz.reference import Row, read_items, rows_of

CREATE_MS = 1_700_000_000_000
DUE_MS = 1_700_000_060_000

DELAY_ITEM = Item(
    flag=FLAG_DELAY,
    create_ms=CREATE_MS,
    due_ms=DUE_MS,
    subject="a.b",
    message_id="m1",
    attributes={
        "qmq_createTime": str(CREATE_MS),
        "qmq_scheduleReceiveTime": str(DUE_MS),
        "k": "v",
    },
)
TAGGED_ITEM_BYTES = bytes.fromhex(
    "000000003f382b91 06 0000018bcfe56800 0000018bcfe65260 0003612e62 00026d31 01 00027431"
    "00000006 00016b 000176"
)
TAGGED_ITEM = Item(
    flag=FLAG_DELAY | FLAG_TAGS,
    create_ms=CREATE_MS,
    due_ms=DUE_MS,
    subject="a.b",
    message_id="m1",
    tags=("t1",),
    attributes={"k": "v"},
)


def sealed(covered: bytes) -> bytes:
    """Put the right CRC before the fields it covers."""
    return zlib.crc32(covered).to_bytes(8, "big") + covered


def short(data: bytes) -> bytes:
    """Encode a short string by hand."""
    return len(data).to_bytes(2, "big") + data


def raw_item(
    *,
    subject: bytes = short(b"a.b"),
    message_id: bytes = short(b"m1"),
    tags: bytes = b"",
    body: bytes = bytes(4),
) -> bytes:
    """Build an item from the bytes of its parts, sizes included, right or wrong."""
    flag = FLAG_DELAY | (FLAG_TAGS if tags else 0)
    return sealed(bytes([flag]) + bytes(16) + subject + message_id + tags + body)


def reference_rows(body: bytes) -> list[Row]:
    """Divide a body as the slow reader does."""
    return [item.row for item in read_items(body, SCAN_ITEMS_MAX).items]


def scanned(body: bytes) -> list[Row]:
    """Divide a body with scan_items()."""
    scan = ItemScan()
    scan_items(body, scan)
    return rows_of(scan)


def attributes_fit(body: bytes | memoryview, count_max: int = ATTRIBUTES_MAX) -> bool:
    return walk_attributes(body, count_max=count_max)[1] is None


class Counted:
    """A function that counts its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls = 0

    def __call__(self, *values: Any) -> Any:  # noqa: ANN401 -- stands for any function
        self.calls += 1
        return self.function(*values)


class TestVectors:
    """The bytes of items as QMQ's own client writes them."""

    @pytest.mark.parametrize(
        ("item", "data", "size"),
        [(DELAY_ITEM, DELAY_ITEM_BYTES, 115), (TAGGED_ITEM, TAGGED_ITEM_BYTES, 49)],
    )
    def test_an_item_is_encoded_to_and_decoded_from_the_vector(
        self, item: Item, data: bytes, size: int
    ) -> None:
        assert len(data) == size
        assert encode_item(item) == data
        assert decode_item(data) == item

    def test_a_scan_of_both_in_one_body(self) -> None:
        assert scanned(DELAY_ITEM_BYTES + TAGGED_ITEM_BYTES) == [
            Row(0, 115, 2, DUE_MS, b"a.b", b"m1", 0, 77, crc_ok=True),
            Row(115, 49, 6, DUE_MS, b"a.b", b"m1", 1, 6, crc_ok=True),
        ]

    def test_the_item_accessors(self) -> None:
        for data in (DELAY_ITEM_BYTES, TAGGED_ITEM_BYTES):
            for kind in (bytes, bytearray, memoryview):
                assert item_subject(kind(data)) == b"a.b"
                assert item_message_ids(kind(data), [len(data)]) == [b"m1"]
                assert decode_item(kind(data)) == decode_item(data)


class TestOneItem:
    """encode_item() and decode_item(), for clients and tools."""

    def test_the_upper_half_of_the_crc_counts_too(self) -> None:
        bad = b"\0\0\0\1" + DELAY_ITEM_BYTES[4:]
        [row] = scanned(bad)
        assert not row.crc_ok
        with pytest.raises(ItemCrcError) as refused:
            decode_item(bad)
        assert (refused.value.stated, refused.value.computed) == (0x1EFEBC2E0, 0xEFEBC2E0)

    @pytest.mark.parametrize(
        "item",
        [
            replace(DELAY_ITEM, subject=""),
            replace(DELAY_ITEM, message_id=""),
            replace(DELAY_ITEM, subject="s" * (STR_SIZE_MAX + 1)),
            replace(DELAY_ITEM, subject="\ud800"),
            replace(DELAY_ITEM, attributes={"k": "\u00e9" * (STR_SIZE_MAX // 2 + 1)}),
            replace(DELAY_ITEM, tags=("t",)),
            replace(TAGGED_ITEM, tags=("t",) * 11),
            replace(DELAY_ITEM, flag=256),
            replace(DELAY_ITEM, due_ms=2**63),
        ],
    )
    def test_what_no_java_reader_could_read_is_not_encoded(self, item: Item) -> None:
        with pytest.raises(LocalProtocolError):
            encode_item(item)

    def test_the_longest_strings_and_ten_tags_are_encoded(self) -> None:
        item = replace(
            TAGGED_ITEM,
            subject="s" * STR_SIZE_MAX,
            tags=("t",) * 10,
            attributes={"k" * STR_SIZE_MAX: "v" * STR_SIZE_MAX},
        )
        assert decode_item(encode_item(item)) == item


class TestAttributes:
    """The attribute map, an item's body."""

    def test_a_repeated_key_has_its_last_value(self) -> None:
        assert decode_attributes(encode_attributes({"k": "1"}) + encode_attributes({"k": "2"})) == {
            "k": "2"
        }

    @pytest.mark.parametrize(
        ("value_size", "fits"), [(0, True), (32_767, True), (32_768, False), (65_535, False)]
    )
    def test_a_value_that_java_consumers_cannot_read_does_not_fit(
        self, *, value_size: int, fits: bool
    ) -> None:
        small = short(b"k") + short(b"v")
        body = small + short(b"large") + short(bytes(value_size)) + small
        assert (walk_attributes(body)[1] is None) is fits
        assert (walk_attributes(memoryview(body))[1] is None) is fits
        assert decode_attributes(body)["large"] == "\0" * value_size

    def test_a_key_is_never_longer_than_a_signed_size(self) -> None:
        body = short(bytes(32_768)) + short(b"")
        assert walk_attributes(body)[1]
        assert walk_attributes(short(bytes(32_767)) + short(b""))[1] is None
        with pytest.raises(MalformedItemError):
            decode_attributes(body)

    def test_a_map_may_have_4096_attributes(self) -> None:
        assert walk_attributes(bytes(4) * ATTRIBUTES_MAX)[1] is None
        assert walk_attributes(bytes(4) * (ATTRIBUTES_MAX + 1))[1]
        assert ATTRIBUTES_MAX == 4096

    def test_no_more_attributes_are_looked_at_than_a_map_may_have(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unpack = Counted(items_module._UNSIGNED_SIZE.unpack_from)
        monkeypatch.setattr(items_module, "_UNSIGNED_SIZE", SimpleNamespace(unpack_from=unpack))
        assert walk_attributes(bytes(4 * 100_000), count_max=50)[1]
        assert unpack.calls == 2 * 50


class TestScan:
    """scan_items(), through which every accepted message goes."""

    @pytest.mark.parametrize(
        "bad",
        [
            b"\0",
            DELAY_ITEM_BYTES[: ITEM_SIZE_MIN - 1],
            DELAY_ITEM_BYTES[:-1],
            raw_item(subject=b"\xff\xff"),
            raw_item(message_id=b"\xff\xfe"),
            raw_item(subject=b"\x80\x00" + bytes(32_768)),
            # Sizes that lead back to bytes which, read once more, would make the rest fit.
            raw_item(subject=short(b"\0\0\0\6"), message_id=b"\xff\xfa"),
            raw_item(message_id=short(b"\0\0\0"), tags=b"\x01\xff\xfa", body=bytes(32)),
            raw_item(tags=b"\xff"),
            raw_item(tags=b"\x01\xff\xfe"),
            raw_item(tags=b"\x03" + short(b"t1")),
            raw_item(body=b"\xff\xff\xff\xff"),
            raw_item(body=b"\x80\x00\x00\x00"),
            raw_item(body=b"\0\0\0\2" + b"\0"),
            raw_item() + b"\0",
        ],
    )
    def test_a_body_that_cannot_be_divided_is_refused_where_the_bad_item_begins(
        self, bad: bytes
    ) -> None:
        scan = ItemScan()
        good = DELAY_ITEM_BYTES + TAGGED_ITEM_BYTES
        scan_items(good, scan)
        with pytest.raises(IndivisibleBodyError) as refused:
            scan_items(good + bad, scan)
        assert isinstance(refused.value, BodyError)
        begins = len(good) + (len(bad) - 1 if bad == raw_item() + b"\0" else 0)
        assert refused.value.offset == begins
        assert len(scan) == 2

    def test_a_value_of_65535_bytes_is_delimited(self) -> None:
        body = short(b"k") + short(bytes(65_535))
        [row] = scanned(raw_item(body=len(body).to_bytes(4, "big") + body))
        assert row.body_size == len(body) > STR_SIZE_MAX
        assert row.crc_ok

    @pytest.mark.parametrize(
        "item",
        [
            replace(DELAY_ITEM, flag=0),
            replace(DELAY_ITEM, flag=FLAG_LOW_RELIABILITY | FLAG_DELAY),
            replace(DELAY_ITEM, flag=0xFA),
            replace(DELAY_ITEM, due_ms=0),
            replace(DELAY_ITEM, due_ms=-1),
            replace(DELAY_ITEM, due_ms=DUE_MS + 3 * 366 * 86_400_000),
            replace(DELAY_ITEM, subject="%RETRY%a.b%group"),
            replace(DELAY_ITEM, subject="%DEAD_RETRY%" + "a" * 100 + "%group"),
            replace(DELAY_ITEM, attributes={}),
            TAGGED_ITEM,
        ],
    )
    def test_what_unmodified_clients_send_is_divided_and_left_to_the_caller(
        self, item: Item
    ) -> None:
        [row] = scanned(encode_item(item))
        assert (row.flag, row.due_ms) == (item.flag, item.due_ms)
        assert row.subject.decode() == item.subject
        assert row.crc_ok

    def test_a_scan_is_cleared_and_used_again(self) -> None:
        scan = ItemScan()
        scan_items(DELAY_ITEM_BYTES * 2, scan)
        scan.clear()
        assert len(scan) == 0
        scan_items(TAGGED_ITEM_BYTES, scan)
        assert rows_of(scan) == reference_rows(TAGGED_ITEM_BYTES)

    def test_items_whose_sizes_change_count_once(self) -> None:
        body = b"".join(
            raw_item(subject=short(b"s" * (1 + number // 3 % 2)), message_id=short(b"m" * number))
            for number in range(60)
        )
        scan = ItemScan()
        scan_items(body, scan, items_max=60)
        assert rows_of(scan) == reference_rows(body)
        with pytest.raises(TooManyItemsError):
            scan_items(body, ItemScan(), items_max=59)

    def test_too_many_items_are_a_body_that_cannot_be_divided(self) -> None:
        with pytest.raises(IndivisibleBodyError):
            scan_items(raw_item() * (SCAN_ITEMS_MAX + 1), ItemScan())
        scan_items(raw_item() * SCAN_ITEMS_MAX, ItemScan())

    @pytest.mark.parametrize("rest", [b"", b"\0", bytes(100_000)])
    def test_no_more_items_are_looked_at_than_are_allowed(
        self, rest: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        body = raw_item(subject=b"\0\0", message_id=b"\0\0") * 10_000 + rest
        crc32 = Counted(zlib.crc32)
        heads = Counted(items_module._head_struct(0, 0).unpack_from)
        monkeypatch.setattr(items_module, "zlib", SimpleNamespace(crc32=crc32))
        monkeypatch.setattr(
            items_module, "_head_struct", lambda *_: SimpleNamespace(unpack_from=heads)
        )
        with pytest.raises(TooManyItemsError):
            scan_items(body, ItemScan(), items_max=70)
        assert crc32.calls == 70
        # The first two are read field by field.
        assert heads.calls == 68

    def test_no_more_tags_are_looked_at_than_the_items_allowed_may_have(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tagged = raw_item(tags=b"\x7f" + short(b"") * 127)
        unpack = Counted(items_module._SIZE.unpack_from)
        monkeypatch.setattr(items_module, "_SIZE", SimpleNamespace(unpack_from=unpack))
        with pytest.raises(TooManyItemsError) as refused:
            scan_items(tagged * 1000, ItemScan(), items_max=100)
        whole = 100 * TAGS_MAX // 127
        assert refused.value.offset == whole * len(tagged)
        # And the sizes of the ids of the items that were read field by field.
        assert whole * 127 <= unpack.calls <= 100 * TAGS_MAX + 2

    def test_items_that_have_all_the_tags_they_may_are_divided(self) -> None:
        body = raw_item(tags=b"\x0a" + short(b"t") * 10) * 30
        scan = ItemScan()
        scan_items(body, scan, items_max=30)
        assert scan.tag_counts == [10] * 30


@pytest.mark.parametrize("item", [DELAY_ITEM, TAGGED_ITEM, replace(DELAY_ITEM, flag=0)])
def test_an_item_at_another_time_is_the_same_in_all_else(item: Item) -> None:
    again = decode_item(item_due_at(encode_item(item), DUE_MS + 7))
    assert again == replace(item, flag=item.flag | FLAG_DELAY, due_ms=DUE_MS + 7)
