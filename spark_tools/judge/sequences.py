"""Sets of sequences that can be added up, and say where a sequence came twice.

Records of a group are numbered without gaps, and about every other one is a message (most of the
others are facts), so a bit for each is little: 250 MB for a billion messages.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from spark_tools.files.columns import Int64s

BLOCK = 2**15
"""Sequences that are compared, and looked into, together."""
_SPARSE_MAX = 2**11
"""With more sequences in a block than this it is kept as bits (4 KiB)."""

_Places = npt.NDArray[np.uint16]
_Bits = npt.NDArray[np.uint8]


@dataclass(slots=True)
class Sequences:
    """A set of sequences, block by block: a few places, or a bit for each."""

    blocks: dict[int, _Places | _Bits] = field(default_factory=dict)
    doubled: set[int] = field(default_factory=set)
    """Blocks in which a sequence was added twice."""

    def add(self, ascending: Int64s) -> None:
        """Add sequences, in order; one may be there several times."""
        if not len(ascending):
            return
        block = ascending // BLOCK
        edges = np.flatnonzero(block[1:] != block[:-1]) + 1
        for part in np.split(ascending, edges):
            number = int(part[0]) // BLOCK
            places = (part - number * BLOCK).astype(np.uint16)
            if (places[1:] == places[:-1]).any():
                self.doubled.add(number)
                places = np.unique(places)
            self._add_block(number, places)

    def _add_block(self, number: int, more: _Places | _Bits) -> None:
        known = self.blocks.get(number)
        if known is None:
            self.blocks[number] = _compact(more)
            return
        if known.dtype == np.uint16 and more.dtype == np.uint16:
            if np.intersect1d(known, more, assume_unique=True).size:
                self.doubled.add(number)
            self.blocks[number] = _compact(np.union1d(known, more))
            return
        bits, more_bits = _bits(known), _bits(more)
        if (bits & more_bits).any():
            self.doubled.add(number)
        self.blocks[number] = bits | more_bits

    def merge(self, other: "Sequences") -> None:
        """Add another set."""
        self.doubled |= other.doubled
        for number, more in other.blocks.items():
            self._add_block(number, more)


def _compact(block: _Places | _Bits) -> _Places | _Bits:
    return _bits(block) if block.dtype == np.uint16 and len(block) > _SPARSE_MAX else block


def _bits(block: _Places | _Bits) -> _Bits:
    if block.dtype == np.uint8:
        return block.view(np.uint8)
    flags = np.zeros(BLOCK, np.uint8)
    flags[block] = 1
    return np.packbits(flags)
