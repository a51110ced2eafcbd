"""A body that is one msgpack map has bytes that stay, may grow keys, and is checked and bounded.

That it comes back as it was, whatever it says, is in tests/fuzz.
"""

from typing import Any
from uuid import UUID

import msgspec
import pytest

from delay_protocol.basics.errors import LocalProtocolError, MalformedMetaError
from delay_protocol.nodes.following import Asked, FollowRefused, Leave
from delay_protocol.nodes.group_changes import ChangeReply, NodeNews, Vote, WatchReply
from delay_protocol.nodes.registration import (
    COUNTED_MAX,
    NAME_LENGTH_MAX,
    REASON_LENGTH_MAX,
    REPLICAS_MAX,
    GroupMember,
    GroupRecord,
    Master,
    NodeRegistered,
    NodeRole,
    Phase,
    Refused,
)
from delay_protocol.nodes.snapshots import READ_BYTES_MAX, SnapshotBytes
from delay_protocol.receivers.attaching import INSTANCE_BYTES, Attach, Flow
from delay_protocol.receivers.masters import (
    MASTERS_MAX,
    PATTERN_LENGTH_MAX,
    PATTERNS_MAX,
    MasterInfo,
    ReceiverRegistered,
)
from tests.delay_protocol.nodes.bodies import (
    BODIES,
    BOOT,
    DISK,
    FOLLOW,
    LOG,
    MEMBER,
    NEWS,
    RECORD,
    Body,
    said,
)
from tests.storage.worked_examples import worked_examples

BODY = pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)


DOCUMENTED = {
    "replication_wire.md": [
        "watch",
        "vote",
        "follow",
        "",
        "ack",
        "leave",
        "begun",
        "read",
        "bytes",
    ],
    "../receivers.md": ["attach", "attached", "flow", "", "", "receiver", "masters"],
}
ASKED_HEX = "a56173 6b6564 83 a873657175656e6365 cd03e9 a565706f6368 03 a3637263 ce89abcdef"
DISK_HEX, BOOT_HEX, LOG_HEX = (("d924" + str(one).encode().hex()) for one in (DISK, BOOT, LOG))
RECORD_HEX = (
    "86 a565706f6368 02 a776657273696f6e 05"
    "a66d6173746572 82 a76e6f64655f6964 a26e31 ab696e6361726e6174696f6e 03"
    "a7696e5f73796e63 81 a26e31" + DISK_HEX + "a76d696e5f697372 01 a57068617365 a6616374697665"
)


@pytest.mark.parametrize("page", DOCUMENTED)
def test_the_examples_of_the_documentation_are_what_is_written(page: str) -> None:
    names, examples = DOCUMENTED[page], worked_examples(page)
    assert len(names) == len(examples)
    for name, example in zip(names, examples, strict=True):
        if name:
            assert BODIES[name].encode(BODIES[name].example) == example


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("matches", "82 a474797065 a76d617463686573" + ASKED_HEX),
        (
            "diverges",
            "84 a474797065 a86469766572676573" + ASKED_HEX + "a565706f6368 02 a3656e64 cd0384",
        ),
        ("behind", "83 a474797065 a6626568696e64" + ASKED_HEX + "a56669727374 cd1388"),
        ("refused", "83 a474797065 a772656675736564 a6726561736f6e a26e6f a565706f6368 00"),
        (
            "alter",
            "84 a474797065 a5616c746572 a565706f6368 02 a776657273696f6e 05"
            "a7696e5f73796e63 81 a26e31" + DISK_HEX,
        ),
        (
            "hand over",
            "84a474797065a968616e64206f766572a565706f636802a776657273696f6e05a6746172676574a26e32",
        ),
        ("changed", "82 a67265636f7264" + RECORD_HEX + "a77265667573616c a26e6f"),
        (
            "news",
            "82 a46e657773 86 a67265636f7264" + RECORD_HEX + "a76d656d62657273 81 a26e31 84"
            "ac73746f726167655f75756964" + DISK_HEX + "ab696e6361726e6174696f6e 03"
            "a7626f6f745f6964" + BOOT_HEX + "a761646472657373 a3683a31"
            "aa766f74655f65706f6368 03 a4676f6e65 02 ac68616e645f6f7665725f746f a26e32"
            "ad68616e645f6f7665725f776879 a161"
            "a8636f6e74726f6c73 82 a26964 83 a573746f7265" + LOG_HEX + "a776657273696f6e 03"
            "a3637263 07 a8646f63756d656e74 c402 7b7d",
        ),
        ("not registered", "82 a474797065 a772656675736564 a6726561736f6e a26e6f"),
        (
            "not attached",
            "83 a474797065 a772656675736564 a6726561736f6e a26e6f a869735f66696e616c c3",
        ),
        ("no masters", "82 a474797065 a772656675736564 a6726561736f6e a26e6f"),
    ],
)
def test_the_bytes_are_pinned(name: str, text: str) -> None:
    assert BODIES[name].encode(BODIES[name].example) == bytes.fromhex(text)


