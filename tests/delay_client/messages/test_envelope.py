"""Promise: what a body was wrapped into is read as it was, by receivers and by QMQ's consumers."""

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_client.messages.envelope import decode_envelope, encode_envelope
from delay_protocol.basics.errors import MalformedItemError

PAGE = Path(__file__).parents[3] / "docs" / "compatibility.md"
VECTOR = re.compile(r"^(text|bytes) +(\S.*?) {2,}(\S.*)$", re.MULTILINE)
TEXT = st.text(st.characters(codec="utf-8"))
LONG = st.builds(lambda text, times: text * times, TEXT, st.sampled_from([1, 3000, 9000]))
HEADERS = st.dictionaries(st.text(st.characters(codec="ascii"), min_size=1).map(str.lower), TEXT)


def repeated(text: str) -> str:
    """Return the text of a literal, perhaps with `* times` behind it."""
    literal, _, times = text.partition(" * ")
    return str(ast.literal_eval(literal)) * int(times or 1)


def vectors() -> list[tuple[str | bytes, dict[str, str]]]:
    found: list[tuple[str | bytes, dict[str, str]]] = []
    for kind, body, attributes in VECTOR.findall(PAGE.read_text(encoding="utf-8")):
        pairs = [pair.partition(" = ") for pair in attributes.split(", ")]
        found.append(
            (
                bytes.fromhex(body) if kind == "bytes" else repeated(body),
                {key: repeated(value) for key, _, value in pairs},
            )
        )
    return found


def large_string(attributes: dict[str, str], key: str) -> str:
    """Return what getLargeString() of QMQ's LargeStringUtil returns."""
    if key in attributes:
        return attributes[key]
    result = ""
    number = 0
    while (part := attributes.get(f"{key}#part{number}")) is not None:
        result += part
        number += 1
    return result


def test_the_examples_of_the_documentation_are_what_is_written() -> None:
    examples = vectors()
    assert len(examples) == 8
    for body, attributes in examples:
        assert encode_envelope(body) == attributes
        read, _, _ = decode_envelope(attributes)
        assert (read if isinstance(read, bytes) else read.encode()) == (
            body if isinstance(body, bytes) else body.encode()
        )
    assert encode_envelope("x", {"Trace-Id": "7"}, "application/json") == {
        "body": "x",
        "dw_content_type": "application/json",
        "h:trace-id": "7",
    }


@given(LONG, HEADERS, st.none() | TEXT)
def test_text_is_read_as_it_was_sent(
    body: str, headers: dict[str, str], content_type: str | None
) -> None:
    attributes = encode_envelope(body, headers, content_type)
    assert decode_envelope(attributes) == (body, headers, content_type)
    assert large_string(attributes, "body") == body
    for key, part in attributes.items():
        assert not key.startswith("body#") or len(part.encode("utf-16-le")) <= 2 * 8192
        assert key != "body" or len(part.encode()) <= 32767


@given(st.binary(), st.sampled_from([1, 5000]))
def test_bytes_are_read_as_they_were_sent(data: bytes, times: int) -> None:
    body, _, _ = decode_envelope(encode_envelope(data * times))
    assert (body.encode() if isinstance(body, str) else body) == data * times


def test_a_message_of_attributes_alone_has_an_empty_body() -> None:
    assert decode_envelope({"flight": "LH 400", "body#part1": "x"}) == ("", {}, None)


@pytest.mark.parametrize("text", ["/w", "a\n", "ü", "=" * 4])
def test_base64_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(MalformedItemError, match="not the base64 that it says"):
        decode_envelope({"body": text, "dw_encoding": "base64"})


def test_an_encoding_that_is_not_known_leaves_the_text_as_it_is() -> None:
    assert decode_envelope({"body": "x", "dw_encoding": "rot13"}) == ("x", {}, None)
