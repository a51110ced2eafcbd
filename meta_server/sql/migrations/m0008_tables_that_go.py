"""Version 8: what nobody reads any more goes."""

from typing import Final

STATEMENTS: Final = ("DROP TABLE client_offline_state",)
