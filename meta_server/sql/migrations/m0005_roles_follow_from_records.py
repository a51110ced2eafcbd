"""Version 5: the role of a delay server follows from its group's record, and is not kept."""

from typing import Final

STATEMENTS: Final = ("ALTER TABLE delay_node DROP COLUMN role",)
