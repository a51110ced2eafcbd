"""Message ids: ULIDs, made by the client so that consumers can tell copies of a message sent twice.

    01HF7YAT00 0123456789ABCDEF     26 letters of Crockford's base 32
    48 bits: ms   80 bits: chance, counted up within one ms

They sort by time, and ids of one maker by the order in which they were made within a ms too.
"""

import random
from typing import Final

_LETTERS: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS: Final = [first + second for first in _LETTERS for second in _LETTERS]
"""The text of each number of 10 bits."""
_BLOCK: Final = len(_PAIRS)
"""Ids made from one prefix, so that most of them cost one lookup."""


class MessageIdMaker:
    """Makes ids that differ from each other and from those of other makers.

    For one thread, and not to be carried over a fork: both sides would make the same ids.
    """

    def __init__(self, chance: random.Random) -> None:
        """Draw from `chance`; random.SystemRandom() unless a test wants the same ids again."""
        self._chance = chance
        self._now_ms = -1
        self._high = 0
        self._low = 0
        self._prefix = ""

    def make(self, now_ms: int) -> str:
        """Return a new id that says it was made at `now_ms`."""
        low = self._low
        if now_ms != self._now_ms or low == _BLOCK:
            self._begin_block(now_ms)
            low = 0
        self._low = low + 1
        return self._prefix + _PAIRS[low]

    def _begin_block(self, now_ms: int) -> None:
        # 69 bits of the 70: counting up from there cannot run over.
        self._high = self._high + 1 if now_ms == self._now_ms else self._chance.getrandbits(69)
        self._now_ms = now_ms
        number = now_ms << 70 | self._high
        self._prefix = "".join(_PAIRS[number >> shift & 1023] for shift in range(110, -1, -10))
