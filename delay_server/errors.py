"""What can go wrong in a delay server beyond what its parts raise.

* DelayServerError
    * ConfigError: a setting is unknown, missing or makes no sense. The process does not start; the
      message names where the setting came from, the setting and what to do.
"""


class DelayServerError(Exception):
    """Anything the delay server raises on purpose."""


class ConfigError(DelayServerError):
    """The configuration cannot be used."""

    def __init__(self, *, source: str, key: str, reason: str, remedy: str = "") -> None:
        where = f"{source}: {key}" if key else source
        super().__init__(f"{where}: {reason}" + (f"; {remedy}" if remedy else ""))
        self.source = source
        """The file, or the option that gave the setting."""
        self.key = key
        """The setting as `section.key`; empty if the file as a whole is meant."""
        self.reason = reason
        self.remedy = remedy
        """What to do about it; empty if the reason says so."""
