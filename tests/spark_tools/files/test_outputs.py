"""A result is there whole, or what was there is as it was; what is no file is never replaced."""

import errno
import os
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_tools.files.errors import OutputError
from spark_tools.files.outputs import Output, write_whole


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Let no file become larger than 100 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_is_replaced_at_the_end_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "result"
    path.write_text("older")
    path.chmod(0o640)
    with Output(path) as output:
        output.write(b"new")
        assert path.read_text() == "older"
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["result"]


def test_what_a_link_names_is_replaced_and_not_the_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("result")
    write_whole(tmp_path / "link", b"first")
    write_whole(tmp_path / "link", b"second")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "result").read_bytes() == b"second"


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "result"
    path.write_text("older")

    def fail() -> None:
        with Output(path) as output:
            output.write(b"new")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert path.read_text() == "older"
    assert os.listdir(tmp_path) == ["result"]


@pytest.mark.usefixtures("small_disk")
@pytest.mark.parametrize("size", [101, 1_000_000])
def test_a_full_disk_is_told_with_the_name_of_the_file(size: int, tmp_path: Path) -> None:
    path = tmp_path / "result"
    path.write_text("older")
    with pytest.raises(OutputError) as error:
        write_whole(path, bytes(size))
    assert str(error.value) == f"{path} cannot be written: {os.strerror(errno.EFBIG)}"
    assert path.read_text() == "older"
    assert os.listdir(tmp_path) == ["result"]


def test_what_cannot_be_written_is_told_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "nowhere" / "x", tmp_path / "file" / "x"):
        with pytest.raises(OutputError, match=f"{path} cannot be written"):
            Output(path).__enter__()


def test_a_fifo_and_a_device_are_written_to(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()), daemon=True)
    reader.start()
    write_whole(fifo, b"result")
    reader.join(10)
    assert read == [b"result"]
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    write_whole(Path("/dev/null"), b"result")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    with pytest.raises(OutputError, match="/dev/full cannot be written: No space left"):
        write_whole(Path("/dev/full"), b"result")


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_standard_output_that_is_a_file_gets_it_among_what_is_printed(
    name: str, tmp_path: Path
) -> None:
    program = (
        "from pathlib import Path; from spark_tools.files.outputs import write_whole; "
        f"print('before', flush=True); write_whole(Path({name!r}), b'result\\n'); print('after')"
    )
    with (tmp_path / "out").open("wb") as out:
        subprocess.run([sys.executable, "-c", program], stdout=out, check=True, timeout=60)
    assert (tmp_path / "out").read_text() == "before\nresult\nafter\n"
