"""In which order rows are handed out, and how far that has come.

The *key* of a row is (effective due time, sequence). A *cursor* is a key: where reading begins.
"""

from typing import Final

from storage.batch.number_set import Mask
from storage.batch.rows import Int64s

Key = tuple[int, int]
"""(effective due time in ms, sequence). As a cursor (T, 0) stands before all that is due at T."""

BEFORE_ALL: Final[Key] = (0, 0)

NEVER: Final[Key] = (1 << 62, 0)


def not_after(effective_ms: Int64s, sequence: Int64s, key: Key) -> Mask:
    """Say which rows' keys are not after `key`."""
    due_ms, last = key
    mask: Mask = effective_ms < due_ms
    if last:
        mask |= (effective_ms == due_ms) & (sequence <= last)
    return mask
