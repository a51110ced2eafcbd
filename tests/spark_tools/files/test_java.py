"""Java is looked for where Spark does, and what is missing is said in one sentence."""

from pathlib import Path

import pytest

from spark_tools.files.java import why_no_java


def java(folder: Path, script: str) -> Path:
    """Make a program `bin/java`; return the folder, as JAVA_HOME names it."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return folder


def says(version: str) -> str:
    return f"echo 'openjdk version \"{version}\" 2025-04-15' >&2; echo 'Runtime (build 99)' >&2"


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.1", "25-ea", "26+35"])
def test_a_java_that_is_new_enough_is_all_that_is_needed(version: str, tmp_path: Path) -> None:
    home = java(tmp_path, says(version))
    assert why_no_java({"JAVA_HOME": str(home)}) is None
    assert why_no_java({"PATH": f"{home}/bin:/bin"}) is None


@pytest.mark.parametrize(
    ("version", "has"), [("1.8.0_392", "Java 8"), ("11.0.2", "Java 11"), ("16", "Java 16")]
)
def test_an_older_one_is_named(version: str, has: str, tmp_path: Path) -> None:
    home = java(tmp_path, says(version))
    reason = why_no_java({"JAVA_HOME": str(home)})
    assert reason is not None
    assert f"JAVA_HOME ({home}) has {has}" in reason
    assert "apt-get install openjdk-17-jre-headless" in reason


@pytest.mark.parametrize("script", ["exit 1", "echo no version here", says("seventeen")])
def test_what_is_no_java_is_none(script: str, tmp_path: Path) -> None:
    home = java(tmp_path, script)
    reason = why_no_java({"PATH": f"{home}/bin:/bin"})
    assert reason is not None
    assert "PATH has none" in reason
    assert reason.count(". ") == 0, "one sentence"


def test_java_home_counts_before_the_path_as_for_spark(tmp_path: Path) -> None:
    good = java(tmp_path / "good", says("17"))
    reason = why_no_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": f"{good}/bin"})
    assert reason is not None
    assert "has none" in reason
    assert why_no_java({"PATH": str(tmp_path)}) is not None
