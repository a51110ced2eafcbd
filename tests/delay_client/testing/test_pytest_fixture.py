"""Promise: the test of the guide for services passes as it stands there, on asyncio and trio.

Each example of the guide is a file that names itself in its first line.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

CHANGING = """
import changing
import pytest
from delay_client.testing.pytest_fixture import delaywheel_cluster


@pytest.mark.anyio
async def test_what_the_guide_says_of_cancels(delaywheel_cluster):
    async with delaywheel_cluster.client() as client:
        first, second, _ = [
            await client.send("fee.due", "x", delay=60, message_id=f"fee-2026-12-{n}")
            for n in range(3)
        ]
        assert await changing.paid(client, first) == f"cancelled, due {first.due_at}"
        assert await changing.put_off(client, second)
        told = await changing.forget(client, ["0", "1", "2", "3"])
        assert told == ["already cancelled or moved", "cancelled", "cancelled", "unknown"]
    assert not delaywheel_cluster.pending()
"""
"""A test of the functions that cancel and move."""


def test_the_documented_test_passes(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "services.md").read_text(encoding="utf-8")
    examples = dict(
        re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    )
    assert len(examples) == page.count("```python")
    for name, code in examples.items():
        compile(code, name, "exec")
        (tmp_path / name).write_text(code, encoding="utf-8")
    (tmp_path / "test_changing.py").write_text(CHANGING, encoding="utf-8")
    # Settings of a user: none. Only anyio's plugin is there, as with anyone who has the client.
    settings = tmp_path / "pytest.ini"
    settings.write_text("[pytest]\nfilterwarnings = error\n", encoding="utf-8")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:trio",
            "-p",
            "no:cacheprovider",
            "test_fees.py",
            "test_changing.py",
        ],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
