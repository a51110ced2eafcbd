"""Pattern sets of receivers of one name: equal patterns take the same subjects."""

from delay_protocol.basics.subjects import Patterns


class PatternSet(Patterns):
    """The patterns that some members of a group of receivers brought."""

    is_known = False
    """True once all routes go by it. Its members get nothing before."""
    is_there = True
    """True while any of them is attached."""


Takers = frozenset[PatternSet] | None
"""The sets of a group that take a subject; None: all of them do."""
