"""The index entry of a message that is due soon: all the memory one message takes in the wheel."""

import numpy as np
import numpy.typing as npt

ENTRY = np.dtype(
    [
        ("sequence", "<i8"),
        ("due_ms", "<i8"),
        ("position", "<i8"),
        ("size", "<u4"),
        ("minute", "<u4"),
        ("subject", "<u4"),
    ]
)
"""One entry, 36 bytes.

sequence: of the message's row; due_ms: as the producer asked, wall ms; position, size: the item's
bytes in its minute segment; minute: the filed minute (minutes since the epoch), which names the
segment; subject: an id of the process's SubjectTable.
"""

Entries = npt.NDArray[np.void]
"""A one-dimensional array of ENTRY."""


def no_entries() -> Entries:
    """Return an empty array of entries."""
    return np.empty(0, ENTRY)


def make_entries(
    *,
    sequence: npt.NDArray[np.int64],
    due_ms: npt.NDArray[np.int64],
    position: npt.NDArray[np.int64],
    size: npt.NDArray[np.uint32],
    minute: int,
    subject: npt.NDArray[np.uint32],
) -> Entries:
    """Return the entries of rows of one minute segment; the arrays have one length."""
    entries = np.empty(len(sequence), ENTRY)
    entries["sequence"] = sequence
    entries["due_ms"] = due_ms
    entries["position"] = position
    entries["size"] = size
    entries["minute"] = minute
    entries["subject"] = subject
    return entries


class SubjectTable:
    """Numbers for subject names, alike for as long as the process lives.

    Invariant: `names[ids[name]] == name`. Grows only; a subject costs its name and about 200 bytes.
    """

    def __init__(self) -> None:
        self.ids: dict[bytes, int] = {}
        self.names: list[bytes] = []

    def number(self, name: bytes) -> int:
        """Return the number of a subject, giving it the next one if it is new."""
        known = self.ids.get(name)
        if known is None:
            known = self.ids[name] = len(self.names)
            self.names.append(name)
        return known

    def numbers(self, names: list[bytes]) -> npt.NDArray[np.uint32]:
        """Return the numbers of several subjects (a batch's own table)."""
        return np.fromiter((self.number(name) for name in names), np.uint32, len(names))
