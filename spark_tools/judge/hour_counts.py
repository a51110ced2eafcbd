"""Counting by hour and name, without a loop over what is counted."""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_tools.files.columns import Int64s

_DENSE_MAX = 1 << 16
"""Up to so many cells are counted though some may be empty; more are sorted first."""
_ONE_NUMBER_MAX = 1 << 62
"""Cells and values are sorted as one number as long as it is below this."""


class Cells:
    """The cell, an hour and the number of a name, of each of some records.

    Numbers are -1 where there is no name.
    """

    def __init__(self, hour: Int64s, number: Int64s) -> None:
        """hour: minutes since 1970, of full hours."""
        self._first = int(hour.min()) if len(hour) else 0
        self._width = int(number.max()) + 2 if len(number) else 1
        cell = (hour - self._first) // 60 * self._width + number + 1
        size = int(cell.max()) + 1 if len(cell) else 0
        self._cell = np.arange(size, dtype=np.int64)
        """The cells that there are."""
        self._place = cell
        if size > _DENSE_MAX:
            self._cell, self._place = np.unique(cell, return_inverse=True)

    def counts(self, kind: Int64s, kinds: int) -> Int64s:
        """Return how many records each cell has of each kind, an array of cells by kinds."""
        flat = np.bincount(self._place * kinds + kind, minlength=len(self._cell) * kinds)
        return flat.reshape(-1, kinds).astype(np.int64, copy=False)

    def sums(self, values: Int64s) -> Int64s:
        """Return the sums of values, which must stay below 2^53 for a cell."""
        summed = np.bincount(self._place, weights=values, minlength=len(self._cell))
        return summed.astype(np.int64)

    def table(self, key: str, names: list[str], measures: Mapping[str, Int64s]) -> pa.Table:
        """Return the cells that are not empty, with what was measured."""
        filled = np.zeros(len(self._cell), np.bool_)
        for values in measures.values():
            filled |= values != 0
        columns = {
            **self._keys(key, names, np.flatnonzero(filled)),
            **{name: values[filled] for name, values in measures.items()},
        }
        return pa.table(columns)

    def histogram(
        self,
        key: str,
        names: list[str],
        values: Int64s,
        bucket_of: Callable[[Int64s], Int64s],
        largest: str,
    ) -> pa.Table:
        """Return how many records each cell has of each bucket, and the largest of their values.

        values: 0 or more, bucket_of: never falls as they rise; largest: what that column is called.
        """
        place, ordered = self._in_order(values)
        bucket = bucket_of(ordered)
        is_last = np.ones(len(ordered), np.bool_)
        is_last[:-1] = (place[1:] != place[:-1]) | (bucket[1:] != bucket[:-1])
        last = np.flatnonzero(is_last)
        return pa.table(
            {
                **self._keys(key, names, place[last]),
                "bucket": bucket[last],
                "count": np.diff(last, prepend=-1).astype(np.int64),
                largest: ordered[last],
            }
        )

    def _in_order(self, values: Int64s) -> tuple[Int64s, Int64s]:
        """Return cells and values, by cell and then by value."""
        width = int(values.max()) + 1 if len(values) else 1
        if len(self._cell) * width < _ONE_NUMBER_MAX:
            # To sort numbers is much faster than to sort places by them.
            place, ordered = np.divmod(np.sort(self._place * width + values), width)
            return place, ordered
        order = np.lexsort((values, self._place))
        return self._place[order], values[order]

    def _keys(
        self, key: str, names: list[str], places: npt.NDArray[np.signedinteger]
    ) -> dict[str, object]:
        cell = self._cell[places]
        number = cell % self._width - 1
        texts = pa.array(names, pa.string())
        return {
            "hour": cell // self._width * 60 + self._first,
            key: texts.take(pa.array(number, pa.int64(), mask=number < 0)),
        }
