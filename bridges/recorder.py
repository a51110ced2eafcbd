"""A file of what a loopback broker received, for programs that keep account.

One JSON object a line: message_id, subject, due_ms and received_ms.
The lines of a message are in the file before its answer is sent, so whoever knows that a delivery
was answered finds it there.
"""

from pathlib import Path

import msgspec


class Delivery(msgspec.Struct, gc=False):
    """One received message."""

    message_id: str
    subject: str
    due_ms: int
    """When it was due: the item's own time."""
    received_ms: int
    """When it came, by the broker's wall clock."""


class Recorder:
    """Appends deliveries to a file.

    The file is opened here and not through a Disk: this is a test's notebook, nobody's data, and
    never part of a simulation.
    """

    def __init__(self, path: Path) -> None:
        """Open `path` for appending; raises OSError."""
        # Unbuffered: what was written is there for others to read.
        self._file = path.open("ab", buffering=0)
        self._encoder = msgspec.json.Encoder()

    def record(self, deliveries: list[Delivery]) -> None:
        """Write one line for each; raises OSError, and then nothing should be answered."""
        view = memoryview(self._encoder.encode_lines(deliveries))
        while view:
            view = view[self._file.write(view) :]

    def close(self) -> None:
        """Close the file."""
        self._file.close()
