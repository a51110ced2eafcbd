"""Rows by name, and the names in their order, a slice at a time.

Names are kept in blocks of some hundred, each sorted, the blocks in order. So a row that comes or
goes moves few names, a page begins where the one before ended, and nothing takes long at once,
however many rows there are and whatever changes between two slices.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from typing import Any, Final, TypeVar

V = TypeVar("V")

_BLOCK: Final = 1000
"""Names in a block when the table is made; one of twice as many is divided."""

_SAMPLES: Final = 8
"""Names looked at for each block, to divide all names into blocks of about one size."""


class SortedTable(dict[str, V]):
    """A dict that can tell its keys in order; change it by item, `del` and `pop` only."""

    def __init__(self, rows: Mapping[str, V]) -> None:
        """Take rows over; a million take about a second, of which no step is long."""
        super().__init__(rows)
        self._blocks: list[list[str]] = []
        self._lowest: list[str] = []
        """Of each block."""
        if rows:
            self._divide()

    def _divide(self) -> None:
        # All at once would be one step that nobody else could run beside, as it holds the
        # interpreter: so names are dealt out first, and each block is sorted by itself.
        step = max(_BLOCK // _SAMPLES, 1)
        sample = sorted([name for place, name in enumerate(self) if not place % step])
        bounds = sample[_SAMPLES::_SAMPLES]
        blocks: list[list[str]] = [[] for _ in range(len(bounds) + 1)]
        for name in self:
            blocks[bisect_right(bounds, name)].append(name)
        for block in blocks:
            if block:
                block.sort()
                self._blocks.append(block)
                self._lowest.append(block[0])

    def names_from(self, name: str, count: int, *, behind: bool) -> list[str]:
        """Return up to so many names in their order, from this one on, or from `behind` it."""
        found: list[str] = []
        number = self._block_of(name)
        find = bisect_right if behind else bisect_left
        while number < len(self._blocks) and len(found) < count:
            block = self._blocks[number]
            start = 0 if found else find(block, name)
            found += block[start : start + count - len(found)]
            number += 1
        return found

    def __setitem__(self, name: str, row: V) -> None:
        if name not in self:
            self._add(name)
        super().__setitem__(name, row)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self._remove(name)

    def pop(self, name: str, *default: Any) -> Any:  # noqa: ANN401 (as dict has it)
        """Remove a row and return it."""
        if name in self:
            self._remove(name)
        return super().pop(name, *default)

    def popitem(self) -> tuple[str, V]:
        """Remove some row: for a table that is taken apart, which has no order from then on."""
        if self._blocks and not self._blocks[-1]:
            self._blocks.pop()
        if self._blocks:
            self._blocks[-1].pop()
        return super().popitem()

    def _block_of(self, name: str) -> int:
        """Return the number of the block that a name is in, or would be."""
        return max(bisect_right(self._lowest, name) - 1, 0)

    def _add(self, name: str) -> None:
        if not self._blocks:
            self._blocks.append([name])
            self._lowest.append(name)
            return
        number = self._block_of(name)
        block = self._blocks[number]
        insort(block, name)
        self._lowest[number] = block[0]
        if len(block) >= 2 * _BLOCK:
            upper = block[_BLOCK:]
            del block[_BLOCK:]
            self._blocks.insert(number + 1, upper)
            self._lowest.insert(number + 1, upper[0])

    def _remove(self, name: str) -> None:
        number = self._block_of(name)
        block = self._blocks[number]
        del block[bisect_left(block, name)]
        if block:
            self._lowest[number] = block[0]
        else:
            del self._blocks[number], self._lowest[number]
