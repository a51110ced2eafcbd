"""Each item of a request is accepted or refused by its own code, whatever its neighbours are, and
what is accepted goes into the log byte for byte."""

import zlib
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from delay_protocol.basics.codes import ItemCode
from delay_protocol.basics.errors import IndivisibleBodyError, TooManyItemsError
from delay_protocol.messages.items import walk_attributes
from delay_protocol.messages.send_message import decode_send_reply, encode_send_reply
from delay_server.accepting import admission as admission_module
from delay_server.accepting.admission import Admission, AdmissionConfig, Admitted
from delay_server.accepting.intake import Intake
from storage.batch.dead_rows import NOTE_BYTES_MAX
from storage.limits import DAY_MS

NOW = 1_700_000_000_000
DELAY, TAGS = 2, 4
VECTOR_1 = bytes.fromhex(
    "00000000efebc2e0 02 0000018bcfe56800 0000018bcfe65260 0003612e62 00026d31 0000004d"
    "000e716d715f63726561746554696d65 000d31373030303030303030303030"
    "0017716d715f7363686564756c655265636569766554696d65 000d31373030303030303630303030"
    "00016b 000176"
)
VECTOR_3 = bytes.fromhex(
    "000000003f382b91 06 0000018bcfe56800 0000018bcfe65260 0003612e62 00026d31"
    "01 00027431 00000006 00016b 000176"
)
LIMITS = AdmissionConfig(
    horizon_days=10,
    item_bytes_max=200_000,
    id_bytes_max=30,
    request_items_max=50,
)


def with_crc(covered: bytes) -> bytes:
    return zlib.crc32(covered).to_bytes(8, "big") + covered


def raw_item(
    *,
    flag: int = DELAY,
    create_ms: int = NOW,
    due_ms: int = NOW + 1000,
    subject: bytes = b"a.b",
    message_id: bytes = b"m1",
    tags: Sequence[bytes] = (),
    body: bytes = b"",
) -> bytes:
    """Return an item's bytes with a correct CRC, whatever else is wrong with it."""
    parts = [flag.to_bytes(1, "big"), create_ms.to_bytes(8, "big", signed=True)]
    parts += [due_ms.to_bytes(8, "big", signed=True)]
    parts += [len(subject).to_bytes(2, "big"), subject]
    parts += [len(message_id).to_bytes(2, "big"), message_id]
    if flag & TAGS:
        parts += [len(tags).to_bytes(1, "big")]
        parts += [len(tag).to_bytes(2, "big") + tag for tag in tags]
    return with_crc(b"".join([*parts, len(body).to_bytes(4, "big"), body]))


def attribute(key: bytes, value: bytes) -> bytes:
    return len(key).to_bytes(2, "big") + key + len(value).to_bytes(2, "big") + value


def damaged(item: bytes) -> bytes:
    """Return the item with a bit of its creation time flipped."""
    return item[:16] + bytes([item[16] ^ 1]) + item[17:]


def admit(
    items: Sequence[bytes], admission: Admission | None = None
) -> tuple[Admitted, list[bytes], list[int]]:
    """Admit one request; return the result, the items collected and their due times."""
    intake = Intake()
    admitted = (admission or Admission(LIMITS)).admit(b"".join(items), NOW, intake)
    assert admitted.count_accepted == len(intake)
    data: list[bytes] = []
    due_ms: list[int] = []
    for batch in intake.batches():
        blob = b"".join(batch.pieces)
        ends = np.cumsum(batch.size).tolist()
        data += [blob[e - s : e] for e, s in zip(ends, batch.size.tolist(), strict=True)]
        due_ms += batch.due_ms.tolist()
    return admitted, data, due_ms


