"""Stands between programs and a meta server, and keeps what they ask byte for byte."""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

from delay_protocol.wire.frames import Frame, FrameDecoder


class RecordingProxy:
    """Passes bytes on between connections and the meta server, and keeps the requests."""

    def __init__(self, to: str) -> None:
        host, port = to.split(":")
        self.frames: list[Frame] = []
        self._to = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        # close() alone would leave the threads in accept() and recv().
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                asking, _ = self._listener.accept()
                answering = socket.create_connection(self._to, timeout=10)
                answering.settimeout(None)
                self._open += (asking, answering)
                for source, target, decoder in (
                    (asking, answering, FrameDecoder(frame_bytes_max=1 << 20)),
                    (answering, asking, None),
                ):
                    thread = threading.Thread(
                        target=self._pass_on, args=(source, target, decoder), daemon=True
                    )
                    self._threads.append(thread)
                    thread.start()

    def _pass_on(
        self, source: socket.socket, target: socket.socket, decoder: FrameDecoder | None
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if decoder is not None:
                    decoder.feed(data)
                    self.frames += decoder.frames()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
