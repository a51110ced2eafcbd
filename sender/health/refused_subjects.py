"""Whether a broker group takes nothing at all, however different what it is given. Pure.

A broker that refuses items for good (codes 3 and 5) says something about these items, so its
circuit has no reason to open: a poisonous subject must not close a group to the others. If it
refuses every item of several subjects for a while, and takes none, it is the group that is meant.
"""

from collections.abc import Iterable


class RefusedSubjects:
    """The subjects of which a group refused every item since it took one.

    Times are in seconds, of a clock that does not go back.
    """

    def __init__(self, *, subjects_min: int, span_s: float) -> None:
        """Take it for the group if there are so many, for so long."""
        self._subjects_min = subjects_min
        self._span_s = span_s
        self._subjects: set[int] = set()
        self._since = 0.0

    def __bool__(self) -> bool:
        return bool(self._subjects)

    def refused(self, subjects: Iterable[int], now: float) -> bool:
        """Note that all of some items were refused for good; say whether the group is meant.

        It is said once, and then counted anew.
        """
        if not self._subjects:
            self._since = now
        for subject in subjects:
            if len(self._subjects) >= self._subjects_min:
                break
            self._subjects.add(subject)
        if len(self._subjects) < self._subjects_min or now - self._since < self._span_s:
            return False
        self._subjects.clear()
        return True

    def taken(self) -> None:
        """Note that an item was taken."""
        self._subjects.clear()