GOOD = raw_item(message_id=b"good")
REFUSED: dict[str, tuple[bytes, ItemCode, str]] = {
    "wrong crc": (damaged(raw_item(body=b"xxxx")), ItemCode.STORE_ERROR, "crc"),
    "wrong crc and illegal": (damaged(raw_item(subject=b"a/b")), ItemCode.STORE_ERROR, "crc"),
    "wrong crc, upper half": (b"\1" + raw_item()[1:], ItemCode.STORE_ERROR, "crc"),
    "slash": (raw_item(subject=b"a/b"), ItemCode.SUBJECT_NOT_ASSIGNED, "'/'"),
    "space": (raw_item(subject=b"a b"), ItemCode.SUBJECT_NOT_ASSIGNED, "' '"),
    "no subject": (raw_item(subject=b""), ItemCode.SUBJECT_NOT_ASSIGNED, "empty"),
    "subject not UTF-8": (raw_item(subject=b"\xff"), ItemCode.SUBJECT_NOT_ASSIGNED, "UTF-8"),
    "subject too long": (raw_item(subject=b"s" * 256), ItemCode.BLOCK, "256 bytes, at most 255"),
    "retry subject too long": (
        raw_item(subject=b"%RETRY%" + b"s" * 256 + b"%g"),
        ItemCode.BLOCK,
        "256 bytes, at most 255",
    ),
    "group of a retry too long": (
        raw_item(subject=b"%RETRY%s%" + b"g" * 290),
        ItemCode.BLOCK,
        "more than 255 bytes",
    ),
    "no id": (raw_item(message_id=b""), ItemCode.BLOCK, "empty"),
    "id not UTF-8": (raw_item(message_id=b"\xc3"), ItemCode.BLOCK, "UTF-8"),
    "id too long": (raw_item(message_id=b"i" * 31), ItemCode.BLOCK, "limit 30"),
    "created before time began": (raw_item(create_ms=-1), ItemCode.BLOCK, "negative"),
    "due before time began": (raw_item(due_ms=-1), ItemCode.BLOCK, "negative"),
    "expired before time began": (raw_item(flag=0, due_ms=-1), ItemCode.BLOCK, "negative"),
    "beyond the horizon": (
        raw_item(due_ms=NOW + 10 * DAY_MS + 1),
        ItemCode.BLOCK,
        "limit 10.0",
    ),
    "due at the end of time": (raw_item(due_ms=2**63 - 1), ItemCode.BLOCK, "limit 10.0"),
    "too large": (
        raw_item(body=attribute(b"k", b"v" * 30_000) * 7),
        ItemCode.BLOCK,
        "limit 200000",
    ),
    "tags beyond what Java reads": (
        raw_item(flag=DELAY | TAGS, tags=[b"t"] * 11),
        ItemCode.BLOCK,
        "limit 10",
    ),
    "attribute too long": (
        raw_item(body=attribute(b"k", b"v" * 32_768)),
        ItemCode.BLOCK,
        "32767",
    ),
    "large body that is no map": (raw_item(body=b"\x7f" * 32_769), ItemCode.BLOCK, "malformed"),
    "more attributes than are looked at": (
        raw_item(body=attribute(b"", b"") * 4097),
        ItemCode.BLOCK,
        "limit 4096",
    ),
    "flag of the future": (raw_item(flag=DELAY | 0x80), ItemCode.BLOCK, "flag 0x82"),
    "tag not UTF-8": (
        raw_item(flag=DELAY | TAGS, tags=[b"t", b"\xff"]),
        ItemCode.BLOCK,
        "tag is not UTF-8",
    ),
}
ACCEPTED: dict[str, bytes] = {
    "as Java sends it": VECTOR_1,
    "with a tag": VECTOR_3,
    "ten tags": raw_item(flag=DELAY | TAGS, tags=[b"t"] * 10),
    "due now": raw_item(due_ms=NOW),
    "due in the past": raw_item(due_ms=NOW - 1000 * DAY_MS),
    "due at the beginning of time": raw_item(create_ms=0, due_ms=0),
    "at the horizon": raw_item(due_ms=NOW + 10 * DAY_MS),
    "retry subject": raw_item(subject=b"%RETRY%a.b%group"),
    "subject of the longest": raw_item(subject=b"s" * 255),
    "retry of the longest": raw_item(subject=b"%RETRY%" + b"s" * 255 + b"%" + b"g" * 255),
    "id of the longest": raw_item(message_id=b"i" * 30),
    "id beyond ASCII": raw_item(message_id="día".encode()),
    "low reliability": raw_item(flag=DELAY | 1),
    "low reliability, tagged": raw_item(flag=DELAY | TAGS | 1, tags=[b"t"]),
    "tags beyond ASCII": raw_item(flag=DELAY | TAGS, tags=["día".encode(), b"t" * 200]),
    "tag bit but no tags": raw_item(flag=DELAY | TAGS),
    "as many attributes as are looked at": raw_item(
        body=attribute(b"", b"") * 4095 + attribute(b"k", b"v" * 9)
    ),
    "longest attribute": raw_item(body=attribute(b"k", b"v" * 32_767)),
    "body that is no map but small": raw_item(body=b"\0" * 5),
    "delay bit clear": raw_item(flag=0),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_bad_item_is_refused_by_its_own_code_and_its_neighbours_go_on(
    name: str, place: int
) -> None:
    item, code, remark = REFUSED[name]
    items = [raw_item(message_id=b"n1"), raw_item(message_id=b"n2")]
    neighbours = list(items)
    items.insert(place, item)
    admitted, data, _ = admit(items)
    assert data == neighbours
    ((_, failed_code, failed_remark),) = admitted.failures
    assert failed_code == code
    assert remark in failed_remark


@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.parametrize("neighbour", [[], [GOOD], [REFUSED["slash"][0]]])
def test_a_good_item_is_kept_byte_for_byte(name: str, neighbour: list[bytes]) -> None:
    admitted, data, _ = admit([ACCEPTED[name], *neighbour])
    assert data[0] == ACCEPTED[name]
    assert len(data) + len(admitted.failures) == 1 + len(neighbour)


def test_the_items_of_a_flawless_request_are_not_copied() -> None:
    body = VECTOR_1 + VECTOR_3 + GOOD
    intake = Intake()
    assert Admission(LIMITS).admit(body, NOW, intake) == Admitted(3, [])
    (batch,) = intake.batches()
    assert batch.pieces[0] is body


def test_columns_tell_what_the_items_say() -> None:
    intake = Intake()
    Admission(LIMITS).admit(VECTOR_1 + GOOD, NOW, intake)
    (batch,) = intake.batches()
    assert batch.due_ms.tolist() == [1_700_000_060_000, NOW + 1000]
    assert batch.size.tolist() == [115, len(GOOD)]
    assert batch.id_hash.tolist() == [xxh3_64_intdigest(b"m1"), xxh3_64_intdigest(b"good")]
    assert [batch.subjects[number] for number in batch.subject] == [b"a.b", b"a.b"]


@pytest.mark.parametrize("rest", [GOOD[:-1], b"\0", GOOD + b"x"])
def test_a_body_that_cannot_be_divided_leaves_the_intake_as_it_was(rest: bytes) -> None:
    intake = Intake()
    admission = Admission(LIMITS)
    admission.admit(GOOD, NOW, intake)
    with pytest.raises(IndivisibleBodyError):
        admission.admit(VECTOR_1 + rest, NOW, intake)
    (batch,) = intake.batches()
    assert b"".join(batch.pieces) == GOOD


@pytest.mark.parametrize("flag", [0, 1])
@pytest.mark.parametrize("field", [0, NOW - 1, NOW + 500, 2**63 - 1])
def test_an_item_with_the_delay_bit_clear_is_due_now(flag: int, field: int) -> None:
    _, data, due_ms = admit([GOOD, raw_item(flag=flag, due_ms=field)])
    assert due_ms == [NOW + 1000, NOW]
    assert len(data) == 2


def test_a_due_time_in_the_past_stays_as_it_was_asked_for() -> None:
    assert admit([raw_item(due_ms=5)])[2] == [5]
    assert admit([raw_item(due_ms=5), REFUSED["slash"][0]])[2] == [5]


def test_items_beyond_the_limit_are_refused_each_and_more_than_twice_as_many_as_one() -> None:
    items = [raw_item(message_id=b"%d" % number) for number in range(100)]
    admitted, data, _ = admit(items)
    assert data == items[:50]
    assert [failure.message_id for failure in admitted.failures] == [
        b"%d" % number for number in range(50, 100)
    ]
    assert {failure.code for failure in admitted.failures} == {ItemCode.BLOCK}
    assert "more than 50 items" in admitted.failures[0].remark
    intake = Intake()
    with pytest.raises(TooManyItemsError):
        Admission(LIMITS).admit(b"".join(items) + GOOD, NOW, intake)
    assert len(intake) == 0


def test_more_items_than_one_request_may_have_are_not_admitted_together() -> None:
    bodies = [raw_item() * 30, raw_item() * 20]
    intake = Intake()
    assert Admission(LIMITS).admit_together(bodies, NOW, intake)
    assert len(intake) == 50
    bodies.append(raw_item())
    intake = Intake()
    assert not Admission(LIMITS).admit_together(bodies, NOW, intake)
    assert len(intake) == 0
    for body in bodies:
        assert not Admission(LIMITS).admit(body, NOW, intake).failures
    assert len(intake) == 51


@given(st.lists(st.integers(0, 255), min_size=1, max_size=8))
def test_flags_are_refused_for_every_bit_without_a_meaning(flags: list[int]) -> None:
    items = [raw_item(flag=flag, message_id=b"%d" % at) for at, flag in enumerate(flags)]
    admitted, data, _ = admit(items)
    assert data == [item for item, flag in zip(items, flags, strict=True) if flag <= 7]
    assert {failure.code for failure in admitted.failures} <= {ItemCode.BLOCK}


@given(
    st.lists(
        st.lists(st.sampled_from([b"", b"t", b"\xff", b"\xc3", b"\xa4", "ä".encode(), b"t" * 195])),
        min_size=1,
        max_size=5,
    )
)
def test_an_item_is_refused_for_a_tag_that_is_not_utf_8(tags: list[list[bytes]]) -> None:
    items = [
        raw_item(flag=DELAY | TAGS, message_id=b"m" * (1 + at), tags=own[:10])
        for at, own in enumerate(tags)
    ]
    bad = {b"\xff", b"\xc3", b"\xa4"}
    _, data, _ = admit(items)
    kept = [item for item, own in zip(items, tags, strict=True) if bad.isdisjoint(own[:10])]
    assert data == kept


@pytest.mark.parametrize(
    ("limits", "good", "bad", "limit"),
    [
        (
            AdmissionConfig(attributes_max=3),
            raw_item(body=attribute(b"k", b"v") * 3),
            raw_item(body=attribute(b"k", b"v") * 4),
            "limit 3",
        ),
        (
            AdmissionConfig(attribute_bytes_max=10),
            raw_item(body=attribute(b"k", b"v" * 10)),
            raw_item(body=attribute(b"k", b"v" * 11)),
            "10",
        ),
        (
            AdmissionConfig(item_bytes_max=100),
            GOOD,
            raw_item(flag=DELAY | TAGS, tags=[b"t" * 100]),
            "limit 100",
        ),
    ],
    ids=["attributes", "bytes of an attribute", "bytes of an item"],
)
def test_a_lower_limit_is_looked_for_in_smaller_items(
    limits: AdmissionConfig, good: bytes, bad: bytes, limit: str
) -> None:
    admitted, data, _ = admit([good, bad], Admission(limits))
    assert data == [good]
    assert limit in admitted.failures[0].remark


def test_attributes_of_one_request_beyond_those_looked_at_are_to_be_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    walked: list[int] = []

    def walk(body: bytes, *, value_size_max: int, count_max: int) -> tuple[int, str | None]:
        found = walk_attributes(body, value_size_max=value_size_max, count_max=count_max)
        walked.append(found[0])
        return found

    monkeypatch.setattr(admission_module, "walk_attributes", walk)
    monkeypatch.setattr(admission_module, "_WALKED_MAX", 20)
    admission = Admission(AdmissionConfig(attributes_max=8))
    small = raw_item(message_id=b"small", body=attribute(b"k", b"v"))
    items = [raw_item(message_id=b"%d" % at, body=attribute(b"k", b"v") * 50) for at in range(9)]
    whole = raw_item(message_id=b"whole", body=attribute(b"k", b"v") * 8)
    # Twice, since each request may have as many.
    for _ in range(2):
        walked.clear()
        admitted, data, _ = admit([*items, whole, small], admission)
        assert data == [small]
        codes = [failure.code for failure in admitted.failures]
        assert codes == [ItemCode.BLOCK] * 3 + [ItemCode.STORE_ERROR] * 7
        assert walked == [8, 8, 8]
    # Sent again without those that were refused for good, the whole one gets through.
    assert admit([whole, small], admission)[1] == [whole, small]


def test_a_message_id_of_which_one_item_failed_is_reported_failed() -> None:
    twice = [raw_item(), raw_item(due_ms=2**62)]
    for items in (twice, twice[::-1]):
        admitted, data, _ = admit(items)
        assert data == twice[:1]
        reply = decode_send_reply(encode_send_reply(admitted.failures))
        assert reply[b"m1"][0] == ItemCode.BLOCK


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_failures_of_one_message_id_the_one_worth_a_retry_is_reported(order: int) -> None:
    block, subject, crc = (raw_item(due_ms=-1), raw_item(subject=b"/"), damaged(raw_item()))
    for items, code in (
        ([block, subject], ItemCode.SUBJECT_NOT_ASSIGNED),
        ([subject, crc], ItemCode.STORE_ERROR),
        ([block, crc], ItemCode.STORE_ERROR),
        ([block, subject, crc], ItemCode.STORE_ERROR),
    ):
        admitted, _, _ = admit(items[::order])
        # The damaged item's subject or time does not matter, its id is intact.
        assert [(f.message_id, f.code) for f in admitted.failures] == [(b"m1", code)]


def test_every_failure_can_be_put_into_an_answer() -> None:
    admitted, _, _ = admit([item for item, _, _ in REFUSED.values()])
    assert decode_send_reply(encode_send_reply(admitted.failures))


def test_no_remark_is_one_that_java_takes_for_something_else() -> None:
    for item, _, _ in REFUSED.values():
        ((_, _, remark),) = admit([item])[0].failures
        assert remark not in {"broker busy", "BROKER_READ_ONLY", ""}


def test_verdicts_on_subjects_are_remembered_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission_module, "_SUBJECTS_REMEMBERED", 10)
    asked: list[bytes] = []

    def fault(subject: bytes) -> str | None:
        asked.append(subject)
        return "odd" if subject[-1] % 2 else None

    monkeypatch.setattr(admission_module, "subject_fault", fault)
    admission = Admission(LIMITS)
    for number in range(100):
        subject = b"s%d" % number
        for _ in range(2):
            accepted = admit([raw_item(subject=subject)], admission)[0].count_accepted
            assert accepted == (number + 1) % 2
        remembered = len(admission._subjects_accepted) + len(admission._subjects_refused)
        assert remembered <= 10
    assert len(asked) == 100


