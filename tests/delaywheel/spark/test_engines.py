"""`--engine`: Spark by default, quietly; without Java one sentence, and a way without it."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from delaywheel.main import main
from delaywheel.spark.engines import EngineChoice, running
from spark_tools.files.errors import SparkFailedError
from tests.delaywheel.endings import done, refused
from tests.delaywheel.spark.test_commands import directory


def invoke(*options: str) -> Result:
    return CliRunner().invoke(main, ["spark", "reconcile", *options])


@pytest.mark.spark
def test_spark_is_what_works_if_nothing_is_said_and_finds_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert spark.sparkContext.defaultParallelism == 2
    data, local, other = directory(tmp_path / "data"), tmp_path / "local", tmp_path / "spark"
    assert invoke("--root", str(data), "--engine", "local", "--output", str(local)).exit_code == 0
    found = done(invoke("--root", str(data), "--output", str(other)))
    assert "accepted 5: delivered 5" in found.output
    assert found.output.endswith("spark: clean\n")
    first, second = json.loads(local.read_bytes()), json.loads(other.read_bytes())
    for one in (first, second):
        for key in ("watermark", "watermark_ms"):
            del one[key]
        for manifest in one["manifests"]:
            del manifest["made"], manifest["made_ms"]
    assert first == second


def test_without_java_it_ends_with_one_sentence_and_a_way_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = directory(tmp_path / "data")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    hours = ("spark", "hours", "--state", str(tmp_path / "state"), "--root", str(data))
    for found in (invoke("--root", str(data)), CliRunner().invoke(main, hours)):
        assert found.exit_code == 3
        [line] = found.output.splitlines()
        assert line.startswith("Error: Spark needs Java 17 or newer, and JAVA_HOME")
        assert "apt-get install openjdk-17-jre-headless" in line
        assert "--engine local" in line
    assert invoke("--root", str(data), "--engine", "local").exit_code == 0


def test_without_pyspark_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = directory(tmp_path / "data")
    monkeypatch.setitem(sys.modules, "pyspark", None)
    found = refused(invoke("--root", str(data)), 3, "extra `spark`")
    assert "--engine local" in found.output


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--engine", "local", "--master", "local[1]"], "--master is for --engine spark"),
        (["--engine", "local", "--conf", "a=b"], "--conf is for --engine spark"),
        (["--processes", "2"], "say --master local[N]"),
        (["--conf", "spark.executor.cores"], "is not KEY=VALUE"),
        (["--conf", "=1"], "is not KEY=VALUE"),
        (["--engine", "flink"], "is not one of"),
    ],
)
def test_options_of_the_other_engine_are_errors(options: list[str], complaint: str) -> None:
    refused(invoke(*options), 3, complaint)


def test_spark_connect_cannot_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr("spark_tools.spark.session.why_no_java", lambda _: None)
    choice = EngineChoice(engine="spark", master="sc://localhost")
    with pytest.raises(SparkFailedError, match="Connect"), running(choice):
        pass
