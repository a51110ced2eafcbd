"""Every setting can be looked up, explained and with its default, in a file that can be used."""

import dataclasses
import re
import tomllib
from pathlib import Path

import msgspec

from delay_server.settings.config import DelayServerConfig, sections
from delay_server.settings.config_file import load_config
from delay_server.settings.config_reference import reference_toml
from delay_transport.settings.settings_reference import field_notes


def test_every_setting_is_explained() -> None:
    silent = [
        f"{name}.{field.name}"
        for name, section in sections().items()
        for field in dataclasses.fields(section)
        if not field_notes(section).get(field.name)
    ]
    assert silent == []


def test_every_section_is_explained() -> None:
    notes = field_notes(DelayServerConfig)
    assert [field.name for field in msgspec.structs.fields(DelayServerConfig)] == list(notes)


def test_the_file_is_toml_and_sets_nothing() -> None:
    tree = tomllib.loads(reference_toml())
    assert tree == {name: {} for name in ("brokers", *sections())}


def test_with_its_marks_taken_away_the_file_says_the_defaults(tmp_path: Path) -> None:
    text = re.sub(r"^#(?=\w+ = )", "", reference_toml(), flags=re.MULTILINE)
    # Names that are not set have no value that TOML could say; the directory has to be given.
    text = re.sub(r'^\w+ = ""\n', "", text, flags=re.MULTILINE)
    path = tmp_path / "all.toml"
    path.write_text(text, encoding="utf-8")
    given = ["node.data_dir=data", "brokers.g1=127.0.0.1:20881"]
    assert load_config(path, given) == load_config(None, given)


def test_no_line_is_wider_than_a_screen() -> None:
    assert max(map(len, reference_toml().splitlines())) <= 100
