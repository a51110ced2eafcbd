"""A node says which data it is, and learns what is agreed of its group, or why it is refused."""

import msgspec

from delay_protocol.nodes.registration import (
    NodeRole,
    Phase,
    decode_node_register,
    decode_node_reply,
    encode_node_register,
    encode_node_reply,
)
from tests.delay_protocol.nodes.bodies import FULL, RECORD, REGISTERED, REQUEST, said


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
        "is_read_only": False,
        "log_uuid": None,
        "members": {},
        "now_ms": None,
        "clock_fault": "",
        "state": None,
    }


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
        "state": None,
        "controls": {"id": None, "keeps": ""},
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


def test_an_answer_may_name_no_log_and_no_members() -> None:
    older = said(FULL, log_uuid=..., members=..., is_retired=..., is_read_only=...)
    assert decode_node_reply(older) == REGISTERED


def test_a_request_of_an_older_node_says_that_nothing_is_committed() -> None:
    request = msgspec.structs.replace(REQUEST, committed=9, uncommitted=2)
    assert decode_node_register(encode_node_register(request)) == request
    assert decode_node_register(said(request, committed=..., uncommitted=...)) == REQUEST


def test_a_record_without_a_master_is_one_of_an_election() -> None:
    record = msgspec.structs.replace(RECORD, master=None, phase=Phase.ELECTING)
    reply = msgspec.structs.replace(REGISTERED, record=record, role=NodeRole.SLAVE)
    assert decode_node_reply(encode_node_reply(reply)) == reply
