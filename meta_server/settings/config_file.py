"""The settings of a meta server, from a TOML file and `--set section.key=value`."""

from collections.abc import Sequence
from pathlib import Path

from delay_transport.settings.settings_file import Override, SettingsReader
from meta_server.settings.config import MetaServerConfig


def load_config(path: Path | None, overrides: Sequence[str | Override] = ()) -> MetaServerConfig:
    """Read a TOML file, if there is one, and lay overrides over it; raise ConfigError."""
    return SettingsReader(MetaServerConfig).load(path, overrides)
