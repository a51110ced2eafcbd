"""Some failovers of a real group, of the kinds that are soon over: no promise is broken.

A little of what `make failover` runs by the hundred. Where network namespaces are not allowed the
kinds that break links are left out, and the output says so.
"""

import os
import subprocess
import sys

import pytest

from tests.processes.real_processes import ROOT

pytestmark = [pytest.mark.process, pytest.mark.slow]

_SECONDS_MAX = 300
"""On a busy machine; it takes a quarter of that on one that is not."""


@pytest.mark.parametrize("failovers", [3, pytest.param(10, marks=pytest.mark.long)])
def test_failovers_lose_nothing_and_logs_are_equal(failovers: int) -> None:
    line = ["--failovers", str(failovers), "--seed", "1", "--rate", "200", "--quick"]
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
    assert f"{failovers} failovers" in done.stdout
