"""Whether a broker group refuses for good whatever it is given. Pure.

A refusal for good (codes 3 and 5) speaks of the item, so it opens no circuit: a poisonous subject
must not close a group to others. But a group that refuses everything answers quickly and always has
room, so a backlog would go there, and most of it several times. So it is given single items at
intervals for as long as another group is well.
"""

from typing import Final

_ITEMS_MAX: Final = 16
"""Items in a row after which the group is taken to refuse everything."""


class RefusalRun:
    """The number of items that a group refused for good since it took one.

    A group keeps one of these, tells it of each answer, and asks it what to give the group. Times
    are in seconds, of a clock that does not go back.
    """

    def __init__(self, *, interval_s: float) -> None:
        """Allow an item in each interval while everything is refused."""
        self._interval_s = interval_s
        self._items = 0
        self._next_try_at = 0.0

    @property
    def is_long(self) -> bool:
        """Whether the group is taken to refuse everything."""
        return self._items >= _ITEMS_MAX

    def refused(self, items: int) -> None:
        """Count an answer by which so many items were refused for good, and none was taken."""
        self._items += items

    def taken(self) -> None:
        """Begin anew: an item was taken, or the group has another address."""
        self._items = 0

    def may_try(self, now: float) -> bool:
        """Say whether an item may be tried again."""
        return now >= self._next_try_at

    def tried(self, now: float) -> None:
        """Allow no other item for an interval: one is given to the group."""
        self._next_try_at = now + self._interval_s
