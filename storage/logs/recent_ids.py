"""Finds the recent records of a message, by a hash of its subject and id.

    key, 64 bits --> bucket     [ slot 0 | slot 1 | ... | slot 31 ]     the next to be overwritten
                     mark, 32 bits, in a slot beside the low half of the sequence of its record

A bucket is a ring: what comes to a full one takes the place of what came to it first. There are
five slots for every two records that are to be remembered, so a bucket of 32 has about thirteen of
these. That more than 32 came to one of them is about as likely as two in a million, and only the
oldest of them is forgotten early. Nothing is ever moved or deleted, so that a question and an entry
are a few operations of numpy each, whatever came before.

A table is begun small; when there is more to remember than it holds, one for all takes what comes.
The small one is asked as well until all it has is too old. So where little is to be remembered
little memory is taken, and nothing is copied. Each further table would cost every message a
question.

Keys that differ may have one bucket and one mark: whoever asks looks at the records themselves.
"""

from collections.abc import Iterator
from math import ceil
from typing import Final

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]
Places = npt.NDArray[np.intp]

WAYS: Final = 32
"""Slots of a bucket."""

SLOTS_PER_RECORD: Final = 2.5
"""Slots for each record that is to be remembered; 8 bytes each."""

FIRST_RECORDS: Final = 262_144
"""Records of the first table: 5 MiB."""

_AT_ONCE: Final = 8192
"""Keys that are worked on in one go: they need 1.3 MiB meanwhile. With fewer, each call of numpy
beside a busy loop waits for the interpreter."""

_LOW: Final = 0xFFFF_FFFF
_ONE = np.uint32(1)
_NEXT_WAY: Final = np.roll(np.arange(WAYS, dtype=np.uint8), -1)
_NOTHING: Final = (np.zeros(0, np.intp), np.zeros(0, np.int64))


class RecentIds:
    """Keys and sequences of the last records that were added."""

    def __init__(self, records_max: int) -> None:
        """Make a table that remembers at least so many records, 20 bytes for each."""
        self._records_max = records_max
        self._first = 0
        """The oldest sequence that is to be remembered."""
        self._tables = [_Table(min(FIRST_RECORDS, records_max))]

    @property
    def size_bytes(self) -> int:
        """Bytes of memory that it takes once all of its tables are in use."""
        return sum(table.size_bytes for table in self._tables)

    def find(self, keys: Keys, *, next_sequence: int) -> tuple[Places, Int64s]:
        """Return the records that may have these keys: positions among the keys, and sequences.

        A key may have none or several, in no order, and some that are another key's. next_sequence:
        of the next record; what was added before is at most 2**32 records older.
        """
        some = []
        for begin, piece in _pieces(keys):
            for table in self._tables:
                places, sequences = table.find(piece, next_sequence)
                if len(places):
                    some.append((places + begin, sequences))
        if not some:
            return _NOTHING
        all_places, all_sequences = zip(*some, strict=True)
        return np.concatenate(all_places), np.concatenate(all_sequences)

    def add(self, keys: Keys, sequences: Int64s) -> None:
        """Remember one record for each key; the sequences ascend from call to call."""
        newest = self._tables[-1]
        if int(sequences[-1]) - self._first >= newest.records < self._records_max:
            newest = _Table(self._records_max)
            self._tables.append(newest)
        for begin, piece in _pieces(keys):
            newest.add(piece, sequences[begin : begin + len(piece)])

    def forget_before(self, sequence: int) -> None:
        """Remember no record with a lower sequence: drop the tables that have only such ones."""
        self._first = sequence
        while len(self._tables) > 1 and self._tables[0].last_sequence < sequence:
            del self._tables[0]


