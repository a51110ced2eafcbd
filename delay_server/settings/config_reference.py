"""All settings of a delay server as a commented TOML file."""

from delay_server.settings.config import DelayServerConfig
from delay_transport.settings.settings_reference import settings_toml


def reference_toml() -> str:
    """Return a TOML file with every section, every setting, its default and its explanation."""
    return settings_toml(
        DelayServerConfig,
        command="delaywheel delay-server",
        examples={"brokers": 'g1 = "127.0.0.1:20881"'},
    )