@BODY
def test_what_is_written_is_read(body: Body) -> None:
    assert body.decode(body.encode(body.example)) == body.example


@BODY
def test_a_key_from_a_newer_node_is_skipped(body: Body) -> None:
    assert body.decode(said(body.example, zone="z", nested={"a": [1]})) == body.example


@BODY
def test_every_key_is_needed_that_has_no_default(body: Body) -> None:
    for field in msgspec.structs.fields(body.example):
        if field.required:
            with pytest.raises(MalformedMetaError, match=f"required field `{field.name}`"):
                body.decode(said(body.example, **{field.name: ...}))


@BODY
def test_every_cut_and_trailing_byte_is_refused(body: Body) -> None:
    whole = body.encode(body.example)
    for bad in (*(whole[:size] for size in range(len(whole))), whole + b"\0"):
        with pytest.raises(MalformedMetaError):
            body.decode(bad)


@BODY
@pytest.mark.parametrize(
    "bad",
    [
        b"\x81\xa1x" + b"\x91" * 5000,
        b"\xdf\xff\xff\xff\xff",
        b"\x81\xa1x\xdb\xff\xff\xff\xff",
        b"\xc0",
        b"\x90",
    ],
    ids=["nested too deeply", "4 billion keys", "4 GB of a text", "nothing", "a list"],
)
def test_a_body_made_to_hurt_is_refused(body: Body, bad: bytes) -> None:
    with pytest.raises(MalformedMetaError):
        body.decode(bad)


@pytest.mark.parametrize(
    ("name", "key"), [("hand over", "target"), ("follow", "group"), ("leave", "reason")]
)
def test_a_text_that_is_no_utf_8_is_refused(name: str, key: str) -> None:
    body = BODIES[name]
    bad = said(body.example, **{key: "zz"}).replace(b"\xa2zz", b"\xa2z\xe7")
    with pytest.raises(MalformedMetaError):
        body.decode(bad)


@BODY
def test_a_body_that_is_too_large_is_refused_unread(body: Body) -> None:
    room = 2 * body.bytes_max - len(said(body.example, pad="x" * body.bytes_max))
    largest = said(body.example, pad="x" * room)
    assert len(largest) == body.bytes_max
    assert body.decode(largest) == body.example
    sentence = f"a body of {body.bytes_max + 1} bytes, at most {body.bytes_max}"
    with pytest.raises(MalformedMetaError, match=sentence):
        body.decode(said(body.example, pad="x" * (room + 1)))


TOO_MANY = {f"n{place}": str(DISK) for place in range(REPLICAS_MAX + 1)}
MASTER = {"group": "d1", "address": "a"}
AT_LEAST_1 = "Expected `int` >= 1"
AT_LEAST_0 = "Expected `int` >= 0"
AT_MOST = f"Expected `int` <= {COUNTED_MAX}"


def inside(value: object, **changed: object) -> object:
    """Return what a value within a body says, with some keys changed."""
    return msgspec.msgpack.decode(said(value, **changed))


