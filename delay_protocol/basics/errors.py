"""What can go wrong between two speakers of the protocol, drawn by blame and remedy.

* ProtocolError
    * LocalProtocolError: we were asked to encode what the wire cannot carry; a bug of the caller.
    * RemoteProtocolError: the peer does not speak QMQ frames; close the connection.
        * FrameSizeError: a frame's length is impossible or beyond the limit.
        * BadHeaderSizeError: a frame's header is not of the only size in use.
        * BadMagicError: a frame does not carry the magic number.
        * TruncatedFrameError: the peer closed its side in mid-frame.
    * BodyError: the frame is right but its body is not; answer or log it, keep the connection.
        * IndivisibleBodyError: a SEND_MESSAGE body cannot be divided into items.
            * TooManyItemsError: it holds more than the reader is willing to divide.
        * MalformedItemError: one item's bytes do not follow the layout.
            * ItemCrcError: one item's CRC does not match its bytes.
        * MalformedReplyError: the answer to a SEND_MESSAGE cannot be read.
        * MalformedHelloError: the body of a HELLO or of its answer cannot be read.
        * MalformedMetaError: what was asked of a meta server, or its answer, cannot be read.
"""


class ProtocolError(Exception):
    """The root: something about the bytes of the protocol is wrong."""


class LocalProtocolError(ProtocolError):
    """The caller asked for bytes that no peer could read."""


class RemoteProtocolError(ProtocolError):
    """The peer's stream is not a stream of QMQ frames; there is no way to find the next frame."""


class FrameSizeError(RemoteProtocolError):
    """A frame states a length that no frame has, or one beyond our limit."""

    def __init__(self, *, total: int, frame_bytes_max: int) -> None:
        super().__init__(f"frame length field {total}, limit {frame_bytes_max} bytes for the frame")
        self.total = total
        """The length field as received: the bytes that follow it."""
        self.frame_bytes_max = frame_bytes_max


class BadHeaderSizeError(RemoteProtocolError):
    """A frame states a header size other than 18."""

    def __init__(self, header: bytes) -> None:
        super().__init__(f"header size 0x{header.hex()}, expected 0x0012")
        self.header = header
        """The one or two bytes of the header size that were seen."""


class BadMagicError(RemoteProtocolError):
    """A frame does not carry the magic number."""

    def __init__(self, magic: bytes) -> None:
        super().__init__(f"magic 0x{magic.hex()}, expected 0xdec10ade")
        self.magic = magic
        """The one to four bytes of the magic number that were seen."""


class TruncatedFrameError(RemoteProtocolError):
    """The peer closed its side in the middle of a frame."""

    def __init__(self, buffered: int) -> None:
        super().__init__(f"connection closed {buffered} bytes into a frame")
        self.buffered = buffered


class BodyError(ProtocolError):
    """The body of a good frame cannot be read."""


class IndivisibleBodyError(BodyError):
    """The body of a SEND_MESSAGE cannot be divided into items."""

    def __init__(self, *, offset: int, reason: str) -> None:
        super().__init__(f"item at offset {offset} of the body: {reason}")
        self.offset = offset
        """Where the item that cannot be delimited begins in the body."""
        self.reason = reason


class TooManyItemsError(IndivisibleBodyError):
    """The body of a SEND_MESSAGE holds more items, or tags, than the reader looks at.

    `offset` is where the first of them begins that was too much.
    """


class MalformedItemError(BodyError):
    """The bytes of one item do not follow the layout."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ItemCrcError(MalformedItemError):
    """The CRC that an item carries is not that of its bytes."""

    def __init__(self, *, stated: int, computed: int) -> None:
        super().__init__(f"item carries crc {stated:#010x}, its bytes have {computed:#010x}")
        self.stated = stated
        self.computed = computed


class MalformedReplyError(BodyError):
    """The body of an answer to SEND_MESSAGE does not follow the layout."""

    def __init__(self, *, offset: int, reason: str) -> None:
        super().__init__(f"result at offset {offset} of the answer: {reason}")
        self.offset = offset
        self.reason = reason


class MalformedHelloError(BodyError):
    """The body of a HELLO, or of its answer, does not follow the layout."""


class MalformedMetaError(BodyError):
    """The body of a request to a meta server, or of its answer, does not follow the layout."""
