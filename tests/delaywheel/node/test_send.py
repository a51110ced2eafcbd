"""`delaywheel send` turns its options into messages, and outcomes into words and an exit code."""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pytest
from click.testing import CliRunner, Result

import delay_client
from delay_client import DelayTooLong, Outcome, OutgoingMessage, Receipt, Unavailable
from delaywheel.main import main
from delaywheel.shared.failures import ExitCode
from tests.delaywheel.endings import done, refused


class RecordingClient:
    """Stands in for the client: keeps what it was given, and answers as `refuse` says."""

    def __init__(self) -> None:
        self.sent: list[OutgoingMessage] = []
        self.refuse: dict[str | None, delay_client.DelaywheelError] = {}
        self.kept_by = "127.0.0.1:20801"
        self.receipt: dict[str, Any] = {}
        self.trouble = ""
        self.servers: Sequence[str] | None = None
        self.metas: Sequence[str] | None = None
        self.timeout: float | None = None

    def __call__(
        self,
        servers: Sequence[str] | None = None,
        *,
        meta: Sequence[str] | None = None,
        on_trouble: Callable[[str], None],
    ) -> Self:
        if self.trouble:
            on_trouble(self.trouble)
        if not all(":" in server for server in [*(servers or ()), *(meta or ())]):
            raise ValueError("no port")
        self.servers, self.metas = servers, meta
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def send_many(
        self,
        messages: Iterable[OutgoingMessage],
        *,
        timeout: float | None,
    ) -> list[Outcome]:
        self.timeout = timeout
        outcomes: list[Outcome] = []
        for message in messages:
            self.sent.append(message)
            outcomes.append(
                self.refuse.get(message.message_id)
                or Receipt(
                    message.message_id or "made", 1_700_000_000_000, self.kept_by, 1, **self.receipt
                )
            )
        return outcomes


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch) -> RecordingClient:
    recording = RecordingClient()
    monkeypatch.setattr(delay_client, "BlockingClient", recording)
    return recording


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["send", "--subject", "flight", *arguments])


def test_one_message_is_sent_and_its_receipt_shown(client: RecordingClient) -> None:
    result = run("--delay", "1h30m", "--id", "m1", "--tag", "a", "--timeout", "3s", "call back")
    assert result.exit_code == 0, result.output
    assert client.sent == [
        OutgoingMessage("flight", "call back", timedelta(minutes=90), None, "m1", ("a",))
    ]
    assert (client.servers, client.metas) == (None, None), "the client's own default"
    assert client.timeout == 3.0
    assert result.output.startswith("m1 kept by 127.0.0.1:20801, due 2023-11-1")


def test_meta_servers_are_passed_on(client: RecordingClient) -> None:
    assert run("--delay", "1", "--meta", "m:8080", "--meta", "n:8080").exit_code == 0
    assert client.servers is None
    assert client.metas == ("m:8080", "n:8080")
    result = run("--delay", "1", "--meta", "m:8080", "--server", "s:1")
    assert (result.exit_code, "either --meta or --server" in result.stderr) == (2, True)
    refused(run("--delay", "1", "--meta", "nonsense"), 2, "--meta")


def test_trouble_is_one_line_on_standard_error(client: RecordingClient) -> None:
    client.trouble = "no message was accepted for 1 s"
    result = run("--delay", "1")
    assert (result.exit_code, result.stderr) == (0, "no message was accepted for 1 s\n")


@pytest.mark.parametrize("level", [0, 3, 2**40])
def test_a_level_is_passed_on(client: RecordingClient, level: int) -> None:
    assert run("--level", str(level), "text").exit_code == 0
    assert client.sent == [OutgoingMessage("flight", "text", level=level)]


def test_attributes_and_a_moment_are_taken(client: RecordingClient) -> None:
    done(run("--at", "2026-12-24T18:00:00+00:00", "--attribute", "a=1", "--attribute", "b=x=y"))
    (message,) = client.sent
    assert message.attributes == {"a": "1", "b": "x=y"}
    assert run("--delay", "1", "--attribute", "a=1", "text").exit_code == 0
    assert (client.sent[-1].body, client.sent[-1].attributes) == ("text", {"a": "1"})
    assert message.at == datetime(2026, 12, 24, 18, tzinfo=UTC)


def test_the_body_comes_from_standard_input_or_a_file(
    client: RecordingClient, tmp_path: Path
) -> None:
    body = b"\xff\x00 bytes\n"
    (tmp_path / "body").write_bytes(body)
    for arguments in (("-",), ("--body-file", "-"), ("--body-file", str(tmp_path / "body"))):
        command = ["send", "--subject", "s", "--delay", "1", *arguments]
        done(CliRunner().invoke(main, command, input=body))
        assert client.sent.pop().body == body
    # One that has no end is read no further than may be sent.
    assert run("--delay", "1", "--body-file", "/dev/zero").exit_code == 0
    assert client.sent.pop().body == bytes((1 << 20) + 1)
    assert run("--delay", "1", "--body-file", str(tmp_path / "none")).exit_code == ExitCode.USAGE
    refused(run("--delay", "1", "--body-file", "-", "text"), 2, "give either TEXT or --body-file")


