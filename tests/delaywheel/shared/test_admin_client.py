"""What a meta server answers, and how a command ends by it; where tokens come from."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from delay_transport.seams.errors import ConfigError
from delaywheel.main import main
from delaywheel.shared.admin_client import TOKEN_VARIABLE, Session
from delaywheel.shared.failures import ExitCode, Failure, failure_of
from tests.delaywheel.endings import refused
from tests.delaywheel.json_servers import answering


def problem(code: str, message: str) -> bytes:
    return json.dumps({"code": code, "detail": message}).encode()


def session(address: str, *, token_file: Path | None = None) -> Session:
    return Session(address=address, token_file=token_file, as_json=False)


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("code", "body", "exit_code", "words"),
    [
        (400, problem("bad-value", "x: 1 is not allowed"), ExitCode.USAGE, "x: 1"),
        (401, problem("token", "who?"), ExitCode.REFUSED, "wants a token"),
        (403, problem("role", "may not"), ExitCode.REFUSED, "may not"),
        (404, problem("not-found", "nothing"), ExitCode.REFUSED, "nothing"),
        (409, problem("conflict", "version 3"), ExitCode.REFUSED, "version 3"),
        (429, problem("denials", "too many"), ExitCode.REFUSED, "too many"),
        (503, problem("store", "away"), ExitCode.DISK, "away"),
        (503, problem("busy", "busy"), ExitCode.REFUSED, "busy"),
        (504, problem("unknown", "slow"), ExitCode.DISK, "slow"),
        (409, problem("conflict", "\x1b[2J\n"), ExitCode.REFUSED, r"\\x1b\[2J\\n"),
        (200, b"<html>", ExitCode.NETWORK, "no meta server: is this its http.address?"),
        (200, b"[" * 100_000, ExitCode.NETWORK, "no meta server"),
        (200, b'"\xff"', ExitCode.NETWORK, "no meta server"),
        (404, b"Not Found", ExitCode.NETWORK, "no meta server"),
        (404, b'{"detail":7}', ExitCode.NETWORK, "no meta server"),
        (500, b"Internal Server Error", ExitCode.REFUSED, "log of the meta server"),
        (500, problem("internal", "the log has it"), ExitCode.REFUSED, "the log has it"),
    ],
)
def test_each_refusal_is_one_sentence_and_an_exit_code(
    code: int, body: bytes, exit_code: ExitCode, words: str
) -> None:
    with (
        answering(lambda *_: (code, body)) as address,
        pytest.raises(Failure, match=words) as caught,
    ):
        session(address).ask("GET", "limits")
    assert caught.value.exit_code == exit_code
    assert "\n" not in caught.value.message


def test_nobody_there_is_a_failure_of_the_network() -> None:
    with pytest.raises(Failure, match="no meta server answers") as caught:
        session("127.0.0.1:1").ask("GET", "limits")
    assert caught.value.exit_code == ExitCode.NETWORK


@pytest.mark.parametrize("command", ["topology", "admin get broker-group", "controls", "status"])
def test_a_command_with_no_address_is_one_sentence(command: str) -> None:
    words = command.split()
    at = ["--server" if command == "status" else "--meta", "x..y:5"]
    words = [words[0], *at, *words[1:]] if words[0] == "admin" else [*words, *at]
    said = "'x..y:5' is not an address: 'x..y' is not a host name"
    result = refused(CliRunner().invoke(main, words), ExitCode.USAGE, said)
    assert result.stderr.count("\n") == 1


def test_names_parameters_and_bodies_arrive_as_they_are() -> None:
    seen: list[tuple[str, str, bytes]] = []

    def answer(method: str, target: str, _: dict[str, str], body: bytes) -> tuple[int, bytes]:
        seen.append((method, target, body))
        return 200, b"{}"

    with answering(answer) as address:
        asked = session(address)
        asked.ask("GET", "routes", "a%/ä?", query={"limit": 5, "yes": True, "none": None, "e": ""})
        asked.ask("PUT", "routes", "a", body={"groups": ["g"], "version": None})
    assert seen == [
        ("GET", "/api/v1/routes/a%25%2F%C3%A4%3F?limit=5&yes=true&e=", b""),
        ("PUT", "/api/v1/routes/a", b'{"groups":["g"]}'),
    ]


def test_the_token_comes_from_the_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []

    def answer(_: str, __: str, headers: dict[str, str], ___: bytes) -> tuple[int, bytes]:
        seen.append(headers.get("authorization"))
        return 200, b"{}"

    file, files = tmp_path / "token", tmp_path / "tokens"
    file.write_text("from-file\n")
    with answering(answer) as address:
        files.write_text(f"10.0.0.1:1 other\n\n{address}  from-line\n* rest\n")
        session(address).ask("GET", "limits")
        monkeypatch.setenv(TOKEN_VARIABLE, "from-env")
        session(address).ask("GET", "limits")
        session(address, token_file=file).ask("GET", "limits")
        session(address, token_file=files).ask("GET", "limits")
        files.write_text("10.0.0.1:1 other\n")
        session(address, token_file=files).ask("GET", "limits")
    words = [None, "Bearer from-env", "Bearer from-file", "Bearer from-line", "Bearer from-env"]
    assert seen == words


@pytest.mark.parametrize("text", ["", "a\nb", "a b\nc", "h:1 a\tb", "a\x01", "ä"])
def test_a_file_without_a_token_is_said(tmp_path: Path, text: str) -> None:
    file = tmp_path / "token"
    file.write_bytes(text.encode())
    with pytest.raises(ConfigError, match="token") as caught:
        session("127.0.0.1:1", token_file=file).ask("GET", "limits")
    failure = failure_of(caught.value)
    assert failure is not None
    assert failure.exit_code == ExitCode.USAGE
    with pytest.raises(ConfigError, match="cannot be read"):
        session("127.0.0.1:1", token_file=tmp_path / "no").ask("GET", "limits")


@pytest.mark.parametrize(
    ("limit", "count", "asked"),
    [(None, 2500, [1000, 1000, 1000]), (1200, 1200, [1000, 200]), (3, 3, [3])],
)
def test_rows_come_page_by_page_up_to_a_limit(
    limit: int | None, count: int, asked: list[int]
) -> None:
    sizes: list[int] = []

    def answer(_: str, target: str, __: dict[str, str], ___: bytes) -> tuple[int, bytes]:
        query = dict(pair.split("=") for pair in target.partition("?")[2].split("&"))
        start, size = int(query.get("after", 0)), int(query["limit"])
        sizes.append(size)
        items = [{"n": number} for number in range(start, min(start + size, 2500))]
        more = str(start + size) if start + size < 2500 else None
        return 200, json.dumps({"items": items, "next": more}).encode()

    with answering(answer) as address:
        rows = list(session(address).rows("subjects", query={}, limit=limit))
    assert (len(rows), sizes) == (count, asked)
