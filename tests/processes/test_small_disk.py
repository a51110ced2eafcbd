"""A server that has a small volume for itself never fills it, and starts again on it."""

import os
import secrets
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from delay_protocol.basics.codes import ItemCode
from tests.processes.real_processes import (
    Producer,
    RecordingBroker,
    make_item,
    server,
    until,
    wall_ms,
)

pytestmark = pytest.mark.process

VOLUME_BYTES = 32 * 1024 * 1024
FLOOR_BYTES = 6_000_000
OPTIONS = (
    *("--set", f"storage.disk_free_bytes_min={FLOOR_BYTES}"),
    *("--set", "storage.disk_free_share_min=0.9"),
    *("--set", "storage.message_log_file_bytes_max=2097152"),
    *("--set", "admission.pending_bytes_max=1048576"),
)


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, in memory."""
    path = tmp_path / "volume"
    path.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a file system")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={VOLUME_BYTES}", "tmpfs", str(path)],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)  # noqa: S607


@pytest.mark.long
def test_what_fills_the_volume_is_refused_in_time_and_the_rest_survives_a_kill(
    volume: Path,
) -> None:
    kept: list[str] = []
    refused: set[int] = set()
    least_free = VOLUME_BYTES
    with RecordingBroker() as broker:
        with server(volume, broker_port=broker.port, options=OPTIONS) as node:
            node.wait_ready()
            with Producer(node.port) as producer:
                due_ms = wall_ms() + 12_000
                for first in range(0, 8000, 100):
                    ids = [f"m{number}" for number in range(first, first + 100)]
                    answer = producer.send(
                        [make_item(one, due_ms, value=secrets.token_hex(1500)) for one in ids]
                    )
                    least_free = min(least_free, shutil.disk_usage(volume).free)
                    assert answer is not None
                    refused |= {code for code, _ in answer.values()}
                    kept += [one for one in ids if one.encode() not in answer]
            assert refused == {ItemCode.BROKER_READ_ONLY}
            assert 1000 < len(kept) < 8000
            status = node.status()
            assert status["disk_full"]
            assert status["disk_floor_bytes"] == FLOOR_BYTES
            assert until(lambda: len(set(broker.ids)) == len(kept), seconds=40)
            assert until(lambda: node.status()["pending"] == 0, seconds=10)
            least_free = min(least_free, shutil.disk_usage(volume).free)
            assert least_free >= FLOOR_BYTES
            node.kill()
        with server(volume, broker_port=broker.port, options=OPTIONS) as node:
            node.wait_ready()
            assert until(lambda: node.status()["checkpoint_sequence"] > len(kept), seconds=15)
            assert shutil.disk_usage(volume).free >= FLOOR_BYTES
            node.terminate()
        assert Counter(broker.ids) == Counter(kept)
