"""Whoever reads what a manifest names may work in another directory than who named it."""

import os
from pathlib import Path

import pytest
from msgspec import structs

from spark_tools.files.errors import ReconcileError
from spark_tools.run.local import local_engine
from spark_tools.run.plan import Request, make_plan
from spark_tools.run.reconcile import Verdict, reconcile
from spark_tools.source.manifests import source_of_directory, source_of_file
from storage.readers.manifest import encode_manifest
from tests.delaywheel.spark.test_commands import directory
from tests.spark_tools.run.test_reconcile import whole


def test_a_directory_that_is_named_from_here_is_found_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As executors of their own look for it."""
    data = directory(tmp_path / "data")
    other = whole().written(tmp_path / "copy")
    (tmp_path / "copy" / "m.json").write_bytes(encode_manifest(other.manifest))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    source = source_of_directory("data", now_ms=other.manifest.made_ms, from_minute=0)
    assert source.root == str(data)
    for text in ("copy/m.json=copy", "copy/m.json", "copy/m.json=./copy"):
        assert source_of_file(text) == other
    plan = make_plan([source, source_of_file("copy/m.json")], Request(final=True))
    os.chdir("elsewhere")
    result = reconcile(plan, local_engine(1), lambda _: None)
    assert result.verdict is Verdict.CLEAN
    assert [group.account.totals["accepted"] for group in result.groups].count(0) == 0


def test_a_uri_stays_what_it_is(tmp_path: Path) -> None:
    source = whole().written(tmp_path)
    (tmp_path / "m.json").write_bytes(encode_manifest(source.manifest))
    root = f"file://{tmp_path}"
    assert source_of_file(f"{root}/m.json").root == root


def test_a_file_that_leaves_out_durable_records_is_refused_where_no_node_runs(
    tmp_path: Path,
) -> None:
    source = whole().written(tmp_path)
    durable = source.manifest.durable_next_sequence + 1
    left_out = structs.replace(source.manifest, durable_next_sequence=durable)
    (tmp_path / "m.json").write_bytes(encode_manifest(left_out))
    assert source_of_file(f"{tmp_path}/m.json").manifest == left_out
    with pytest.raises(ReconcileError, match="with --final give the directory, --root"):
        source_of_file(f"{tmp_path}/m.json", is_final=True)
