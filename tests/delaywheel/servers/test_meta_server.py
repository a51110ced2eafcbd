"""`delaywheel meta-server` turns its options into a configuration and hands it to the server."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from delaywheel.main import main
from delaywheel.shared.failures import ExitCode
from tests.delaywheel.endings import done, refused
from tests.delaywheel.servers.recording_server import RecordingServer, recorded


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> RecordingServer:
    return recorded(monkeypatch, "meta_server.process")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["meta-server", *arguments])


def test_the_short_form_needs_no_file(server: RecordingServer, tmp_path: Path) -> None:
    data = tmp_path / "a" / "b"
    done(run("--data", str(data), "--listen", "127.0.0.1:1", "--http", "127.0.0.1:2"))
    (config,) = server.configs
    assert config.node.data_dir == data
    assert data.is_dir()
    assert (config.listener.address, config.http.address) == ("127.0.0.1:1", "127.0.0.1:2")


def test_an_error_names_the_option_that_was_typed(server: RecordingServer, tmp_path: Path) -> None:
    for option in ("--listen", "--http"):
        result = run("--data", str(tmp_path), option, "nowhere")
        assert result.exit_code == ExitCode.USAGE
        assert result.stderr.startswith(f"Error: {option} nowhere: ")
    assert server.configs == []


def test_options_win_over_the_file_and_set_over_both(
    server: RecordingServer, tmp_path: Path
) -> None:
    path = tmp_path / "meta.toml"
    path.write_text(
        f'[node]\ndata_dir = "{tmp_path / "data"}"\n[listener]\naddress = "127.0.0.1:5"\n'
    )
    run("--config", str(path), "--listen", "127.0.0.1:6", "--set", "listener.address=127.0.0.1:7")
    (config,) = server.configs
    assert config.listener.address == "127.0.0.1:7"


def test_a_data_directory_that_cannot_be_made_is_said(
    server: RecordingServer, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    result = run("--data", str(tmp_path / "file" / "d"))
    assert result.exit_code == ExitCode.DATA_DIRECTORY
    assert "file is a file, no directory" in result.output
    assert server.configs == []


def test_without_a_data_directory_it_says_which_option_is_missing() -> None:
    refused(run(), ExitCode.USAGE, "--data")