def test_what_is_past_due_or_elsewhere_is_said(client: RecordingClient) -> None:
    client.receipt = {"past_due": True}
    result = run("--at", "2020-01-01T00:00:00Z")
    assert result.output.endswith(", which is past: it is delivered at once\n")
    client.receipt = {"elsewhere": True}
    result = run("--delay", "1", "--id", "m")
    assert "m kept by 127.0.0.1:20801 (not the group that its id names, which took" in result.output
    client.receipt = {"duplicate": True}
    assert "m kept before by 127." in run("--delay", "1", "--id", "m").output
    assert run("--delay", "1", "--count", "2").output.endswith("; 2 kept before\n")
    client.receipt = {"elsewhere": True, "past_due": True}
    result = run("--delay", "1", "--id", "m", "--count", "2")
    assert result.output.endswith(
        "; 2 past due: at once; 2 not with the group that their id names\n"
    )
    result = run("--delay", "1", "--id", "m", "--json")
    assert json.loads(result.stdout)["past_due"] is True


def test_of_many_messages_each_has_an_id_of_its_own(client: RecordingClient) -> None:
    result = run("--delay", "1", "--id", "m", "--count", "3")
    assert [message.message_id for message in client.sent] == ["m-1", "m-2", "m-3"]
    assert result.output.startswith("3 of 3 messages accepted, due 2023-11-1")


def test_json_has_a_line_per_message(client: RecordingClient) -> None:
    client.refuse = {"m-2": DelayTooLong("too far", message_id="m-2", attempts=1)}
    result = run("--delay", "1", "--id", "m", "--count", "2", "--json")
    first, second = map(json.loads, result.stdout.splitlines())
    assert (first["accepted"], first["message_id"], first["duplicate"]) == (True, "m-1", False)
    assert (second["accepted"], second["error"], second["reason"]) == (
        False,
        "DelayTooLong",
        "too far",
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [(DelayTooLong("too far"), ExitCode.REFUSED), (Unavailable("nobody"), ExitCode.NETWORK)],
)
def test_a_message_that_was_not_accepted_ends_in_its_sentence_and_code(
    client: RecordingClient, error: delay_client.DelaywheelError, code: int
) -> None:
    client.refuse = {"m": error}
    result = run("--delay", "1", "--id", "m")
    assert result.exit_code == code
    assert result.stderr == f"Error: {error}\n"


def test_some_of_many_refused_is_refused(client: RecordingClient) -> None:
    client.refuse = {"m-2": Unavailable("nobody")}
    result = run("--delay", "1", "--id", "m", "--count", "2")
    assert result.exit_code == ExitCode.REFUSED
    assert result.stdout.startswith("1 of 2 messages accepted, due 2023-11-1")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--delay", "1", "--at", "2026-12-24"),
        ("--delay", "1", "--level", "0"),
        ("--level", "1", "--at", "2026-12-24"),
        ("--level", "-1"),
        ("--level", "1.5"),
        ("--delay", "soon"),
        ("--delay", "1", "--server", "nowhere"),
        ("--delay", "1", "--count", "0"),
        ("--delay", "1", "--timeout", "0s"),
    ],
)
def test_what_cannot_be_sent_is_a_wrong_option(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == ExitCode.USAGE


def test_what_others_chose_is_printed_without_control_characters(
    client: RecordingClient,
) -> None:
    client.refuse = {"bad": delay_client.Refused("a\nb\x1b[31m is no id")}
    result = run("--delay", "1", "--id", "a\nb\x1b[31m")
    assert result.output.startswith("a\\nb\\x1b[31m kept by")
    result = run("--delay", "1", "--id", "bad")
    assert "a\\nb\\x1b[31m is no id" in result.output
    assert "\x1b" not in result.output
    client.kept_by = "host\x1b[31m:1"
    result = run("--delay", "1", "--id", "m")
    assert "m kept by host\\x1b[31m:1, due" in result.output
    result = run("--delay", "1", "--id", "a\nb\x1b[31m", "--json")
    assert json.loads(result.output)["message_id"] == "a\nb\x1b[31m"


def test_a_moment_without_an_offset_is_local_time_and_the_answer_has_the_offset(
    client: RecordingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        result = run("--at", "2030-01-01T00:00:00", "--count", "2")
        assert {message.at for message in client.sent} == {
            datetime(2029, 12, 31, 18, 30, tzinfo=UTC)
        }
        assert result.output.endswith("+05:30\n")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert "local time" in " ".join(run("--help").output.split())
