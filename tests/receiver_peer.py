"""A receiver as its server sees it: it attaches, says what it takes, and settles as it is told."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import trio

from delay_protocol.basics.codes import CommandCode
from delay_protocol.messages.items import Item, decode_item, encode_item
from delay_protocol.receivers.attaching import (
    CREDIT_BYTES_MIN,
    UNSETTLED_TRIES,
    Attach,
    Attached,
    AttachReply,
    Flow,
    decode_attach_reply,
    encode_attach,
    encode_flow,
)
from delay_protocol.receivers.delivering import (
    Delivered,
    Settled,
    Verdict,
    decode_deliver,
    decode_settle_reply,
    encode_settle,
)
from delay_protocol.wire.frames import Frame, FrameDecoder, encode_one_way, encode_request


class ReceiverPeer:
    """One connection of a receiver. `run` has to run."""

    def __init__(self, stream: trio.abc.Stream, now_ms: Callable[[], int]) -> None:
        self.stream = stream
        self._now_ms = now_ms
        self._decoder = FrameDecoder(frame_bytes_max=1 << 26)
        self._answers: dict[int, Frame] = {}
        self._opaque = 0
        self._came = trio.Event()
        self._sending = trio.Lock()
        self.delivered: list[tuple[int, Delivered]] = []
        """All that came, with the wall clock then."""
        self.on_delivered: Callable[[Delivered], object] = lambda _: None
        self.is_closed = False
        """Whether the server has closed the connection."""

    @property
    def ids(self) -> list[str]:
        """The message ids of all that came, in order."""
        return [decode_item(one.item).message_id for _, one in self.delivered]

    @property
    def sequences(self) -> list[int]:
        """The sequences of all that came, in order."""
        return [one.sequence for _, one in self.delivered]

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:  # noqa: ANN401
        """Take what the server sends, until it closes."""
        task_status.started()
        while True:
            try:
                data = await self.stream.receive_some(1 << 20)
            except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
                data = b""
            if not data:
                self.is_closed = True
                self._came.set()
                return
            self._decoder.feed(data)
            for frame in self._decoder.frames():
                if frame.is_response:
                    self._answers[frame.opaque] = frame
                else:
                    assert frame.code == CommandCode.DELIVER
                    for one in decode_deliver(frame.body):
                        self.delivered.append((self._now_ms(), one))
                        self.on_delivered(one)
            self._came.set()
            self._came = trio.Event()

    async def ask(self, code: int, body: bytes) -> Frame:
        """Send a request and return its answer; raise BrokenResourceError if none can come."""
        self._opaque += 1
        opaque = self._opaque
        await self._send(encode_request(code=code, opaque=opaque, body=body))
        while opaque not in self._answers:
            if self.is_closed:
                raise trio.BrokenResourceError("the server closed the connection")
            await self._came.wait()
        return self._answers.pop(opaque)

    async def _send(self, data: bytes) -> None:
        async with self._sending:
            await self.stream.send_all(data)

    async def attach(
        self,
        name: str,
        *,
        instance: bytes = b"i" * 16,
        patterns: Sequence[str] = (),
        weight: int = 100,
        unsettled_tries: int = UNSETTLED_TRIES,
        token: str = "",
    ) -> AttachReply:
        """Attach."""
        attach = Attach(
            name=name,
            instance=instance,
            patterns=tuple(patterns),
            weight=weight,
            unsettled_tries=unsettled_tries,
            token=token,
        )
        frame = await self.ask(CommandCode.ATTACH, encode_attach(attach))
        assert frame.code == 0, frame
        return decode_attach_reply(frame.body)

    async def flow(self, items: int, *, size: int = CREDIT_BYTES_MIN, reason: str = "") -> None:
        """Say what it takes."""
        body = encode_flow(Flow(items=items, bytes=size, reason=reason))
        await self._send(encode_one_way(CommandCode.FLOW, body))

    async def begin(
        self,
        name: str,
        items: int = 100,
        *,
        patterns: Sequence[str] = (),
        unsettled_tries: int = UNSETTLED_TRIES,
    ) -> Attached:
        """Attach, and take so many messages at a time."""
        reply = await self.attach(name, patterns=patterns, unsettled_tries=unsettled_tries)
        assert isinstance(reply, Attached), reply
        await self.flow(items)
        return reply

    async def settle(self, settled: Iterable[Settled]) -> int:
        """Settle; return how many were unknown."""
        frame = await self.ask(CommandCode.SETTLE, encode_settle(settled))
        assert frame.code == 0, (frame.code, frame.body)
        return decode_settle_reply(frame.body)[0]

    async def done(self, sequences: Sequence[int]) -> int:
        """Be done with messages; return how many were unknown."""
        return await self.settle(Settled(one, Verdict.DONE) for one in sequences)


def later_item(item: bytes, due_ms: int, **changes: Any) -> bytes:  # noqa: ANN401
    """Return an item as a receiver gives it back with a LATER."""
    before = decode_item(item)
    times = int(before.attributes.get("qmq_times", "0")) + 1
    fields = {
        "flag": before.flag,
        "create_ms": before.create_ms,
        "due_ms": due_ms,
        "subject": before.subject,
        "message_id": before.message_id,
        "tags": before.tags,
        "attributes": {**before.attributes, "qmq_times": str(times)},
        **changes,
    }
    return encode_item(Item(**fields))
