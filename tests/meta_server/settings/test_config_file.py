"""A file of settings and what is laid over it; what nothing declares is refused by name."""

from pathlib import Path

import pytest

from delay_transport.seams.errors import ConfigError
from delay_transport.settings.settings_file import SettingsReader
from meta_server.settings.config import MetaServerConfig

load_config = SettingsReader(MetaServerConfig).load


def test_what_is_given_on_the_command_line_wins(tmp_path: Path) -> None:
    path = tmp_path / "meta.toml"
    path.write_text('[node]\ndata_dir = "d"\n[routing]\ngroups_per_subject = 3\n')
    config = load_config(path, ["routing.groups_per_subject=4", "http.address="])
    assert (config.node.data_dir, config.routing.groups_per_subject) == (Path("d"), 4)
    assert config.http.address == ""


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([], "node.data_dir: is not set"),
        (["node.data_dir=d", "routing.groups=1"], "no such setting"),
        (["node.data_dir=d", "wheel.slot_ms=1"], "no such section"),
        (["node.data_dir=d", "push.gather_ms=x"], "push.gather_ms"),
        (["node.data_dir=d", "brokers.g1=127.0.0.1:1"], "no such section"),
    ],
)
def test_what_is_wrong_is_said(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(None, overrides)
