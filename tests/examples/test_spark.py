"""The first look at logs in Spark shows every message of its day, and needs nothing but Java."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "spark" / "first_look.py"
SECONDS_MAX = 240
CELLS = re.compile(r"[^|\s][^|]*?(?=\s*\|)")


def look(*roots: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *roots],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def tables_of(text: str) -> dict[str, list[list[str]]]:
    """Return the rows of each table, by title."""
    tables: dict[str, list[list[str]]] = {}
    rows: list[list[str]] = []
    for before, line in zip(["", *text.splitlines()], text.splitlines(), strict=False):
        if line.startswith("+") and before and not before.startswith(("|", "+")):
            rows = tables.setdefault(before, [])
        elif line.startswith("|"):
            rows.append(CELLS.findall(line))
    return tables


def _title_first(cell: str) -> tuple[bool, str]:
    """Order times, behind the title of their column."""
    return cell != "due", cell


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.usefixtures("java")
@pytest.mark.long
def test_each_message_of_the_day_is_delivered_or_waiting() -> None:
    found = look()
    assert found.returncode == 0, found.stdout + found.stderr
    due, late, latest, waiting, following = tables_of(found.stdout).values()
    subjects = ["boarding.EWR", "boarding.JFK", "boarding.LGA"]
    assert due[0] == waiting[0] == ["hour", *subjects]
    count = sum(int(cell) for row in due[1:] for cell in row[1:])
    assert count == 1014
    delivered = {(row[0], row[1]): [int(cell) for cell in row[2:]] for row in late[1:]}
    assert {target for _, target in delivered} == {"gate", "app"}
    still = sum(int(cell) for row in waiting[1:] for cell in row[1:])
    assert sum(one[0] for one in delivered.values()) + still == count
    assert still > 300
    assert all(0 <= p50 <= p90 <= p99 <= most for _, p50, p90, p99, most in delivered.values())
    assert int(latest[1][4]) == max(one[-1] for one in delivered.values())
    assert len(following) == 6
    assert [row[0] for row in following] == sorted([row[0] for row in following], key=_title_first)


def test_without_java_it_says_what_to_install(tmp_path: Path) -> None:
    found = look(str(tmp_path), JAVA_HOME=str(tmp_path))
    assert found.returncode == 1
    assert "apt-get install openjdk-17-jre-headless" in found.stderr
    assert "Traceback" not in found.stderr
