"""Targets for what crosses a socket: frames, items, answers, HELLO, and who reads them."""

import random
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import accumulate

import numpy as np

from delay_client import ClientConfig, DelaywheelError, Outcome, Receipt
from delay_client.exchange.answers import read_answer
from delay_client.exchange.batches import Batch
from delay_client.exchange.exchange import Exchange
from delay_client.messages.envelope import decode_envelope, encode_envelope
from delay_protocol.basics import errors
from delay_protocol.basics.codes import ItemCode, ResponseCode
from delay_protocol.basics.strings import STR_SIZE_MAX
from delay_protocol.basics.subjects import real_subject, subject_fault, subject_size_fault
from delay_protocol.messages.items import (
    FLAG_DELAY,
    Item,
    ItemScan,
    decode_attributes,
    decode_item,
    encode_attributes,
    encode_item,
    item_message_ids,
    item_subject,
    scan_items,
    tags_are_text,
    walk_attributes,
)
from delay_protocol.messages.send_message import decode_send_reply, encode_send_reply
from delay_protocol.wire.frames import (
    FRAME_OVERHEAD,
    Frame,
    FrameDecoder,
    encode_frame,
    encode_response,
)
from delay_protocol.wire.hello import decode_hello, encode_hello
from delay_server.accepting.admission import Admission, AdmissionConfig
from delay_server.accepting.intake import Intake
from sender.outcomes.answers import is_broker_sick, item_codes, permanent
from storage.batch.item_formats import qmq_item_fault, qmq_message_id
from tests.delay_protocol.messages.test_items import TAGGED_ITEM_BYTES
from tests.fuzz import reference
from tests.fuzz.mending import whole_frames, whole_items
from tests.fuzz.target import attempt, byte_at, fault_of, is_text, target


def pieces(data: bytes, rhythm: int) -> Iterator[bytes]:
    """Cut bytes as a network might: the rhythm chooses how long the pieces are."""
    position = 0
    step = 1 + rhythm % 29
    while position < len(data):
        yield data[position : position + step]
        position += step
        step = 1 + (step * 7 + rhythm) % 61


PROTOCOL = ("delay_protocol",)


@target(
    decoders=(
        FrameDecoder.feed,
        FrameDecoder.frames,
        FrameDecoder.finish,
    ),
    packages=PROTOCOL,
    size_max=512,
)
def frames(data: bytes) -> None:
    """Frames come out of a stream however it is cut, and nothing else does."""
    limit = FRAME_OVERHEAD + 4 * byte_at(data, 0)
    for stream in (data[2:], whole_frames(data[2:])):
        expected = reference.read_frames(stream, limit)
        whole = FrameDecoder(frame_bytes_max=limit)
        whole.feed(stream)
        assert _take_frames(whole) == (expected.frames, expected.fault)
        assert b"".join(map(encode_frame, expected.frames)) == stream[: _size(expected.frames)]
        cut = FrameDecoder(frame_bytes_max=limit)
        ends = list(accumulate(FRAME_OVERHEAD + len(frame.body) for frame in expected.frames))
        found: list[Frame] = []
        fed = 0
        for piece in pieces(stream, byte_at(data, 1)):
            cut.feed(piece)
            fed += len(piece)
            taken, fault = _take_frames(cut)
            found += taken
            # A frame comes out as soon as it is complete.
            assert len(found) == bisect_right(ends, fed)
            if fault is not None:
                break
            assert cut.buffered == fed - _size(found) < limit
        assert found == expected.frames
        for decoder in (whole, cut):
            assert decoder.buffered == expected.rest
            assert _end_of(decoder) is (
                expected.fault or (errors.TruncatedFrameError if expected.rest else None)
            )


def _size(found: Sequence[Frame]) -> int:
    return sum(FRAME_OVERHEAD + len(frame.body) for frame in found)


def _take_frames(
    decoder: FrameDecoder,
) -> tuple[list[Frame], type[errors.RemoteProtocolError] | None]:
    try:
        found = decoder.frames()
    except errors.RemoteProtocolError as error:
        return [], type(error)
    return found, None if decoder.fault is None else type(decoder.fault)


def _end_of(decoder: FrameDecoder) -> type[errors.RemoteProtocolError] | None:
    try:
        decoder.finish()
    except errors.RemoteProtocolError as error:
        return type(error)
    return None


