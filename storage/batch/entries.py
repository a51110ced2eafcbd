"""The index entry of a message that is due soon: all the memory one message takes in the wheel."""

from collections.abc import Iterable
from typing import Final

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
        ("row", "<u4"),
    ]
)
"""One entry, 40 bytes.

sequence: of the message's row; due_ms: as the producer asked, wall ms; position, size: the item's
bytes in its minute segment; minute: the filed minute (minutes since the epoch), which names the
segment; subject: an id of the process's SubjectTable; row: the row's ordinal among those of its
minute (storage/schedule/row_places.py).
"""

Entries = npt.NDArray[np.void]
"""A one-dimensional array of ENTRY."""


def among(wanted: frozenset[int], parts: Iterable[Entries]) -> frozenset[int]:
    """Return those of these sequences that some entries have."""
    found = (wanted.intersection(part["sequence"].tolist()) for part in parts)
    return frozenset().union(*found)


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
    row: npt.NDArray[np.uint32],
) -> Entries:
    """Return the entries of rows of one minute segment; the arrays have one length."""
    entries = np.empty(len(sequence), ENTRY)
    entries["sequence"] = sequence
    entries["due_ms"] = due_ms
    entries["position"] = position
    entries["size"] = size
    entries["minute"] = minute
    entries["subject"] = subject
    entries["row"] = row
    return entries


SUBJECTS_BYTES_MAX: Final = 128 * 1024 * 1024
"""How many bytes of names a table holds before those who fill it have to wait, if nothing else is
said."""

SUBJECT_BYTES: Final = 256
"""What a subject counts beside its name: about the bytes that it takes in all tables by number."""


class SubjectTable:
    """Numbers for the names of subjects that something in memory belongs to.

    Invariants: `names[ids[name]] == name`. A number keeps its name as long as anything holds it,
    and is given again only after a collection has found that nothing does:

    1. `condemn` is told which numbers are held at one moment by those of its own lane;
    2. `spare` is told, of the others, which somebody else holds;
    3. `sweep` takes the names of the rest away, step by step, except of those that were given
       since: whoever asks for the number of a name may keep it until the next collection.

    All methods belong to one lane; `names`, of numbers that are held, and the counts may be read
    anywhere.
    """

    def __init__(self, *, bytes_max: int = SUBJECTS_BYTES_MAX) -> None:
        self.ids: dict[bytes, int] = {}
        self.names: list[bytes] = []
        """The name of each number; empty where the number is free."""
        self.bytes_max = bytes_max
        self.bytes_held = 0
        """What all names take, those included that nothing holds any more."""
        self._collect_at = bytes_max // _COLLECTIONS
        self.collections = 0
        """Collections that came to their end."""
        self._named = np.zeros(64, np.bool_)
        """Whether a number has a name, by number."""
        self._used = np.zeros(64, np.bool_)
        """Whether it was held when the last collection began, or given since."""
        self._free: list[int] = []
        self._condemned = np.empty(0, np.intp)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def wants_collection(self) -> bool:
        """Whether names worth a collection have come since the last one."""
        return self.bytes_held >= self._collect_at

    @property
    def is_full(self) -> bool:
        """Whether no more names should come before a collection."""
        return self.bytes_held > self.bytes_max and self.wants_collection

    def number(self, name: bytes) -> int:
        """Return the number of a subject, giving it one if it is new."""
        number = self.ids.get(name)
        if number is None:
            number = self._new_number()
            self.ids[name] = number
            self.names[number] = name
            self._named[number] = True
            self.bytes_held += len(name) + SUBJECT_BYTES
        self._used[number] = True
        return number

    def numbers(self, names: list[bytes]) -> npt.NDArray[np.uint32]:
        """Return the numbers of several subjects (a batch's own table)."""
        if len(names) > _FEW:
            known = list(map(self.ids.get, names))
            if None not in known:
                numbers = np.array(known, np.uint32)
                self._used[numbers] = True
                return numbers
        return np.array([self.number(name) for name in names], np.uint32)

    def _new_number(self) -> int:
        if self._free:
            return self._free.pop()
        number = len(self.names)
        if number == len(self._used):
            more = np.zeros(number, np.bool_)
            self._used = np.concatenate([self._used, more])
            self._named = np.concatenate([self._named, more])
        self.names.append(b"")
        return number

    def condemn(self, held: npt.NDArray[np.bool_]) -> None:
        """Begin a collection: `held` says for each number whether anything holds it now.

        There is one for every number that was ever given.
        """
        count = len(self.names)
        self._used[:count] = held
        self._condemned = np.flatnonzero(self._named[:count] & ~held)

    def spare(self, held: npt.NDArray[np.bool_]) -> None:
        """Keep the names of these numbers as well; `held` as in `condemn`."""
        self._used[: len(held)] |= held

    def sweep(self, count: int) -> bool:
        """Look at the next `count` numbers to be freed; return whether that was all."""
        part, self._condemned = self._condemned[:count], self._condemned[count:]
        for number in part[~self._used[part]].tolist():
            name = self.names[number]
            del self.ids[name]
            self.names[number] = b""
            self._named[number] = False
            self._free.append(number)
            self.bytes_held -= len(name) + SUBJECT_BYTES
        if len(self._condemned):
            return False
        self._collect_at = self.bytes_held + self.bytes_max // _COLLECTIONS
        self.collections += 1
        return True


_FEW: Final = 8
"""Up to so many numbers are marked one by one, which is cheaper than all at once."""

_COLLECTIONS: Final = 8
"""There is a collection whenever this part of the bound has come anew."""
