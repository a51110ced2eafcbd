"""`delaywheel spark reconcile` says by its exit code what it found; errors have their own."""

import json
import sys
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from delaywheel.main import main
from storage.disk.disk import DirectoryDisk
from storage.readers.manifest import encode_manifest, read_manifest
from tests.delaywheel.endings import done, refused
from tests.golden.directory import written
from tests.spark_tools.s3_server import Store
from tests.spark_tools.worlds import world_of
from tests.storage.store_rig import StoreRig


def invoke(*options: str) -> Result:
    return CliRunner().invoke(main, ["spark", "reconcile", "--engine", "local", *options])


def directory(root: Path, *, deliver: bool = True) -> Path:
    """Write the directory of a node that has taken a few messages."""
    rig = StoreRig(3)
    rig.open()
    rig.split(100)
    rig.commit([rig.now_ms + 10 * place for place in range(5)])
    rig.file(10)
    rig.load(steps=100)
    rig.now_ms += 1000
    if deliver:
        rig.deliver()
        rig.cross_off()
    rig.checkpoint()
    return written(rig.disk.contents(), root)


def test_a_directory_is_reconciled_as_it_is_now(tmp_path: Path) -> None:
    data, output = directory(tmp_path / "data"), tmp_path / "result.json"
    details = tmp_path / "details"
    found = done(invoke("--root", str(data), "--output", str(output), "--details", str(details)))
    assert "accepted 5: delivered 5" in found.output
    result = json.loads(output.read_bytes())
    assert (result["schema"], result["verdict"], result["complete"]) == (1, "clean", True)
    assert result["groups"][0]["states"]["delivered"] == 5
    assert pq.read_table(details / "findings.parquet").num_rows == 0
    assert sum(pq.read_table(details / "subjects.parquet")["accepted"].to_pylist()) == 5


def test_what_is_overdue_is_a_finding_and_lost_if_nothing_runs(tmp_path: Path) -> None:
    data, details = directory(tmp_path / "data", deliver=False), tmp_path / "details"
    found = invoke("--root", str(data), "--details", str(details))
    assert (found.exit_code, "overdue: 5" in found.stdout) == (1, True)
    table = pq.read_table(details / "findings.parquet")
    assert table["class"].to_pylist() == ["overdue"] * 5
    assert all(table["message_id"].to_pylist())
    found = invoke("--root", str(data), "--final")
    assert (found.exit_code, "lost: 5" in found.stdout) == (1, True)


def test_a_manifest_names_the_files_of_another_directory(tmp_path: Path) -> None:
    data, file = directory(tmp_path / "data"), tmp_path / "manifest.json"
    manifest = read_manifest(DirectoryDisk(data), now_ms=1)
    file.write_bytes(encode_manifest(manifest))
    assert invoke("--manifest", f"{file}={data}").exit_code == 0
    # Its own directory has none of the files.
    found = invoke("--manifest", str(file))
    assert (found.exit_code, "not complete" in found.output) == (2, True)


def test_a_copy_in_an_object_store_is_reconciled_as_its_directory_is(
    s3: Store, tmp_path: Path
) -> None:
    data = directory(s3.root / "team" / "node", deliver=False)
    manifest = encode_manifest(read_manifest(DirectoryDisk(data), now_ms=2 * 10**12))
    (s3.root / "team" / "node.json").write_bytes(manifest)
    results: list[str] = []
    for root in (str(s3.root / "team"), "s3://team"):
        output = tmp_path / f"{len(results)}.json"
        given = f"{root}/node.json={root}/node"
        assert invoke("--manifest", given, "--output", str(output)).exit_code == 1
        results.append(output.read_text().replace(root, "ROOT"))
    assert results[0] == results[1]
    assert '"overdue": 5' in results[0]
    assert invoke("--root", "s3://team/node").exit_code == 1
    assert invoke("--root", data.as_uri()).exit_code == 1
    for wrong, why in (
        (["--root", "s3://tea/node"], "s3://tea/node is nowhere: there is no tea"),
        (["--root", "s3://team/nod"], "s3://team/nod: there is no identity file"),
        (["--manifest", "s3://team/nod.json"], "No such file or directory: 's3://team/nod.json'"),
        (["--root", f"{data.as_uri()}x"], "does not exist"),
        (["--root", "file://x/y"], "of another machine"),
        (["--root", "s3://team/node", "--details", "s3://team/result"], "write to this machine"),
    ):
        refused(invoke(*wrong), 3, why)


