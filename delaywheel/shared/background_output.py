"""Standard output and error of a server, written by threads of their own.

A pipe that nobody reads takes 64 KiB; whoever writes more to it waits for its reader. Here only the
thread of that stream waits. What the process writes meanwhile is kept up to a limit.
"""

import atexit
import contextlib
import io
import os
import sys
import threading
from collections import deque
from typing import Final, TextIO, cast

import structlog

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)

_KEPT_BYTES_MAX: Final = 1 << 20
"""Kept for one stream while nobody reads it: some 5,000 events, and next to nothing in memory."""

_EXIT_SECONDS_MAX: Final = 1.0
"""How long the end of the process waits for a stream to take what is kept. It is more than a reader
needs that reads, and less than any deadline for a stop."""


def write_in_background() -> None:
    """Replace sys.stdout and sys.stderr by streams that no writer ever waits for."""
    sys.stdout = cast("TextIO", BackgroundOutput(sys.stdout.fileno()))
    sys.stderr = cast("TextIO", BackgroundOutput(sys.stderr.fileno()))


class BackgroundOutput(io.TextIOBase):
    """A text stream that keeps what is written until a thread has handed it to the system.

    Beyond the limit the oldest texts are dropped: the last words of a process tell why it ended.
    When the rest is written, the log says how many lines are missing. What the system refuses (a
    closed pipe, a full disk) is lost, and ends nobody.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._changed = threading.Condition()
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0
        """Of `kept`, and of the text that the thread writes."""
        self._lines_lost = 0
        threading.Thread(target=self._write_kept, daemon=True).start()
        atexit.register(self._drain)

    def isatty(self) -> bool:
        """Return whether people read it."""
        return os.isatty(self._descriptor)

    def write(self, text: str, /) -> int:
        """Keep a text for the thread, in place of the oldest ones if there is no room."""
        data = text.encode(errors="backslashreplace")
        with self._changed:
            self._kept.append(data)
            self._kept_bytes += len(data)
            while self._kept_bytes > _KEPT_BYTES_MAX and self._kept:
                oldest = self._kept.popleft()
                self._kept_bytes -= len(oldest)
                self._lines_lost += oldest.count(b"\n")
            self._changed.notify_all()
        return len(text)

    def _write_kept(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._kept)
                data = rest = self._kept.popleft()
                # Logged when nothing else is kept: it would be dropped itself.
                lost = 0 if self._kept else self._lines_lost
                self._lines_lost -= lost
            # Not to the stream that was there before: its lock would be held when the process ends.
            with contextlib.suppress(OSError):
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            if lost:
                _log.error("lines of output were dropped", lines=lost, of=self._descriptor)
            with self._changed:
                self._kept_bytes -= len(data)
                self._changed.notify_all()

    def _drain(self) -> None:
        """Wait until all is written, but not for long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._kept_bytes, _EXIT_SECONDS_MAX)
