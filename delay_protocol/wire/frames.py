"""Frames: the only thing that ever crosses a socket.

    0          4             6            10       12        14       18     22             24
    +----------+-------------+------------+--------+---------+--------+------+--------------+- - -+
    | total    | header size | magic      | code   | version | opaque | flag | request code | body|
    | i32      | i16 = 18    | 0xDEC10ADE | i16    | i16     | i32    | i32  | i16          |     |
    +----------+-------------+------------+--------+---------+--------+------+--------------+- - -+

All integers are big-endian and signed. `total` counts the bytes after itself: 20 and the body. A
peer that sends an impossible length, another header size or another magic is not speaking our
protocol; the decoder raises rather than searching for the next frame.
"""

import struct
from typing import Final

import msgspec

from delay_protocol.basics.errors import (
    BadHeaderSizeError,
    BadMagicError,
    FrameSizeError,
    LocalProtocolError,
    RemoteProtocolError,
    TruncatedFrameError,
)

MAGIC: Final = 0xDEC10ADE
HEADER_SIZE: Final = 18
"""What the header size field says: magic to request code."""
FRAME_OVERHEAD: Final = 24
"""Bytes of a frame with an empty body."""
VERSION: Final = 9
"""The version QMQ's own clients put into their requests."""
FLAG_RESPONSE: Final = 1
FLAG_ONE_WAY: Final = 2

