"""Every setting of a meta server can be looked up, with its default, in a file that can be used."""

import dataclasses
import re
import tomllib
from pathlib import Path

from delay_transport.settings.settings_reference import field_notes
from meta_server.settings.config import sections
from meta_server.settings.config_file import load_config
from meta_server.settings.config_reference import reference_toml


def test_every_setting_is_explained() -> None:
    silent = [
        f"{name}.{field.name}"
        for name, section in sections().items()
        for field in dataclasses.fields(section)
        if not field_notes(section).get(field.name)
    ]
    assert silent == []


def test_the_file_is_toml_and_sets_nothing() -> None:
    assert tomllib.loads(reference_toml()) == {name: {} for name in sections()}


def test_with_its_marks_taken_away_the_file_says_the_defaults(tmp_path: Path) -> None:
    text = re.sub(r"^#(?=\w+ = )", "", reference_toml(), flags=re.MULTILINE)
    text = re.sub(r'^\w+ = ""\n', "", text, flags=re.MULTILINE)
    path = tmp_path / "all.toml"
    path.write_text(text, encoding="utf-8")
    assert load_config(path, ["node.data_dir=d"]) == load_config(None, ["node.data_dir=d"])


def test_no_line_is_wider_than_a_screen() -> None:
    assert max(map(len, reference_toml().splitlines())) <= 100