@target(decoders=(scan_items, tags_are_text), packages=PROTOCOL, size_max=512)
def items(data: bytes) -> None:
    """A body is divided as QMQ divides it, and each item says what the reference says."""
    items_max = 1 + byte_at(data, 0) % 32
    for body in (data[1:], whole_items(data[1:])):
        expected = reference.read_items(body, items_max)
        scan = ItemScan()
        scan_items(TAGGED_ITEM_BYTES, scan)
        before = reference.rows_of(scan)
        fault = fault_of(errors.IndivisibleBodyError, scan_items, body, scan, items_max=items_max)
        assert (fault.offset if fault else None) == expected.fault_at
        if fault is None:
            assert reference.rows_of(scan)[1:] == [item.row for item in expected.items]
            ids = item_message_ids(body, [item.size for item in expected.items])
            assert ids == [item.message_id for item in expected.items]
        else:
            assert reference.rows_of(scan) == before
            assert isinstance(fault, errors.TooManyItemsError) or not expected.too_many_items
        for item in expected.items:
            _examine_item(body[item.start : item.start + item.size], item)


def _examine_item(data: bytes, expected: reference.ReferenceItem) -> None:
    is_whole = expected.crc == expected.computed_crc
    assert item_subject(data) == expected.subject
    assert item_message_ids(data, [len(data)]) == [expected.message_id]
    assert qmq_message_id(data) == expected.message_id
    assert (qmq_item_fault(data, expected.due_ms) is None) is is_whole
    assert qmq_item_fault(data, expected.due_ms + 1) is not None or not expected.flag & FLAG_DELAY
    if expected.flag & 4:
        tags = data[expected.tags_at : expected.size - len(expected.body) - 4]
        assert tags_are_text(tags) is all(map(is_text, expected.tags))
    fault = fault_of(errors.MalformedItemError, decode_item, data)
    assert isinstance(fault, errors.ItemCrcError) is not is_whole
    assert (fault is None) is (is_whole and _is_legible(expected))
    if isinstance(fault, errors.ItemCrcError):
        assert (fault.stated, fault.computed) == (expected.crc, expected.computed_crc)
    if fault is not None:
        return
    item = decode_item(data)
    assert (item.flag, item.create_ms, item.due_ms) == (
        expected.flag,
        expected.create_ms,
        expected.due_ms,
    )
    assert (item.subject.encode(), item.message_id.encode()) == (
        expected.subject,
        expected.message_id,
    )
    assert tuple(tag.encode() for tag in item.tags) == expected.tags
    encoded = attempt(errors.LocalProtocolError, encode_item, item)
    if encoded is not None:
        assert decode_item(encoded) == item
        # A map that names a key twice comes back with the last of its values only.
        repeats = len(reference.read_attributes(expected.body)) > len(item.attributes)
        assert repeats or encoded == data


def _is_legible(expected: reference.ReferenceItem) -> bool:
    try:
        pairs = reference.read_attributes(expected.body)
    except reference.CutOffError:
        return False
    texts = (expected.subject, expected.message_id, *expected.tags)
    return all(map(is_text, (*texts, *(part for pair in pairs for part in pair))))


@target(
    decoders=(
        decode_item,
        item_subject,
        item_message_ids,
        qmq_item_fault,
        qmq_message_id,
    ),
    packages=(*PROTOCOL, "storage.batch.item_formats"),
    size_max=512,
)
def one_item(data: bytes) -> None:
    """What reads a single item reads any bytes; nothing that is no item is taken for one."""
    for item in (data, whole_items(data)):
        # So many that the tags of one are not too many, whatever their count.
        expected = reference.read_items(item, 13)
        is_item = len(expected.items) == 1 and expected.fault_at is None
        if is_item:
            _examine_item(item, expected.items[0])
            continue
        assert attempt(errors.MalformedItemError, decode_item, item) is None
        attempt(errors.MalformedItemError, item_subject, item)
        one = attempt(errors.MalformedItemError, item_message_ids, item, [len(item)])
        # No id is read beyond its item, though there are bytes.
        two, sizes = item + TAGGED_ITEM_BYTES, [len(item), len(TAGGED_ITEM_BYTES)]
        many = attempt(errors.MalformedItemError, item_message_ids, two, sizes)
        assert many == (None if one is None else [*one, b"m1"])
        is_sealed = zlib.crc32(item[8:]) == int.from_bytes(item[:8], "big")
        assert is_sealed or qmq_item_fault(item, 0) is not None
        assert len(qmq_message_id(item)) <= len(item)


