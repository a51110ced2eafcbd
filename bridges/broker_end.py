"""What every broker makes of what it is sent, whatever carries the bytes.

    Frame --> Request -- Request.answer() --> bytes

The loopback broker, the brokers of tests and those of benchmarks stand on it. What they take, what
they refuse and when they answer is theirs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from delay_protocol.basics.codes import CommandCode, ResponseCode
from delay_protocol.messages.items import ItemScan, scan_items
from delay_protocol.messages.send_message import encode_send_reply
from delay_protocol.wire.frames import Frame, encode_response

Refusal = tuple[bytes, int, str]
"""Message id, item code and remark of an item that is not taken."""


@dataclass(frozen=True)
class Request:
    """A request of a delay server, and what its answer looks like."""

    frame: Frame

    @property
    def has_items(self) -> bool:
        """Whether it is a SEND_MESSAGE; else it is a HELLO, a HEARTBEAT or a command unheard of."""
        return self.frame.code == CommandCode.SEND_MESSAGE

    @cached_property
    def scan(self) -> ItemScan:
        """The items of a SEND_MESSAGE. Raises IndivisibleBodyError if its body is not items."""
        scan = ItemScan()
        scan_items(self.frame.body, scan)
        return scan

    @property
    def ids(self) -> list[bytes]:
        """The message id of each item."""
        return self.scan.ids

    @property
    def items(self) -> list[bytes]:
        """The bytes of each item."""
        return [self.item(index) for index in range(len(self.scan))]

    def item(self, index: int) -> bytes:
        """Return the bytes of one item, its CRC included."""
        start = self.scan.starts[index]
        return self.frame.body[start : start + self.scan.sizes[index]]

    def answer(
        self,
        refusals: Iterable[Refusal] = (),
        *,
        code: int | None = None,
        body: bytes | None = None,
    ) -> bytes:
        """Return the frame that answers it: items that are not refused are taken.

        Without a code it is SUCCESS for items and UNKNOWN_CODE for what brokers of QMQ do not know,
        a HELLO among it. `body` stands in place of the refusals.
        """
        if code is None:
            code = ResponseCode.SUCCESS if self.has_items else ResponseCode.UNKNOWN_CODE
        if body is None:
            body = encode_send_reply(refusals)
        return encode_response(self.frame, code=code, body=body)
