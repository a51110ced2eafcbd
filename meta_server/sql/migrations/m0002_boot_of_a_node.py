"""Version 2: which start of a delay node its row is about."""

from typing import Final

STATEMENTS: Final = (
    """
    ALTER TABLE delay_node
        ADD COLUMN boot_id {uuid} NOT NULL DEFAULT '00000000000000000000000000000000'
    """,
)
"""Rows from before have model.py's NO_BOOT, which no start draws."""
