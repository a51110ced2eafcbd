"""Version 6: broker groups may be of kind 3, receivers, which an older version could not read."""

from typing import Final

STATEMENTS: Final[tuple[str, ...]] = ()
