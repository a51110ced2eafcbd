"""`delaywheel spark hours` says by its exit code what the new hours are like, to cron as well."""

import json
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
from click.testing import CliRunner, Result

from delaywheel.main import main
from spark_tools.run.plan import Source
from spark_tools.run.report import TABLES
from storage.readers.manifest import encode_manifest
from tests.delaywheel.endings import done, refused
from tests.delaywheel.spark.test_commands import directory
from tests.spark_tools.growing_worlds import Life


def invoke(*options: str) -> Result:
    # Processes start sooner than Spark; what is found is the same.
    return CliRunner().invoke(main, ["spark", "hours", "--engine", "local", *options])


def manifest_of(source: Source, file: Path) -> str:
    """Write a manifest; return what --manifest takes."""
    file.write_bytes(encode_manifest(source.manifest))
    return f"{file}={source.root}"


def test_each_hour_is_told_of_once_and_the_summary_tells_of_all(tmp_path: Path) -> None:
    life, state = Life(1), tmp_path / "state"
    given = manifest_of(life.at(70).written(tmp_path / "a"), tmp_path / "a.json")
    found = done(invoke("--state", str(state), "--manifest", given))
    assert "2013-11-27T00:00Z: clean: accepted" in found.output
    assert "1 hour(s) since 2013-11-27T00:00Z are done for good, all before" in found.output
    assert found.output.endswith("2013-11-27T01:00Z: clean 1\nlocal: clean\n")
    found = invoke("--state", str(state), "--manifest", given)
    assert (found.exit_code, "accepted" in found.output) == (0, False)
    given = manifest_of(life.at(190).written(tmp_path / "b"), tmp_path / "b.json")
    found = invoke("--state", str(state), "--manifest", given, "--max-late", "0")
    assert found.exit_code == 1
    assert "2013-11-27T01:00Z: findings: accepted" in found.output
    assert "in all of them: late " in found.output
    summary = json.loads((state / "summary.json").read_bytes())
    assert summary["done_until"] == "2013-11-27T03:00Z"
    assert summary["hours"] == {"clean": 1, "final": 3, "findings": 2}
    hour = state / "hours" / "2013-11-27T00Z"
    first = json.loads((hour / "result.json").read_bytes())
    assert (first["schema"], first["verdict"], first["hour"]["state"]) == (1, "clean", "final")
    assert {path.stem for path in hour.glob("*.parquet")} == {"findings", *TABLES}
    # Findings of hours before are no news.
    found = invoke("--state", str(state), "--manifest", given, "--max-late", "0")
    assert (found.exit_code, "in all of them: late " in found.output) == (0, True)


def test_what_is_quiet_says_something_only_if_something_is_wrong(tmp_path: Path) -> None:
    state, source = tmp_path / "state", Life(1).at(70).written(tmp_path / "a")
    given = manifest_of(source, tmp_path / "a.json")
    found = invoke("--state", str(state), "--manifest", given, "--quiet")
    assert (found.exit_code, found.output) == (0, "")
    changed = msgspec.structs.replace(source.manifest, quarantined=("schedule_log/x",))
    given = manifest_of(Source(changed, source.root), tmp_path / "b.json")
    found = invoke("--state", str(tmp_path / "other"), "--manifest", given, "--quiet")
    assert found.exit_code == 2
    assert "incomplete (incomplete): accepted" in found.output
    assert "schedule_log/x was put aside" in found.output


def test_a_directory_is_looked_at_as_it_is_now(tmp_path: Path) -> None:
    data, state = directory(tmp_path / "data"), tmp_path / "state"
    found = invoke("--state", str(state), "--root", str(data))
    # Its messages were due years ago: what lies before is named, and nothing else is there.
    assert found.exit_code == 0, found.output
    assert "segment(s) before" in found.output
    assert "are not covered" in found.output
    assert "no hour since" in found.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--root", "data"], "Missing option '--state'"),
        (["--state", "state"], "there is no manifest"),
        (["--state", "state", "--root", "nowhere"], "nowhere"),
        (["--state", "data", "--root", "data"], "data is a data directory"),
        (["--state", "file/state", "--root", "data"], "cannot be made"),
        (["--state", "state", "--manifest", "file"], "no manifest"),
    ],
)
def test_every_error_is_3_and_says_what_is_wrong(
    options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory(tmp_path / "data")
    (tmp_path / "file").write_bytes(b"{}")
    monkeypatch.chdir(tmp_path)
    refused(invoke(*options), 3, said)


def test_hours_in_which_nothing_is_due_have_one_line(tmp_path: Path) -> None:
    source, state = Life(1).at(70).written(tmp_path / "a"), tmp_path / "state"
    manifest = msgspec.structs.replace(
        source.manifest, floor_minute=source.manifest.floor_minute + 600,
        made_ms=source.manifest.made_ms + 900 * 60_000,
    )  # fmt: skip
    given = manifest_of(Source(manifest, source.root), tmp_path / "a.json")
    found = invoke("--state", str(state), "--manifest", given)
    assert "T03:00Z to 2013-11-27T10:00Z: 7 hour(s) without messages: clean\n" in found.output
    told = "T11:00Z to 2013-11-27T15:00Z (5 hours): not closed: no later record of g has closed it"
    assert told in found.output
    assert "T02:00Z to 2013-11-27T04:00Z (2 hours): not closed, though" in found.output


def test_logs_of_another_cluster_are_refused_once(tmp_path: Path) -> None:
    source, state = Life(1).at(70).written(tmp_path / "a"), tmp_path / "state"
    given = manifest_of(source, tmp_path / "a.json")
    assert invoke("--state", str(state), "--manifest", given).exit_code == 0
    summary = (state / "summary.json").read_bytes()
    changed = msgspec.structs.replace(
        Life(1).at(190).manifest, cluster="other", storage_uuid="x", log_uuid=str(uuid4())
    )
    given = manifest_of(Source(changed, source.root), tmp_path / "b.json")
    found = invoke("--state", str(state), "--manifest", given)
    assert found.exit_code == 3
    assert found.output.startswith("Error: the state directory is of group g of cluster c, and ")
    assert found.output.count("\n") == 1
    assert (state / "summary.json").read_bytes() == summary
