"""A server keeps what it opens within its process's limit of open files."""

import re
from pathlib import Path

import pytest

from delay_server.settings.config import DelayServerConfig
from delay_server.settings.config import NodeConfig as DelayNodeConfig
from delay_transport.settings import file_limit
from delay_transport.settings.file_limit import OTHER_FILES, within_file_limit
from meta_server.settings.config import MetaServerConfig, NodeConfig

LISTENER, HTTP, SEGMENTS = (
    *("listener.connections_max", "http.connections_max"),
    "storage.open_files_max",
)
DELAY = DelayServerConfig(node=DelayNodeConfig(data_dir=Path("unused")), brokers={"g1": "h:1"})
META = MetaServerConfig(node=NodeConfig(data_dir=Path("unused")))


@pytest.mark.parametrize("limit", [300, 700, 1024, 4096, 12_000])
def test_below_the_files_that_are_needed_every_setting_is_lowered(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_limit, "allow_open_files", lambda _: limit)
    lowered = within_file_limit(DELAY, LISTENER, HTTP, SEGMENTS)
    assert lowered.listener.connections_max < DELAY.listener.connections_max
    caps = (
        lowered.listener.connections_max,
        lowered.http.connections_max,
        lowered.storage.open_files_max,
    )
    assert min(caps) >= 2
    assert sum(caps) + OTHER_FILES <= limit


def test_with_files_enough_no_setting_is_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_limit, "allow_open_files", lambda needed: needed)
    assert within_file_limit(DELAY, LISTENER, HTTP, SEGMENTS) is DELAY


@pytest.mark.parametrize(
    ("unit", "config", "settings"),
    [
        ("delaywheel-delay-server", DELAY, (LISTENER, HTTP, SEGMENTS)),
        ("delaywheel-meta-server", META, (LISTENER, HTTP)),
    ],
)
def test_the_unit_allows_the_files_that_the_defaults_need(
    unit: str,
    config: DelayServerConfig | MetaServerConfig,
    settings: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = (Path(__file__).parents[3] / "deploy" / f"{unit}.service").read_text()
    [limit] = re.findall(r"^LimitNOFILE=(\d+)$", text, re.MULTILINE)
    monkeypatch.setattr(file_limit, "allow_open_files", lambda _: int(limit))
    assert within_file_limit(config, *settings) is config