@target(decoders=(decode_attributes, walk_attributes), packages=PROTOCOL)
def attributes(data: bytes) -> None:
    """A walk finds wrong what the reference finds wrong, and looks at no more than it may."""
    count_max = 1 + byte_at(data, 0) % 16
    value_size_max = 16 * byte_at(data, 1)
    body = data[2:]
    pairs = attempt(reference.CutOffError, reference.read_attributes, body)
    fits = (
        pairs is not None
        and len(pairs) <= count_max
        and all(len(value) <= value_size_max for _, value in pairs)
    )
    walked, fault = walk_attributes(body, value_size_max=value_size_max, count_max=count_max)
    assert (fault is None) is fits
    assert walked <= count_max
    if pairs is not None and all(len(value) <= value_size_max for _, value in pairs):
        assert walked == min(len(pairs), count_max)
    found = attempt(errors.MalformedItemError, decode_attributes, body)
    if pairs is None or not all(map(is_text, (part for pair in pairs for part in pair))):
        assert found is None
        return
    assert found is not None
    in_order = {key.decode(): value.decode() for key, value in pairs}
    assert list(found.items()) == list(in_order.items())
    if all(len(value) <= STR_SIZE_MAX for _, value in pairs):
        assert decode_attributes(encode_attributes(found)) == found


@target(decoders=(decode_send_reply, item_codes), packages=(*PROTOCOL, "sender.outcomes.answers"))
def send_reply(data: bytes) -> None:
    """An answer is read as the reference reads it, and every item of a request has its code."""
    expected = attempt(reference.CutOffError, reference.read_reply, data)
    found = attempt(errors.MalformedReplyError, decode_send_reply, data)
    if expected is None:
        begin = fault_of(reference.CutOffError, reference.read_reply, data)
        fault = fault_of(errors.MalformedReplyError, decode_send_reply, data)
        assert begin is not None
        assert fault is not None
        assert begin.args == (fault.offset,)
        one = ReadItems([TAGGED_ITEM_BYTES])
        assert attempt(errors.MalformedReplyError, item_codes, one, data) is None
        return
    # Of a repeated id the last counts.
    assert found == {
        name: (code, remark.decode(errors="replace")) for name, code, remark in expected
    }
    rows = len(expected)
    assert (
        attempt(errors.MalformedReplyError, partial(decode_send_reply, results_max=rows), data)
        == found
    )
    if rows:
        fewer = partial(decode_send_reply, results_max=rows - 1)
        assert attempt(errors.MalformedReplyError, fewer, data) is None
    again = attempt(
        errors.LocalProtocolError, encode_send_reply, [(name, *found[name]) for name in found]
    )
    # A remark that was no text may not fit when it has become one.
    if again is not None:
        assert decode_send_reply(again) == found
    names = [b"m1", *list(found)[:8]]
    items = ReadItems([_item_called(name) for name in names])
    codes = attempt(errors.MalformedReplyError, item_codes, items, data)
    if any(name not in names for name in found) or rows > len(names):
        assert codes is None
        return
    assert codes is not None
    assert codes.tolist() == [found.get(name, (ItemCode.SUCCESS, ""))[0] for name in names]
    assert len(permanent(codes)) == len(codes)
    is_broker_sick(codes)


class ReadItems:
    """The items of a request."""

    def __init__(self, items: Sequence[bytes]) -> None:
        self.joined = b"".join(items)
        self.sizes = np.array([len(item) for item in items], np.int64)


def _item_called(message_id: bytes) -> bytes:
    return bytes(25) + b"\0\0" + len(message_id).to_bytes(2, "big") + message_id + bytes(4)


