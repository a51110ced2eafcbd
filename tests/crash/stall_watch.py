"""How long this machine made anybody wait: what a bound on the server's own time must allow for.

Facts are to be durable 20 ms after a broker's answer. On a busy machine a process waits for its
turn, and an fsync for the disk, so a fixed bound would be wrong on one machine or worthless on
another. A thread that sleeps and fsyncs beside the server measures both.
"""

import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_NAP_S: Final = 0.02
_ALLOWED_S: Final = 0.25
"""For facts to become durable on an idle machine: 20 ms, and a wide margin."""
_WAITS: Final = 6
"""How many times somebody waits on the way from a delivery to its durable fact: the loop and its
thread for their turn, and the fact for the commit under way, for a new file of the message_log and
its name, and for its own fsync."""


class StallWatch:
    """Measures until it is left."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._worst_s = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join()
        os.close(self._file)

    def take_worst_s(self) -> float:
        """Return the longest wait so far; measures anew from now on."""
        worst_s, self._worst_s = self._worst_s, 0.0
        return worst_s

    def take_window_s(self, slowest_sync_s: float = 0.0) -> float:
        """Return for how long before a death facts may be missing; measures anew from now on.

        `slowest_sync_s` is what the server itself waited for the disk, where that is known.
        """
        return _ALLOWED_S + _WAITS * max(self.take_worst_s(), slowest_sync_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            time.sleep(_NAP_S)
            # A file that grows, as the server's do: its fsync waits for the file system's journal.
            os.write(self._file, b"x" * 512)
            os.fdatasync(self._file)
            self._worst_s = max(self._worst_s, time.monotonic() - began - _NAP_S)
