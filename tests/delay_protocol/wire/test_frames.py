"""A byte stream becomes the frames that were sent, however it is cut, and nothing else does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delay_protocol.basics.errors import (
    BadHeaderSizeError,
    BadMagicError,
    FrameSizeError,
    LocalProtocolError,
    RemoteProtocolError,
)
from delay_protocol.wire.frames import (
    FRAME_OVERHEAD,
    HEADER_SIZE,
    MAGIC,
    Frame,
    FrameDecoder,
    encode_frame,
    encode_one_way,
    encode_request,
    encode_response,
)

LIMIT = 1024

ITEM = bytes.fromhex(
    "00000000efebc2e0 02 0000018bcfe56800 0000018bcfe65260 0003612e62 00026d31 0000004d"
    "000e716d715f63726561746554696d65 000d31373030303030303030303030"
    "0017716d715f7363686564756c655265636569766554696d65 000d31373030303030303630303030"
    "00016b 000176"
)

# Whole frames as QMQ's own processes send them, and what they say (the body's size, not its bytes).
VECTORS = {
    "a delay message": (
        "00000087 0012 dec10ade 000a 0009 00000007 00000000 000a" + ITEM.hex(),
        (10, 9, 7, 0, 10, 115),
    ),
    "its success": (
        "00000014 0012 dec10ade 0000 0009 00000007 00000001 000a",
        (0, 9, 7, 1, 10, 0),
    ),
    "its refusal as read-only": (
        (
            "0000002e 0012 dec10ade 0000 0009 00000007 00000001 000a"
            "00026d31 00000004 0010 42524f4b45525f524541445f4f4e4c59"
        ),
        (0, 9, 7, 1, 10, 26),
    ),
    "a client registers": (
        (
            "00000076 0012 dec10ade 0023 0009 00000000 00000000 0023 0006 00077375626a656374"
            "0003612e62 000e636c69656e7454797065436f6465 000134 0008636c69656e744964 000468404031"
            "000d636f6e73756d657247726f7570 0000 0007617070436f6465 0003617070"
            "000b7265717565737454797065 000131"
        ),
        (35, 9, 0, 0, 35, 98),
    ),
    "its answer": (
        (
            "00000045 0012 dec10ade 0000 0009 00000000 00000001 0023 0000018bcfe56800 0003612e62"
            "0000 00 04 0001 0003646731 000e31302e302e302e353a3230383031 0000018bcfe56800 01"
        ),
        (0, 9, 0, 1, 35, 49),
    ),
    "a broker asks for its group": (
        "0000001f 0012 dec10ade 0028 0008 00000003 00000000 ffff 0005686f737431 00005141",
        (40, 8, 3, 0, -1, 11),
    ),
    "the group": (
        "0000001f 0012 dec10ade 0000 0008 00000003 00000001 0028 0003646731 0000 00000005",
        (0, 8, 3, 1, 40, 11),
    ),
    "a broker registers": (
        (
            "00000035 0012 dec10ade 001e 0008 00000004 00000000 ffff 00000000 0003646731"
            "000e31302e302e302e353a3230383031 00000005 00000001"
        ),
        (30, 8, 4, 0, -1, 33),
    ),
    "a farewell that nobody answers": (
        "0000001c 0012 dec10ade 03ff 0009 00000000 00000002 03ff 81a6726561736f6e",
        (1023, 9, 0, 2, 1023, 8),
    ),
    "a slave asks for the log": (
        "0000003d 0012 dec10ade 0014 0009 00000005 00000000 0014 02 0000000000001000"
        + 4 * "ffffffffffffffff",
        (20, 9, 5, 0, 20, 41),
    ),
}

i16 = st.integers(-(2**15), 2**15 - 1)
i32 = st.integers(-(2**31), 2**31 - 1)
any_frame = st.builds(Frame, i16, i16, i32, i32, i16, st.binary(max_size=80))


def header(*, total: int = 20, header_size: int = HEADER_SIZE, magic: int = MAGIC) -> bytes:
    """Build the first 24 bytes of a frame whose other fields are zero."""
    return (
        total.to_bytes(4, "big", signed=True)
        + header_size.to_bytes(2, "big", signed=True)
        + magic.to_bytes(4, "big")
        + bytes(14)
    )


def decode_whole(data: bytes) -> list[Frame]:
    decoder = FrameDecoder(frame_bytes_max=LIMIT)
    decoder.feed(data)
    return decoder.frames()


@pytest.mark.parametrize("name", VECTORS)
def test_a_vector_is_decoded_and_encoded_again_to_its_bytes(name: str) -> None:
    text, expected = VECTORS[name]
    data = bytes.fromhex(text)
    [frame] = decode_whole(data)
    assert (
        frame.code,
        frame.version,
        frame.opaque,
        frame.flag,
        frame.request_code,
        len(frame.body),
    ) == expected
    assert frame.body == data[FRAME_OVERHEAD:]
    assert encode_frame(frame) == data


def test_a_request_is_encoded_as_the_vector() -> None:
    expected = bytes.fromhex(VECTORS["a delay message"][0])
    assert encode_request(code=10, opaque=7, body=ITEM) == expected


@pytest.mark.parametrize(
    "parts",
    [
        (b"\x81\xa6reason",),
        (b"\x81", b"", memoryview(b"?\xa6rea")[1:], bytearray(b"son")),
    ],
    ids=["one part", "four parts"],
)
def test_a_one_way_request_is_encoded_as_the_vector(parts: tuple[bytes, ...]) -> None:
    data = encode_one_way(1023, *parts)
    assert data == bytes.fromhex(VECTORS["a farewell that nobody answers"][0])
    [frame] = decode_whole(data)
    assert (frame.is_one_way, frame.is_response) == (True, False)


def test_a_one_way_request_without_a_body_is_its_header() -> None:
    assert decode_whole(encode_one_way(10)) == [Frame(10, 9, 0, 2, 10, b"")]


@pytest.mark.parametrize("code", [2**15, -(2**15) - 1])
def test_a_one_way_request_of_a_code_that_does_not_fit_is_the_callers_error(code: int) -> None:
    with pytest.raises(LocalProtocolError, match="a header field does not fit"):
        encode_one_way(code)


def test_a_request_of_another_version_differs_in_the_version_only() -> None:
    [nine] = decode_whole(encode_request(code=10, opaque=7, body=ITEM))
    [seven] = decode_whole(encode_request(code=10, opaque=7, body=ITEM, version=7))
    assert (nine.version, seven.version) == (9, 7)
    assert nine == Frame(10, 9, 7, 0, 10, ITEM)
    assert seven == Frame(10, 7, 7, 0, 10, ITEM)


def test_a_response_is_encoded_as_the_vector() -> None:
    request = Frame(10, 9, 7, 0, 10, ITEM)
    assert encode_response(request, code=0) == bytes.fromhex(VECTORS["its success"][0])


@given(any_frame, i16, st.binary(max_size=40))
def test_a_response_echoes_opaque_and_version_and_names_the_request(
    request: Frame, code: int, body: bytes
) -> None:
    [answer] = decode_whole(encode_response(request, code=code, body=body))
    assert answer == Frame(code, request.version, request.opaque, 1, request.code, body)
    assert answer.is_response
    assert not answer.is_one_way


def test_the_response_to_a_request_built_by_hand_carries_its_code_not_minus_one() -> None:
    [request] = decode_whole(bytes.fromhex(VECTORS["a broker asks for its group"][0]))
    [answer] = decode_whole(encode_response(request, code=0))
    assert request.request_code == -1
    assert answer.request_code == 40


@pytest.mark.parametrize(
    ("flag", "is_response", "is_one_way"),
    [(0, False, False), (1, True, False), (2, False, True), (3, True, True), (-4, False, False)],
)
def test_the_flag_says_response_and_one_way(
    flag: int,
    is_response: bool,
    is_one_way: bool,
) -> None:
    frame = Frame(10, 9, 0, flag, 10, b"")
    assert frame.is_response is is_response
    assert frame.is_one_way is is_one_way


@pytest.mark.parametrize(
    "frame",
    [
        Frame(40_000, 9, 0, 0, 10, b""),
        Frame(10, -40_000, 0, 0, 10, b""),
        Frame(10, 9, 2**31, 0, 10, b""),
        Frame(10, 9, 0, 2**31, 10, b""),
        Frame(10, 9, 0, 0, 2**15, b""),
    ],
)
def test_a_field_that_does_not_fit_is_the_callers_error(frame: Frame) -> None:
    with pytest.raises(LocalProtocolError):
        encode_frame(frame)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_what_was_fed_may_be_reused_by_the_caller(kind: type) -> None:
    data = bytearray(encode_request(code=10, opaque=1, body=b"body") * 2)
    decoder = FrameDecoder(frame_bytes_max=LIMIT)
    decoder.feed(kind(data[:40]))
    decoder.feed(kind(data[40:]))
    frames = decoder.frames()
    data[:] = bytes(len(data))
    assert [frame.body for frame in frames] == [b"body", b"body"]
    assert all(type(frame.body) is bytes for frame in frames)


def test_the_length_is_refused_at_its_last_byte_before_anything_else_arrives() -> None:
    for total in (-1, -(2**31), 0, 19, LIMIT - 3, 2**31 - 1):
        decoder = FrameDecoder(frame_bytes_max=LIMIT)
        decoder.feed(header(total=total)[:3])
        assert decoder.frames() == []
        decoder.feed(header(total=total)[3:4])
        with pytest.raises(FrameSizeError) as refused:
            decoder.frames()
        assert refused.value.total == total
        assert refused.value.frame_bytes_max == LIMIT


def test_a_frame_of_exactly_the_limit_is_taken() -> None:
    data = encode_request(code=10, opaque=1, body=bytes(LIMIT - FRAME_OVERHEAD))
    assert len(data) == LIMIT
    assert len(decode_whole(data)) == 1
    with pytest.raises(FrameSizeError):
        decode_whole(encode_request(code=10, opaque=1, body=bytes(LIMIT - FRAME_OVERHEAD + 1)))


@pytest.mark.parametrize(("header_size", "seen"), [(17, 6), (19, 6), (0, 6), (-18, 5), (256, 5)])
def test_another_header_size_is_refused_at_the_byte_that_shows_it(
    header_size: int, seen: int
) -> None:
    data = header(header_size=header_size)
    decoder = FrameDecoder(frame_bytes_max=LIMIT)
    decoder.feed(data[: seen - 1])
    assert decoder.frames() == []
    decoder.feed(data[seen - 1 : seen])
    with pytest.raises(BadHeaderSizeError) as refused:
        decoder.frames()
    assert refused.value.header == data[4:seen]


@pytest.mark.parametrize(
    ("magic", "seen"), [(0x00000000, 7), (0xDE010ADE, 8), (0xDEC10BDE, 9), (0xDEC10ADF, 10)]
)
def test_another_magic_is_refused_at_the_byte_that_shows_it(magic: int, seen: int) -> None:
    data = header(magic=magic)
    decoder = FrameDecoder(frame_bytes_max=LIMIT)
    decoder.feed(data[: seen - 1])
    assert decoder.frames() == []
    decoder.feed(data[seen - 1 : seen])
    with pytest.raises(BadMagicError) as refused:
        decoder.frames()
    assert refused.value.magic == data[6:seen]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (header(total=19), FrameSizeError),
        (header(total=LIMIT), FrameSizeError),
        (encode_request(code=10, opaque=2, body=bytes(LIMIT)), FrameSizeError),
        (header(header_size=20), BadHeaderSizeError),
        (header(magic=0xDEC10ADD), BadMagicError),
        (b"GET / HTTP/1.1\r\nHost: delay\r\n\r\n", FrameSizeError),
    ],
)
def test_frames_before_the_bad_bytes_are_delivered_and_then_the_error_is_raised_for_good(
    bad: bytes, error: type[RemoteProtocolError]
) -> None:
    good = Frame(10, 9, 1, 0, 10, b"good")
    for visible in range(10, len(bad) + 1):
        decoder = FrameDecoder(frame_bytes_max=LIMIT)
        decoder.feed(encode_frame(good) * 3 + bad[:visible])
        assert decoder.frames() == [good] * 3
        assert isinstance(decoder.fault, error)
        for _ in range(2):
            with pytest.raises(error):
                decoder.frames()
            with pytest.raises(error):
                decoder.finish()
            decoder.feed(encode_frame(good))
            assert decoder.buffered == 0
