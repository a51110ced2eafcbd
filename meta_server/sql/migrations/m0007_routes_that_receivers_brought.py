"""Version 7: which routes receivers brought; those end when no receiver brings them any more."""

from typing import Final

STATEMENTS: Final = (
    "ALTER TABLE subject_route ADD COLUMN is_brought BOOLEAN NOT NULL DEFAULT FALSE",
)
"""Of rows from before nobody knows who set them: they stay until an operator removes them."""
