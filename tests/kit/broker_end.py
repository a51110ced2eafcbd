"""The end of a connection of a broker that a test runs."""

from collections.abc import Iterator

from bridges.broker_end import Request
from delay_protocol.wire.frames import FrameDecoder

FRAME_BYTES_MAX = 1 << 26
"""Above every request of a delay server: 64 MiB."""


class BrokerEnd:
    """Cuts what comes into requests."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder(frame_bytes_max=FRAME_BYTES_MAX)

    def receive(self, data: bytes | bytearray) -> Iterator[Request]:
        """Yield the requests that these bytes complete; RemoteProtocolError for no frame."""
        self._decoder.feed(data)
        return map(Request, self._decoder.frames())
