"""All settings of a meta server as a commented TOML file."""

from delay_transport.settings.settings_reference import settings_toml
from meta_server.settings.config import MetaServerConfig


def reference_toml() -> str:
    """Return a TOML file with every section, every setting, its default and its explanation."""
    return settings_toml(MetaServerConfig, command="delaywheel meta-server")
