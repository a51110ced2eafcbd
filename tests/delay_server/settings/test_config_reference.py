"""Every setting can be looked up, explained and with its default, in a file that can be used."""

import dataclasses
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from delay_server.settings import config, config_file, config_reference
from delay_transport.settings.settings_file import SettingsReader, sections
from delay_transport.settings.settings_reference import field_notes
from meta_server.settings import config_reference as meta_config_reference
from meta_server.settings.config import MetaServerConfig


@pytest.mark.parametrize("settings", [config.DelayServerConfig, MetaServerConfig])
def test_every_setting_is_explained(settings: type) -> None:
    silent = [
        f"{name}.{field.name}"
        for name, section in sections(settings).items()
        for field in dataclasses.fields(section)
        if not field_notes(section).get(field.name)
    ]
    assert silent == []


def test_every_section_is_explained() -> None:
    notes = field_notes(config.DelayServerConfig)
    names = [field.name for field in msgspec.structs.fields(config.DelayServerConfig)]
    assert names == list(notes)


def test_the_file_is_toml_and_sets_nothing() -> None:
    tree = tomllib.loads(config_reference.reference_toml())
    assert tree == {name: {} for name in ("brokers", *sections(config.DelayServerConfig))}
    tree = tomllib.loads(meta_config_reference.reference_toml())
    assert tree == {name: {} for name in sections(MetaServerConfig)}


@pytest.mark.parametrize(
    ("text", "load", "given"),
    [
        (
            config_reference.reference_toml(),
            config_file.load_config,
            ["node.data_dir=data", "brokers.g1=127.0.0.1:20881"],
        ),
        (
            meta_config_reference.reference_toml(),
            SettingsReader(MetaServerConfig).load,
            ["node.data_dir=d"],
        ),
    ],
    ids=["delay", "meta"],
)
def test_with_its_marks_taken_away_the_file_says_the_defaults(
    text: str, load: Callable[..., object], given: list[str], tmp_path: Path
) -> None:
    assert max(map(len, text.splitlines())) <= 100
    text = re.sub(r"^#(?=\w+ = )", "", text, flags=re.MULTILINE)
    # Names that are not set have no value that TOML could say; the directory has to be given.
    text = re.sub(r'^\w+ = ""\n', "", text, flags=re.MULTILINE)
    path = tmp_path / "all.toml"
    path.write_text(text, encoding="utf-8")
    assert load(path, given) == load(None, given)
