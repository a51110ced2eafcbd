"""Items are divided exactly as QMQ divides them, and none is taken for whole that is not."""

import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

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
    attributes_fit,
    decode_attributes,
    decode_item,
    encode_attributes,
    encode_item,
    item_crc_ok,
    item_message_id,
    item_message_ids,
    item_subject,
    scan_items,
    tags_are_text,
    walk_attributes,
)

CREATE_MS = 1_700_000_000_000
DUE_MS = 1_700_000_060_000

DELAY_ITEM_BYTES = bytes.fromhex(
    "00000000efebc2e0 02 0000018bcfe56800 0000018bcfe65260 0003612e62 00026d31 0000004d"
    "000e716d715f63726561746554696d65 000d31373030303030303030303030"
    "0017716d715f7363686564756c655265636569766554696d65 000d31373030303030303630303030"
    "00016b 000176"
)
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

i64 = st.integers(-(2**63), 2**63 - 1)
text = st.text(max_size=12)
name = st.text(min_size=1, max_size=12)


def with_right_flag(item: Item) -> Item:
    return replace(item, flag=item.flag | FLAG_TAGS) if item.tags else item


any_item = st.builds(
    Item,
    flag=st.sampled_from([0, 1, 2, 3, 6, 7, 0x82, 0xFF]),
    create_ms=i64,
    due_ms=i64,
    subject=name,
    message_id=name,
    tags=st.lists(text, max_size=3).map(tuple),
    attributes=st.dictionaries(text, text, max_size=3),
).map(with_right_flag)


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


@dataclass(frozen=True, slots=True)
class Row:
    """One item as the simple decoder sees it."""

    start: int
    size: int
    flag: int
    due_ms: int
    subject: bytes
    message_id: bytes
    tag_count: int
    body_size: int
    crc_ok: bool


