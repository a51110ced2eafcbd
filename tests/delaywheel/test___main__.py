"""The command in a process of its own, and the same by spark-submit."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.delaywheel.spark.test_commands import directory

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 240
COMMAND = str(ROOT / "delaywheel" / "__main__.py")

pytestmark = [
    *(pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.long),
    pytest.mark.usefixtures("java"),
]


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    # No settings but where this tree is: an installed one needs none at all.
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "HOME") if name in os.environ}
    return subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=SECONDS_MAX,
        env=kept | {"PYTHONPATH": str(ROOT)} | environment,
    )


def submitted(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `spark-submit` as in an environment that is active."""
    here = str(Path(sys.executable).parent)
    submit = shutil.which("spark-submit", path=here)
    assert submit is not None
    # Nothing says which Python workers run.
    return run([submit, *words], PATH=f"{here}{os.pathsep}{os.environ['PATH']}")


def test_the_command_starts_spark_by_itself_and_says_nothing_of_it(tmp_path: Path) -> None:
    data, log = directory(tmp_path / "data"), tmp_path / "spark.log"
    command = [sys.executable, "-m", "delaywheel", "spark", "reconcile", "--root", str(data)]
    # Workers do not run whatever `python3` is.
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 9\n")
    other.chmod(0o755)
    path = f"{other.parent}{os.pathsep}{os.environ['PATH']}"
    done = run([*command, "--master", "local[2]", "--spark-log", str(log)], PATH=path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("spark: clean\n")
    assert done.stderr == ""
    assert "log4j" in log.read_text()


def test_spark_submit_runs_the_command_on_its_own_master(tmp_path: Path) -> None:
    data, output = directory(tmp_path / "data", deliver=False), tmp_path / "result.json"
    options = ("--master", "local[1]", "--conf", "spark.logConf=true")
    job = (COMMAND, "spark", "reconcile", "--root", str(data), "--output", str(output))
    done = submitted(*options, *job)
    assert done.returncode == 1, done.stderr
    assert "overdue: 5" in done.stdout
    assert output.exists()
    assert "spark.master=local[1]" in done.stderr


def test_spark_submit_runs_hours_too(tmp_path: Path) -> None:
    data, state = directory(tmp_path / "idle"), tmp_path / "state"
    done = submitted(COMMAND, "spark", "hours", "--state", str(state), "--root", str(data))
    assert done.returncode == 0, done.stderr
    assert "no hour since" in done.stdout
    assert (state / "summary.json").exists()
    assert "spark: clean" in done.stdout
