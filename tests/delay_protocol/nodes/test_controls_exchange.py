"""What a node and its meta server say about controls, and what of it would let something flow."""

from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol.basics.errors import LocalProtocolError, MalformedMetaError
from delay_protocol.nodes.controls import (
    Controls,
    ControlsError,
    GroupControl,
    SubjectControl,
    encode_controls,
)
from delay_protocol.nodes.controls_exchange import (
    ASKED_BYTES_MAX,
    TOLD_BYTES_MAX,
    ControlsId,
    NodeControls,
    decode_node_controls,
    decode_node_controls_reply,
    document_of,
    encode_node_controls,
    encode_node_controls_reply,
    id_of,
)

A = UUID(int=0xA)
PAUSED = SubjectControl(paused=True)
NAMES = st.text("ab*", min_size=1, max_size=4)
RULES = st.builds(SubjectControl, paused=st.booleans())
GROUPS = st.builds(
    GroupControl,
    paused=st.booleans(),
    rate_per_s=st.sampled_from([None, 1, 2]),
    weight=st.sampled_from([None, 3]),
)
CONTROLS = st.builds(
    Controls,
    version=st.integers(0, 2**62),
    subjects=st.dictionaries(NAMES, RULES, max_size=5),
    groups=st.dictionaries(NAMES, GROUPS, max_size=3),
)


@given(CONTROLS, st.uuids())
def test_a_document_is_told_with_its_store(controls: Controls, store: UUID) -> None:
    told = decode_node_controls_reply(encode_node_controls_reply(document_of(controls, store)))
    assert told is not None
    assert told == msgspec.structs.replace(controls, store=store)
    assert id_of(told) == ControlsId(store=store, version=controls.version)
    assert id_of(controls) is None


def test_nothing_new_is_told_as_nothing() -> None:
    assert decode_node_controls_reply(encode_node_controls_reply(None)) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x80",
        msgspec.msgpack.encode({"has": None}),
        msgspec.msgpack.encode({"has": None, "told": {"store": "x", "version": 1}}),
        msgspec.msgpack.encode({"has": None, "told": None, "keeps": "x" * 1001}),
        msgspec.msgpack.encode({"has": None, "told": None, "more": b"x" * ASKED_BYTES_MAX}),
    ],
)
def test_what_is_no_question_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedMetaError):
        decode_node_controls(body)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{}",
        encode_controls(Controls(version=3)),
        b'{"store":"00000000-0000-0000-0000-00000000000a","version":-1}',
        b'{"store":"00000000-0000-0000-0000-00000000000a","subjects":{"a":{"shut":true}}}',
        b" " * (TOLD_BYTES_MAX + 1),
    ],
)
def test_what_is_no_document_of_a_meta_server_is_refused(document: bytes) -> None:
    with pytest.raises(MalformedMetaError):
        decode_node_controls_reply(encode_node_controls_reply(document))


def test_a_reason_that_is_too_long_is_not_sent() -> None:
    with pytest.raises(LocalProtocolError):
        encode_node_controls(NodeControls(has=None, told=None, keeps="x" * 1001))


def test_a_document_that_no_node_would_take_is_not_told() -> None:
    subjects = {f"{number:03}{'x' * 1000}": PAUSED for number in range(300)}
    with pytest.raises(ControlsError, match=f"at most {TOLD_BYTES_MAX}"):
        document_of(Controls(version=1, subjects=subjects), A)
