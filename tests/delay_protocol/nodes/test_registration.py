"""A node says which data it is, and learns what is agreed of its group, or why it is refused."""

from typing import Any
from uuid import UUID

import msgspec
import pytest

from delay_protocol.basics.errors import LocalProtocolError, MalformedMetaError
from delay_protocol.nodes.registration import (
    COUNTED_MAX,
    NAME_LENGTH_MAX,
    NODE_BODY_BYTES_MAX,
    REASON_LENGTH_MAX,
    REPLICAS_MAX,
    GroupMember,
    GroupRecord,
    Master,
    NodeRegister,
    NodeRegistered,
    NodeRole,
    Phase,
    Refused,
    decode_node_register,
    decode_node_reply,
    encode_node_register,
    encode_node_reply,
)

LOG, DISK, BOOT = UUID(int=1), UUID(int=2), UUID(int=3)
REQUEST = NodeRegister(
    cluster="c",
    group="g",
    node_id="n1",
    log_uuid=LOG,
    storage_uuid=DISK,
    incarnation=3,
    boot_id=BOOT,
    last_sequence=7,
    last_epoch=2,
    address="h:1",
    http_address="h:2",
    version="0.1",
)
RECORD = GroupRecord(
    epoch=2,
    version=5,
    master=Master(node_id="n1", incarnation=3),
    in_sync={"n1": DISK},
    min_isr=1,
    phase=Phase.ACTIVE,
)
REGISTERED = NodeRegistered(role=NodeRole.MASTER, record=RECORD, again_ms=5000)
MEMBER = GroupMember(storage_uuid=DISK, incarnation=3, boot_id=BOOT, address="h:1")
FULL = msgspec.structs.replace(REGISTERED, log_uuid=LOG, members={"n1": MEMBER})

OPTIONAL = {
    "last_epoch",
    "told",
    "replaces",
    "committed",
    "uncommitted",
    "stands",
    "clock_ahead_ms",
}

LONG = "\U0001f5a5" * (NAME_LENGTH_MAX - 2)
LARGEST_RECORD = GroupRecord(
    epoch=2**63 - 1,
    version=2**63 - 1,
    master=Master(node_id=f"{LONG}00", incarnation=2**63 - 1),
    in_sync={f"{LONG}{place:02}": DISK for place in range(REPLICAS_MAX)},
    min_isr=REPLICAS_MAX,
    phase=Phase.ELECTING,
)
LARGEST_MEMBERS = dict.fromkeys(
    LARGEST_RECORD.in_sync,
    GroupMember(
        storage_uuid=DISK,
        incarnation=2**63 - 1,
        boot_id=BOOT,
        address="\U0001f5a5" * NAME_LENGTH_MAX,
    ),
)


def test_the_bytes_of_an_answer_are_pinned() -> None:
    body = encode_node_reply(REGISTERED)
    assert msgspec.msgpack.decode(body) == {
        "type": "registered",
        "role": "master",
        "record": {
            "epoch": 2,
            "version": 5,
            "master": {"node_id": "n1", "incarnation": 3},
            "in_sync": {"n1": "00000000-0000-0000-0000-000000000002"},
            "min_isr": 1,
            "phase": "active",
        },
        "again_ms": 5000,
        "is_retired": False,
        "log_uuid": None,
        "members": {},
        "now_ms": None,
        "clock_fault": "",
    }
    assert encode_node_reply(Refused(reason="no")) == bytes.fromhex(
        "82 a474797065 a772656675736564 a6726561736f6e a26e6f"
    )