_HEADER = struct.Struct(">ihIhhiih")
assert _HEADER.size == FRAME_OVERHEAD
_TOTAL = struct.Struct(">i")
_TOTAL_MIN: Final = HEADER_SIZE + 2
_HEADER_SIZE_BYTES: Final = HEADER_SIZE.to_bytes(2, "big")
_MAGIC_BYTES: Final = MAGIC.to_bytes(4, "big")


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One request or response, with its body still encoded. All numbers are signed.

    A msgspec.Struct because one is made for every request: 0.07 us, a frozen dataclass takes 0.7.
    """

    code: int
    """Of a request the command code, of a response the response code."""
    version: int
    opaque: int
    """Chosen by the requester and echoed, to tell answers apart."""
    flag: int
    request_code: int
    """In a response the command code it answers; in a request the same as `code`, or -1."""
    body: bytes

    @property
    def is_response(self) -> bool:
        """Whether this frame answers a request."""
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_one_way(self) -> bool:
        """Whether the requester wants no answer."""
        return self.flag & FLAG_ONE_WAY != 0


def encode_frame(frame: Frame) -> bytes:
    """Return the bytes of one frame."""
    return _with_header(
        frame.body, frame.code, frame.version, frame.opaque, frame.flag, frame.request_code
    )


def _with_header(body: bytes | memoryview, *fields: int) -> bytes:
    try:
        header = _HEADER.pack(_TOTAL_MIN + len(body), HEADER_SIZE, MAGIC, *fields)
    except struct.error as error:
        raise LocalProtocolError(f"a header field does not fit: {error}") from error
    return header + body


def encode_request(
    *, code: int, opaque: int, body: bytes | memoryview, version: int = VERSION
) -> bytes:
    """Return the bytes of a request; its request code repeats the code."""
    return _with_header(body, code, version, opaque, 0, code)


def encode_one_way(code: int, *parts: bytes | memoryview) -> bytes:
    """Return the bytes of a request that wants no answer; its body is the parts together."""
    size = _TOTAL_MIN + sum(map(len, parts))
    try:
        head = _HEADER.pack(size, HEADER_SIZE, MAGIC, code, VERSION, 0, FLAG_ONE_WAY, code)
    except struct.error as error:
        raise LocalProtocolError(f"a header field does not fit: {error}") from error
    return b"".join((head, *parts))


def encode_response(request: Frame, *, code: int, body: bytes = b"") -> bytes:
    """Return the bytes of the answer to a request: its opaque and version are echoed."""
    return encode_frame(
        Frame(code, request.version, request.opaque, FLAG_RESPONSE, request.code, body)
    )


class FrameDecoder:
    """Turn a stream of bytes into frames.

    Feed it whatever the socket returned, then take frames(): all that are complete.

    The first bytes that no frame can have end the stream for good: frames complete before them are
    still returned, then every call raises the same error and what is fed is dropped. `fault` shows
    the error before it is raised.
    """

    def __init__(self, *, frame_bytes_max: int) -> None:
        """Refuse frames of more than `frame_bytes_max` bytes, counted from the length field on."""
        self._frame_bytes_max = frame_bytes_max
        self._total_max = frame_bytes_max - 4
        self._buffer = bytearray()
        self._fault: RemoteProtocolError | None = None

    @property
    def buffered(self) -> int:
        """How many bytes are held."""
        return len(self._buffer)

    @property
    def missing(self) -> int:
        """How many bytes the first frame needs at least to be complete; 0 if it is.

        Before its head is there that is the rest of the head.
        """
        if len(self._buffer) < FRAME_OVERHEAD:
            return FRAME_OVERHEAD - len(self._buffer)
        return max(4 + int(_TOTAL.unpack_from(self._buffer)[0]) - len(self._buffer), 0)

    @property
    def fault(self) -> RemoteProtocolError | None:
        """What ended the stream, once the decoder has seen it; the next call raises it."""
        return self._fault

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Store bytes that arrived; parsing happens when frames are taken."""
        if self._fault is None:
            self._buffer += data

    def frames(self) -> list[Frame]:
        """Return all complete frames, oldest first."""
        # Bytes are copied below only once a whole frame is there. Without this a large frame that
        # arrives in many pieces would be copied with each of them.
        if not self._has_frame():
            return []
        data = bytes(self._buffer)
        end = len(data)
        total_max = self._total_max
        unpack = _HEADER.unpack_from
        frames: list[Frame] = []
        append = frames.append
        start = 0
        while end - start >= FRAME_OVERHEAD:
            total, header_size, magic, code, version, opaque, flag, request_code = unpack(
                data, start
            )
            after = start + 4 + total
            # Whether the rest is a part of a frame or no frame at all is asked once, below.
            if (
                after > end
                or magic != MAGIC
                or header_size != HEADER_SIZE
                or not _TOTAL_MIN <= total <= total_max
            ):
                break
            append(
                Frame(
                    code, version, opaque, flag, request_code, data[start + FRAME_OVERHEAD : after]
                )
            )
            start = after
        del self._buffer[:start]
        self._examine(data[start : start + FRAME_OVERHEAD])
        return frames

    def finish(self) -> None:
        """Accept that the peer closed its side, unless it did so in mid-frame."""
        if self._fault is not None:
            raise self._fault
        if self._buffer:
            raise TruncatedFrameError(len(self._buffer))

    def _has_frame(self) -> bool:
        """Return True if the first frame is complete; raise what is wrong with it."""
        if self._fault is None:
            self._examine(bytes(self._buffer[:FRAME_OVERHEAD]))
        if self._fault is not None:
            raise self._fault
        return not self.missing

    def _examine(self, head: bytes) -> None:
        """Note what is wrong with the first bytes of a frame, however few of them are there."""
        self._fault = self._fault_of(head)
        if self._fault is not None:
            self._buffer.clear()

    def _fault_of(self, head: bytes) -> RemoteProtocolError | None:
        if len(head) >= 4:
            (total,) = _TOTAL.unpack_from(head)
            if not _TOTAL_MIN <= total <= self._total_max:
                return FrameSizeError(total=total, frame_bytes_max=self._frame_bytes_max)
        if not _HEADER_SIZE_BYTES.startswith(head[4:6]):
            return BadHeaderSizeError(head[4:6])
        if not _MAGIC_BYTES.startswith(head[6:10]):
            return BadMagicError(head[6:10])
        return None
