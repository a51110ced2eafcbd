"""A meta server in a simulated network: the port that tells where it listens, and the listener."""

from collections.abc import Callable

import trio

from delay_protocol.basics.codes import CommandCode
from delay_protocol.wire.frames import Frame, FrameDecoder, encode_response
from tests.simulation.network import NodeNetwork

HTTP, TCP = ("127.0.0.1", 8080), ("127.0.0.1", 20880)


class MetaEnd:
    """Notes what it is asked; `answer` returns the frame of an answer, or None for silence."""

    def __init__(self, node: NodeNetwork, answer: Callable[[Frame], bytes | None]) -> None:
        self.frames: list[Frame] = []
        self.streams: list[trio.abc.Stream] = []
        """Of all connections."""
        self.answer = answer
        self._node = node

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be there until cancelled."""
        http, tcp = await self._node.listen(*HTTP), await self._node.listen(*TCP)
        async with http, tcp, trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_where, http)
            task_status.started()
            while True:
                nursery.start_soon(self._converse, await tcp.accept())

    async def _tell_where(self, listener: trio.abc.Listener[trio.abc.Stream]) -> None:
        while True:
            async with await listener.accept() as stream:
                await stream.receive_some(4096)
                await stream.send_all(
                    b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n127.0.0.1:20880"
                )

    async def _converse(self, stream: trio.abc.Stream) -> None:
        self.streams.append(stream)
        decoder = FrameDecoder(frame_bytes_max=1 << 20)
        try:
            while data := await stream.receive_some(1 << 16):
                decoder.feed(data)
                for frame in decoder.frames():
                    if frame.code == CommandCode.HEARTBEAT:
                        await stream.send_all(encode_response(frame, code=0))
                        continue
                    self.frames.append(frame)
                    answer = self.answer(frame)
                    if answer is not None:
                        await stream.send_all(answer)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await trio.aclose_forcefully(stream)