@target(decoders=(subject_fault, subject_size_fault, real_subject), packages=PROTOCOL, size_max=600)
def subjects(data: bytes) -> None:
    """A subject is refused for what it is made of only; a retry's real subject is a part of it."""
    fault = subject_fault(data)
    text = attempt(UnicodeDecodeError, data.decode)
    legal = bool(text) and not set(text or "") & {"/", *reference.BREAKING_WHITESPACE}
    real = real_subject(data)
    assert (fault is None) is (legal and (real != data or not data.startswith(b"%")))
    assert real in data
    assert real == data or data.startswith((b"%RETRY%", b"%DEAD_RETRY%", b"%RETRY", b"%DEAD_RETRY"))
    assert real == data or real_subject(real) == real
    is_short = len(real) <= 255 and len(data) - len(real) <= 13 + 255
    assert (subject_size_fault(data) is None) is is_short


@target(decoders=(decode_hello,), packages=PROTOCOL, size_max=4096)
def hello(data: bytes) -> None:
    """A HELLO that can be read comes back as it was."""
    found = attempt(errors.MalformedHelloError, decode_hello, data)
    if found is not None:
        assert 0 <= found.epoch < 2**63
        encoded = attempt(errors.LocalProtocolError, encode_hello, found)
        if encoded is not None:
            assert decode_hello(encoded) == found


NOW_MS = 1_700_000_000_000
_LIMITS = AdmissionConfig(
    horizon_days=2,
    item_bytes_max=300,
    id_bytes_max=20,
    request_items_max=6,
    attribute_bytes_max=40,
    attributes_max=5,
)


@target(
    decoders=(Admission.admit, Admission.admit_together),
    packages=(*PROTOCOL, "delay_server.accepting.admission", "delay_server.accepting.intake"),
)
def admission(data: bytes) -> None:
    """What is accepted is whole and within the limits; what is refused has a code of its own."""
    for body in (data, whole_items(data)):
        intake = Intake()
        server = Admission(_LIMITS)
        try:
            admitted = server.admit(body, NOW_MS, intake)
        except errors.IndivisibleBodyError:
            assert len(intake) == 0
            assert reference.read_items(body, 2 * _LIMITS.request_items_max).fault_at is not None
            assert not server.admit_together([body], NOW_MS, intake)
            continue
        expected = reference.read_items(body, 2 * _LIMITS.request_items_max)
        assert expected.fault_at is None
        assert admitted.count_accepted == len(intake) <= len(expected.items)
        names = [failure.message_id for failure in admitted.failures]
        assert len(set(names)) == len(names)
        assert set(names) <= {item.message_id for item in expected.items}
        assert (len(intake) == len(expected.items)) is not bool(names)
        decode_send_reply(encode_send_reply(admitted.failures))
        _compare_intake(intake, expected.items)
        together = Intake()
        if server.admit_together([body], NOW_MS, together):
            assert not names
            assert len(together) == len(intake)


def _compare_intake(intake: Intake, expected: Sequence[reference.ReferenceItem]) -> None:
    kept = [(item.subject, item.message_id, item.body, item.due_ms) for item in expected]
    for batch in intake.batches():
        blob = b"".join(batch.pieces)
        stored = reference.read_items(blob, len(batch)).items
        assert [item.size for item in stored] == batch.size.tolist()
        assert len(blob) == batch.blob_bytes
        for item, due_ms, subject in zip(
            stored, batch.due_ms.tolist(), batch.subject.tolist(), strict=True
        ):
            assert item.crc == item.computed_crc
            assert batch.subjects[subject] == item.subject
            assert due_ms == (item.due_ms if item.flag & FLAG_DELAY else NOW_MS)
            assert subject_fault(item.subject) is None
            assert item.message_id
            assert item.size <= _LIMITS.item_bytes_max
            assert len(item.tags) <= 10
            assert all(map(is_text, (item.message_id, *item.tags)))
            assert (item.subject, item.message_id, item.body, item.due_ms) in kept


class _Once:
    """Takes the outcomes of some positions, each exactly once."""

    def __init__(self) -> None:
        self.outcomes: dict[int, Outcome] = {}

    def settle(self, positions: Sequence[int], outcomes: Iterable[Outcome]) -> None:
        for position, outcome in zip(positions, outcomes, strict=False):
            assert position not in self.outcomes
            self.outcomes[position] = outcome

    def wanted(self, positions: Sequence[int]) -> Sequence[int]:
        return positions


_CLIENT = ClientConfig(
    answer_bytes_max=2048, requests_in_flight_max=4, backoff_min_s=50.0, backoff_max_s=100.0
)
_IN_FLIGHT = 3
_ITEMS = 4


