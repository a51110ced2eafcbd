"""The layer below a real process forgets at a power cut what was not fsynced, and nothing else."""

import itertools
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.disk_layer import _MAGIC, _RECORD, DiskLayer, Unavailable, _Kind, build_layer
from tests.simulation.medium import Directory

pytestmark = [pytest.mark.process, pytest.mark.long]

DRAWS = 60
_PRELUDE = "import errno, mmap, os, sys\nroot = sys.argv[1]\n"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build_layer(tmp_path_factory.mktemp("layer"))
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def layer(library: Path, tmp_path: Path) -> DiskLayer:
    (tmp_path / "root").mkdir()
    return DiskLayer(library, tmp_path / "root")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def run(
    layer: DiskLayer, root: Path, program: str, *, fault: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program on the layer; the root is sys.argv[1]."""
    done = subprocess.run(
        [sys.executable, "-c", _PRELUDE + program, str(root)],
        env=os.environ | layer.environment(fault),
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.returncode:
        kept_journal(root).write_bytes(root.with_name("root.journal").read_bytes())
        layer.replay()
        assert layer.differences() == []
    return done


def kept_journal(root: Path) -> Path:
    return root.with_name("kept")


def outcomes(layer: DiskLayer, root: Path) -> list[dict[str, bytes]]:
    """Return what files there are, and what is in them, after many different power cuts."""
    found = []
    for seed in range(DRAWS):
        layer.disk = Directory()
        root.with_name("root.journal").write_bytes(kept_journal(root).read_bytes())
        layer.replay()
        layer.cut_power(random.Random(seed))
        found.append({path: bytes(inode.map()) for path, inode in layer.disk.files()})
    return found


MADE = """
def made(name, data, *, synced=True):
    fd = os.open(f"{root}/{name}", os.O_RDWR | os.O_CREAT, 0o600)
    assert os.pwritev(fd, [data], 0) == len(data)
    if synced:
        os.fdatasync(fd)
    return fd

def sync_directory(name=""):
    fd = os.open(f"{root}/{name}", os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)
"""


def test_what_was_fsynced_survives_and_what_was_not_is_lost_torn_and_reordered(
    layer: DiskLayer, root: Path
) -> None:
    program = """
fd = made("log", b"a" * 4096)
sync_directory()
for sector in range(8):
    os.pwritev(fd, [b"b" * 512], 512 * sector)
os.pwrite(fd, b"c" * 1024, 4096)
"""
    assert run(layer, root, MADE + program).returncode == 0
    images = [files["log"] for files in outcomes(layer, root)]
    assert len({*images}) > DRAWS // 2
    kept = set()
    for image in images:
        sectors = [image[start : start + 512] for start in range(0, 4096, 512)]
        kept.add(tuple(sector[:1] + sector[-1:] for sector in sectors))
        # Bits flip among bytes that were under way; what was durable never goes.
        assert len(image) >= 4096
        assert sum(byte not in b"ab" for byte in image[:4096]) <= 3
    assert (b"aa",) * 8 in kept
    assert any(one != two for each in kept for one, two in itertools.pairwise(each))
    assert {len(image) for image in images} >= {4096, 5120}


def test_a_name_is_durable_after_the_fsync_of_its_directory_only(
    layer: DiskLayer, root: Path
) -> None:
    program = """
os.mkdir(f"{root}/d")
sync_directory()
made("d/one", b"1")
sync_directory("d")
made("d/two", b"2")
os.unlink(f"{root}/d/one")
"""
    assert run(layer, root, MADE + program).returncode == 0
    names = {frozenset(files) for files in outcomes(layer, root)}
    assert names == {
        frozenset({"d/one"}),
        frozenset({"d/two"}),
        frozenset({"d/one", "d/two"}),
        frozenset(),
    }


def test_syncfs_makes_everything_durable(layer: DiskLayer, root: Path) -> None:
    program = """
import ctypes
fd = made("one", b"1", synced=False)
made("two", b"2", synced=False)
assert ctypes.CDLL(None).syncfs(fd) == 0
"""
    assert run(layer, root, MADE + program).returncode == 0
    assert outcomes(layer, root) == [{"one": b"1", "two": b"2"}] * DRAWS


def test_a_truncate_and_writes_without_a_position_are_seen(layer: DiskLayer, root: Path) -> None:
    program = """
fd = made("log", b"abcdef")
os.ftruncate(fd, 3)
os.lseek(fd, 0, os.SEEK_END)
os.write(fd, b"XY")
os.close(fd)
fd = os.open(f"{root}/log", os.O_WRONLY | os.O_APPEND)
os.writev(fd, [b"Z", b"!"])
os.fsync(fd)
sync_directory()
"""
    assert run(layer, root, MADE + program).returncode == 0
    assert outcomes(layer, root) == [{"log": b"abcXYZ!"}] * DRAWS


def test_an_fsync_that_fails_drops_its_pages_for_good(layer: DiskLayer, root: Path) -> None:
    program = """
fd = made("log", b"old")
sync_directory()
os.pwrite(fd, b"new", 0)
try:
    os.fdatasync(fd)
except OSError as error:
    assert error.errno == errno.EIO
else:
    raise SystemExit("it should fail")
os.fdatasync(fd)
assert os.pread(fd, 3, 0) == b"new"
"""
    done = run(layer, root, MADE + program, fault="eio 2")
    assert done.returncode == 0, done.stderr
    assert (root / "log").read_bytes() == b"new"
    assert outcomes(layer, root) == [{"log": b"old"}] * DRAWS


@pytest.mark.parametrize(
    "call",
    [
        'os.link(f"{root}/log", f"{root}/other")',
        'os.symlink("log", f"{root}/other")',
        "os.posix_fallocate(fd, 0, 100)",
        'mmap.mmap(fd, 3)[0:1] = b"x"',
        "os.dup2(fd, 100)",
        'os.rename(f"{root}/log", f"{root}/../log")',
    ],
)
def test_a_call_that_is_not_modelled_ends_the_process_with_a_sentence(
    layer: DiskLayer, root: Path, call: str
) -> None:
    done = run(layer, root, f'{MADE}fd = made("log", b"abc")\n{call}\n')
    assert done.returncode == -signal.SIGABRT
    assert "is not modelled on files of" in done.stderr


def journal(*records: tuple[_Kind, int, int, bytes, bytes]) -> bytes:
    """Return a journal of (kind, descriptor, position, path, data)."""
    return b"".join(
        _RECORD.pack(_MAGIC, kind, descriptor, os.O_CREAT, position, len(path), len(data))
        + path
        + data
        for kind, descriptor, position, path, data in records
    )


def test_what_is_written_while_an_fsync_runs_is_not_covered_by_it(
    layer: DiskLayer, root: Path
) -> None:
    kept_journal(root).write_bytes(
        journal(
            (_Kind.OPEN, 3, 0, b"log", b""),
            (_Kind.WRITE, 3, 0, b"", b"one"),
            (_Kind.OPEN, 4, 0, b"", b""),
            (_Kind.SYNC_BEGIN, 4, 0, b"", b""),
            (_Kind.OPEN, 5, 0, b"late", b""),
            (_Kind.SYNC_END, 4, 0, b"", b""),
            (_Kind.SYNC_BEGIN, 3, 0, b"", b""),
            (_Kind.WRITE, 3, 3, b"", b"two"),
            (_Kind.SYNC_END, 3, 0, b"", b""),
        )
    )
    found = outcomes(layer, root)
    assert all(files["log"].startswith(b"one") for files in found)
    assert any(files["log"] == b"one" for files in found)
    assert {"late" in files for files in found} == {False, True}


def test_a_record_that_the_death_of_the_process_cut_off_is_left_out(
    layer: DiskLayer, root: Path
) -> None:
    whole = journal((_Kind.OPEN, 3, 0, b"log", b""), (_Kind.WRITE, 3, 0, b"", b"one"))
    for cut in range(1, _RECORD.size + 3):
        root.with_name("root.journal").write_bytes(whole[:-cut])
        layer.disk = Directory()
        layer.replay()
        assert [(name, bytes(inode.map())) for name, inode in layer.disk.files()] == [("log", b"")]
