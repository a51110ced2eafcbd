"""Arrays and sets by small numbers that are given anew, such as those of subjects."""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.intp]

Mask = npt.NDArray[np.bool_]

Scalar = TypeVar("Scalar", bound=np.generic)


def grown(array: npt.NDArray[Scalar], size: int, fill: int = 0) -> npt.NDArray[Scalar]:
    """Return an array with a place for each number below `size`; new places have `fill`.

    It doubles at the least, so that numbers that come one by one cost little each.
    """
    if size <= len(array):
        return array
    more = max(size, 2 * len(array)) - len(array)
    return np.concatenate([array, np.full(more, fill, array.dtype)])


class NumberSet:
    """Numbers of subjects, a byte for each that there is: quick to ask for many at a time."""

    def __init__(self) -> None:
        self._has = np.zeros(0, np.bool_)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        return number < len(self._has) and bool(self._has[number])

    def add(self, numbers: Numbers) -> None:
        """Add numbers, some of which may be there already; each is given once."""
        if not len(numbers):
            return
        self._has = grown(self._has, int(numbers.max()) + 1)
        self._count += int(np.count_nonzero(~self._has[numbers]))
        self._has[numbers] = True

    def remove(self, numbers: Numbers) -> None:
        """Take numbers away; each is given once, and those that are not there count for nothing."""
        numbers = numbers[numbers < len(self._has)]
        self._count -= int(np.count_nonzero(self._has[numbers]))
        self._has[numbers] = False

    def contains(self, numbers: Numbers) -> Mask:
        """Say which of these are in the set; one below 0 never is."""
        found = np.zeros(len(numbers), np.bool_)
        inside = (numbers >= 0) & (numbers < len(self._has))
        found[inside] = self._has[numbers[inside]]
        return found

    def numbers(self) -> Numbers:
        """Return them, ascending."""
        return np.flatnonzero(self._has)
