"""The answer to /meta/address is read however it comes, and nothing else is taken for one."""

import pytest

from delay_client.exchange.discovery import (
    ANSWER_BYTES_MAX,
    AddressAnswer,
    DiscoveryError,
    address_request,
)

GOOD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nContent-Length: 15\r\n\r\n127.0.0.1:20880"
ENDED_BY_CLOSING = b"HTTP/1.0 200 \r\nServer: Jetty\r\n\r\n127.0.0.1:20880\n"


def read(data: bytes, *, cut: int | None = None) -> tuple[str, int]:
    answer = AddressAnswer()
    pieces = [data] if cut is None else [data[at : at + cut] for at in range(0, len(data), cut)]
    for piece in pieces:
        answer.feed(piece)
    return answer.finish()


@pytest.mark.parametrize("data", [GOOD, GOOD + b"0\n", ENDED_BY_CLOSING])
@pytest.mark.parametrize("cut", [None, 1, 7])
def test_an_address_is_read_in_whatever_pieces_it_comes(data: bytes, cut: int | None) -> None:
    assert read(data, cut=cut) == ("127.0.0.1", 20880)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"HTTP/1.1 503 \r\ncontent-length: 9\r\n\r\nnot ready", r"status 503 \('not ready'\)"),
        (b"HTTP/1.1 200 \r\ncontent-length: 5\r\n\r\nhello", "not host:port"),
        (b"HTTP/1.1 200 \r\ncontent-length: 2\r\n\r\n\xff\xfe", "not host:port"),
        (b"HTTP/1.1 200 \r\ncontent-length: 0\r\n\r\n", "not host:port"),
        (b"\x00\x00\x00\x14\x00\x12\xde\xc1", "does not speak HTTP: give the address"),
        (b"HTTP/1.1 200 OK\r\n", "not host:port"),
        (b"HTTP/1.", "before its answer was complete"),
        (b"HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\r\nx", "before its answer was"),
        (b"HTTP/1.1 200 \r\n" + b"x: y\r\n" * 101 + b"\r\n", "before its answer was"),
        (b"HTTP/1.1 200 \r\ncontent-length: 15\r\n\r\n127.0.0", "before its answer was complete"),
        (b"", "without an answer: give the address"),
        (b"HTTP/1.1 200 \r\nx: " + b"y" * ANSWER_BYTES_MAX, "more than"),
    ],
)
def test_what_is_no_answer_is_said_to_be_none(data: bytes, said: str) -> None:
    for cut in (None, 3):
        with pytest.raises(DiscoveryError, match=said):
            read(data, cut=cut)


HEADER = b"delaywheel-levels: 1s 5m"
LEVELS = (1000, 300_000)


@pytest.mark.parametrize("header", [HEADER, b"DelayWheel-Levels:1s  5m \t", b"X: y\r\n" + HEADER])
@pytest.mark.parametrize("line_end", [b"\r\n", b"\n"])
def test_the_delays_of_levels_are_those_of_a_header(header: bytes, line_end: bytes) -> None:
    data = line_end.join([b"HTTP/1.1 200 OK", header, b"content-length: 3", b"", b"m:9"])
    for cut in (1, 7, len(data)):
        answer = AddressAnswer()
        for at in range(0, len(data), cut):
            answer.feed(data[at : at + cut])
        assert (answer.finish(), answer.levels_ms) == (("m", 9), LEVELS)


def test_an_answer_without_the_header_tells_no_levels() -> None:
    answer = AddressAnswer()
    answer.feed(GOOD)
    assert (answer.finish(), answer.levels_ms) == (("127.0.0.1", 20880), None)
    # What stands in the body, or at the end of another header, is no header.
    body = b"m:9\n" + HEADER
    with pytest.raises(DiscoveryError, match="not host:port"):
        read(b"HTTP/1.1 200 \r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
    answer = AddressAnswer()
    answer.feed(b"HTTP/1.1 200 \r\nx-%s\r\ncontent-length: 3\r\n\r\nm:9" % HEADER)
    assert (answer.finish(), answer.levels_ms) == (("m", 9), None)


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        (b"", "bad levels: there are none"),
        (b"1s 5x", "bad levels: level 2, at character 4, is '5x'"),
        (b"1s " * 1000, "bad levels: level 65, at character 193, is one too many"),
        (b"\xff", "bad levels: level 1, at character 1,"),
    ],
)
def test_a_header_that_is_no_table_is_said_to_be_none(levels: bytes, said: str) -> None:
    data = b"HTTP/1.1 200 \r\nDelaywheel-Levels: %s\r\ncontent-length: 3\r\n\r\nm:9" % levels
    with pytest.raises(DiscoveryError, match=said):
        read(data)


def test_the_request_names_the_host_as_http_wants_it() -> None:
    assert address_request("127.0.0.1", 8080).startswith(
        b"GET /meta/address HTTP/1.0\r\nHost: 127.0.0.1:8080\r\n"
    )
    assert b"\r\nHost: [::1]:8080\r\n" in address_request("::1", 8080)
    assert b"\r\nHost: xn--mta-bma:8080\r\n" in address_request("méta", 8080)
