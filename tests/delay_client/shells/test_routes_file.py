"""Promise: routes outlive the process in a small file, and no file keeps a client from its work."""

import json
import logging
import os
from pathlib import Path

import pytest

from delay_client.messages import clock
from delay_client.shells.routes_file import RoutesFile, routes_keeper

DAY_MS = 86_400_000
ROUTES = {"s": (("g1", "a:1"), ("g2", "b:1")), "t": (("g1", "a:1"),)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "routes.json"


def test_what_is_kept_is_found_by_the_next_process(path: Path) -> None:
    file = RoutesFile(path, ["n:2", "m:1"])
    assert file.load() == {}
    file.keep(ROUTES)
    assert RoutesFile(path, ["m:1", "n:2"]).load() == ROUTES
    assert os.listdir(path.parent) == ["routes.json"], "nothing is left beside it"


def test_subjects_of_another_process_stay_until_they_are_old(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RoutesFile(path, "m:1").keep(ROUTES)
    now_ms = clock.wall_ms()
    monkeypatch.setattr(clock, "wall_ms", lambda: now_ms + 4 * DAY_MS)
    second = RoutesFile(path, "m:1")
    second.load()
    second.keep({"t": (("g2", "b:1"),)})
    assert RoutesFile(path, "m:1").load() == ROUTES | {"t": (("g2", "b:1"),)}
    monkeypatch.setattr(clock, "wall_ms", lambda: now_ms + 8 * DAY_MS)
    assert RoutesFile(path, "m:1").load() == {"t": (("g2", "b:1"),)}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is no file of routes"),
        (b"\xff\x00", "it is no file of routes"),
        (b"[" * 100_000, "it is no file of routes"),
        (b'{"version": 1, "meta": ["m:1"], "routes": {"s": [1, "g"]}}', "it is no file of routes"),
        (b'{"version": 2, "meta": ["m:1"], "routes": {}}', "it is of version 2, not 1"),
        (b'{"version": 1, "meta": ["x:1"], "routes": {}}', "it is of other meta servers: x:1"),
        (
            b'{"version": 1, "meta": ["m:1"], "routes": {"s": [1, [["g", "a:1"]]]}}',
            "it is older than 7 days",
        ),
        (b" " * (5 << 20), "it has more than 4194304 bytes"),
    ],
)
def test_a_file_that_is_none_is_ignored_with_a_line_and_replaced(
    path: Path, content: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(content)
    file = RoutesFile(path, "m:1")
    assert file.load() == {}
    assert f"routes are not taken from {path}: {why}" in caplog.text
    file.keep(ROUTES)
    assert RoutesFile(path, "m:1").load() == ROUTES


def test_a_path_that_is_no_file_or_cannot_be_written_is_told_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.mkdir()
    file = RoutesFile(path, "m:1")
    assert file.load() == {}
    assert "it is no file" in caplog.text
    caplog.clear()
    caplog.set_level(logging.INFO)
    file.keep(ROUTES)
    file.keep(ROUTES)
    assert len(caplog.records) == 1
    assert f"routes cannot be kept in {path}" in caplog.text
    assert os.listdir(path.parent) == ["routes.json"]


def test_a_file_has_a_limit_and_keeps_the_newest(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RoutesFile(path, "m:1")
    file.keep({f"s{number}": (("g", "a:1"),) for number in range(10_000)})
    now_ms = clock.wall_ms()
    monkeypatch.setattr(clock, "wall_ms", lambda: now_ms + 1000)
    file.keep({"new": (("g", "a:1"),)})
    found = RoutesFile(path, "m:1").load()
    assert (len(found), "new" in found) == (10_000, True)
    many = tuple((f"group-{number}", f"host-{number}.example:20801") for number in range(64))
    monkeypatch.setattr(clock, "wall_ms", lambda: now_ms + 2000)
    file.keep({f"t{number}": many for number in range(5_000)})
    assert path.stat().st_size <= 4 << 20
    assert len(RoutesFile(path, "m:1").load()) > 500


def test_the_file_is_what_the_module_says(path: Path) -> None:
    RoutesFile(path, "m:1").keep({"s": (("g1", "a:1"),)})
    content = json.loads(path.read_bytes())
    told_ms = content["routes"]["s"][0]
    assert abs(told_ms - clock.wall_ms()) < 60_000
    routes = {"s": [told_ms, [["g1", "a:1"]]]}
    assert content == {"version": 1, "meta": ["m:1"], "routes": routes}


def test_it_is_for_clients_of_a_meta_server(path: Path) -> None:
    assert routes_keeper(None, None) is None
    with pytest.raises(ValueError, match="give meta= too"):
        routes_keeper(path, None)