class SimpleReader:
    """A decoder written for nothing but to be obviously right: one field after another."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.at = 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.body):
            raise EOFError
        self.at += size
        return self.body[self.at - size : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def string(self) -> bytes:
        return self.take(self.number(2))

    def row(self) -> Row:
        start = self.at
        crc = self.take(8)
        flag = self.take(1)[0]
        self.number(8)
        due_ms = self.number(8)
        subject = self.string()
        message_id = self.string()
        tag_count = 0
        if flag & 4:
            tag_count = self.number(1)
            if tag_count < 0:
                raise EOFError
            for _ in range(tag_count):
                self.string()
        body_size = self.number(4)
        self.take(body_size)
        crc_ok = crc == zlib.crc32(self.body[start + 8 : self.at]).to_bytes(8, "big")
        return Row(
            start=start,
            size=self.at - start,
            flag=flag,
            due_ms=due_ms,
            subject=subject,
            message_id=message_id,
            tag_count=tag_count,
            body_size=body_size,
            crc_ok=crc_ok,
        )


def simple_rows(body: bytes) -> list[Row] | None:
    """Divide a body item by item; None if it cannot be divided."""
    reader = SimpleReader(body)
    rows = []
    try:
        while reader.at < len(body):
            rows.append(reader.row())
    except EOFError:
        return None
    return rows


def rows_of(scan: ItemScan) -> list[Row]:
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


def scanned(body: bytes) -> list[Row] | None:
    """Divide a body with scan_items(); None if it refuses, after checking that it left nothing."""
    scan = ItemScan()
    scan_items(DELAY_ITEM_BYTES, scan)
    before = rows_of(scan)
    try:
        scan_items(body, scan)
    except IndivisibleBodyError as refused:
        error: IndivisibleBodyError | None = refused
    else:
        error = None
    rows = rows_of(scan)
    assert rows[:1] == before
    if error is None:
        return rows[1:]
    assert rows == before
    assert 0 <= error.offset < len(body)
    return None


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
                assert item_crc_ok(kind(data))
                assert item_subject(kind(data)) == b"a.b"
                assert item_message_id(kind(data)) == b"m1"
                assert type(item_message_id(kind(data))) is bytes
                assert item_message_ids(kind(data), [len(data)]) == [b"m1"]
                assert decode_item(kind(data)) == decode_item(data)


@given(st.lists(any_item, max_size=5))
def test_the_ids_of_items_in_a_row_are_those_of_each(items: list[Item]) -> None:
    encoded = [encode_item(item) for item in items]
    ids = item_message_ids(b"".join(encoded), map(len, encoded))
    assert ids == [item_message_id(one) for one in encoded]


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4))
def test_no_id_is_read_beyond_its_item_whatever_its_bytes(items: list[bytes]) -> None:
    def read_each() -> list[bytes]:
        return [item_message_id(one) for one in items]

    def read_all() -> list[bytes]:
        return item_message_ids(b"".join(items), map(len, items))

    results = []
    for read in (read_each, read_all):
        with suppress(MalformedItemError):
            results.append(read())
    assert not results or (len(results) == 2 and results[0] == results[1])


class TestOneItem:
    """encode_item() and decode_item(), for clients and tools."""

    @given(any_item)
    def test_an_item_survives_the_round_trip(self, item: Item) -> None:
        assert decode_item(encode_item(item)) == item

    @given(any_item, st.data())
    def test_every_flipped_bit_and_every_missing_byte_is_noticed(
        self, item: Item, data: st.DataObject
    ) -> None:
        good = encode_item(item)
        bad = bytearray(good)
        bit = data.draw(st.integers(0, 8 * len(bad) - 1))
        bad[bit // 8] ^= 1 << bit % 8
        assert not item_crc_ok(bad)
        with pytest.raises(ItemCrcError):
            decode_item(bad)
        for cut in (good[: data.draw(st.integers(0, len(good) - 1))], good + b"\0"):
            assert not item_crc_ok(cut)
            with pytest.raises(MalformedItemError):
                decode_item(cut)

    def test_the_upper_half_of_the_crc_counts_too(self) -> None:
        bad = b"\0\0\0\1" + DELAY_ITEM_BYTES[4:]
        assert not item_crc_ok(bad)
        [row] = scanned(bad) or []
        assert not row.crc_ok
        with pytest.raises(ItemCrcError) as refused:
            decode_item(bad)
        assert (refused.value.stated, refused.value.computed) == (0x1EFEBC2E0, 0xEFEBC2E0)

    @given(st.binary(max_size=120))
    def test_arbitrary_bytes_under_a_right_crc_raise_only_the_typed_error(
        self, covered: bytes
    ) -> None:
        data = sealed(covered)
        assert item_crc_ok(data) is (len(data) >= ITEM_SIZE_MIN)
        for read in (decode_item, item_subject, item_message_id):
            with suppress(MalformedItemError):
                read(data)

    @given(st.binary(max_size=40))
    def test_arbitrary_bytes_raise_only_the_typed_error(self, data: bytes) -> None:
        item_crc_ok(data)
        for read in (decode_item, item_subject, item_message_id, decode_attributes):
            with suppress(MalformedItemError):
                read(data)

    @pytest.mark.parametrize(
        "data",
        [
            raw_item(subject=b"\xff\xff"),
            raw_item(subject=short(b"\xff")),
            raw_item(message_id=b"\x7f\xff"),
            raw_item(tags=b"\x80"),
            raw_item(tags=b"\x02" + short(b"t1")),
            raw_item(body=b"\xff\xff\xff\xff"),
            raw_item(body=b"\0\0\0\2" + b"\0\0" + b"\0\0"),
            raw_item(body=b"\0\0\0\2" + b"\0"),
            raw_item(body=b"\0\0\0\2" + b"\0\0"),
            raw_item(body=b"\0\0"),
        ],
    )
    def test_a_right_crc_does_not_make_wrong_sizes_right(self, data: bytes) -> None:
        with pytest.raises(MalformedItemError) as refused:
            decode_item(data)
        assert not isinstance(refused.value, ItemCrcError)

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

    def test_a_set_tag_bit_with_no_tags_is_a_count_of_zero(self) -> None:
        item = replace(TAGGED_ITEM, tags=())
        assert decode_item(encode_item(item)) == item


class TestAttributes:
    """The attribute map, an item's body."""

    @given(st.dictionaries(st.text(), st.text()))
    def test_a_map_survives_the_round_trip_in_its_order(self, attributes: dict[str, str]) -> None:
        decoded = decode_attributes(encode_attributes(attributes))
        assert list(decoded.items()) == list(attributes.items())
        assert attributes_fit(encode_attributes(attributes))

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
        assert attributes_fit(body) is fits
        assert attributes_fit(memoryview(body)) is fits
        assert decode_attributes(body)["large"] == "\0" * value_size

    def test_a_key_is_never_longer_than_a_signed_size(self) -> None:
        body = short(bytes(32_768)) + short(b"")
        assert not attributes_fit(body)
        assert attributes_fit(short(bytes(32_767)) + short(b""))
        with pytest.raises(MalformedItemError):
            decode_attributes(body)

    @given(st.dictionaries(text, text, min_size=1, max_size=4), st.data())
    def test_a_map_that_is_cut_or_runs_over_does_not_fit(
        self, attributes: dict[str, str], data: st.DataObject
    ) -> None:
        body = encode_attributes(attributes)
        whole = {len(encode_attributes(dict(list(attributes.items())[:n]))) for n in range(5)}
        cut = data.draw(st.integers(0, len(body) - 1))
        assert attributes_fit(body[:cut]) is (cut in whole)

    @given(st.binary(max_size=30))
    def test_what_fits_can_be_divided_and_what_cannot_be_divided_does_not_fit(
        self, body: bytes
    ) -> None:
        reader = SimpleReader(body)
        try:
            while reader.at < len(body):
                reader.string()
                reader.string()
            divisible = True
        except EOFError:
            divisible = False
        assert attributes_fit(body) is divisible

    @given(
        st.lists(st.tuples(text, text), max_size=6),
        st.integers(1, 6),
        st.sampled_from([b"", b"\0", b"\0\1\0\0"]),
    )
    def test_a_map_of_more_attributes_than_allowed_does_not_fit(
        self, pairs: list[tuple[str, str]], count_max: int, rest: bytes
    ) -> None:
        body = b"".join(short(key.encode()) + short(value.encode()) for key, value in pairs)
        walked, fault = walk_attributes(body, count_max=count_max)
        assert walked == min(len(pairs), count_max)
        assert (fault is None) is (len(pairs) <= count_max)
        assert attributes_fit(body, count_max=count_max) is (fault is None)
        assert fault is None or f"limit {count_max}" in fault
        assert attributes_fit(body + rest, count_max=count_max) is (fault is None and not rest)

    def test_a_map_may_have_4096_attributes(self) -> None:
        assert attributes_fit(bytes(4) * ATTRIBUTES_MAX)
        assert not attributes_fit(bytes(4) * (ATTRIBUTES_MAX + 1))
        assert ATTRIBUTES_MAX == 4096

    def test_no_more_attributes_are_looked_at_than_a_map_may_have(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unpack = Counted(items_module._UNSIGNED_SIZE.unpack_from)
        monkeypatch.setattr(items_module, "_UNSIGNED_SIZE", SimpleNamespace(unpack_from=unpack))
        assert not attributes_fit(bytes(4 * 100_000), count_max=50)
        assert unpack.calls == 2 * 50


class TestTags:
    """tags_are_text(), for an item that was divided."""

    @given(st.lists(st.binary(max_size=3) | st.text(max_size=300).map(str.encode), max_size=10))
    @example([b"\xc3", b"\xa4"])
    @example([b"a" * 255, b"\xff"])
    def test_they_are_text_if_each_of_them_is_utf_8(self, tags: list[bytes]) -> None:
        text = True
        for tag in tags:
            try:
                tag.decode()
            except UnicodeDecodeError:
                text = False
        assert tags_are_text(bytes([len(tags)]) + b"".join(map(short, tags))) is text


class TestScan:
    """scan_items(), through which every accepted message goes."""

    def test_a_body_without_items_is_legal_and_holds_none(self) -> None:
        assert scanned(b"") == []

    @given(st.lists(any_item, max_size=5))
    def test_it_finds_the_items_that_were_encoded(self, items: list[Item]) -> None:
        encoded = [encode_item(item) for item in items]
        body = b"".join(encoded)
        rows = scanned(body)
        assert rows is not None
        assert rows == simple_rows(body)
        assert [body[row.start : row.start + row.size] for row in rows] == encoded
        assert [row.subject.decode() for row in rows] == [item.subject for item in items]
        assert [row.message_id.decode() for row in rows] == [item.message_id for item in items]
        assert [row.due_ms for row in rows] == [item.due_ms for item in items]
        assert [row.flag for row in rows] == [item.flag for item in items]
        assert [row.tag_count for row in rows] == [len(item.tags) for item in items]
        assert all(row.crc_ok for row in rows)

    @given(
        st.lists(any_item, min_size=1, max_size=3).flatmap(
            lambda items: st.permutations([*items, *items, items[0]])
        ),
        st.data(),
    )
    def test_it_agrees_with_the_simple_decoder_on_damaged_bodies(
        self, items: list[Item], data: st.DataObject
    ) -> None:
        body = bytearray(b"".join(map(encode_item, items)))
        for _ in range(data.draw(st.integers(0, 3))):
            at = data.draw(st.integers(0, len(body) - 1))
            match data.draw(st.sampled_from(["flip", "set", "cut", "insert"])):
                case "flip":
                    body[at] ^= data.draw(st.sampled_from([1, 2, 4, 8, 16, 128]))
                case "set":
                    body[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
                case "cut":
                    del body[at : at + data.draw(st.integers(1, 4))]
                case _:
                    body[at:at] = data.draw(st.binary(min_size=1, max_size=4))
            if not body:
                break
        assert scanned(bytes(body)) == simple_rows(bytes(body))

    @given(st.binary(max_size=200))
    @example(bytes(33))
    @example(bytes(66))
    @example(bytes(67))
    def test_it_agrees_with_the_simple_decoder_on_arbitrary_bytes(self, body: bytes) -> None:
        assert scanned(body) == simple_rows(body)

    @given(st.integers(0, 2**63 - 1), st.integers(1, 12), st.data())
    def test_it_agrees_when_every_size_field_is_tried_at_its_edges(
        self, due_ms: int, count: int, data: st.DataObject
    ) -> None:
        one = encode_item(replace(DELAY_ITEM, due_ms=due_ms))
        body = bytearray(one * count)
        at, size = data.draw(st.sampled_from([(25, 2), (30, 2), (34, 4)]))
        at += data.draw(st.integers(0, count - 1)) * len(one)
        edges = [-(2**15), -1, 0, 1, 2, 3, 4, 77, 115, 116, 2**15 - 1]
        if size == 4:
            edges += [-(2**31), 2**31 - 1, 77 + 115, 77 - 115, len(body) - at - 4]
        body[at : at + size] = data.draw(st.sampled_from(edges)).to_bytes(size, "big", signed=True)
        assert scanned(bytes(body)) == simple_rows(bytes(body))

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

    def test_a_wrong_crc_is_told_and_its_neighbours_go_on(self) -> None:
        damaged = bytearray(DELAY_ITEM_BYTES)
        damaged[-1] ^= 1
        rows = scanned(DELAY_ITEM_BYTES + bytes(damaged) + DELAY_ITEM_BYTES)
        assert rows is not None
        assert [row.crc_ok for row in rows] == [True, False, True]

    def test_an_empty_subject_and_an_empty_id_are_delimited_and_told(self) -> None:
        rows = scanned(raw_item(subject=b"\0\0") + raw_item(message_id=b"\0\0"))
        assert rows is not None
        assert [(row.subject, row.message_id) for row in rows] == [(b"", b"m1"), (b"a.b", b"")]

    def test_a_subject_that_is_not_utf_8_is_delimited_and_given_as_it_is(self) -> None:
        [row] = scanned(raw_item(subject=short(b"\xff\xfe"))) or []
        assert row.subject == b"\xff\xfe"

    def test_more_tags_than_a_consumer_can_read_are_delimited_and_counted(self) -> None:
        rows = scanned(raw_item(tags=b"\x7f" + short(b"t") * 127) + DELAY_ITEM_BYTES)
        assert rows is not None
        assert [row.tag_count for row in rows] == [127, 0]

    def test_a_value_of_65535_bytes_is_delimited(self) -> None:
        body = short(b"k") + short(bytes(65_535))
        [row] = scanned(raw_item(body=len(body).to_bytes(4, "big") + body)) or []
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
        [row] = scanned(encode_item(item)) or []
        assert (row.flag, row.due_ms) == (item.flag, item.due_ms)
        assert row.subject.decode() == item.subject
        assert row.crc_ok

    def test_hundreds_of_items_of_mixed_subjects_and_shapes(self) -> None:
        items = [
            replace(
                TAGGED_ITEM if number % 7 == 0 else DELAY_ITEM,
                subject="s" * (1 + number % 3),
                message_id=f"m{number}",
                due_ms=DUE_MS + number,
            )
            for number in range(300)
        ]
        body = b"".join(map(encode_item, items))
        rows = scanned(body)
        assert rows == simple_rows(body)
        assert [row.message_id.decode() for row in rows or []] == [i.message_id for i in items]

    def test_a_scan_is_cleared_and_used_again(self) -> None:
        scan = ItemScan()
        scan_items(DELAY_ITEM_BYTES * 2, scan)
        scan.clear()
        assert len(scan) == 0
        scan_items(TAGGED_ITEM_BYTES, scan)
        assert rows_of(scan) == simple_rows(TAGGED_ITEM_BYTES)

    @given(st.lists(any_item, max_size=6), st.integers(1, 6))
    def test_it_divides_as_many_items_as_are_allowed_and_refuses_more(
        self, items: list[Item], items_max: int
    ) -> None:
        encoded = [encode_item(item) for item in items]
        body = b"".join(encoded)
        scan = ItemScan()
        scan_items(DELAY_ITEM_BYTES, scan)
        before = rows_of(scan)
        try:
            scan_items(body, scan, items_max=items_max)
        except TooManyItemsError as error:
            refused: TooManyItemsError | None = error
        else:
            refused = None
        if len(items) <= items_max:
            assert refused is None
            assert rows_of(scan)[1:] == simple_rows(body)
        else:
            assert refused is not None
            assert refused.offset == sum(map(len, encoded[:items_max]))
            assert f"more than {items_max} items" in str(refused)
            assert rows_of(scan) == before

    def test_items_whose_sizes_change_count_once(self) -> None:
        body = b"".join(
            raw_item(subject=short(b"s" * (1 + number // 3 % 2)), message_id=short(b"m" * number))
            for number in range(60)
        )
        scan = ItemScan()
        scan_items(body, scan, items_max=60)
        assert rows_of(scan) == simple_rows(body)
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
