"""The wall clocks of a group's nodes, compared with the meta server's and with each other. Pure.

A node compares its clock with the meta server's whenever that one answers a registration, and says
the difference with the next. What the time between question and answer explains is no difference.
A clock with which fewer than half of the others agree, and not the meta server's, is wrong: its
node is not chosen, and as a master it holds. So a meta server with a wrong clock stops no group of
several nodes, and a node alone is only warned.
"""

from collections.abc import Mapping
from typing import Final

DIFFERS_MS: Final = 1000
"""A difference above is a warning: synchronised clocks differ by milliseconds."""
FAULT_MS: Final = 10_000
"""A node whose clock differs by as much would deliver early, or fall silent, for so long."""


def ahead_ms(theirs_ms: int, own_ms: int, *, waited_ms: int) -> int:
    """Return how far another clock is ahead, as far as no delay explains it.

    The other side looked at its clock within the time waited up to now, which is `own_ms` here.
    """
    return max(theirs_ms - own_ms, 0) + min(theirs_ms - own_ms + waited_ms, 0)


def difference(by_ms: int) -> str:
    """Return how far a clock is ahead of the meta server's, in words; empty if it is well."""
    if abs(by_ms) <= DIFFERS_MS:
        return ""
    way = "ahead of" if by_ms > 0 else "behind"
    return f"its clock is {abs(by_ms) / 1000:.1f} s {way} the meta server's"


def clock_fault(node: str, by_ms: Mapping[str, int]) -> str:
    """Return why the clock of a node is taken for wrong; empty if it is not.

    by_ms: how far the clocks of the group's nodes are ahead of the meta server's
    """
    own = by_ms.get(node, 0)
    others = [0, *(other for name, other in by_ms.items() if name != node)]
    agree = sum(abs(other - own) < FAULT_MS for other in others)
    if abs(own) < FAULT_MS or len(others) == 1 or 2 * agree >= len(others):
        return ""
    return (
        f"{node}: {difference(own)}, and {agree} of {len(others)} other clocks agree with it: set "
        "it right (chronyc makestep)"
    )
