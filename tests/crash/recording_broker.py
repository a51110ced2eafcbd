"""A broker process that writes down each delivery before it answers.

`python -m tests.crash.recording_broker CLOCK RECORD` prints its port and runs until its standard
input ends. The record has a line per delivery: life, monotonic ns, wall ms, due ms, CRC-32 of the
item's bytes, whether its own CRC is right, message id. A write call puts each line out of reach of
anything that happens to this process; nobody cuts this one's power.
"""

import os
import socket
import sys
import threading
import time
import zlib
from pathlib import Path

from delay_protocol.basics.codes import CommandCode
from delay_protocol.messages.items import ItemScan, scan_items
from delay_protocol.wire.frames import Frame, FrameDecoder, encode_response
from tests.crash.life_clock import LifeClock

_FRAME_BYTES_MAX = 1 << 26
_UNSUPPORTED = 3


class Recorder:
    """Answers one connection after another, each by the clock of the life that made it."""

    def __init__(self, clock: Path, record: Path) -> None:
        self._clock = clock
        self._record = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def serve(self, connection: socket.socket) -> None:
        """Answer one connection until it ends."""
        clock = LifeClock.load(self._clock)
        decoder = FrameDecoder(frame_bytes_max=_FRAME_BYTES_MAX)
        try:
            with connection:
                while data := connection.recv(1 << 20):
                    decoder.feed(data)
                    for frame in decoder.frames():
                        connection.sendall(self._take(frame, clock))
        except OSError:
            # The server was killed.
            return

    def _take(self, frame: Frame, clock: LifeClock) -> bytes:
        if frame.code != CommandCode.SEND_MESSAGE:
            return encode_response(frame, code=_UNSUPPORTED)
        at_ns = time.monotonic_ns()
        scan = ItemScan()
        scan_items(frame.body, scan)
        lines = [
            f"{clock.life} {at_ns} {clock.at(at_ns)} {due_ms} "
            f"{zlib.crc32(frame.body[start : start + size])} {int(crc_ok)} {message_id.decode()}\n"
            for message_id, due_ms, start, size, crc_ok in zip(
                scan.ids, scan.due_ms, scan.starts, scan.sizes, scan.crc_ok, strict=True
            )
        ]
        os.write(self._record, "".join(lines).encode())
        return encode_response(frame, code=0)


def run(clock: Path, record: Path) -> None:
    """Serve until standard input ends."""
    recorder = Recorder(clock, record)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        threading.Thread(target=_accept, args=(listener, recorder), daemon=True).start()
        sys.stdin.read()


def _accept(listener: socket.socket, recorder: Recorder) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=recorder.serve, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]))
