"""A body that is one msgpack map may grow keys, is bounded, and nothing else is taken for one."""

import msgspec
import pytest

from delay_protocol.basics.errors import MalformedMetaError
from tests.delay_protocol.nodes.bodies import BODIES, Body, said

BODY = pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)


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
