"""`delaywheel log` shows what the storage package finds; damage ends it with a code."""

import itertools
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from delaywheel.main import main
from delaywheel.shared.failures import ExitCode

Record = dict[str, object]

RECORDS: list[Record] = [
    {"file": "message_log/1", "sequence": 1, "kind": "EPOCH_START"},
    {"file": "message_log/1", "sequence": 2, "kind": "MESSAGE"},
    {"file": "message_log/1", "sequence": 2, "subject": b"a\xff", "flags": ["x", "y"]},
]


class Inspection(types.ModuleType):
    """Stands in for storage.tools.inspect."""

    def __init__(self) -> None:
        super().__init__("storage.tools.inspect")
        self.reports: list[Record] = [{"file": "a", "batches": 3, "damage": []}]

    def dump_records(self, path: Path) -> Iterator[Record]:
        assert path.exists()
        return itertools.cycle(RECORDS)

    def verify_files(self, path: Path) -> Iterator[Record]:
        assert path.exists()
        return iter(self.reports)


@pytest.fixture(autouse=True)
def inspection(monkeypatch: pytest.MonkeyPatch) -> Inspection:
    module = Inspection()
    monkeypatch.setitem(sys.modules, "storage.tools.inspect", module)
    return module


def test_records_are_shown_as_tables_and_a_limit_ends_an_endless_log(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["log", "dump", str(tmp_path), "--limit", "3"])
    assert result.exit_code == 0, result.output
    assert "EPOCH_START" in result.output
    assert "a\\xff" in result.output
    assert "x; y" in result.output


def test_records_are_lines_of_json(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["log", "dump", str(tmp_path), "--limit", "2", "--json"])
    assert [json.loads(line) for line in result.output.splitlines()] == RECORDS[:2]


def test_whole_logs_verify(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["log", "verify", str(tmp_path)])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_damage_is_shown_and_ends_with_a_code(
    tmp_path: Path, inspection: Inspection, form: tuple[str, ...]
) -> None:
    inspection.reports.append({"file": "b", "batches": 1, "damage": ["at 4096: crc"]})
    result = CliRunner().invoke(main, ["log", "verify", str(tmp_path), *form])
    assert result.exit_code == ExitCode.LOGS
    assert "at 4096: crc" in result.stdout
    assert "1 damaged file(s)" in result.stderr


def test_what_is_not_there_is_a_wrong_option(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["log", "verify", str(tmp_path / "missing")])
    assert result.exit_code == ExitCode.USAGE


def test_a_record_is_shown_as_it_is_and_moves_no_cursor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record: Record = {"message id": "a\nb\x1b[31m", "subject": b"[bold]s[/x]\x1b"}
    monkeypatch.setitem(RECORDS[2], "message id", record["message id"])
    monkeypatch.setitem(RECORDS[2], "subject", record["subject"])
    result = CliRunner().invoke(main, ["log", "dump", str(tmp_path), "--limit", "3"])
    assert result.exit_code == 0, result.output
    assert "a\\nb\\x1b[31m" in result.output
    assert "[bold]s[/x]\\x1b" in result.output
    assert "\x1b" not in result.output
