"""`delaywheel delay-server` turns its options into a configuration and hands it to the server."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import delay_transport.seams.process
from delaywheel.main import main
from delaywheel.shared.failures import ExitCode
from storage.disk.errors import DamagedError, DataDirectoryError
from tests.delaywheel.endings import done, refused
from tests.delaywheel.servers.recording_server import RecordingServer, recorded


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> RecordingServer:
    monkeypatch.setattr(delay_transport.seams.process, "keep_freed_memory", lambda: None)
    return recorded(monkeypatch, "delay_server.process")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["delay-server", *arguments])


def test_the_short_form_needs_no_file(server: RecordingServer) -> None:
    node = ("--cluster", "c", "--group", "g", "--node-id", "n")
    brokers = ("--broker", "g1=127.0.0.1:1", "--broker", "g2=[::1]:2")
    done(run("--data", "d", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", *brokers, *node))
    (config,) = server.configs
    assert config.node.data_dir == Path("d")
    assert config.listener.address == "127.0.0.1:0"
    assert config.http.address == "127.0.0.1:0"
    assert config.brokers == {"g1": "127.0.0.1:1", "g2": "[::1]:2"}
    assert (config.node.cluster, config.node.group, config.node.node_id) == ("c", "g", "n")


@pytest.mark.parametrize(
    "options",
    [
        ("--meta", "127.0.0.1:8080", "--meta", "m2.test:8081"),
        ("--meta", "127.0.0.1:8080,m2.test:8081"),
    ],
    ids=["repeated", "with a comma"],
)
def test_with_a_meta_server_no_broker_is_needed(
    server: RecordingServer, options: tuple[str, ...]
) -> None:
    done(run("--data", "d", *options))
    (config,) = server.configs
    assert config.meta.http_addresses() == (("127.0.0.1", 8080), ("m2.test", 8081))
    assert config.brokers == {}


def test_a_broker_group_that_is_given_twice_is_refused(server: RecordingServer) -> None:
    result = run("--data", "d", "--broker", "g1=127.0.0.1:1", "--broker", "g1=127.0.0.1:2")
    assert result.exit_code == ExitCode.USAGE
    assert "'g1' is given twice" in result.stderr
    assert server.configs == []


@pytest.mark.parametrize("option", ["--broker g=", "--meta ", "--listen ", "--http "])
@pytest.mark.parametrize("host", ["a..b", "x" * 64, "1.2.3", "grüße.example"])
def test_an_option_with_no_address_is_one_sentence_that_names_it(
    server: RecordingServer, option: str, host: str
) -> None:
    name, _, before = option.partition(" ")
    result = run("--data", "d", name, f"{before}{host}:5")
    assert result.exit_code == ExitCode.USAGE
    named = "broker 'g': " if before else f"{name} {host}:5: "
    assert result.stderr.startswith("Error: ")
    assert named in result.stderr
    assert "is not a host name" in result.stderr or "neither an IPv4" in result.stderr
    assert result.stderr.count("\n") == 1
    assert server.configs == []


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ('[brokers]\ng1 = "x..y:1"\n', "broker 'g1'"),
        ('[brokers]\ng1 = "h:0"\n', "broker 'g1'"),
        ('[meta]\naddresses = "h:1,x..y:1"\n', "meta: addresses"),
        ('[brokers]\ng1 = "h:1"\n[meta]\nadvertised = "x..y:1"\n', "meta: "),
        ('[brokers]\ng1 = "h:1"\n[listener]\naddress = "x..y:1"\n', "listener: "),
        ('[brokers]\ng1 = "h:1"\n[http]\naddress = "x..y:1"\n', "http: "),
    ],
)
def test_a_file_with_no_address_is_one_sentence_that_names_the_setting(
    server: RecordingServer, tmp_path: Path, text: str, setting: str
) -> None:
    file = tmp_path / "delay.toml"
    file.write_text(f'[node]\ndata_dir = "a"\n{text}')
    result = refused(run("--config", str(file)), ExitCode.USAGE, setting)
    assert "is not an address" in result.stderr
    assert result.stderr.count("\n") == 1
    assert server.configs == []


def test_options_win_over_the_file_and_set_over_both(
    server: RecordingServer, tmp_path: Path
) -> None:
    file = tmp_path / "delay.toml"
    file.write_text(
        '[node]\ndata_dir = "a"\ngroup = "a"\n[brokers]\ng1 = "h:1"\n[wheel]\nslot_ms=9\n'
    )
    done(run("--config", str(file), "--data", "b", "--group", "b", "--set", "node.group=c"))
    (config,) = server.configs
    assert (config.node.data_dir, config.node.group) == (Path("b"), "c")
    assert config.wheel.slot_ms == 9
    assert config.brokers == {"g1": "h:1"}


@pytest.mark.parametrize("broker", ["127.0.0.1:1", "=h:1", "g1="])
def test_a_broker_without_a_name_or_an_address_is_refused(
    server: RecordingServer, broker: str
) -> None:
    refused(run("--data", "d", "--broker", broker), ExitCode.USAGE, "NAME=HOST:PORT")
    assert server.configs == []


def test_a_typed_error_of_the_server_becomes_a_sentence_and_a_code(server: RecordingServer) -> None:
    server.error = ExceptionGroup("nursery", [DataDirectoryError("data is in use")])
    result = run("--data", "d", "--broker", "g1=h:1")
    assert result.exit_code == ExitCode.DATA_DIRECTORY
    assert result.stderr == "Error: data is in use\n"


def test_a_bug_keeps_its_traceback(server: RecordingServer) -> None:
    server.error = ZeroDivisionError()
    result = run("--data", "d", "--broker", "g1=h:1")
    assert isinstance(result.exception, ZeroDivisionError)


def test_a_node_that_cannot_serve_its_logs_says_what_to_run(server: RecordingServer) -> None:
    server.error = ExceptionGroup(
        "nursery", [DamagedError(path="checkpoint/checkpoint", position=72, reason="bad CRC")]
    )
    result = run("--data", "my data", "--broker", "g1=127.0.0.1:1")
    assert result.exit_code == ExitCode.LOGS
    assert "checkpoint/checkpoint at position 72: bad CRC" in result.stderr
    assert "`delaywheel log verify 'my data'`" in result.stderr
    assert "`delaywheel log salvage 'my data' --out salvaged`" in result.stderr
