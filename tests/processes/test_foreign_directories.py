"""A server writes nothing into a directory with the files of somebody else."""

from collections.abc import Callable
from pathlib import Path

import pytest

from delaywheel.shared.failures import ExitCode
from tests.processes.real_processes import ServerProcess, meta_server, server

pytestmark = pytest.mark.process


def delay(data: Path) -> ServerProcess:
    return ServerProcess(data, broker_port=1)


def meta(data: Path) -> ServerProcess:
    return ServerProcess(data, command="meta-server")


def dev(data: Path) -> ServerProcess:
    return ServerProcess(data, command="dev")


@pytest.mark.parametrize("start", [delay, meta, dev])
def test_a_directory_of_somebody_else_is_refused_before_anything_is_written(
    tmp_path: Path, start: Callable[[Path], ServerProcess]
) -> None:
    data = tmp_path / "home"
    data.mkdir()
    (data / "thesis.tex").write_text("chapter 1")
    process = start(data)
    assert process.wait(20) == ExitCode.DATA_DIRECTORY
    assert "has files of somebody else ('thesis.tex' is one of 1)" in process.sentence()
    assert [path.name for path in data.iterdir()] == ["thesis.tex"]


def test_servers_do_not_take_the_directories_of_one_another(tmp_path: Path) -> None:
    with meta_server(tmp_path / "meta") as first:
        first.wait_ready()
    with server(tmp_path / "delay", broker_port=1) as second:
        second.wait_ready()
    assert meta(tmp_path / "delay").wait(20) == ExitCode.DATA_DIRECTORY
    assert delay(tmp_path / "meta").wait(20) == ExitCode.DATA_DIRECTORY


@pytest.mark.parametrize("start", [delay, meta])
def test_the_root_of_a_file_system_is_as_good_as_empty_and_its_own_directory_is_taken_again(
    tmp_path: Path, start: Callable[[Path], ServerProcess]
) -> None:
    data = tmp_path / "mount"
    (data / "lost+found").mkdir(parents=True)
    for _ in range(2):
        process = start(data)
        try:
            process.wait_ready()
        finally:
            process.kill()