def test_the_largest_item_allowed_fits_into_a_batch() -> None:
    limits = AdmissionConfig(item_bytes_max=4 * 1024 * 1024 - 1048 - 523 - NOTE_BYTES_MAX)
    subject = b"%DEAD_RETRY%" + b"s" * 255 + b"%" + b"g" * 255
    value = attribute(b"k", b"v" * 32_000)
    body = value * 130
    spare = limits.item_bytes_max - len(raw_item(subject=subject, body=body)) - 4
    item = raw_item(subject=subject, body=body + attribute(b"", b"v" * spare))
    assert len(item) == limits.item_bytes_max
    assert admit([item], Admission(limits))[1] == [item]
    with pytest.raises(ValueError, match="item_bytes_max"):
        AdmissionConfig(item_bytes_max=limits.item_bytes_max + 1)


corpus = [
    *((item, None) for item in ACCEPTED.values()),
    *((item, code) for item, code, _ in REFUSED.values() if len(item) < 1000),
]


@given(st.lists(st.sampled_from(corpus), max_size=12), st.integers(100, 400))
def test_any_mixture_is_admitted_item_by_item(
    mixture: list[tuple[bytes, ItemCode | None]], room: int
) -> None:
    intake = Intake(batch_bytes_max=1024 + 40_000 + room)
    body = b"".join(item for item, _ in mixture)
    admitted = Admission(LIMITS).admit(body, NOW, intake)
    kept = [item for item, code in mixture if code is None]
    assert admitted.count_accepted == len(intake) == len(kept)
    batches = intake.batches()
    assert b"".join(b"".join(batch.pieces) for batch in batches) == b"".join(kept)
    assert [size for batch in batches for size in batch.size.tolist()] == [len(i) for i in kept]
    codes = {code for _, code in mixture if code is not None}
    assert {failure.code for failure in admitted.failures} <= codes
    assert bool(admitted.failures) == bool(codes)