@pytest.mark.parametrize(
    ("name", "key", "value", "sentence"),
    [
        ("follow", "cluster", "", "`str` of length >= 1 - at `$.cluster`"),
        ("follow", "group", b"g", "Expected `str`, got `bytes` - at `$.group`"),
        (
            "follow",
            "node_id",
            "n" * (NAME_LENGTH_MAX + 1),
            "`str` of length <= 255 - at `$.node_id`",
        ),
        ("follow", "storage_uuid", "2", "Invalid UUID - at `$.storage_uuid`"),
        ("follow", "log_uuid", None, "Expected `uuid`, got `None` - at `$.log_uuid`"),
        ("follow", "incarnation", 0, AT_LEAST_1 + " - at `$.incarnation`"),
        ("follow", "epoch", -1, AT_LEAST_0 + " - at `$.epoch`"),
        ("follow", "epoch", COUNTED_MAX + 1, AT_MOST + " - at `$.epoch`"),
        (
            "follow",
            "asked",
            {"sequence": 0, "epoch": 0, "crc": 0},
            AT_LEAST_1 + " - at `$.asked.sequence`",
        ),
        (
            "follow",
            "asked",
            {"sequence": 1, "epoch": -1, "crc": 0},
            AT_LEAST_0 + " - at `$.asked.epoch`",
        ),
        (
            "follow",
            "asked",
            {"sequence": 1, "epoch": 0, "crc": 2**32},
            "Expected `int` <= 4294967295 - at `$.asked.crc`",
        ),
        (
            "follow",
            "asked",
            {"sequence": 1, "crc": 0},
            "missing required field `epoch` - at `$.asked`",
        ),
        ("matches", "type", "fits", "Invalid value 'fits' - at `$.type`"),
        ("matches", "type", ..., "missing required field `type`"),
        ("diverges", "end", 0, AT_LEAST_1 + " - at `$.end`"),
        ("diverges", "epoch", -1, AT_LEAST_0 + " - at `$.epoch`"),
        ("behind", "first", COUNTED_MAX + 1, AT_MOST + " - at `$.first`"),
        ("refused", "epoch", 1.5, "Expected `int`, got `float` - at `$.epoch`"),
        ("refused", "reason", "x" * 1001, "`str` of length <= 1000 - at `$.reason`"),
        ("ack", "end", 0, AT_LEAST_1 + " - at `$.end`"),
        ("ack", "applied", 0, AT_LEAST_1 + " - at `$.applied`"),
        ("ack", "echo_ms", -1, AT_LEAST_0 + " - at `$.echo_ms`"),
        ("ack", "echo_ms", 2**64 - 1, AT_MOST + " - at `$.echo_ms`"),
        ("ack", "echo_ms", True, "Expected `int | null`, got `bool` - at `$.echo_ms`"),
        ("leave", "reason", "x" * 1001, "`str` of length <= 1000 - at `$.reason`"),
        ("vote", "type", "veto", "Invalid value 'veto' - at `$.type`"),
        ("vote", "type", ..., "missing required field `type`"),
        ("vote", "epoch", -1, AT_LEAST_0 + " - at `$.epoch`"),
        ("vote", "epoch", COUNTED_MAX + 1, AT_MOST + " - at `$.epoch`"),
        ("vote", "last_epoch", True, "Expected `int`, got `bool` - at `$.last_epoch`"),
        ("vote", "end", 0, "Expected `int` >= 1 - at `$.end`"),
        ("vote", "applied", 0, "Expected `int` >= 1 - at `$.applied`"),
        ("alter", "in_sync", {}, "Expected `object` of length >= 1 - at `$.in_sync`"),
        ("alter", "in_sync", TOO_MANY, "Expected `object` of length <= 16 - at `$.in_sync`"),
        ("alter", "in_sync", {"n1": "x"}, "Invalid UUID - at `$.in_sync[...]`"),
        ("alter", "in_sync", {"": str(DISK)}, "`str` of length >= 1 - at `key` in `$.in_sync`"),
        ("alter", "version", -1, AT_LEAST_0 + " - at `$.version`"),
        ("hand over", "target", "", "`str` of length >= 1 - at `$.target`"),
        ("hand over", "epoch", 1.5, "Expected `int`, got `float` - at `$.epoch`"),
        ("changed", "record", None, "Expected `object`, got `None` - at `$.record`"),
        ("changed", "refusal", "x" * 1001, "`str` of length <= 1000 - at `$.refusal`"),
        ("news", "news", {}, "missing required field `record` - at `$.news`"),
        ("news", "news", inside(NEWS, vote_epoch=-1), AT_LEAST_0 + " - at `$.news.vote_epoch`"),
        (
            "news",
            "news",
            inside(NEWS, hand_over_to="n" * 256),
            "`str` of length <= 255 - at `$.news.hand_over_to`",
        ),
        (
            "news",
            "news",
            inside(NEWS, hand_over_why="x" * 1001),
            "`str` of length <= 1000 - at `$.news.hand_over_why`",
        ),
        ("register", "group", "", "at `$.group`"),
        ("register", "group", b"g", "at `$.group`"),
        ("register", "node_id", "n" * (NAME_LENGTH_MAX + 1), "at `$.node_id`"),
        ("register", "incarnation", 0, "at `$.incarnation`"),
        ("register", "incarnation", COUNTED_MAX + 1, "at `$.incarnation`"),
        ("register", "incarnation", True, "at `$.incarnation`"),
        ("register", "last_sequence", -1, "at `$.last_sequence`"),
        ("register", "last_sequence", 1.5, "at `$.last_sequence`"),
        ("register", "last_epoch", -1, "at `$.last_epoch`"),
        ("register", "last_epoch", COUNTED_MAX + 1, "at `$.last_epoch`"),
        ("register", "log_uuid", "1", "Invalid UUID"),
        ("register", "log_uuid", b"\0" * 15, "Invalid UUID"),
        ("register", "told", {"record": None}, "at `$.told.record`"),
        (
            "register",
            "told",
            {"record": inside(RECORD), "nodes": ["n"] * (REPLICAS_MAX + 1)},
            "at `$.told.nodes`",
        ),
        ("register", "replaces", "1", "Invalid UUID"),
        ("register", "committed", -1, "at `$.committed`"),
        ("register", "committed", 2**63, "at `$.committed`"),
        ("register", "uncommitted", -1, "at `$.uncommitted`"),
        ("register", "uncommitted", "2", "at `$.uncommitted`"),
        ("register", "clock_ahead_ms", 1.5, "at `$.clock_ahead_ms`"),
        ("register", "clock_ahead_ms", -COUNTED_MAX - 1, "at `$.clock_ahead_ms`"),
        ("register", "address", 1, "at `$.address`"),
        ("register", "version", "v" * (NAME_LENGTH_MAX + 1), "at `$.version`"),
        ("registered", "type", "promoted", "Invalid value 'promoted'"),
        ("registered", "record", inside(RECORD, epoch=-1), "at `$.record.epoch`"),
        ("registered", "record", inside(RECORD, version=...), "required field `version`"),
        ("registered", "record", inside(RECORD, master={"node_id": "n1"}), "at `$.record.master`"),
        ("registered", "record", inside(RECORD, min_isr=0), "at `$.record.min_isr`"),
        (
            "registered",
            "record",
            inside(RECORD, min_isr=REPLICAS_MAX + 1),
            "at `$.record.min_isr`",
        ),
        ("registered", "record", inside(RECORD, phase="idle"), "at `$.record.phase`"),
        ("registered", "record", inside(RECORD, in_sync={"n1": "x"}), "Invalid UUID"),
        ("registered", "record", inside(RECORD, in_sync=TOO_MANY), "at `$.record.in_sync`"),
        ("registered", "log_uuid", "1", "Invalid UUID"),
        ("registered", "members", [], "at `$.members`"),
        ("registered", "members", {"n1": {}}, "required field `storage_uuid`"),
        ("registered", "members", {"": inside(MEMBER)}, "at `key` in `$.members`"),
        ("registered", "members", dict.fromkeys(TOO_MANY, inside(MEMBER)), "at `$.members`"),
        ("registered", "members", {"n1": inside(MEMBER, incarnation=-1)}, "incarnation`"),
        ("registered", "members", {"n1": inside(MEMBER, address="h" * 256)}, "address`"),
        ("begun", "size", 2**40, "at `$.size`"),
        ("read", "path", "", "at `$.path`"),
        ("read", "path", "x" * 257, "at `$.path`"),
        ("read", "position", -1, "at `$.position`"),
        ("read", "size", 0, "at `$.size`"),
        ("read", "size", READ_BYTES_MAX + 1, "at `$.size`"),
        ("bytes", "data", b"", "at `$.data`"),
        ("attach", "name", "", "`str` of length >= 1 - at `$.name`"),
        ("attach", "name", "n" * 256, "`str` of length <= 255 - at `$.name`"),
        ("attach", "instance", b"x", "length >= 16 - at `$.instance`"),
        ("attach", "patterns", [""], "`str` of length >= 1 - at `$.patterns[0]`"),
        ("attach", "patterns", ["p" * 256], "<= 255 - at `$.patterns[0]`"),
        ("attach", "patterns", ["p"] * 65, "length <= 64 - at `$.patterns`"),
        ("attach", "weight", 0, "`int` >= 1 - at `$.weight`"),
        ("attach", "weight", 1001, "`int` <= 1000 - at `$.weight`"),
        ("attach", "token", "t" * 1001, "length <= 1000 - at `$.token`"),
        ("attached", "epoch", -1, "`int` >= 0 - at `$.epoch`"),
        ("attached", "lease_s", 0, "`int` >= 1 - at `$.lease_s`"),
        ("attached", "type", "x", "Invalid value 'x' - at `$.type`"),
        ("not attached", "reason", "x" * 1001, "length <= 1000 - at `$.reason`"),
        ("flow", "items", -1, "`int` >= 0 - at `$.items`"),
        ("flow", "items", 2**62 + 1, f"`int` <= {2**62} - at `$.items`"),
        ("flow", "bytes", 2**63, f"`int` <= {2**62} - at `$.bytes`"),
        ("receiver", "name", "n" * (NAME_LENGTH_MAX + 1), "`str` of length <= 255 - at `$.name`"),
        ("receiver", "patterns", "orders.*", "Expected `array`, got `str` - at `$.patterns`"),
        ("receiver", "patterns", ["p"] * (PATTERNS_MAX + 1), "of length <= 64 - at `$.patterns`"),
        ("receiver", "patterns", [""], "`str` of length >= 1 - at `$.patterns[0]`"),
        ("receiver", "patterns", ["p" * (PATTERN_LENGTH_MAX + 1)], "`str` of length <= 255"),
        ("receiver", "token", "t" * 1001, "`str` of length <= 1000 - at `$.token`"),
        ("receiver", "told", -1, AT_LEAST_0 + " - at `$.told`"),
        ("receiver", "told", COUNTED_MAX + 1, AT_MOST + " - at `$.told`"),
        ("masters", "version", 0, AT_LEAST_1 + " - at `$.version`"),
        ("masters", "masters", [MASTER | {"address": ""}], ">= 1 - at `$.masters[0].address`"),
        ("masters", "masters", [MASTER] * (MASTERS_MAX + 1), "of length <= 1000 - at `$.masters`"),
        ("masters", "waits", "x" * 1001, "`str` of length <= 1000 - at `$.waits`"),
        ("no masters", "reason", "x" * 1001, "`str` of length <= 1000 - at `$.reason`"),
    ],
)
def test_what_says_something_else_is_refused(
    name: str, key: str, value: object, sentence: str
) -> None:
    body = BODIES[name]
    with pytest.raises(MalformedMetaError) as caught:
        body.decode(said(body.example, **{key: value}))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("follow", {"group": "\ud800"}),
        ("follow", {"group": ""}),
        ("follow", {"incarnation": 2**70}),
        ("follow", {"asked": Asked(sequence=0, epoch=0, crc=0)}),
        ("matches", {"asked": Asked(sequence=1, epoch=0, crc=-1)}),
        ("diverges", {"end": 0}),
        ("refused", {"reason": "x" * (REASON_LENGTH_MAX + 1)}),
        ("ack", {"applied": 0}),
        ("ack", {"echo_ms": -1}),
        ("leave", {"reason": "x" * (REASON_LENGTH_MAX + 1)}),
        ("news", {"news": msgspec.structs.replace(NEWS, vote_epoch=-1)}),
        ("news", {"news": msgspec.structs.replace(NEWS, hand_over_to="n" * 256)}),
        ("vote", {"epoch": 2**70}),
        ("vote", {"end": 0}),
        ("changed", {"refusal": "\ud800"}),
        ("alter", {"in_sync": {}}),
        ("alter", {"in_sync": {f"n{n}": UUID(int=n) for n in range(REPLICAS_MAX + 1)}}),
        ("hand over", {"target": ""}),
        ("changed", {"refusal": "x" * (REASON_LENGTH_MAX + 1)}),
        ("register", {"group": "\ud800"}),
        ("register", {"incarnation": 2**70}),
        ("not registered", {"reason": "x" * (REASON_LENGTH_MAX + 1)}),
        ("read", {"size": 0}),
        ("attach", {"name": "\ud800"}),
        ("attach", {"weight": 0}),
        ("attached", {"epoch": -1}),
        ("flow", {"reason": "x" * 1001}),
        ("receiver", {"patterns": ("p",) * (PATTERNS_MAX + 1)}),
        ("receiver", {"patterns": ("\U0001f5a5" * PATTERN_LENGTH_MAX,) * PATTERNS_MAX}),
        ("masters", {"masters": (MasterInfo(group="", address="a"),)}),
        ("no masters", {"reason": "\ud800"}),
    ],
)
def test_what_nobody_would_read_is_the_callers_error(name: str, changed: dict[str, Any]) -> None:
    body = BODIES[name]
    with pytest.raises(LocalProtocolError, match="is not encodable"):
        body.encode(msgspec.structs.replace(body.example, **changed))


