"""`delaywheel log manifest` prints what a data directory commits, and ends with a code."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from delaywheel.main import main
from delaywheel.shared.failures import ExitCode
from storage.disk.disk import DirectoryDisk
from storage.disk.spans import MINUTE_MS
from storage.readers.manifest import decode_manifest, read_manifest
from tests.damage.directory import populated
from tests.delaywheel.endings import done
from tests.golden.directory import written
from tests.storage.readers.test_manifest import with_deleted_segments


@pytest.fixture(name="data")
def data_fixture(tmp_path: Path) -> Path:
    return written(populated(2).files, tmp_path / "data")


def contents(data: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}


def test_it_is_printed_and_nothing_is_written_to_the_directory(data: Path) -> None:
    before = contents(data)
    result = done(CliRunner().invoke(main, ["log", "manifest", str(data)]))
    found = decode_manifest(result.stdout_bytes, path="-")
    assert found.segments == read_manifest(DirectoryDisk(data), now_ms=1).segments
    assert found.deleted_from_minute == 0, "nothing was deleted"
    assert contents(data) == before


def test_it_is_written_to_a_file_as_a_whole(data: Path, tmp_path: Path) -> None:
    output = tmp_path / "manifest.json"
    output.write_text("older")
    arguments = ["log", "manifest", str(data), "--output", str(output)]
    result = done(CliRunner().invoke(main, arguments))
    assert result.output == ""
    found = decode_manifest(output.read_bytes(), path=str(output))
    assert found.segments
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "manifest.json"]


def test_deleted_segments_of_so_many_days_are_told_of(tmp_path: Path) -> None:
    written(with_deleted_segments().disk.contents(), tmp_path)
    for days, told in ((30, 0), (30_000, 6)):
        options = ["log", "manifest", str(tmp_path), "--deleted-days", str(days)]
        found = decode_manifest(CliRunner().invoke(main, options).stdout_bytes, path="-")
        assert len(found.sealed) == told, "all are of years ago"
        since = 0 if told else found.made_ms // MINUTE_MS - 30 * 1440
        assert found.deleted_from_minute == since


def test_what_is_gone_is_named_and_ends_with_a_code(data: Path, tmp_path: Path) -> None:
    segment = read_manifest(DirectoryDisk(data), now_ms=1).segments[0].file
    (data / segment).unlink()
    output = tmp_path / "manifest.json"
    result = CliRunner().invoke(main, ["log", "manifest", str(data), "--output", str(output)])
    assert result.exit_code == ExitCode.LOGS
    assert f"{segment} at 0: the file is gone" in result.stderr
    assert "not complete, 1 fault" in result.stderr
    assert decode_manifest(output.read_bytes(), path="m").faults, "written all the same"


def test_another_directory_and_a_place_that_cannot_be_written_are_named(
    data: Path, tmp_path: Path
) -> None:
    result = CliRunner().invoke(main, ["log", "manifest", str(tmp_path / "data" / "seals")])
    assert result.exit_code == ExitCode.DATA_DIRECTORY
    assert "no data directory" in result.stderr
    output = tmp_path / "missing" / "manifest.json"
    result = CliRunner().invoke(main, ["log", "manifest", str(data), "--output", str(output)])
    assert result.exit_code == ExitCode.USAGE
    assert "cannot be written" in result.stderr