class _Table:
    """Buckets of records, for a number of them.

    Invariant: a bucket's slots from its head on, around the ring, are ordered by the calls that
    added them. A slot without a record has mark 0, which no key has.
    """

    def __init__(self, records: int) -> None:
        """Make a table that remembers at least so many records; it takes 20 bytes for each."""
        self.records = records
        self.last_sequence = 0
        self._buckets = max(ceil(records * SLOTS_PER_RECORD / WAYS), 1)
        self._modulus = np.uint64(self._buckets)
        # Memory that is written in order is had at a tenth of what a page here and there costs.
        self._marks = np.full((self._buckets, WAYS), 0, np.uint32)
        self._lows = np.full((self._buckets, WAYS), 0, np.uint32)
        self._heads = np.zeros(self._buckets, np.uint8)
        self._asked: Keys | None = None
        """The keys that were looked up last, which are added next as a rule."""
        self._asked_places: tuple[Places, npt.NDArray[np.uint32]]

    @property
    def size_bytes(self) -> int:
        """Bytes of memory that it takes once all of it is in use."""
        return self._marks.nbytes + self._lows.nbytes + self._heads.nbytes

    def find(self, keys: Keys, next_sequence: int) -> tuple[Places, Int64s]:
        """Return what `RecentIds.find` does, of this table."""
        if len(keys) == 1:
            return self._find_one(int(keys[0]), next_sequence)
        buckets, marks = self._places(keys)
        same = self._marks.take(buckets, axis=0) == marks[:, None]
        if not np.count_nonzero(same):
            return _NOTHING
        found, ways = np.nonzero(same)
        lows = self._lows[buckets[found], ways].astype(np.int64)
        return found, next_sequence - ((next_sequence - lows) & _LOW)

    def _find_one(self, key: int, next_sequence: int) -> tuple[Places, Int64s]:
        """Do the same for one key, at a third of the cost."""
        bucket = key % self._buckets
        mark = key >> 32 | 1
        marks = self._marks[bucket].tolist()
        if mark not in marks:
            return _NOTHING
        lows = self._lows[bucket, [way for way, one in enumerate(marks) if one == mark]]
        sequences = next_sequence - ((next_sequence - lows.astype(np.int64)) & _LOW)
        return np.zeros(len(lows), np.intp), sequences

    def add(self, keys: Keys, sequences: Int64s) -> None:
        """Remember one record for each key, but no more of one bucket than it has slots."""
        self.last_sequence = int(sequences[-1])
        if len(keys) == 1:
            self._add_one(int(keys[0]), int(sequences[0]))
            return
        buckets, marks = self._places(keys)
        lows = sequences.astype(np.uint32)
        all_marks, all_lows = self._marks.reshape(-1), self._lows.reshape(-1)
        for _ in range(WAYS):
            ways = self._heads.take(buckets)
            slots = buckets * WAYS
            slots += ways
            all_marks[slots] = marks
            all_lows[slots] = lows
            self._heads[buckets] = _NEXT_WAY.take(ways)
            # Of those that share a slot one has it.
            is_left = all_lows.take(slots) != lows
            if not np.count_nonzero(is_left):
                return
            buckets, marks, lows = buckets[is_left], marks[is_left], lows[is_left]

    def _add_one(self, key: int, sequence: int) -> None:
        """Do the same for one key, at a third of the cost."""
        bucket = key % self._buckets
        way = int(self._heads[bucket])
        self._marks[bucket, way] = key >> 32 | 1
        self._lows[bucket, way] = sequence & _LOW
        self._heads[bucket] = (way + 1) & (WAYS - 1)

    def _places(self, keys: Keys) -> tuple[Places, npt.NDArray[np.uint32]]:
        """Return the bucket and the mark of each key; those asked last are known."""
        if keys is not self._asked:
            self._asked = keys
            # The upper halves, as all that this runs on has the lower ones first.
            marks = keys.view(np.uint32)[1::2] | _ONE
            self._asked_places = (keys % self._modulus).view(np.int64), marks
        return self._asked_places


def _pieces(keys: Keys) -> Iterator[tuple[int, Keys]]:
    """Yield keys in pieces, and the place of each; a table knows keys that come whole again."""
    if len(keys) <= _AT_ONCE:
        yield 0, keys
        return
    for begin in range(0, len(keys), _AT_ONCE):
        yield begin, keys[begin : begin + _AT_ONCE]
