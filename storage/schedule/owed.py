"""Estimates the bytes that accepted messages still take on the disk, which are kept free for them.

What it misses (files of segments that have a row or two) is taken from the floor.
"""

from typing import Final

PENDING_BYTES: Final = 300
"""For the columns, facts, seals and checkpoints of each message without an outcome."""


def owed_for(rows: int, blob_bytes: int) -> int:
    """Return the bytes owed for rows that are to be filed: they are written twice at most."""
    return 2 * blob_bytes + rows * PENDING_BYTES
