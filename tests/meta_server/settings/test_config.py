"""Settings of a meta server: each section refuses what nobody could live with, by name."""

from pathlib import Path

import pytest

from delay_transport.seams.errors import ConfigError
from delay_transport.settings import settings_file
from meta_server.groups.routing import RoutingLimits
from meta_server.settings.config import (
    DelayConfig,
    HttpConfig,
    ListenerConfig,
    MetaServerConfig,
    NodeConfig,
    RegistrationConfig,
    StoreConfig,
)

load_config = settings_file.SettingsReader(MetaServerConfig).load


def test_the_defaults_are_those_of_qmq_where_it_has_any() -> None:
    config = MetaServerConfig(node=NodeConfig(data_dir=Path("meta")))
    assert config.listener.address.endswith(":20880")
    assert config.http.address.endswith(":8080")
    assert config.registration.broker_timeout_ms == 30_000
    assert (config.routing.groups_per_subject, config.routing.delay_groups_per_subject) == (2, 2)


def test_nobody_beyond_this_machine_is_listened_to_unless_asked_for() -> None:
    for section in (ListenerConfig(), HttpConfig()):
        assert section.address.startswith("127.0.0.1:")


@pytest.mark.parametrize(
    ("section", "wrong"),
    [
        (NodeConfig, {"data_dir": Path("d"), "stop_ms_max": -1}),
        (StoreConfig, {"url": "mysql://x"}),
        (ListenerConfig, {"address": "nowhere"}),
        (ListenerConfig, {"advertised": "nowhere"}),
        (ListenerConfig, {"unsent_bytes_max": 1}),
        (RegistrationConfig, {"subjects_max": 0}),
        (RegistrationConfig, {"groups_max": 0}),
        (RegistrationConfig, {"new_subjects_per_second_max": float("nan")}),
        (RegistrationConfig, {"broker_timeout_ms": 1}),
        (DelayConfig, {"levels": ""}),
        (DelayConfig, {"levels": "1s 2w"}),
        (DelayConfig, {"levels": "1s " * 1000}),
        (RoutingLimits, {"groups_per_subject": 0}),
        (RoutingLimits, {"delay_groups_per_subject": 0}),
        (HttpConfig, {"address": "x"}),
        (HttpConfig, {"connections_max": 0}),
        (StoreConfig, {"audit_keep_ms": 0}),
    ],
)
def test_what_nobody_could_live_with_is_refused_by_name(
    section: type, wrong: dict[str, object]
) -> None:
    *_, name = wrong
    is_address = name in {"address", "advertised"}
    with pytest.raises(ValueError, match="is not an address" if is_address else name):
        section(**wrong)


def test_the_store_is_a_file_in_the_data_directory_unless_said_otherwise() -> None:
    assert str(StoreConfig().url_in(Path("/data/m"))) == "sqlite:////data/m/meta.db"
    url = "postgresql+psycopg://u:p@h:5432/n"
    assert StoreConfig(url=url).url_in(Path("d")).render_as_string(hide_password=False) == url


def test_all_sections_but_none_else_are_listed() -> None:
    names = "node store listener registration routing delay http admin log"
    assert list(settings_file.sections(MetaServerConfig)) == names.split()


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