def test_the_bytes_of_a_request_are_pinned() -> None:
    assert msgspec.msgpack.decode(encode_node_register(REQUEST)) == {
        "cluster": "c",
        "group": "g",
        "node_id": "n1",
        "log_uuid": "00000000-0000-0000-0000-000000000001",
        "storage_uuid": "00000000-0000-0000-0000-000000000002",
        "incarnation": 3,
        "boot_id": "00000000-0000-0000-0000-000000000003",
        "last_sequence": 7,
        "last_epoch": 2,
        "address": "h:1",
        "http_address": "h:2",
        "version": "0.1",
        "told": None,
        "replaces": None,
        "committed": 0,
        "uncommitted": 0,
        "stands": {
            "may_send": False,
            "lacks_promises_s": None,
            "hears_nobody": False,
            "hears": 0,
            "hears_sender": False,
            "vote_in_s": 0.0,
            "unfit": "",
            "behind": "",
        },
        "clock_ahead_ms": 0,
    }


def test_the_bytes_of_what_replication_needs_are_pinned() -> None:
    found = msgspec.msgpack.decode(encode_node_reply(FULL))
    assert {key: found[key] for key in ("log_uuid", "members")} == {
        "log_uuid": "00000000-0000-0000-0000-000000000001",
        "members": {
            "n1": {
                "storage_uuid": "00000000-0000-0000-0000-000000000002",
                "incarnation": 3,
                "boot_id": "00000000-0000-0000-0000-000000000003",
                "address": "h:1",
            }
        },
    }
    assert decode_node_reply(encode_node_reply(FULL)) == FULL


def test_an_answer_may_name_no_log_and_no_members() -> None:
    older = said(FULL, log_uuid=None, members=None, is_retired=None)
    assert decode_node_reply(older) == REGISTERED


def test_a_request_of_an_older_node_says_that_nothing_is_committed() -> None:
    request = msgspec.structs.replace(REQUEST, committed=9, uncommitted=2)
    assert decode_node_register(encode_node_register(request)) == request
    assert decode_node_register(said(request, committed=None, uncommitted=None)) == REQUEST


def said(value: object, **changed: object) -> bytes:
    """Return the body that says this, with some keys changed, or left out where None."""
    keys = msgspec.msgpack.decode(msgspec.msgpack.encode(value)) | changed
    return msgspec.msgpack.encode({key: keys[key] for key in keys if keys[key] is not None})


def test_a_key_from_a_newer_node_is_skipped() -> None:
    assert decode_node_register(said(REQUEST, zone="z", nested={"a": [1]})) == REQUEST
    assert decode_node_reply(said(REGISTERED, hint="h")) == REGISTERED


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, None) for key in NodeRegister.__struct_fields__ if key not in OPTIONAL),
        ("group", ""),
        ("group", b"g"),
        ("node_id", "n" * (NAME_LENGTH_MAX + 1)),
        ("incarnation", 0),
        ("incarnation", COUNTED_MAX + 1),
        ("last_epoch", COUNTED_MAX + 1),
        ("incarnation", True),
        ("last_sequence", -1),
        ("last_sequence", 1.5),
        ("last_epoch", -1),
        ("log_uuid", "1"),
        ("log_uuid", b"\0" * 15),
        ("boot_id", ""),
        ("told", {"record": None}),
        ("told", {"record": msgspec.to_builtins(RECORD), "nodes": ["n"] * (REPLICAS_MAX + 1)}),
        ("replaces", "1"),
        ("committed", -1),
        ("committed", 2**63),
        ("uncommitted", -1),
        ("uncommitted", "2"),
        ("clock_ahead_ms", 1.5),
        ("clock_ahead_ms", -COUNTED_MAX - 1),
        ("address", 1),
        ("version", "v" * (NAME_LENGTH_MAX + 1)),
    ],
)
def test_a_request_that_says_something_else_is_refused(key: str, value: object) -> None:
    with pytest.raises(MalformedMetaError):
        decode_node_register(said(REQUEST, **{key: value}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epoch", -1),
        ("version", None),
        ("master", {"node_id": "n1"}),
        ("min_isr", 0),
        ("min_isr", REPLICAS_MAX + 1),
        ("phase", "idle"),
        ("in_sync", {"n1": "x"}),
        ("in_sync", {f"n{place}": str(DISK) for place in range(REPLICAS_MAX + 1)}),
    ],
)
def test_a_record_that_says_something_else_is_refused(key: str, value: object) -> None:
    record = msgspec.msgpack.decode(said(RECORD, **{key: value}))
    with pytest.raises(MalformedMetaError):
        decode_node_reply(said(REGISTERED, record=record))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("log_uuid", "1"),
        ("members", []),
        ("members", {"n1": {}}),
        ("members", {"": msgspec.to_builtins(MEMBER)}),
        ("members", {f"n{n}": msgspec.to_builtins(MEMBER) for n in range(REPLICAS_MAX + 1)}),
        ("members", {"n1": msgspec.to_builtins(MEMBER) | {"incarnation": -1}}),
        ("members", {"n1": msgspec.to_builtins(MEMBER) | {"address": "h" * 256}}),
    ],
)
def test_an_answer_that_says_something_else_is_refused(key: str, value: object) -> None:
    with pytest.raises(MalformedMetaError):
        decode_node_reply(said(FULL, **{key: value}))


