"""`delaywheel log dump` shows what the storage package finds, as lines of JSON."""

import itertools
import json
import sys
import types
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


@pytest.fixture(autouse=True)
def endless_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for storage.tools.inspect: its log has no end."""
    module = types.ModuleType("storage.tools.inspect")
    module.__dict__["dump_files"] = lambda _: itertools.cycle(RECORDS)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_what_is_dumped_are_lines_of_json_and_a_limit_ends_an_endless_log(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["log", "dump", str(tmp_path), "--limit", "2"])
    assert [json.loads(line) for line in result.output.splitlines()] == RECORDS[:2]


def test_what_is_not_there_is_a_wrong_option(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["log", "verify", str(tmp_path / "missing")])
    assert result.exit_code == ExitCode.USAGE
