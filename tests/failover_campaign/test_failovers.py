"""Ten failovers of a real group, of the kinds that are soon over: no promise is broken.

A little of what `make failover` runs by the hundred. Where network namespaces are not allowed the
kinds that break links are left out, and the output says so.
"""

import os
import subprocess
import sys

import pytest

from tests.processes.real_processes import ROOT

pytestmark = [pytest.mark.process, pytest.mark.long]

_SECONDS_MAX = 300
"""On a busy machine; it takes a quarter of that on one that is not."""


def test_ten_failovers_lose_nothing_and_logs_are_equal() -> None:
    line = ["--failovers", "10", "--seed", "1", "--rate", "200", "--quick"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.failover_campaign.run", *line],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    assert "10 failovers" in done.stdout