def columns_of(intake: Intake) -> tuple[list[int], list[int], list[bytes], bytes]:
    """Return due times, sizes, subjects and bytes of everything an intake holds."""
    batches = intake.batches()
    return (
        [due for batch in batches for due in batch.due_ms.tolist()],
        [size for batch in batches for size in batch.size.tolist()],
        [batch.subjects[number] for batch in batches for number in batch.subject.tolist()],
        b"".join(bytes(piece) for batch in batches for piece in batch.pieces),
    )


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=2, max_size=5), st.data())
def test_requests_admitted_together_are_taken_as_each_would_be_alone(
    requests: list[list[int]], data: st.DataObject
) -> None:
    bodies = [
        b"".join(
            raw_item(
                due_ms=NOW + 1000 * number,
                subject=b"s%d" % (number % 3),
                message_id=b"m%d" % number,
                body=attribute(b"k", b"v" * number),
            )
            for number in numbers
        )
        for numbers in requests
    ]
    spoilt = data.draw(st.integers(-1, len(bodies) - 1))
    if spoilt >= 0 and bodies[spoilt]:
        bodies[spoilt] = damaged(bodies[spoilt])
    together, alone = Intake(), Intake()
    taken = Admission(LIMITS).admit_together(bodies, NOW, together)
    results = [Admission(LIMITS).admit(body, NOW, alone) for body in bodies]
    if taken:
        assert not any(result.failures for result in results)
        assert columns_of(together) == columns_of(alone)
    else:
        assert columns_of(together) == ([], [], [], b"")
    if len(requests[-1]) and spoilt < 0:
        assert taken


def test_an_item_that_reaches_into_the_next_request_is_not_taken() -> None:
    first, second = raw_item(message_id=b"m1"), raw_item(message_id=b"m2")
    for cut in range(1, len(first)):
        intake = Intake()
        assert not Admission(LIMITS).admit_together(
            [first[:cut], first[cut:] + second], NOW, intake
        )
        assert len(intake) == 0
