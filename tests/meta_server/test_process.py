"""A meta server keeps what it opens within its process's limit of open files."""

import re
from pathlib import Path

import pytest

import meta_server.process
from meta_server.process import within_file_limit
from meta_server.settings.config import MetaServerConfig, NodeConfig

CONFIG = MetaServerConfig(node=NodeConfig(data_dir=Path("unused")))


@pytest.mark.parametrize("limit", [300, 700, 1024, 4096, 12_000])
def test_below_the_files_that_are_needed_both_caps_are_lowered(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meta_server.process, "allow_open_files", lambda _: limit)
    lowered = within_file_limit(CONFIG)
    caps = (lowered.listener.connections_max, lowered.http.connections_max)
    assert min(caps) >= 1
    assert sum(caps) + 256 <= max(limit, 350)


def test_with_files_enough_no_cap_is_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meta_server.process, "allow_open_files", lambda needed: needed)
    assert within_file_limit(CONFIG) == CONFIG


def test_the_unit_allows_the_files_that_the_defaults_need(monkeypatch: pytest.MonkeyPatch) -> None:
    unit = Path(__file__).parents[2] / "deploy" / "delaywheel-meta-server.service"
    [limit] = re.findall(r"^LimitNOFILE=(\d+)$", unit.read_text(), re.MULTILINE)
    monkeypatch.setattr(meta_server.process, "allow_open_files", lambda _: int(limit))
    config = CONFIG
    assert within_file_limit(config) == config