@pytest.mark.parametrize("value", [{"type": "promoted"}, {"type": None}, {}, [], 1, None])
def test_an_answer_of_another_kind_is_refused(value: object) -> None:
    with pytest.raises(MalformedMetaError):
        decode_node_reply(msgspec.msgpack.encode(value))


def test_a_record_without_a_master_is_one_of_an_election() -> None:
    record = msgspec.structs.replace(RECORD, master=None, phase=Phase.ELECTING)
    reply = msgspec.structs.replace(REGISTERED, record=record, role=NodeRole.SLAVE)
    assert decode_node_reply(encode_node_reply(reply)) == reply


@pytest.mark.parametrize("body", [encode_node_register(REQUEST), encode_node_reply(REGISTERED)])
def test_every_cut_and_trailing_byte_is_refused(body: bytes) -> None:
    for decode in (decode_node_register, decode_node_reply):
        for bad in (*(body[:size] for size in range(len(body))), body + b"\0"):
            with pytest.raises(MalformedMetaError):
                decode(bad)


@pytest.mark.parametrize(
    "body",
    [
        b"\x81\xa1x" + b"\x91" * 5000,
        b"\x81\xa5group\xa1\xe7",
        b"\xdf\xff\xff\xff\xff",
        b"\x81\xa7cluster\xdb\xff\xff\xff\xff",
        said(REQUEST, padding="x" * NODE_BODY_BYTES_MAX),
    ],
    ids=["nested too deeply", "no UTF-8", "4 billion keys", "4 GB of a name", "too large"],
)
def test_a_body_made_to_hurt_is_refused(body: bytes) -> None:
    for decode in (decode_node_register, decode_node_reply):
        with pytest.raises(MalformedMetaError):
            decode(body)


def test_the_largest_answer_there_can_be_fits() -> None:
    reply = NodeRegistered(
        role=NodeRole.SLAVE,
        record=LARGEST_RECORD,
        again_ms=2**31 - 1,
        log_uuid=LOG,
        members=LARGEST_MEMBERS,
    )
    assert decode_node_reply(encode_node_reply(reply)) == reply


@pytest.mark.parametrize(
    "changed",
    [
        {"group": "\ud800"},
        {"group": ""},
        {"incarnation": 2**70},
        {"last_sequence": -1},
        {"address": "h" * (NAME_LENGTH_MAX + 1)},
    ],
)
def test_a_request_that_no_meta_server_would_read_is_the_callers_error(
    changed: dict[str, Any],
) -> None:
    with pytest.raises(LocalProtocolError):
        encode_node_register(msgspec.structs.replace(REQUEST, **changed))


def test_an_answer_that_no_node_would_read_is_the_callers_error() -> None:
    with pytest.raises(LocalProtocolError):
        encode_node_reply(Refused(reason="x" * (REASON_LENGTH_MAX + 1)))
    assert encode_node_reply(Refused(reason="x" * REASON_LENGTH_MAX))
