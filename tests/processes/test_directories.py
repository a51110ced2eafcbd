"""Two servers share no directory, one that is taken away ends its server, nobody else reads it.

And files that somebody has blown up cost a bounded time and a sentence.
"""

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from delaywheel.shared.failures import ExitCode
from tests.processes.real_processes import (
    Producer,
    RecordingBroker,
    ServerProcess,
    delaywheel,
    make_item,
    meta_server,
    server,
    until,
    wall_ms,
)

pytestmark = [pytest.mark.process, pytest.mark.long]

_HUGE = 100 * 2**30
"""Bytes that a file pretends to have; no block of the disk is behind them."""
_BOUND_S = 20.0


def _move_away(data: Path) -> None:
    """Put a copy of a directory in its place."""
    data.rename(data.with_name("elsewhere"))
    shutil.copytree(data.with_name("elsewhere"), data)


def _delete_lock(data: Path) -> None:
    (data / "lock").unlink()


def _replace_log(data: Path) -> None:
    """Put a copy of the open file of the message_log in its place."""
    [log] = data.glob("message_log/*.log")
    shutil.copy(log, data / "copy")
    (data / "copy").rename(log)


@pytest.mark.parametrize(
    ("take_away", "named"),
    [(_move_away, "data"), (_delete_lock, "lock"), (_replace_log, "00000000000000000001.log")],
)
def test_a_server_whose_directory_was_replaced_ends_and_says_so(
    tmp_path: Path, take_away: Callable[[Path], None], named: str
) -> None:
    data = tmp_path / "data"
    with server(data, broker_port=1) as node:
        node.wait_ready()
        with Producer(node.port) as producer:
            assert producer.send([make_item("m1", wall_ms() + 3_600_000)]) == {}
        take_away(data)
        assert node.wait(10) == ExitCode.DISK
        sentence = node.sentence()
        assert f"{named} is not" in sentence
        assert "start again" in sentence


def test_two_meta_servers_do_not_share_a_sqlite_directory(tmp_path: Path) -> None:
    data = tmp_path / "meta"
    url = f"store.url=sqlite:///{data / 'meta.db'}"
    with meta_server(data) as first:
        first.wait_ready()
        for options, other in (((), data), (("--set", url), tmp_path / "other")):
            with meta_server(other, options=options) as second:
                assert second.wait(20) == ExitCode.DATA_DIRECTORY
        refused = f"Error: {data} is in use by another process; one data directory serves one node"
        lines = [line for line in first.log().splitlines() if line.startswith("Error: ")]
        assert lines == [refused] * 2
        assert first.get("/readyz")[0] == 200
        first.terminate()
    with meta_server(data) as node:
        node.wait_ready().terminate()


@contextlib.contextmanager
def _running(
    kind: str, data: Path, broker_port: int, options: tuple[str, ...] = ()
) -> Iterator[ServerProcess]:
    if kind == "meta-server":
        with meta_server(data, options=options) as process:
            yield process
    else:
        with server(data, broker_port=broker_port, options=options) as process:
            yield process


def _not_as_allowed(root: Path, allowed: int) -> dict[str, str]:
    """Return what in a directory has another mode than it is to have."""
    found = {}
    for path in (root, *root.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        wanted = (0o777 if path.is_dir() else 0o666) & allowed
        if mode != wanted:
            found[str(path.relative_to(root))] = f"{mode:04o}"
    return found


@pytest.mark.parametrize(
    ("umask", "options", "allowed"),
    [(0o000, (), 0o700), (0o777, ("--set", "node.group_may_read=true"), 0o750)],
)
@pytest.mark.parametrize("kind", ["delay-server", "meta-server"])
def test_what_servers_write_is_for_nobody_else_whatever_the_umask(
    tmp_path: Path, kind: str, umask: int, options: tuple[str, ...], allowed: int
) -> None:
    data = tmp_path / "data"
    (tmp_path / "server.log").touch()
    before = os.umask(umask)
    try:
        with RecordingBroker() as broker, _running(kind, data, broker.port, options) as node:
            node.wait_ready()
            if kind == "delay-server":
                with Producer(node.port) as producer:
                    assert producer.send([make_item("m1", wall_ms() + 200)]) == {}
                assert until(lambda: broker.ids, seconds=10)
            assert _not_as_allowed(data, allowed) == {}
            node.terminate()
        assert _not_as_allowed(data, allowed) == {}
    finally:
        os.umask(before)


@pytest.mark.parametrize("kind", ["delay-server", "meta-server"])
def test_an_empty_directory_is_closed_to_others_and_one_that_is_used_is_told_of(
    tmp_path: Path, kind: str
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    with _running(kind, data, 1) as node:
        node.wait_ready()
        assert _not_as_allowed(data, 0o700) == {}
        node.terminate()
    assert "others may use" not in node.log()
    data.chmod(0o755)
    with _running(kind, data, 1) as node:
        node.wait_ready().terminate()
    assert _not_as_allowed(data, 0o700) == {".": "0755"}
    assert node.log().count(f"`chmod 0700 {data}`") == 1


def _node_with_a_message(data: Path) -> None:
    with server(data, broker_port=1) as node:
        node.wait_ready()
        with Producer(node.port) as producer:
            assert producer.send([make_item("m1", wall_ms() + 3_600_000)]) == {}
        node.terminate()


@pytest.mark.parametrize("name", ["identity", "checkpoint/checkpoint", "controls"])
def test_a_small_file_that_was_blown_up_is_refused_in_one_sentence(
    tmp_path: Path, name: str
) -> None:
    data = tmp_path / "data"
    _node_with_a_message(data)
    if name == "controls":
        (data / name).write_bytes(b"")
    os.truncate(data / name, _HUGE)
    with server(data, broker_port=1) as node:
        assert node.wait(_BOUND_S) == ExitCode.LOGS
        assert f"{name} at position" in node.sentence()
        assert f"{_HUGE} bytes" in node.sentence()


@pytest.mark.parametrize("behind", [b"", b"x"])
def test_zeros_behind_the_logs_delay_no_start_and_no_look(tmp_path: Path, behind: bytes) -> None:
    data = tmp_path / "data"
    with RecordingBroker() as broker:
        with server(data, broker_port=broker.port) as node:
            node.wait_ready()
            with Producer(node.port) as producer:
                assert producer.send([make_item("m1", wall_ms())]) == {}
                assert until(lambda: broker.ids, seconds=10)
                time.sleep(0.5)
                assert producer.send([make_item("m2", wall_ms() + 20_000)]) == {}
            node.kill()
        logs = [*data.glob("message_log/*.log"), *data.glob("dispatch_log/*.minute")]
        sizes = {path: path.stat().st_size for path in logs}
        assert len(sizes) >= 1
        for path in logs:
            os.truncate(path, _HUGE - len(behind))
            with path.open("ab") as file:
                file.write(behind)
        began = time.monotonic()
        for command in ("verify", "manifest"):
            looked = delaywheel("log", command, str(data), timeout_s=_BOUND_S)
            assert looked.returncode in {0, ExitCode.LOGS}
            assert "Traceback" not in looked.stderr
        with server(data, broker_port=broker.port) as node:
            node.wait_ready()
            assert time.monotonic() - began < _BOUND_S
            [log] = data.glob("message_log/*.log")
            assert log.stat().st_size < sizes[log] + 2**16
            assert until(lambda: "m2" in broker.ids, seconds=30)
            node.terminate()
        assert broker.ids.count("m1") == 1