def test_the_range_is_of_utc_minutes(tmp_path: Path) -> None:
    source = world_of(2).written(tmp_path / "data")
    file = tmp_path / "m.json"
    file.write_bytes(encode_manifest(source.manifest))
    output = tmp_path / "result.json"
    options = ["--manifest", f"{file}={source.root}", "--output", str(output)]
    invoke(*options, "--from", "2013-11-27T00:00Z", "--to", "2013-11-27T01:00+01:00")
    assert not output.exists(), "an empty range"
    invoke(*options, "--from", "2013-11-27T00:00Z", "--to", "2013-11-27T00:01Z")
    result = json.loads(output.read_bytes())
    assert result["parameters"]["from"] == "2013-11-27T00:00Z"
    assert {row["hour"] for row in result["groups"][0]["by_subject"]} == {"2013-11-27T00:00Z"}


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--root", "nowhere"],
        ["--from", "yesterday"],
        ["--from", "2013-11-27T00:00:07Z"],
        ["--manifest", "nowhere.json"],
        ["--unknown"],
    ],
)
def test_every_error_is_3_and_no_verdict(options: list[str]) -> None:
    refused(invoke(*options), 3, "Error")


def test_a_defect_is_an_error_with_its_traceback_and_never_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    data = directory(tmp_path / "data")

    def broken(*_: object) -> object:
        raise AssertionError("broken on purpose")

    monkeypatch.setattr("spark_tools.run.plan.make_plan", broken)
    found = invoke("--root", str(data))
    assert found.exit_code == 3
    assert "broken on purpose" in found.output + capfd.readouterr().err


def test_without_the_extra_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = directory(tmp_path / "data")
    for name in [name for name in sys.modules if name.startswith(("spark_tools", "pyarrow"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused(invoke("--root", str(data)), 3, "pip install ./distributions/client '.[spark]'")


def test_outputs_are_whole_or_as_they_were(tmp_path: Path) -> None:
    data, output, details = directory(tmp_path / "data"), tmp_path / "result.json", tmp_path / "d"
    given = ("--root", str(data), "--output", str(output), "--details", str(details))
    assert invoke(*given).exit_code == 0
    before = {path: path.read_bytes() for path in (output, *details.iterdir())}
    assert len(before) == 6
    # An hour of work must not end with a wrong path: nothing is read, and nothing is replaced.
    page = tmp_path / "nowhere" / "page.html"
    found = invoke(*given, "--page", str(page), "--examples", "1")
    assert found.exit_code == 3
    assert found.output == f"Error: {page} cannot be written: No such file or directory\n"
    found = invoke(*given, "--page", "/dev/full", "--examples", "1")
    assert found.exit_code == 3
    assert found.output == "Error: /dev/full cannot be written: No space left on device\n"
    assert {path: path.read_bytes() for path in (output, *details.iterdir())} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "data", "result.json"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (b"{", "m.json: no manifest: "),
        (b'{"schema":1}', "m.json: manifest of schema 1 (this one reads 4); make it again"),
        (b"facts", "is not the facts file of "),
        (b"segment", "m.json: schedule_log/x is not the name of a segment; make it again"),
        (b"nowhere", "nope is no directory: give --manifest FILE=DATA_DIR"),
    ],
)
def test_a_wrong_manifest_is_named_with_what_to_do(
    wrong: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    directory(tmp_path / "data")
    manifest = read_manifest(DirectoryDisk(tmp_path / "data"), now_ms=1)
    one = manifest.segments[0]
    changed = {
        b"facts": msgspec.structs.replace(one, facts_file="dispatch_log/x"),
        b"segment": msgspec.structs.replace(one, file="schedule_log/x"),
        b"nowhere": one,
    }.get(wrong)
    whole = msgspec.structs.replace(manifest, segments=(changed,)) if changed else None
    Path("m.json").write_bytes(encode_manifest(whole) if whole else wrong)
    found = invoke("--manifest", "m.json=nope" if wrong == b"nowhere" else "m.json=data")
    assert found.exit_code == 3
    assert said in found.output
    assert "log verify" not in found.output
    assert "starting it" not in found.output
    assert found.output.count("\n") == 1
