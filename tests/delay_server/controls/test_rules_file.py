"""The file of rules of a node without a meta server is what holds, whenever it changes."""

import os
from pathlib import Path

import pytest
import trio

from delay_protocol.nodes.controls import Controls, SubjectControl
from delay_server.controls.rules_file import read_rules
from delay_server.settings.config import NodeConfig
from delay_transport.seams.errors import ConfigError
from tests.delay_server.server_rig import World, make_config, make_item, until

PAUSED = SubjectControl(paused=True)


def test_a_file_is_the_next_version_only_if_it_says_something_else(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    path.write_text('{"subjects":{"a.*":{"paused":true}}}')
    found = read_rules(path, Controls(version=7))
    assert found == Controls(version=8, subjects={"a.*": PAUSED})
    assert read_rules(path, found) is found
    path.write_text("{}")
    assert read_rules(path, found) == Controls(version=9)


@pytest.mark.parametrize("text", [None, "", "{", '{"subjects":{"a":{"pausd":true}}}'])
def test_what_is_no_file_of_rules_is_refused_with_its_path(
    text: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "rules.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=r"rules\.json.* has no rules that can be read"):
        read_rules(path, Controls())


def test_what_would_keep_its_reader_waiting_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="is no regular file"):
        read_rules(path, Controls())


async def test_a_node_goes_by_its_file_at_once_whenever_it_changes_and_keeps_the_last(
    tmp_path: Path,
) -> None:
    world, path = World(), tmp_path / "rules.json"
    path.write_text('{"subjects":{"s":{"paused":true}}}')
    config = make_config(node=NodeConfig(data_dir=Path("unused"), rules_file=str(path)))
    async with world.serving(config) as server:
        producer = await world.connect()
        await producer.send(make_item("m", world.now_ms, subject="s"))
        await trio.sleep(30)
        assert world.broker.ids == []
        path.write_text("nonsense")
        await trio.sleep(30)
        assert (world.broker.ids, server.master.outlet.applied.version) == ([], 1)
        path.write_text("{}")
        await until(lambda: world.broker.ids == ["m"], seconds=2)
        path.write_text('{"subjects":{"s":{"paused":true}}}')
        await until(lambda: server.master.outlet.applied.version == 3, seconds=2)
    path.unlink()
    with pytest.raises(BaseExceptionGroup) as caught:
        async with world.serving(config):
            pass
    assert caught.value.split(ConfigError)[1] is None
