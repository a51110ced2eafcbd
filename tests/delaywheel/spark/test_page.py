"""`delaywheel spark page` makes of a result what `reconcile --page` makes at once."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from delaywheel.main import main
from storage.readers.manifest import encode_manifest
from tests.delaywheel.endings import done, refused
from tests.spark_tools.repair_worlds import sealed_builder


def invoke(*options: str) -> Result:
    return CliRunner().invoke(main, ["spark", *options])


def test_a_page_can_be_made_at_once_or_later(tmp_path: Path) -> None:
    source = sealed_builder(lost=2).build().written(tmp_path / "data")
    file, output = tmp_path / "m.json", tmp_path / "result.json"
    file.write_bytes(encode_manifest(source.manifest))
    now, later = tmp_path / "now.html", tmp_path / "later.html"
    manifest = f"{file}={source.root}"
    to = ("--output", str(output), "--page", str(now))
    found = invoke("reconcile", "--engine", "local", "--manifest", manifest, *to)
    assert found.exit_code == 1
    done(invoke("page", str(output), "--output", str(later)))
    assert now.read_bytes() == later.read_bytes()
    assert b"Findings" in now.read_bytes()


def test_what_is_no_result_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    for data, said in (
        (b"not JSON", "is no result"),
        (b"{}", "is no result"),
        (json.dumps({"schema": 2}).encode(), "of schema 2"),
        (json.dumps({"schema": 1, "groups": 7}).encode(), "is no result"),
    ):
        file.write_bytes(data)
        refused(invoke("page", str(file), "--output", str(tmp_path / "x.html")), 3, said)
    assert invoke("page", "nowhere.json", "--output", "x").exit_code == 3
    assert not (tmp_path / "x.html").exists()
