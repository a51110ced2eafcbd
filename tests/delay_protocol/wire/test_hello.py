"""A HELLO says group, epoch and node, and can grow keys without breaking older readers."""

import msgspec
import pytest

from delay_protocol.basics.errors import LocalProtocolError, MalformedHelloError
from delay_protocol.wire.hello import Hello, decode_hello, encode_hello


def test_the_bytes_of_a_hello_are_pinned() -> None:
    assert encode_hello(Hello(group="dg1", epoch=3, node_id="n1")) == bytes.fromhex(
        "83 a567726f7570 a3646731 a565706f6368 03 a76e6f64655f6964 a26e31"
    )


def test_a_delay_server_says_which_log_it_has() -> None:
    hello = Hello(group="dg1", epoch=3, node_id="n1", log_uuid="u")
    assert decode_hello(encode_hello(hello)) == hello
    assert decode_hello(encode_hello(Hello(group="", epoch=0, node_id=""))).log_uuid == ""


def test_a_delay_server_says_what_its_clock_shows() -> None:
    hello = Hello(group="dg1", epoch=3, node_id="n1", log_uuid="u", now_ms=1_700_000_000_000)
    assert encode_hello(hello).endswith(bytes.fromhex("a66e6f775f6d73 cf0000018bcfe56800"))
    assert decode_hello(encode_hello(hello)) == hello


def test_a_key_from_a_newer_node_is_skipped() -> None:
    body = msgspec.msgpack.encode({"group": "dg1", "epoch": 3, "node_id": "n1", "zone": "z"})
    assert decode_hello(body) == Hello(group="dg1", epoch=3, node_id="n1")


@pytest.mark.parametrize(
    "said",
    [
        {"group": "dg1", "epoch": 3},
        {"group": "dg1", "epoch": "3", "node_id": "n1"},
        {"group": "dg1", "epoch": -1, "node_id": "n1"},
        ["dg1", 3, "n1"],
        None,
    ],
)
def test_a_hello_that_says_something_else_is_refused(said: object) -> None:
    with pytest.raises(MalformedHelloError):
        decode_hello(msgspec.msgpack.encode(said))


@pytest.mark.parametrize(
    "body",
    [b"\x83\xa5group\xa1\xe7\xa5epoch\x01\xa7node_id\xa1n", b"\x81\xa1x" + b"\x91" * 5000],
    ids=["a name that is no UTF-8", "an unknown key that is nested too deeply"],
)
def test_a_hello_that_no_reader_can_take_apart_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedHelloError):
        decode_hello(body)


@pytest.mark.parametrize(
    "hello",
    [
        Hello(group="\ud800", epoch=3, node_id="n1"),
        Hello(group="dg1", epoch=2**64, node_id="n1"),
    ],
)
def test_a_hello_that_cannot_be_written_is_the_callers_error(hello: Hello) -> None:
    with pytest.raises(LocalProtocolError):
        encode_hello(hello)


def test_every_cut_and_trailing_byte_is_refused() -> None:
    body = encode_hello(Hello(group="dg1", epoch=3, node_id="n1"))
    for bad in (*(body[:size] for size in range(len(body))), body + b"\0"):
        with pytest.raises(MalformedHelloError):
            decode_hello(bad)