@cache
def _client_item(number: int) -> bytes:
    return encode_item(Item(2, NOW_MS, NOW_MS + 1000, "s", f"m{number}"))


@target(decoders=(Exchange.received, read_answer), packages=(*PROTOCOL, "delay_client"))
def exchange(data: bytes) -> None:
    """Whatever a server answers, every message has one outcome, and a receipt only if it was taken.

    The first byte says how the bytes arrive and whether they are made answers to our requests.
    """
    rhythm = byte_at(data, 0)
    stream = data[1:] if rhythm & 1 else whole_frames(data[1:], opaques=_IN_FLIGHT)
    client = Exchange(["h:1"], config=_CLIENT, chance=random.Random(0))
    link = client.routing.links[0]
    receivers = [_Once() for _ in range(_IN_FLIGHT)]
    for receiver in receivers:
        batch = Batch(receiver, deadline=1000.0, lane=client.routing.lane_for("s", None))
        for number in range(_ITEMS):
            batch.add((_client_item(number), f"m{number}", NOW_MS + 1000, False), "s", number)
        client.submit(batch, 0.0)
    link.connect()
    client.connected(link, 0.0)
    (hello,) = reference.read_frames(link.take_outgoing(), 1 << 20).frames
    client.received(link, encode_response(hello, code=ResponseCode.BROKER_ERROR), 0.0)
    sent = reference.read_frames(link.take_outgoing(), 1 << 20).frames
    assert [frame.opaque for frame in sent] == [1, 2, 3]
    came = b""
    for piece in pieces(stream, rhythm):
        came += piece
        client.received(link, piece, 1.0)
        if link.condemned is not None:
            break
    is_condemned = link.condemned is not None
    if is_condemned:
        client.lost(link, "condemned", 1.0)
    client.close()
    answers = reference.read_frames(came, _CLIENT.answer_bytes_max)
    assert sum(len(receiver.outcomes) for receiver in receivers) == _IN_FLIGHT * _ITEMS
    _compare_outcomes(receivers, answers.frames)
    is_foreign = any(
        frame.is_response and frame.opaque == hello.opaque and not _is_of_ours(frame)
        for frame in answers.frames
    )
    assert is_condemned is (answers.fault is not None or is_foreign)


def _is_of_ours(answer: Frame) -> bool:
    """Say whether an answer to HELLO is that of a delay server."""
    if answer.code != ResponseCode.BROKER_REJECT:
        return answer.code == ResponseCode.BROKER_ERROR
    said = attempt(errors.MalformedHelloError, decode_hello, answer.body)
    return said is not None and bool(said.log_uuid)


def _compare_outcomes(receivers: Sequence[_Once], answers: Sequence[Frame]) -> None:
    first: dict[int, Frame] = {}
    for frame in answers:
        if frame.is_response:
            first.setdefault(frame.opaque, frame)
    taken: Counter[bool] = Counter()
    for number, receiver in enumerate(receivers, start=1):
        answer = first.get(number)
        rows = None
        if answer is not None and answer.code == 0:
            rows = attempt(reference.CutOffError, reference.read_reply, answer.body)
        is_answer = rows is not None and len(rows) <= _ITEMS
        codes = {name: code for name, code, _ in rows or ()}
        for position, outcome in receiver.outcomes.items():
            is_taken = is_answer and codes.get(b"m%d" % position, 0) in {0, 2}
            assert isinstance(outcome, Receipt if is_taken else DelaywheelError)
            taken[is_taken] += 1
    assert taken.total() == _IN_FLIGHT * _ITEMS


@target(decoders=(decode_envelope,), packages=("delay_client", "delay_protocol"))
def envelope(data: bytes) -> None:
    """What any attributes say of a body is what they say again once we have written it."""
    attributes = attempt(errors.MalformedItemError, decode_attributes, data)
    found = attributes and attempt(errors.MalformedItemError, decode_envelope, attributes)
    if found:
        body, headers, content_type = found
        ours = {name: value for name, value in headers.items() if name and name == name.lower()}
        again, *rest = decode_envelope(encode_envelope(body, ours, content_type))
        assert rest == [ours, content_type]
        assert _data(again) == _data(body)


def _data(body: str | bytes) -> bytes:
    return body if isinstance(body, bytes) else body.encode()
