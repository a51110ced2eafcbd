"""`delaywheel admin token`: a token is shown once, kept as a hash, and taken away for good."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from delay_transport.http.tokens import Tokens, read_tokens
from delaywheel.admin import tokens
from delaywheel.main import main
from delaywheel.shared.failures import ExitCode
from storage.disk.disk import DirectoryDisk
from tests.delaywheel.endings import done, refused


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["admin", "token", *arguments])


def add(file: Path, name: str, role: str = "admin") -> str:
    return done(run("add", name, "--role", role, "--file", str(file))).output.strip()


def test_a_token_is_shown_once_and_only_its_hash_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    first, second = add(file, "alice"), add(file, "bob", "read")
    assert first != second
    content = file.read_text()
    assert first not in content
    tokens = Tokens(file)
    tokens.read()
    found = tokens.find(second)
    assert found is not None
    assert (found.name, found.role.value) == ("bob", "read")
    listed = run("list", "--file", str(file)).output
    assert "alice" in listed
    assert "read" in listed
    assert first not in listed


def test_only_its_owner_may_read_the_file_and_its_lock_alone_stays_behind(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    add(file, "alice")
    add(file, "bob")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"tokens.json", ".tokens.json.lock"}


def test_the_file_may_lie_in_the_data_directory_of_a_server_that_runs(tmp_path: Path) -> None:
    with DirectoryDisk(tmp_path).lock("lock"):
        add(tmp_path / "tokens.json", "alice")


def test_a_token_that_is_taken_away_is_no_token_any_more(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    text = add(file, "alice")
    add(file, "bob")
    assert run("remove", "alice", "--file", str(file)).exit_code == 0
    tokens = Tokens(file)
    tokens.read()
    assert tokens.find(text) is None
    assert len(tokens.entries) == 1
    assert run("remove", "alice", "--file", str(file)).exit_code == ExitCode.USAGE


def test_two_commands_at_a_time_lose_no_token(tmp_path: Path) -> None:
    command = tokens.add
    assert command.callback is not None
    file = tmp_path / "tokens.json"
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda number: command.callback(  # type: ignore[misc]
                    name=f"t{number}", role="read", subject=(), file=file
                ),
                range(20),
            )
        )
    assert len(read_tokens(file)) == 20


@pytest.mark.parametrize(
    ("name", "words"),
    [("alice", "already"), ("a b", "letters"), ("", "letters"), ("loopback", "loopback")],
)
def test_a_name_that_cannot_be_is_refused_and_the_file_stays(
    tmp_path: Path, name: str, words: str
) -> None:
    file = tmp_path / "tokens.json"
    add(file, "alice")
    before = file.read_bytes()
    refused(run("add", name, "--role", "admin", "--file", str(file)), ExitCode.USAGE, words)
    assert file.read_bytes() == before


def test_a_file_that_is_no_file_of_tokens_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    result = run("add", "alice", "--role", "admin", "--file", str(file))
    assert result.exit_code == ExitCode.USAGE
    assert file.read_text() == "mine"
    missing = run("list", "--file", str(tmp_path / "no"))
    assert missing.exit_code == ExitCode.USAGE
    nowhere = run("add", "a", "--role", "read", "--file", str(tmp_path / "no" / "tokens"))
    assert nowhere.exit_code == ExitCode.USAGE