WIDE = "\U0001f5a5"
NAME, REASON = WIDE * NAME_LENGTH_MAX, WIDE * REASON_LENGTH_MAX
LARGEST_RECORD = GroupRecord(
    epoch=2**63 - 1,
    version=2**63 - 1,
    master=Master(node_id=NAME, incarnation=2**63 - 1),
    in_sync={f"{NAME[2:]}{place:02}": DISK for place in range(REPLICAS_MAX)},
    min_isr=REPLICAS_MAX,
    phase=Phase.ELECTING,
)
LARGEST_MEMBERS = dict.fromkeys(
    LARGEST_RECORD.in_sync,
    GroupMember(storage_uuid=DISK, incarnation=2**63 - 1, boot_id=BOOT, address=NAME),
)


@pytest.mark.parametrize(
    ("name", "largest"),
    [
        (
            "follow",
            msgspec.structs.replace(
                FOLLOW,
                cluster=NAME,
                group=NAME,
                node_id=NAME,
                incarnation=COUNTED_MAX,
                epoch=COUNTED_MAX,
                asked=Asked(sequence=COUNTED_MAX, epoch=COUNTED_MAX, crc=2**32 - 1),
            ),
        ),
        ("refused", FollowRefused(reason=REASON, epoch=COUNTED_MAX)),
        ("leave", Leave(reason=REASON)),
        (
            "news",
            WatchReply(
                news=NodeNews(
                    record=LARGEST_RECORD,
                    members=LARGEST_MEMBERS,
                    vote_epoch=COUNTED_MAX,
                    hand_over_to=NAME,
                    hand_over_why=REASON,
                )
            ),
        ),
        (
            "vote",
            Vote(epoch=COUNTED_MAX, last_epoch=COUNTED_MAX, end=COUNTED_MAX, applied=COUNTED_MAX),
        ),
        ("changed", ChangeReply(record=LARGEST_RECORD, refusal=REASON)),
        (
            "registered",
            NodeRegistered(
                role=NodeRole.SLAVE,
                record=LARGEST_RECORD,
                again_ms=2**31 - 1,
                log_uuid=LOG,
                members=LARGEST_MEMBERS,
            ),
        ),
        ("not registered", Refused(reason="x" * REASON_LENGTH_MAX)),
        ("bytes", SnapshotBytes(data=bytes(READ_BYTES_MAX))),
        (
            "attach",
            Attach(
                name=NAME,
                instance=bytes(INSTANCE_BYTES),
                patterns=("s" * PATTERN_LENGTH_MAX,) * PATTERNS_MAX,
                weight=1000,
                token=WIDE * 1000,
            ),
        ),
        ("flow", Flow(items=2**62, bytes=2**62, reason=REASON)),
        (
            "masters",
            ReceiverRegistered(
                version=1,
                masters=tuple(
                    MasterInfo(group=f"{number:0255d}", address="h" * 249 + ":20801")
                    for number in range(MASTERS_MAX)
                ),
                waits="x" * REASON_LENGTH_MAX,
            ),
        ),
    ],
)
def test_the_largest_bodies_there_can_be_fit(name: str, largest: object) -> None:
    body = BODIES[name]
    assert body.decode(body.encode(largest)) == largest
