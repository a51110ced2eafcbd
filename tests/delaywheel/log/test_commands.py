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

    def dump_files(self, path: Path) -> Iterator[Record]:
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


def test_what_is_dumped_are_lines_of_json_and_a_limit_ends_an_endless_log(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["log", "dump", str(tmp_path), "--limit", "2"])
    assert [json.loads(line) for line in result.output.splitlines()] == RECORDS[:2]


def test_whole_logs_verify(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["log", "verify", str(tmp_path)])
    assert result.exit_code == 0, result.output


def test_damage_is_shown_and_ends_with_a_code(tmp_path: Path, inspection: Inspection) -> None:
    inspection.reports.append({"file": "b", "batches": 1, "damage": ["at 4096: crc"]})
    result = CliRunner().invoke(main, ["log", "verify", str(tmp_path)])
    assert result.exit_code == ExitCode.LOGS
    assert "at 4096: crc" in result.stdout
    assert "1 damaged file(s)" in result.stderr


def test_what_is_not_there_is_a_wrong_option(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["log", "verify", str(tmp_path / "missing")])
    assert result.exit_code == ExitCode.USAGE
