"""Promise: the documented test of a service is a whole file that passes, on asyncio and trio."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_documented_test_passes(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
    section = page.split("\n## Testing a service\n")[1]
    [code, *_] = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    test = tmp_path / "test_kitchen.py"
    test.write_text(code, encoding="utf-8")
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
            str(test),
        ],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
