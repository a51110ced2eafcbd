"""kill -9 of a run by hour, at moments that matter: the next run leaves what one would have."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from storage.readers.manifest import encode_manifest
from tests.processes.real_processes import ROOT
from tests.spark_tools.growing_worlds import FAULTS, Life

pytestmark = [pytest.mark.process, pytest.mark.long]


def start(given: str, state: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "delaywheel", "spark", "hours", "--state", str(state)]
    return subprocess.Popen(
        [*command, "--engine", "local", "--manifest", given],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def finished(process: subprocess.Popen[bytes]) -> int:
    _, said = process.communicate(timeout=60)
    assert process.returncode in {0, 1, 2}, said.decode()
    return process.returncode


def contents(state: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(state)): path.read_bytes()
        for path in state.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("sign", ["index/*.parquet", "hours/*.tmp/*.tmp", "hours/*Z/result.json"])
def test_what_a_killed_run_has_left_is_taken_up(sign: str, tmp_path: Path) -> None:
    source = Life(3, frozenset(FAULTS), share=0.2).at(260).written(tmp_path / "data")
    file = tmp_path / "manifest.json"
    file.write_bytes(encode_manifest(source.manifest))
    given = f"{file}={source.root}"
    code = finished(start(given, tmp_path / "whole"))
    state = tmp_path / "state"
    process = start(given, state)
    until = time.monotonic() + 60
    while process.poll() is None and not any(state.glob(sign)):
        assert time.monotonic() < until
        time.sleep(0.001)
    process.kill()
    process.communicate(timeout=60)
    was_killed = contents(state) != contents(tmp_path / "whole")
    assert finished(start(given, state)) == code or not was_killed
    assert contents(state) == contents(tmp_path / "whole")
    assert was_killed
