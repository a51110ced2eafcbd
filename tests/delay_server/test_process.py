"""A delay server keeps what it opens within its process's limit of open files."""

import re
from pathlib import Path

import pytest

import delay_server.process
from delay_server.process import within_file_limit
from delay_server.settings.config import DelayServerConfig, NodeConfig
from tests.delay_server.server_rig import make_config


@pytest.mark.parametrize("limit", [300, 700, 1024, 4096, 12_000])
def test_below_the_files_that_are_needed_every_cap_is_lowered(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delay_server.process, "allow_open_files", lambda _: limit)
    lowered = within_file_limit(make_config())
    caps = (
        lowered.listener.connections_max,
        lowered.http.connections_max,
        lowered.storage.open_files_max,
    )
    assert min(caps) >= 1
    assert sum(caps) + 256 <= max(limit, 450)


def test_with_files_enough_no_cap_is_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delay_server.process, "allow_open_files", lambda needed: needed)
    config = make_config()
    assert within_file_limit(config) == config


def test_the_unit_allows_the_files_that_the_defaults_need(monkeypatch: pytest.MonkeyPatch) -> None:
    unit = Path(__file__).parents[2] / "deploy" / "delaywheel-delay-server.service"
    [limit] = re.findall(r"^LimitNOFILE=(\d+)$", unit.read_text(), re.MULTILINE)
    monkeypatch.setattr(delay_server.process, "allow_open_files", lambda _: int(limit))
    config = DelayServerConfig(node=NodeConfig(data_dir=Path("unused")), brokers={"g1": "h:1"})
    assert within_file_limit(config) == config
