"""The settings of a delay server, from a TOML file and `--set section.key=value`."""

from collections.abc import Sequence
from pathlib import Path

from delay_server.settings.config import DelayServerConfig
from delay_transport.settings.settings_file import Override, SettingsReader

_REMEDIES = {
    "brokers": "give --broker NAME=HOST:PORT or --meta HOST:PORT, or a --config file that has it",
}


def load_config(path: Path | None, overrides: Sequence[str | Override] = ()) -> DelayServerConfig:
    """Read a TOML file, if there is one, and lay overrides over it; raise ConfigError."""
    return SettingsReader(DelayServerConfig, remedies=_REMEDIES).load(path, overrides)
